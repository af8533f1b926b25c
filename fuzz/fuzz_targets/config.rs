//! Any bytes as a `config.json`: an error or a config whose sizes go together.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use pleach_checkpoint::ModelConfig;

fuzz_target!(|bytes: &[u8]| {
    let Ok(config) = ModelConfig::from_json(bytes, Path::new("config.json")) else { return };
    assert_eq!(config.num_attention_heads % config.num_key_value_heads, 0);
    assert!(config.rope.rotary_dim <= config.head_dim && config.rope.rotary_dim % 2 == 0);
    assert_eq!(config.layer_types.len(), config.num_hidden_layers);
});
