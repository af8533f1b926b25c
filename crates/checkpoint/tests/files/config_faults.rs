//! Configs that no model can have, each with the message its reader gets.

use std::path::Path;

use pleach_checkpoint::{Architecture, Checkpoint, CheckpointError, LayerType, ModelConfig, RopeScaling};
use serde_json::{Value, json};

use crate::{
    builders::{copy_without_weights, edit_config},
    fixture,
};

fn fixture_config(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(name).join("config.json")).unwrap()).unwrap()
}

fn parse(config: &Value) -> Result<ModelConfig, CheckpointError> {
    ModelConfig::from_json(config.to_string().as_bytes(), Path::new("config.json"))
}

/// The error after a change of a fixture's config.
fn error_after(name: &str, edit: impl FnOnce(&mut Value)) -> String {
    let mut config = fixture_config(name);
    edit(&mut config);
    parse(&config).unwrap_err().to_string()
}

fn missing(field: &str) -> String {
    format!(
        "`config.json` has no `{field}`, and guessing it would give a different model: take the file from the model's own repository"
    )
}

#[test]
fn every_needed_field_is_named_when_it_is_missing() {
    let remove =
        |name: &str, field: &str| error_after(name, |config| drop(config.as_object_mut().unwrap().remove(field)));
    for field in [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "rms_norm_eps",
        "max_position_embeddings",
        "rope_theta",
        "model_type",
    ] {
        assert_eq!(remove("tiny-llama", field), missing(field));
    }
    assert_eq!(remove("tiny-qwen3", "head_dim"), missing("head_dim"));
    for field in [
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
    ] {
        assert_eq!(remove("tiny-qwen35-moe", field), missing(field));
    }
}

#[test]
fn fields_inside_the_wrapper_are_named_by_their_path() {
    assert_eq!(
        error_after("tiny-qwen35", |config| config["text_config"]["num_key_value_heads"] = json!(3)),
        "`text_config.num_key_value_heads` in `config.json` is 3, expected a divisor of the 4 heads of `text_config.num_attention_heads`"
    );
    assert_eq!(
        error_after("tiny-qwen35", |config| config["text_config"]["linear_num_value_heads"] = json!(3)),
        "`text_config.linear_num_value_heads` in `config.json` is 3, expected a multiple of the 2 heads of `text_config.linear_num_key_heads`"
    );
    assert_eq!(
        error_after("tiny-qwen35", |config| config["text_config"]["layer_types"] = json!(["full_attention"])),
        "`text_config.layer_types` in `config.json` is 1, expected one entry for each of the 8 layers"
    );
    assert_eq!(
        error_after("tiny-qwen35", |config| config["text_config"]["layer_types"][0] = json!("sliding_attention")),
        "`text_config.layer_types` in `config.json` is \"sliding_attention\", expected \"full_attention\" or \"linear_attention\""
    );
}

#[test]
fn absurd_values_are_refused_with_the_range() {
    for value in [json!(0), json!(-1), json!(1.5), json!("8"), json!(1u64 << 62)] {
        assert_eq!(
            error_after("tiny-llama", |config| config["num_hidden_layers"] = value.clone()),
            format!("`num_hidden_layers` in `config.json` is {value}, expected a whole number from 1 to 1024")
        );
    }
    assert_eq!(
        error_after("tiny-llama", |config| config["rms_norm_eps"] = json!(0.0)),
        "`rms_norm_eps` in `config.json` is 0.0, expected a number from 1e-12 to 0.1"
    );
    assert_eq!(
        error_after("tiny-llama", |config| config["rope_theta"] = json!(1e300)),
        "`rope_theta` in `config.json` is 1e+300, expected a number from 1.0 to 1000000000000.0"
    );
    assert_eq!(
        error_after("tiny-qwen35-moe", |config| config["num_experts_per_tok"] = json!(9)),
        "`num_experts_per_tok` in `config.json` is 9, expected a whole number from 1 to 8"
    );
}

#[test]
fn what_would_compute_something_else_is_refused() {
    assert_eq!(
        error_after("tiny-llama", |config| config["hidden_act"] = json!("gelu")),
        "`hidden_act` in `config.json` is \"gelu\", expected \"silu\" or \"swish\""
    );
    assert_eq!(
        error_after("tiny-qwen3", |config| config["use_sliding_window"] = json!(true)),
        "`use_sliding_window` in `config.json` is true, expected false: sliding windows are not supported"
    );
    assert_eq!(
        error_after("tiny-qwen35", |config| config["text_config"]["output_gate_type"] = json!("sigmoid")),
        "`text_config.output_gate_type` in `config.json` is \"sigmoid\", expected \"silu\" or \"swish\""
    );
    assert_eq!(
        error_after("tiny-llama", |config| config["rope_scaling"] = json!({"rope_type": "yarn", "factor": 4.0})),
        "`rope_scaling.rope_type` in `config.json` is \"yarn\", expected \"default\", \"linear\" or \"llama3\""
    );
    assert_eq!(
        error_after("tiny-llama", |config| config["model_type"] = json!("gemma3")),
        "`config.json` holds a `gemma3` model, which is not supported: supported are llama, qwen3, qwen3_5 (qwen3_5_text), qwen3_5_moe (qwen3_5_moe_text)"
    );
}

