//! Folders of drafters: the one that comes with the project, and faults of all kinds.

use std::path::{Path, PathBuf};

use pleach_checkpoint::{DraftAttention, DrafterCheckpoint, DrafterConfig, TensorFormat};
use serde_json::{Value, json};

use crate::builders::{Entry, safetensors};

fn shipped() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/smollm2-135m-instruct-drafter"))
}

/// The config of the drafter that comes with the project, with one field replaced; `None` takes it out.
fn config_with(field: &str, value: Option<Value>) -> Result<DrafterConfig, String> {
    let text = std::fs::read_to_string(shipped().join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let (parent, name) = match field.split_once('.') {
        Some((parent, name)) => (config.get_mut(parent).unwrap(), name),
        None => (&mut config, field),
    };
    match value {
        Some(value) => parent[name] = value,
        None => drop(parent.as_object_mut().unwrap().remove(name)),
    }
    DrafterConfig::from_json(config.to_string().as_bytes(), Path::new("config.json")).map_err(|error| error.to_string())
}

#[test]
fn the_drafter_of_the_project_opens() {
    let mut drafter = DrafterCheckpoint::open(&shipped()).unwrap();
    let config = &drafter.config;
    assert_eq!((config.block_size, config.mask_token_id, config.num_target_layers), (8, 16, 30));
    assert_eq!(config.target_layer_ids, [1, 10, 18, 27]);
    assert_eq!(config.attention, [DraftAttention::Full; 2]);
    assert_eq!((config.model.hidden_size, config.model.intermediate_size, config.model.head_dim), (576, 1152, 64));
    assert_eq!(config.model.rope.theta, 100_000.0);
    let listed = config.draft_to_target.as_ref().unwrap();
    assert_eq!(listed.len(), 16_384);
    assert!(listed.iter().all(|&token| token < 49_152));
    // fc and two norms, and two layers of four projections, two head norms, two norms and three products.
    assert_eq!(drafter.tensors.len(), 3 + 2 * 11);
    let fc = drafter.tensors.take("fc.weight").unwrap();
    assert_eq!((fc.shape, fc.format), (vec![576, 4 * 576], TensorFormat::BF16));
}

#[test]
fn sliding_layers_have_their_window() {
    let layers = json!(["sliding_attention", "full_attention"]);
    assert_eq!(
        config_with("layer_types", Some(layers.clone())).unwrap_err(),
        "`config.json` has no `sliding_window`, and guessing it would give a different model: take the file from the model's own repository"
    );
    let text = std::fs::read_to_string(shipped().join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["layer_types"] = layers;
    config["sliding_window"] = json!(2048);
    config["use_sliding_window"] = json!(true);
    let config = DrafterConfig::from_json(config.to_string().as_bytes(), Path::new("config.json")).unwrap();
    assert_eq!(config.attention, [DraftAttention::Sliding { window: 2048 }, DraftAttention::Full]);
}

#[test]
fn fields_may_stand_beside_or_inside_their_object() {
    let inside = config_with("dflash_config.block_size", Some(json!(16))).unwrap();
    assert_eq!(inside.block_size, 16);
    let absent = config_with("mask_token_id", Some(json!(3))).unwrap();
    assert_eq!(absent.mask_token_id, 16, "the object goes first");
}

#[test]
fn configs_that_no_drafter_can_have_are_refused() {
    let refused = |field: &str, value: Value| config_with(field, Some(value)).unwrap_err();
    assert_eq!(
        refused("dflash_config.target_layer_ids", json!([1, 30])),
        "`dflash_config.target_layer_ids` in `config.json` is 30, expected a list of layers below 30"
    );
    assert!(refused("dflash_config.target_layer_ids", json!([])).ends_with("expected a list of layers below 30"));
    assert_eq!(
        refused("dflash_config.mask_token_id", json!(49_152)),
        "`dflash_config.mask_token_id` in `config.json` is 49152, expected a whole number from 0 to 49151"
    );
    assert_eq!(
        refused("block_size", json!(1)),
        "`block_size` in `config.json` is 1, expected a whole number from 2 to 64"
    );
    assert!(
        refused("layer_types", json!(["full_attention"])).ends_with("expected a list with one entry for each layer")
    );
    let missing = config_with("dflash_config", None).unwrap_err();
    assert!(missing.starts_with("`config.json` has no `dflash_config`"), "{missing}");
}

/// A tensor of zeros, four bytes each.
fn zeros(name: &str, dtype: &'static str, shape: &[usize]) -> Entry {
    let bytes = vec![0; 4 * shape.iter().product::<usize>()];
    Entry { name: name.to_owned(), dtype, shape: shape.to_vec(), bytes }
}

/// A drafter of one layer: width 4, one head of 2, two taps.
fn tiny(change: impl FnOnce(&mut Vec<Entry>)) -> Result<DrafterCheckpoint, String> {
    let dir = tempfile::tempdir().unwrap();
    let config = json!({
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": 4, "num_target_layers": 6,
        "dflash_config": {"target_layer_ids": [1, 3], "mask_token_id": 7}, "hidden_size": 4, "intermediate_size": 6,
        "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 2, "vocab_size": 10,
        "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "max_position_embeddings": 64,
    });
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let mut tensors = vec![
        zeros("fc.weight", "F32", &[4, 8]),
        zeros("hidden_norm.weight", "F32", &[4]),
        zeros("norm.weight", "F32", &[4]),
        zeros("layers.0.input_layernorm.weight", "F32", &[4]),
        zeros("layers.0.post_attention_layernorm.weight", "F32", &[4]),
        zeros("layers.0.self_attn.q_proj.weight", "F32", &[2, 4]),
        zeros("layers.0.self_attn.k_proj.weight", "F32", &[2, 4]),
        zeros("layers.0.self_attn.v_proj.weight", "F32", &[2, 4]),
        zeros("layers.0.self_attn.o_proj.weight", "F32", &[4, 2]),
        zeros("layers.0.self_attn.q_norm.weight", "F32", &[2]),
        zeros("layers.0.self_attn.k_norm.weight", "F32", &[2]),
        zeros("layers.0.mlp.gate_proj.weight", "F32", &[6, 4]),
        zeros("layers.0.mlp.up_proj.weight", "F32", &[6, 4]),
        zeros("layers.0.mlp.down_proj.weight", "F32", &[4, 6]),
    ];
    change(&mut tensors);
    std::fs::write(dir.path().join("model.safetensors"), safetensors(&tensors)).unwrap();
    let refused =
        |error: pleach_checkpoint::CheckpointError| error.to_string().replace(dir.path().to_str().unwrap(), "DIR");
    DrafterCheckpoint::open(dir.path()).map_err(refused)
}

#[test]
fn tensors_are_held_to_the_config() {
    let drafter = tiny(|_| {}).unwrap();
    assert_eq!((drafter.tensors.len(), drafter.config.draft_to_target), (14, None));
    assert_eq!(
        tiny(|tensors| tensors[0] = zeros("fc.weight", "F32", &[4, 12])).unwrap_err(),
        "tensor `fc.weight` in `DIR/model.safetensors` has shape [4, 12], but `[hidden_size, number of target_layer_ids * \
         hidden_size]` in `DIR/config.json` asks for [4, 8]"
    );
    let missing = tiny(|tensors| drop(tensors.remove(1))).unwrap_err();
    assert!(missing.starts_with("tensor `hidden_norm.weight` is missing from `DIR`"), "{missing}");
}

/// DFlash2's convolution would be left out silently otherwise, and every guess would be wrong.
#[test]
fn parts_of_other_drafters_are_refused_by_name() {
    let error =
        tiny(|tensors| tensors.push(zeros("layers.0.attention_conv.base_kernel", "F32", &[2, 2, 4]))).unwrap_err();
    assert_eq!(
        error,
        "tensor `layers.0.attention_conv.base_kernel` in `DIR/model.safetensors` is stored as part of a drafter that is \
         more than DFlash, which is not supported: supported are drafters of full and sliding attention, without \
         convolutions, selectors or other heads"
    );
}

#[test]
fn a_list_of_tokens_must_be_a_list_of_tokens() {
    let drafter = tiny(|tensors| tensors.push(zeros("draft_to_target", "I32", &[5]))).unwrap();
    assert_eq!(drafter.config.draft_to_target, Some(vec![0; 5]));
    assert_eq!(
        tiny(|tensors| tensors.push(zeros("draft_to_target", "F32", &[5]))).unwrap_err(),
        "`DIR/model.safetensors` is damaged or not what its name says: the type of tensor `draft_to_target` is another, \
         expected I32 or U32"
    );
}
