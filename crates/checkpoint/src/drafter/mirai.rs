//! Mirai's layout: `config.json` with `speculator_config.draft_config`, tensors under `speculator.draft_model.`.
//!
//! Fields have names of their own, and what z-lab says once stands in each layer. Queries, keys and values of a layer are
//! one matrix, as are `up` and `gate` of its MLP; `state_kv_projection` repeats the keys and values of all layers.

use std::path::Path;

use serde_json::Value;

use super::{BLOCK, DraftAttention, DrafterConfig, Parts, z_lab::target_layer_ids};
use crate::{
    Architecture, CheckpointError, LayerType, ModelConfig, RopeConfig, RopePairing, RopeScaling,
    config::limits,
    fields::{Fields, describe, shorten},
    pool::{Pool, Stored},
    speculator::Speculator,
};

/// Reads the config of a drafter.
pub(super) fn config(value: &Value, file: &Path) -> Result<DrafterConfig, CheckpointError> {
    let root = Fields::of(value, file)?;
    let speculator = object(&root, "speculator_config")?;
    expect_type(&speculator, "DFlashSpeculatorConfig")?;
    let draft = object(&speculator, "draft_config")?;
    for field in ["grouped_convolution_config", "candidate_selector_config"] {
        absent(&draft, field)?;
    }
    let hidden_size = draft.count("model_dim", limits::WIDTH)?;
    let vocab_size = draft.count("vocab_size", limits::VOCAB)?;
    let num_target_layers = draft.count("num_target_layers", limits::LAYERS)?;
    let layers = layers(&draft)?;
    let epsilon = layers[0].epsilon;
    for norm in ["context_norm_config", "output_norm_config"] {
        same(&draft, norm, norm_epsilon(&object(&draft, norm)?)?, epsilon)?;
    }
    let (rope, max_position_embeddings) = rope(&object(&draft, "rope_config")?, layers[0].head_dim)?;
    let model = ModelConfig {
        architecture: Architecture::Qwen3,
        vocab_size,
        hidden_size,
        intermediate_size: draft.count("hidden_dim", limits::WIDTH)?,
        num_hidden_layers: layers.len(),
        num_attention_heads: layers[0].num_heads,
        num_key_value_heads: layers[0].num_groups,
        head_dim: layers[0].head_dim,
        rms_norm_eps: epsilon,
        max_position_embeddings,
        tie_word_embeddings: false,
        attention_bias: false,
        mlp_bias: false,
        layer_types: vec![LayerType::FullAttention; layers.len()],
        attn_output_gate: false,
        rope,
        linear_attention: None,
        moe: None,
        num_mtp_layers: 0,
        bos_token_id: None,
        eos_token_ids: Vec::new(),
        pad_token_id: None,
    };
    model.check(file, &|field| draft.spell(spelling(field)))?;
    Ok(DrafterConfig {
        attention: layers.iter().map(|layer| layer.attention).collect(),
        block_size: draft.count("block_size", BLOCK)?,
        target_layer_ids: target_layer_ids(&draft, num_target_layers)?,
        num_target_layers,
        mask_token_id: draft.count("mask_token_id", 0..=vocab_size - 1)? as u32,
        draft_to_target: None,
        conv: None,
        selector: None,
        model,
    })
}

/// How a field of ours is called in a layer's config.
fn spelling(field: &str) -> &str {
    match field {
        "num_attention_heads" => "layer_configs.mixer_config.num_heads",
        "num_key_value_heads" => "layer_configs.mixer_config.num_groups",
        "rotary_dim" => "rope_config.head_dim",
        other => other,
    }
}

/// One entry of `layer_configs`.
struct Layer {
    num_heads: usize,
    num_groups: usize,
    head_dim: usize,
    epsilon: f32,
    attention: DraftAttention,
}

/// Reads the layers, which must be alike but for what they see.
fn layers(draft: &Fields<'_>) -> Result<Vec<Layer>, CheckpointError> {
    const FIELD: &str = "layer_configs";
    let value = draft.get(FIELD).ok_or_else(|| draft.missing(FIELD))?;
    let entries = value.as_array().filter(|entries| limits::LAYERS.contains(&entries.len()));
    let entries = entries.ok_or_else(|| draft.wrong(FIELD, describe(value), "a list of layers"))?;
    let layers = entries.iter().map(|entry| layer(&draft.inside(FIELD, entry)?)).collect::<Result<Vec<_>, _>>()?;
    let shape = |layer: &Layer| [layer.num_heads, layer.num_groups, layer.head_dim];
    if let Some(other) = layers.iter().find(|layer| shape(layer) != shape(&layers[0])) {
        let found = format!("one with heads of {:?}", shape(other));
        return Err(draft.wrong(
            FIELD,
            found,
            format!("layers with heads alike, as the first's {:?}", shape(&layers[0])),
        ));
    }
    Ok(layers)
}

