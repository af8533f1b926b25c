//! `config.json` as Hugging Face and MLX write it.

use std::path::Path;

use serde_json::Value;

use super::{
    Architecture, LayerType, LinearAttentionConfig, ModelConfig, MoeConfig, RopeConfig, RopePairing, RopeScaling,
    ValueHeadOrder, limits,
};
use crate::{
    CheckpointError,
    fields::{Fields, describe, parse_json},
    mlx::Quantization,
};

/// A config and what it says beside the model's own description.
pub(crate) struct HuggingFaceConfig {
    /// The model.
    pub(crate) model: ModelConfig,
    /// Whether the embedding serves as output matrix; `None` where the file says nothing or contradicts itself, so that
    /// the presence of `lm_head.weight` decides.
    pub(crate) tie_word_embeddings: Option<bool>,
    /// MLX's group quantization.
    pub(crate) quantization: Option<Quantization>,
}

const SUPPORTED: &str = "llama, qwen3, qwen3_5 (qwen3_5_text), qwen3_5_moe (qwen3_5_moe_text)";

/// Reads a `config.json`.
pub(crate) fn parse(json: &[u8], file: &Path) -> Result<HuggingFaceConfig, CheckpointError> {
    let value: Value = parse_json(json, file)?;
    let root = Fields::of(&value, file)?;
    let text = root.object("text_config")?.unwrap_or_else(|| root.clone());
    let architecture = architecture(&root, &text)?;
    let model = model(architecture, &root, &text)?;
    model.check(file, &|field| spell(&text, field))?;
    Ok(HuggingFaceConfig {
        model,
        tie_word_embeddings: tie_word_embeddings(&root, &text)?,
        quantization: Quantization::from_config(&root)?,
    })
}

/// The name under which a field of ours stands in the file.
fn spell(text: &Fields<'_>, field: &str) -> String {
    match field {
        // Not a field of its own: a share of the head.
        "rotary_dim" => "head_dim * partial_rotary_factor".to_owned(),
        same => text.spell(same),
    }
}

fn architecture(root: &Fields<'_>, text: &Fields<'_>) -> Result<Architecture, CheckpointError> {
    let fields = if text.get("model_type").is_some() { text } else { root };
    let model_type = fields.optional_text("model_type")?.ok_or_else(|| fields.missing("model_type"))?;
    match model_type {
        "llama" => Ok(Architecture::Llama),
        "qwen3" => Ok(Architecture::Qwen3),
        "qwen3_5" | "qwen3_5_text" => Ok(Architecture::Qwen35),
        "qwen3_5_moe" | "qwen3_5_moe_text" => Ok(Architecture::Qwen35Moe),
        other => Err(CheckpointError::UnsupportedArchitecture {
            file: root.file().to_owned(),
            found: crate::fields::shorten(other),
            supported: SUPPORTED,
        }),
    }
}

fn model(architecture: Architecture, root: &Fields<'_>, text: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let is_qwen35 = matches!(architecture, Architecture::Qwen35 | Architecture::Qwen35Moe);
    let is_moe = architecture == Architecture::Qwen35Moe;
    check_unsupported(text)?;
    let num_hidden_layers = text.count("num_hidden_layers", limits::LAYERS)?;
    let hidden_size = text.count("hidden_size", limits::WIDTH)?;
    let num_attention_heads = text.count("num_attention_heads", limits::HEADS)?;
    let head_dim = head_dim(architecture, text, hidden_size, num_attention_heads)?;
    Ok(ModelConfig {
        architecture,
        vocab_size: text.count("vocab_size", limits::VOCAB)?,
        hidden_size,
        intermediate_size: if is_moe { 0 } else { text.count("intermediate_size", limits::WIDTH)? },
        num_hidden_layers,
        num_attention_heads,
        num_key_value_heads: text.count("num_key_value_heads", limits::HEADS)?,
        head_dim,
        rms_norm_eps: text.number("rms_norm_eps", limits::EPSILON)?,
        max_position_embeddings: text.count("max_position_embeddings", limits::POSITIONS)?,
        tie_word_embeddings: tie_word_embeddings(root, text)?.unwrap_or(false),
        attention_bias: text.optional_flag("attention_bias")?.unwrap_or(false),
        mlp_bias: text.optional_flag("mlp_bias")?.unwrap_or(false),
        layer_types: layer_types(is_qwen35, text, num_hidden_layers)?,
        // Qwen3.5 gates its attention whether or not the file says so; a file that says no is believed, and the shape
        // of `q_proj` has the last word.
        attn_output_gate: is_qwen35 && text.optional_flag("attn_output_gate")?.unwrap_or(true),
        rope: rope(is_qwen35, text, head_dim)?,
        linear_attention: if is_qwen35 { Some(linear_attention(text)?) } else { None },
        moe: if is_moe { Some(moe(text)?) } else { None },
        num_mtp_layers: num_mtp_layers(is_qwen35, text)?,
        bos_token_id: token_id(root, text, "bos_token_id")?,
        eos_token_ids: first_ids(root, text, "eos_token_id")?,
        pad_token_id: token_id(root, text, "pad_token_id")?,
    })
}

