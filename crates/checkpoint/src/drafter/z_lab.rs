//! z-lab's layout: a Hugging Face `config.json` with `dflash_config`, and safetensors.

use std::path::Path;

use serde_json::{Value, json};

use super::{BLOCK, DraftAttention, DraftConv, DraftSelector, DrafterConfig, Parts};
use crate::{
    CheckpointError,
    config::{limits, parse_hugging_face},
    fields::{Fields, describe},
    hugging_face::{Weights, read_weights},
    pool::Pool,
};

/// Most candidates of a place: beyond them a selector weighs what is never drawn.
const TOP_K: std::ops::RangeInclusive<usize> = 1..=512;

/// Reads the config of a drafter.
pub(super) fn config(value: &Value, file: &Path) -> Result<DrafterConfig, CheckpointError> {
    let root = Fields::of(value, file)?;
    let own = root.object("dflash_config")?.ok_or_else(|| root.missing("dflash_config"))?;
    let model = parse_hugging_face(plain(value).to_string().as_bytes(), file)?.model;
    // Some files have these beside `dflash_config`, some inside it.
    let holder = |field: &str| if own.get(field).is_some() { own.clone() } else { root.clone() };
    let num_target_layers = holder("num_target_layers").count("num_target_layers", limits::LAYERS)?;
    let block_size = holder("block_size").count("block_size", BLOCK)?;
    for scale in ["input_embedding_scale", "output_multiplier"] {
        holder(scale).optional_number(scale, 1.0..=1.0)?;
    }
    if let Some(cap) = holder("final_logit_softcapping").get("final_logit_softcapping") {
        return Err(holder("final_logit_softcapping").wrong(
            "final_logit_softcapping",
            describe(cap),
            "none: it is not supported",
        ));
    }
    Ok(DrafterConfig {
        attention: attention(&root, &own, model.num_hidden_layers)?,
        block_size,
        target_layer_ids: target_layer_ids(&holder("target_layer_ids"), num_target_layers)?,
        num_target_layers,
        mask_token_id: holder("mask_token_id").count("mask_token_id", 0..=model.vocab_size - 1)? as u32,
        draft_to_target: None,
        conv: conv(&holder, block_size, model.hidden_size)?,
        selector: selector(&holder, model.vocab_size)?,
        model,
    })
}

/// The config as that of a model whose layers are all full attention.
fn plain(value: &Value) -> Value {
    let mut plain = value.clone();
    if let Some(fields) = plain.as_object_mut() {
        fields.remove("layer_types");
        fields.insert("use_sliding_window".to_owned(), json!(false));
    }
    plain
}

/// What each layer sees. Whether rows see those after them is said for all layers at once; where nothing is said, they do
/// in layers of full attention and do not in sliding ones, as z-lab's own model has it.
fn attention(root: &Fields<'_>, own: &Fields<'_>, num_layers: usize) -> Result<Vec<DraftAttention>, CheckpointError> {
    let causal = match own.optional_flag("causal")? {
        Some(causal) => Some(causal),
        None => root.optional_flag("is_causal")?,
    };
    let slides = root.optional_flag("use_sliding_window")?;
    let full = DraftAttention { window: None, causal: causal.unwrap_or(false) };
    let kinds = match root.get("layer_types") {
        None if slides == Some(true) => {
            return Err(root.wrong("use_sliding_window", "true", "`layer_types` beside it, to tell which layers do"));
        }
        None => return Ok(vec![full; num_layers]),
        Some(Value::Array(kinds)) if kinds.len() == num_layers => kinds,
        Some(other) => return Err(root.wrong("layer_types", describe(other), "a list with one entry for each layer")),
    };
    let kind = |kind: &Value| match kind.as_str() {
        Some("full_attention") => Ok(full),
        Some("sliding_attention") if slides == Some(false) => {
            Err(root.wrong("use_sliding_window", "false", "true, since `layer_types` has sliding layers"))
        }
        Some("sliding_attention") => {
            let window = root.count("sliding_window", limits::POSITIONS)?;
            Ok(DraftAttention { window: Some(window), causal: causal.unwrap_or(true) })
        }
        _ => Err(root.wrong("layer_types", describe(kind), "\"full_attention\" or \"sliding_attention\"")),
    };
    kinds.iter().map(kind).collect()
}