fn layer(fields: &Fields<'_>) -> Result<Layer, CheckpointError> {
    for field in
        ["post_mixer_norm_config", "post_mlp_norm_config", "ple_config", "rope_config", "kv_source_layer_index"]
    {
        absent(fields, field)?;
    }
    for field in ["grouped_convolution_config", "hidden_dim"] {
        absent(fields, field)?;
    }
    unset(fields, "has_post_layer_scalar")?;
    let mixer = object(fields, "mixer_config")?;
    expect_type(&mixer, "AttentionConfig")?;
    for field in ["logit_soft_cap", "gate_projection_config"] {
        absent(&mixer, field)?;
    }
    for field in ["has_sinks", "has_qkv_biases", "has_out_biases", "normalize_values", "is_kv_sharing"] {
        unset(&mixer, field)?;
    }
    mlp(&object(fields, "mlp_config")?)?;
    let epsilon = norm_epsilon(&object(fields, "pre_mixer_norm_config")?)?;
    same(fields, "pre_mlp_norm_config", norm_epsilon(&object(fields, "pre_mlp_norm_config")?)?, epsilon)?;
    for norm in ["query_norm_config", "key_norm_config"] {
        same(&mixer, norm, norm_epsilon(&object(&mixer, norm)?)?, epsilon)?;
    }
    let head_dim = mixer.count("head_dim", limits::HEAD_DIM)?;
    let usual = (head_dim as f32).sqrt().recip();
    if let Some(scale) = mixer.optional_number("scale", 0.0..=f32::MAX)?
        && (scale - usual).abs() > 1e-6 * usual
    {
        return Err(mixer.wrong("scale", scale, format!("{usual}, the inverse root of head_dim")));
    }
    Ok(Layer {
        num_heads: mixer.count("num_heads", limits::HEADS)?,
        num_groups: mixer.count("num_groups", limits::HEADS)?,
        head_dim,
        epsilon,
        attention: attention(&mixer)?,
    })
}

/// A window reaches back only in a causal layer, and half to each side in one that is not.
fn attention(mixer: &Fields<'_>) -> Result<DraftAttention, CheckpointError> {
    let causal = mixer.optional_flag("is_causal")?.ok_or_else(|| mixer.missing("is_causal"))?;
    let size = mixer.optional_count("sliding_window_size", limits::POSITIONS)?;
    Ok(DraftAttention { window: size.map(|size| if causal { size } else { size / 2 + 1 }), causal })
}

fn mlp(fields: &Fields<'_>) -> Result<(), CheckpointError> {
    expect_type(fields, "DenseMLPConfig")?;
    for field in ["has_up_biases", "has_down_biases"] {
        unset(fields, field)?;
    }
    for field in ["gate_clipping", "up_clipping"] {
        absent(fields, field)?;
    }
    let activation = object(fields, "activation")?;
    expect_type(&activation, "SiLU")?;
    activation.optional_number("alpha", 1.0..=1.0).map(|_| ())
}

/// The epsilon of a root-mean-square norm whose weight is stored as it is used.
fn norm_epsilon(fields: &Fields<'_>) -> Result<f32, CheckpointError> {
    fields.optional_number("scale_offset", 0.0..=0.0)?;
    for field in ["subtract_mean", "has_biases", "use_bias"] {
        unset(fields, field)?;
    }
    fields.number("epsilon", limits::EPSILON)
}

fn rope(fields: &Fields<'_>, head_dim: usize) -> Result<(RopeConfig, usize), CheckpointError> {
    expect_type(fields, "UnscaledRoPEConfig")?;
    let rotary_dim = fields.optional_count("head_dim", limits::HEAD_DIM)?.unwrap_or(head_dim);
    let theta = fields.number("base", limits::THETA)?;
    let rope = RopeConfig { theta, rotary_dim, scaling: RopeScaling::None, pairing: RopePairing::Halves };
    Ok((rope, fields.count("max_sequence_length", limits::POSITIONS)?))
}

fn object<'a>(fields: &Fields<'a>, name: &str) -> Result<Fields<'a>, CheckpointError> {
    fields.object(name)?.ok_or_else(|| fields.missing(name))
}

/// Checks the tag of a union; a config without tags is believed.
fn expect_type(fields: &Fields<'_>, expected: &str) -> Result<(), CheckpointError> {
    match fields.optional_text("type")? {
        Some(other) if other != expected => {
            Err(fields.wrong("type", format!("\"{}\"", shorten(other)), format!("\"{expected}\"")))
        }
        _ => Ok(()),
    }
}

