//! Any bytes as a drafter's `config.json`, in z-lab's layout or in Mirai's: an error or a config whose sizes go together.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use pleach_checkpoint::DrafterConfig;

fuzz_target!(|bytes: &[u8]| {
    let Ok(config) = DrafterConfig::from_json(bytes, Path::new("config.json")) else { return };
    assert_eq!(config.attention.len(), config.model.num_hidden_layers);
    assert!(config.attention.iter().all(|layer| layer.window != Some(0)));
    assert!(!config.target_layer_ids.is_empty());
    assert!(config.target_layer_ids.iter().all(|&layer| layer < config.num_target_layers));
    assert!((config.mask_token_id as usize) < config.model.vocab_size && config.block_size > 1);
    if let Some(conv) = config.conv {
        assert!(conv.kernel_size <= config.block_size && config.model.hidden_size % conv.group_size == 0);
    }
    assert!(config.selector.is_none_or(|selector| (1..=config.model.vocab_size).contains(&selector.top_k)));
});