pub(super) fn target_layer_ids(fields: &Fields<'_>, num_target_layers: usize) -> Result<Vec<usize>, CheckpointError> {
    const FIELD: &str = "target_layer_ids";
    let value = fields.get(FIELD).ok_or_else(|| fields.missing(FIELD))?;
    let wrong = |found| fields.wrong(FIELD, found, format!("a list of layers below {num_target_layers}"));
    let is_usable = |ids: &&Vec<Value>| !ids.is_empty() && ids.len() <= num_target_layers;
    let ids = value.as_array().filter(is_usable).ok_or_else(|| wrong(describe(value)))?;
    let id = |id: &Value| {
        let number = id.as_u64().and_then(|id| usize::try_from(id).ok()).filter(|&id| id < num_target_layers);
        number.ok_or_else(|| wrong(describe(id)))
    };
    ids.iter().map(id).collect()
}

/// DFlash2's convolutions; the two fields come together.
fn conv<'a>(
    holder: &impl Fn(&str) -> Fields<'a>,
    block_size: usize,
    hidden_size: usize,
) -> Result<Option<DraftConv>, CheckpointError> {
    const FIELDS: [&str; 2] = ["conv_kernel_size", "conv_group_size"];
    if FIELDS.iter().all(|field| holder(field).get(field).is_none()) {
        return Ok(None);
    }
    let [kernel_size, group_size] = FIELDS.map(holder);
    let kernel_size = kernel_size.count(FIELDS[0], 1..=block_size)?;
    let size = group_size.count(FIELDS[1], 1..=hidden_size)?;
    if !hidden_size.is_multiple_of(size) {
        return Err(group_size.wrong(FIELDS[1], size, format!("a divisor of the hidden size {hidden_size}")));
    }
    Ok(Some(DraftConv { kernel_size, group_size: size }))
}

/// DFlash2's candidate selector; the two fields come together.
fn selector<'a>(
    holder: &impl Fn(&str) -> Fields<'a>,
    vocab_size: usize,
) -> Result<Option<DraftSelector>, CheckpointError> {
    const FIELDS: [&str; 2] = ["selector_rank", "selector_top_k"];
    if FIELDS.iter().all(|field| holder(field).get(field).is_none()) {
        return Ok(None);
    }
    let rank = holder(FIELDS[0]).count(FIELDS[0], limits::WIDTH)?;
    let most = vocab_size.min(*TOP_K.end());
    Ok(Some(DraftSelector { rank, top_k: holder(FIELDS[1]).count(FIELDS[1], 1..=most)? }))
}

/// The tensors of a folder. Some files have them under `draft_model.`, and a selector's codebooks as embeddings.
pub(super) fn read_tensors(dir: &Path) -> Result<Parts, CheckpointError> {
    let Weights { mut pool, files, mappings, .. } = read_weights(dir)?;
    rename(&mut pool)?;
    Ok(Parts { pool, files, mappings })
}

fn rename(pool: &mut Pool) -> Result<(), CheckpointError> {
    const CODEBOOKS: [&str; 2] = ["candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook"];
    let canonical = |name: &str| {
        let name = name.strip_prefix("draft_model.").unwrap_or(name);
        let codebook = name.strip_suffix(".weight").filter(|name| CODEBOOKS.contains(name));
        codebook.unwrap_or(name).to_owned()
    };
    let names: Vec<String> = pool.names().map(str::to_owned).collect();
    for name in names {
        let new = canonical(&name);
        if new != name
            && let Some(stored) = pool.remove(&name)
        {
            pool.insert(new, stored)?;
        }
    }
    Ok(())
}
