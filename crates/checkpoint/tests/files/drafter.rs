//! Folders of drafters: the one that comes with the project, and faults of all kinds.

use std::path::{Path, PathBuf};

use pleach_checkpoint::{
    Checkpoint, CheckpointError, DraftAttention, DraftConv, DraftSelector, DrafterCheckpoint, DrafterConfig,
    DrafterLayout, TensorFormat, drafter_beside,
};
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
    assert_eq!(config.attention, [DraftAttention::FULL; 2]);
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
    let with = |field: &str, value: Value| {
        let text = std::fs::read_to_string(shipped().join("config.json")).unwrap();
        let mut config: Value = serde_json::from_str(&text).unwrap();
        config["layer_types"] = layers.clone();
        (config["sliding_window"], config["use_sliding_window"]) = (json!(2048), json!(true));
        config[field] = value;
        DrafterConfig::from_json(config.to_string().as_bytes(), Path::new("config.json"))
            .map(|config| config.attention)
            .map_err(|error| error.to_string())
    };
    let sliding = |causal| DraftAttention { window: Some(2048), causal };
    assert_eq!(with("use_sliding_window", json!(true)).unwrap(), [sliding(true), DraftAttention::FULL]);
    assert_eq!(
        with("use_sliding_window", json!(false)).unwrap_err(),
        "`use_sliding_window` in `config.json` is false, expected true, since `layer_types` has sliding layers"
    );
    assert_eq!(
        with("sliding_window", Value::Null).unwrap_err(),
        "`config.json` has no `sliding_window`, and guessing it would give a different model: take the file from the model's own repository"
    );
    assert_eq!(
        with("sliding_window", json!(0)).unwrap_err(),
        "`sliding_window` in `config.json` is 0, expected a whole number from 1 to 1073741824"
    );
    // As the config of Qwen3.8-27B-DFlash2 has it: windows to both sides.
    assert_eq!(with("is_causal", json!(false)).unwrap(), [sliding(false), DraftAttention::FULL]);
    let causal = DraftAttention { window: None, causal: true };
    assert_eq!(with("is_causal", json!(true)).unwrap(), [sliding(true), causal]);
    assert_eq!(
        config_with("use_sliding_window", Some(json!(true))).unwrap().attention,
        [DraftAttention::FULL; 2],
        "the layers' own types go first"
    );
}

/// The names are those of the published configs.
#[test]
fn the_sizes_of_dflash2_come_in_pairs() {
    let config = |conv: Value, selector: Value| {
        let text = std::fs::read_to_string(shipped().join("config.json")).unwrap();
        let mut config: Value = serde_json::from_str(&text).unwrap();
        for fields in [conv, selector] {
            fields.as_object().unwrap().iter().for_each(|(name, value)| config["dflash_config"][name] = value.clone());
        }
        DrafterConfig::from_json(config.to_string().as_bytes(), Path::new("config.json"))
            .map(|config| (config.conv, config.selector))
            .map_err(|error| error.to_string())
    };
    let conv = json!({"conv_kernel_size": 2, "conv_group_size": 16});
    let selector = json!({"selector_rank": 256, "selector_top_k": 16});
    assert_eq!(
        config(conv.clone(), selector.clone()).unwrap(),
        (Some(DraftConv { kernel_size: 2, group_size: 16 }), Some(DraftSelector { rank: 256, top_k: 16 }))
    );
    let refused = |conv: Value, selector: Value| config(conv, selector).unwrap_err();
    assert!(refused(json!({"conv_kernel_size": 2}), json!({})).contains("has no `conv_group_size`"));
    assert_eq!(
        refused(json!({"conv_kernel_size": 9, "conv_group_size": 16}), json!({})),
        "`dflash_config.conv_kernel_size` in `config.json` is 9, expected a whole number from 1 to 8"
    );
    assert_eq!(
        refused(json!({"conv_kernel_size": 2, "conv_group_size": 17}), json!({})),
        "`dflash_config.conv_group_size` in `config.json` is 17, expected a divisor of the hidden size 576"
    );
    assert_eq!(
        refused(conv, json!({"selector_rank": 256, "selector_top_k": 0})),
        "`dflash_config.selector_top_k` in `config.json` is 0, expected a whole number from 1 to 512"
    );
    assert!(refused(json!({}), json!({"selector_top_k": 16})).contains("has no `selector_rank`"));
    assert_eq!(
        config_with("dflash_config.input_embedding_scale", Some(json!(2.0))).unwrap_err(),
        "`dflash_config.input_embedding_scale` in `config.json` is 2.0, expected a number from 1.0 to 1.0"
    );
    assert!(config_with("final_logit_softcapping", Some(json!(30.0))).unwrap_err().ends_with("not supported"));
}