/// Refuses what would compute something else than we do, instead of ignoring it.
fn check_unsupported(text: &Fields<'_>) -> Result<(), CheckpointError> {
    let silu = ["silu", "swish"];
    for field in ["hidden_act", "output_gate_type"] {
        if let Some(name) = text.optional_text(field)?
            && !silu.contains(&name)
        {
            return Err(text.wrong(field, format!("\"{name}\""), "\"silu\" or \"swish\""));
        }
    }
    if text.optional_flag("use_sliding_window")? == Some(true) {
        return Err(text.wrong("use_sliding_window", "true", "false: sliding windows are not supported"));
    }
    if let Some(Value::Array(layers)) = text.get("mlp_only_layers")
        && !layers.is_empty()
    {
        return Err(text.wrong("mlp_only_layers", format!("a list of {}", layers.len()), "an empty list"));
    }
    text.optional_count("decoder_sparse_step", 1..=1)?;
    Ok(())
}

/// Llama's definition of the head is a share of the hidden size; for the others the two are independent.
fn head_dim(
    architecture: Architecture,
    text: &Fields<'_>,
    hidden_size: usize,
    num_attention_heads: usize,
) -> Result<usize, CheckpointError> {
    match text.optional_count("head_dim", limits::HEAD_DIM)? {
        Some(head_dim) => Ok(head_dim),
        None if architecture != Architecture::Llama => Err(text.missing("head_dim")),
        None if hidden_size.is_multiple_of(num_attention_heads) => Ok(hidden_size / num_attention_heads),
        None => Err(text.wrong(
            "num_attention_heads",
            num_attention_heads,
            format!("a divisor of the hidden size {hidden_size}"),
        )),
    }
}

/// Qwen3.5 lists its layers, or gives the interval of the full-attention ones; the list wins.
fn layer_types(is_qwen35: bool, text: &Fields<'_>, num_layers: usize) -> Result<Vec<LayerType>, CheckpointError> {
    match text.get("layer_types") {
        Some(Value::Array(entries)) => entries.iter().map(|entry| layer_type(is_qwen35, text, entry)).collect(),
        Some(other) => Err(text.wrong("layer_types", describe(other), "a list with one entry for each layer")),
        None if is_qwen35 => {
            let interval = text.count("full_attention_interval", limits::LAYERS)?;
            Ok((1..=num_layers).map(|layer| full_every(interval, layer)).collect())
        }
        None => Ok(vec![LayerType::FullAttention; num_layers]),
    }
}

/// The kind of layer number `layer`, counted from 1, where every `interval`-th is full attention.
pub(crate) fn full_every(interval: usize, layer: usize) -> LayerType {
    if layer.is_multiple_of(interval) { LayerType::FullAttention } else { LayerType::LinearAttention }
}

fn layer_type(is_qwen35: bool, text: &Fields<'_>, entry: &Value) -> Result<LayerType, CheckpointError> {
    match entry.as_str() {
        Some("full_attention") => Ok(LayerType::FullAttention),
        Some("linear_attention") if is_qwen35 => Ok(LayerType::LinearAttention),
        _ if is_qwen35 => Err(text.wrong("layer_types", describe(entry), "\"full_attention\" or \"linear_attention\"")),
        _ => Err(text.wrong("layer_types", describe(entry), "\"full_attention\"")),
    }
}