#[test]
fn rotation_is_read_from_its_own_object_first() {
    let mut config = fixture_config("tiny-qwen35");
    config["text_config"]["rope_theta"] = json!(10000);
    assert_eq!(parse(&config).unwrap().rope.theta, 1e7);
    config["text_config"]["rope_parameters"].as_object_mut().unwrap().remove("rope_theta");
    assert_eq!(parse(&config).unwrap().rope.theta, 1e4);
    config["text_config"].as_object_mut().unwrap().remove("partial_rotary_factor");
    config["text_config"]["rope_parameters"]["partial_rotary_factor"] = json!(0.3);
    assert_eq!(
        parse(&config).unwrap_err().to_string(),
        "`head_dim * partial_rotary_factor` in `config.json` is 19, expected an even number from 2 to the head size 64"
    );
    config["text_config"]["rope_parameters"].as_object_mut().unwrap().remove("partial_rotary_factor");
    assert_eq!(parse(&config).unwrap_err().to_string(), missing("text_config.partial_rotary_factor"));
}

#[test]
fn llama3_scaling_is_read_whole() {
    let mut config = fixture_config("tiny-llama");
    config["rope_scaling"] = json!({
        "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"
    });
    let expected = RopeScaling::Llama3 {
        factor: 32.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192,
    };
    assert_eq!(parse(&config).unwrap().rope.scaling, expected);
    config["rope_scaling"].as_object_mut().unwrap().remove("low_freq_factor");
    assert_eq!(parse(&config).unwrap_err().to_string(), missing("rope_scaling.low_freq_factor"));
}

#[test]
fn the_interval_stands_in_for_the_list_of_layers() {
    let mut config = fixture_config("tiny-qwen35-moe");
    config.as_object_mut().unwrap().remove("layer_types");
    let parsed = parse(&config).unwrap();
    assert_eq!(parsed.architecture, Architecture::Qwen35Moe);
    assert_eq!(parsed.layer_types[2..], [LayerType::LinearAttention, LayerType::FullAttention]);
    config.as_object_mut().unwrap().remove("full_attention_interval");
    assert_eq!(parse(&config).unwrap_err().to_string(), missing("full_attention_interval"));
}

/// A fixture with its weights, opened after a change of its config.
fn open_after(name: &str, edit: impl FnOnce(&mut Value)) -> Result<Checkpoint, CheckpointError> {
    let dir = tempfile::tempdir().unwrap();
    copy_without_weights(&fixture(name), dir.path());
    std::fs::copy(fixture(name).join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    edit_config(dir.path(), edit);
    Checkpoint::open(dir.path())
}

#[test]
fn a_tie_that_the_config_leaves_open_is_settled_by_the_output_matrix() {
    let contradict = |config: &mut Value| config["tie_word_embeddings"] = json!(true);
    assert!(!open_after("tiny-qwen35", contradict).unwrap().config.tie_word_embeddings);
    let leave_out = |config: &mut Value| drop(config.as_object_mut().unwrap().remove("tie_word_embeddings"));
    assert!(open_after("tiny-llama", leave_out).unwrap().config.tie_word_embeddings);

    let tie = |config: &mut Value| {
        config["tie_word_embeddings"] = json!(true);
        config["text_config"]["tie_word_embeddings"] = json!(true);
    };
    let tied = open_after("tiny-qwen35", tie).unwrap();
    assert!(tied.skipped.iter().any(|skipped| skipped.name == "lm_head.weight"));
    let untie = |config: &mut Value| config["tie_word_embeddings"] = json!(false);
    assert!(
        matches!(open_after("tiny-llama", untie).unwrap_err(), CheckpointError::MissingTensor { name, .. } if name == "lm_head.weight")
    );
}

/// With fewer layers it would be another model, which writes nonsense.
#[test]
fn weights_of_layers_that_the_config_does_not_count_are_refused() {
    let error = open_after("tiny-llama", |config| config["num_hidden_layers"] = json!(2)).unwrap_err();
    let is_named =
        matches!(&error, CheckpointError::MoreLayers { name, layers: 2, .. } if name.starts_with("model.layers."));
    assert!(is_named, "{error}");
}

#[test]
fn folders_without_a_model_say_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let error =
        || Checkpoint::open(dir.path()).unwrap_err().to_string().replace(&dir.path().display().to_string(), "DIR");
    assert_eq!(error(), "no `config.json` in `DIR`: point at the folder that holds the model's files");
    copy_without_weights(&fixture("tiny-llama"), dir.path());
    assert_eq!(
        error(),
        "no `.safetensors` or `.gguf` file in `DIR`: the download is probably incomplete, fetch it again"
    );
    std::fs::copy(fixture("tiny-llama/model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    std::fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
    assert_eq!(error(), "no `tokenizer.json` in `DIR`: copy it from the model's own repository");
    std::fs::write(dir.path().join("config.json"), "{").unwrap();
    assert_eq!(error(), "`DIR/config.json` is not the JSON expected there");
    let file = dir.path().join("config.json");
    assert!(
        Checkpoint::open(&file).unwrap_err().to_string().ends_with("give the folder of a model or its `.gguf` file")
    );
}