/// With the values of `z-lab/Qwen3.8-27B-DFlash2`.
#[test]
fn a_published_config_of_dflash2_is_read() {
    let config = json!({
        "architectures": ["DFlash2DraftModel"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": null,
        "is_causal": false, "dtype": "bfloat16", "eos_token_id": 248044, "head_dim": 128, "hidden_act": "silu",
        "dflash_config": {
            "block_size": 8, "conv_group_size": 16, "conv_kernel_size": 2, "mask_token_id": 248070, "selector_rank": 256,
            "selector_top_k": 16, "target_layer_ids": [5, 19, 33, 47, 61],
        },
        "hidden_size": 5120, "intermediate_size": 17408, "layer_types": vec!["sliding_attention"; 5],
        "max_position_embeddings": 262144, "max_window_layers": 5, "model_type": "qwen3", "num_attention_heads": 32,
        "num_hidden_layers": 5, "num_key_value_heads": 8, "num_target_layers": 64, "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"}, "sliding_window": 2048,
        "use_sliding_window": true, "vocab_size": 248320,
    });
    let config = DrafterConfig::from_json(config.to_string().as_bytes(), Path::new("config.json")).unwrap();
    assert_eq!(config.attention, [DraftAttention { window: Some(2048), causal: false }; 5]);
    assert_eq!((config.block_size, config.mask_token_id, config.num_target_layers), (8, 248_070, 64));
    assert_eq!(config.target_layer_ids, [5, 19, 33, 47, 61]);
    assert_eq!(config.conv, Some(DraftConv { kernel_size: 2, group_size: 16 }));
    assert_eq!(config.selector, Some(DraftSelector { rank: 256, top_k: 16 }));
    assert_eq!((config.model.rope.theta, config.model.head_dim), (1e7, 128));
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

/// A part that is left out silently makes every guess wrong.
#[test]
fn parts_of_other_drafters_are_refused_by_name() {
    let error = |name: &str| tiny(|tensors| tensors.push(zeros(name, "F32", &[2, 2, 4]))).unwrap_err();
    assert_eq!(
        error("markov_head.w1"),
        "tensor `markov_head.w1` in `DIR/model.safetensors` is stored as part of a drafter that is neither DFlash nor \
         DFlash2, which is not supported: supported are full and sliding attention, DFlash2's convolutions and its \
         candidate selector"
    );
    let unannounced = error("layers.0.attention_conv.base_kernel");
    assert!(unannounced.starts_with("tensor `layers.0.attention_conv.base_kernel` in"), "{unannounced}");
}

#[test]
fn names_may_have_a_prefix() {
    let prefixed = tiny(|tensors| tensors.iter_mut().for_each(|tensor| tensor.name.insert_str(0, "draft_model.")));
    assert_eq!(prefixed.unwrap().tensors.len(), 14);
}

#[test]
fn a_drafter_is_told_from_a_model_and_is_not_opened_as_one() {
    assert_eq!(DrafterLayout::of(&shipped()), Some(DrafterLayout::ZLab));
    let model = crate::fixture("tiny-qwen35");
    assert_eq!(DrafterLayout::of(&model), None);
    assert_eq!(drafter_beside(&model), None);
    let error = Checkpoint::open(&shipped()).unwrap_err();
    assert!(matches!(error, CheckpointError::ADrafter { .. }));
    assert!(error.to_string().ends_with(
        "holds a drafter, which guesses ahead for a model and is none itself: open the model that it was made for"
    ));
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