/// Rope settings stand in `rope_parameters` (first), at the top level, or, the scaling, in `rope_scaling`.
fn rope(is_qwen35: bool, text: &Fields<'_>, head_dim: usize) -> Result<RopeConfig, CheckpointError> {
    let parameters = text.object("rope_parameters")?;
    let holder = |field: &str| match &parameters {
        Some(parameters) if parameters.get(field).is_some() => parameters.clone(),
        _ => text.clone(),
    };
    let factor = holder("partial_rotary_factor").optional_number("partial_rotary_factor", 0.0..=1.0)?;
    let rotary_dim = match factor {
        Some(factor) => (head_dim as f32 * factor).round() as usize,
        None if is_qwen35 => return Err(text.missing("partial_rotary_factor")),
        None => head_dim,
    };
    let scaling = match &parameters {
        Some(parameters) if scaling_type(parameters)?.is_some() => scaling(parameters)?,
        _ => text.object("rope_scaling")?.map_or(Ok(RopeScaling::None), |fields| scaling(&fields))?,
    };
    Ok(RopeConfig {
        theta: holder("rope_theta").number("rope_theta", limits::THETA)?,
        rotary_dim,
        scaling,
        pairing: RopePairing::Halves,
    })
}

fn scaling_type<'a>(fields: &Fields<'a>) -> Result<Option<&'a str>, CheckpointError> {
    match fields.optional_text("rope_type")? {
        Some(name) => Ok(Some(name)),
        None => fields.optional_text("type"),
    }
}

fn scaling(fields: &Fields<'_>) -> Result<RopeScaling, CheckpointError> {
    match scaling_type(fields)? {
        None => Err(fields.missing("rope_type")),
        Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor: fields.number("factor", limits::FACTOR)? }),
        Some("llama3") => Ok(RopeScaling::Llama3 {
            factor: fields.number("factor", limits::FACTOR)?,
            low_freq_factor: fields.number("low_freq_factor", limits::FACTOR)?,
            high_freq_factor: fields.number("high_freq_factor", limits::FACTOR)?,
            original_max_position_embeddings: fields.count("original_max_position_embeddings", limits::POSITIONS)?,
        }),
        Some(other) => Err(fields.wrong(
            "rope_type",
            format!("\"{}\"", crate::fields::shorten(other)),
            "\"default\", \"linear\" or \"llama3\"",
        )),
    }
}

fn linear_attention(text: &Fields<'_>) -> Result<LinearAttentionConfig, CheckpointError> {
    Ok(LinearAttentionConfig {
        num_key_heads: text.count("linear_num_key_heads", limits::HEADS)?,
        num_value_heads: text.count("linear_num_value_heads", limits::HEADS)?,
        key_head_dim: text.count("linear_key_head_dim", limits::HEAD_DIM)?,
        value_head_dim: text.count("linear_value_head_dim", limits::HEAD_DIM)?,
        conv_kernel_dim: text.count("linear_conv_kernel_dim", limits::KERNEL)?,
        value_head_order: ValueHeadOrder::Grouped,
    })
}

fn moe(text: &Fields<'_>) -> Result<MoeConfig, CheckpointError> {
    Ok(MoeConfig {
        num_experts: text.count("num_experts", limits::EXPERTS)?,
        num_experts_per_tok: text.count("num_experts_per_tok", limits::EXPERTS)?,
        moe_intermediate_size: text.count("moe_intermediate_size", limits::WIDTH)?,
        shared_expert_intermediate_size: text.count("shared_expert_intermediate_size", limits::WIDTH)?,
        // The family always divides by the sum, and its own configs leave the field out.
        norm_topk_prob: text.optional_flag("norm_topk_prob")?.unwrap_or(true),
    })
}

/// A prediction head with an embedding of its own is another architecture, which no published model uses: its tensors
/// are then skipped.
fn num_mtp_layers(is_qwen35: bool, text: &Fields<'_>) -> Result<usize, CheckpointError> {
    let announced = text.optional_count("mtp_num_hidden_layers", limits::MTP_LAYERS)?.unwrap_or(0);
    let own_embedding = text.optional_flag("mtp_use_dedicated_embeddings")?.unwrap_or(false);
    Ok(if is_qwen35 && !own_embedding { announced } else { 0 })
}

fn tie_word_embeddings(root: &Fields<'_>, text: &Fields<'_>) -> Result<Option<bool>, CheckpointError> {
    let outer = root.optional_flag("tie_word_embeddings")?;
    let inner = text.optional_flag("tie_word_embeddings")?;
    Ok(match (outer, inner) {
        (Some(outer), Some(inner)) if outer != inner => None,
        (outer, inner) => inner.or(outer),
    })
}

fn first_ids(root: &Fields<'_>, text: &Fields<'_>, name: &str) -> Result<Vec<u32>, CheckpointError> {
    let ids = text.token_ids(name)?;
    if ids.is_empty() { root.token_ids(name) } else { Ok(ids) }
}

fn token_id(root: &Fields<'_>, text: &Fields<'_>, name: &str) -> Result<Option<u32>, CheckpointError> {
    Ok(first_ids(root, text, name)?.first().copied())
}