fn absent(fields: &Fields<'_>, name: &str) -> Result<(), CheckpointError> {
    match fields.get(name) {
        None => Ok(()),
        Some(value) => Err(fields.wrong(name, describe(value), "null: it is not supported in this layout")),
    }
}

fn unset(fields: &Fields<'_>, name: &str) -> Result<(), CheckpointError> {
    match fields.optional_flag(name)? {
        Some(true) => Err(fields.wrong(name, "true", "false: it is not supported")),
        _ => Ok(()),
    }
}

fn same(fields: &Fields<'_>, name: &str, found: f32, expected: f32) -> Result<(), CheckpointError> {
    if found == expected {
        return Ok(());
    }
    Err(fields.wrong(&format!("{name}.epsilon"), found, format!("{expected}, as in the first layer")))
}

/// The drafter's tensors under their canonical names.
pub(super) fn read_tensors(dir: &Path, config: &DrafterConfig) -> Result<Parts, CheckpointError> {
    let mut speculator = Speculator::open(dir)?;
    let mut pool = speculator.take_part("draft_model")?;
    rename(&mut pool, &config.model)?;
    let Speculator { source, mapping, .. } = speculator;
    Ok(Parts { pool, files: vec![source], mappings: mapping.into_iter().collect() })
}

fn rename(pool: &mut Pool, model: &ModelConfig) -> Result<(), CheckpointError> {
    let [queries, keys] = [model.num_attention_heads, model.num_key_value_heads].map(|heads| heads * model.head_dim);
    let names: Vec<String> = pool.names().map(str::to_owned).collect();
    for name in names {
        let Some(stored) = pool.remove(&name) else { continue };
        let (layer, module) = match name.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
            Some((layer, module)) => (format!("layers.{layer}."), module),
            None => (String::new(), name.as_str()),
        };
        let parts: Vec<(&str, usize)> = match module {
            "state_kv_projection.weight" if layer.is_empty() => continue,
            "mixer.qkv_projection.weight" | "mixer.qkvg_projection.weight" => {
                vec![("self_attn.q_proj", queries), ("self_attn.k_proj", keys), ("self_attn.v_proj", keys)]
            }
            "mlp.up_projection.weight" => {
                [("mlp.up_proj", model.intermediate_size), ("mlp.gate_proj", model.intermediate_size)].to_vec()
            }
            whole => {
                pool.insert(format!("{layer}{}", canonical(whole)), stored)?;
                continue;
            }
        };
        split(pool, &layer, &parts, stored)?;
    }
    Ok(())
}

/// The name of a tensor that is stored as it is used; unknown ones keep theirs, and are refused by it.
fn canonical(module: &str) -> &str {
    match module {
        "context_projection.weight" => "fc.weight",
        "context_norm.weight" => "hidden_norm.weight",
        "output_norm.weight" => "norm.weight",
        "pre_mixer_norm.weight" => "input_layernorm.weight",
        "pre_mlp_norm.weight" => "post_attention_layernorm.weight",
        "mixer.out_projection.weight" => "self_attn.o_proj.weight",
        "mixer.query_norm.weight" => "self_attn.q_norm.weight",
        "mixer.key_norm.weight" => "self_attn.k_norm.weight",
        "mlp.down_projection.weight" => "mlp.down_proj.weight",
        other => other,
    }
}

/// Cuts the rows of a matrix into several, one after the other.
fn split(pool: &mut Pool, layer: &str, parts: &[(&str, usize)], stored: Stored) -> Result<(), CheckpointError> {
    let rows: usize = parts.iter().map(|(_, rows)| rows).sum();
    let &[found, columns] = stored.shape.as_slice() else { return Err(wrong_rows(stored, rows)) };
    if found != rows {
        return Err(wrong_rows(stored, rows));
    }
    let mut start = 0;
    for &(name, count) in parts {
        let data = stored.data.rows(start..start + count, rows);
        let part = Stored { shape: vec![count, columns], data, ..stored.clone() };
        pool.insert(format!("{layer}{name}.weight"), part)?;
        start += count;
    }
    Ok(())
}

fn wrong_rows(stored: Stored, rows: usize) -> CheckpointError {
    CheckpointError::Shape {
        name: shorten(&stored.source_name),
        config: stored.file.with_file_name("config.json"),
        file: stored.file.to_path_buf(),
        rule: "heads, head_dim and hidden_dim of draft_config",
        expected: vec![rows, stored.shape.last().copied().unwrap_or(1)],
        found: stored.shape,
    }
}
