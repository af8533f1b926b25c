//! Drafters of the DFlash kind, in z-lab's layout: `config.json` with `dflash_config`, and safetensors.

use std::path::Path;

use serde_json::{Value, json};

use crate::{
    CheckpointError, ModelConfig, SourceFile, TensorData, TensorMap,
    config::{limits, parse_hugging_face},
    expected::{self, Origin},
    fields::{Fields, describe, parse_json, shorten},
    hugging_face::{Weights, read_optional, read_weights},
    pool::{Element, Pool},
    safetensors::Dtype,
};

/// A drafter that guesses a block of tokens in one pass, from hidden states of its target.
///
/// It has no embedding and no output matrix: both are the target's. Its tensors are `fc.weight`, `hidden_norm.weight`,
/// `norm.weight`, and blocks named as those of Qwen3. Source: DFlash (arXiv:2602.06036) and the repository `z-lab/dflash`.
#[derive(Debug)]
pub struct DrafterCheckpoint {
    /// What the config says.
    pub config: DrafterConfig,
    /// The tensors, checked against the config.
    pub tensors: TensorMap,
    /// The files, the config first.
    pub files: Vec<SourceFile>,
}

/// Sizes and settings of a drafter.
#[derive(Debug, Clone, PartialEq)]
pub struct DrafterConfig {
    /// Its blocks, whose `hidden_size` and `vocab_size` are the target's. All layers read as full attention here;
    /// [`attention`](Self::attention) has their kinds.
    pub model: ModelConfig,
    /// What each layer sees.
    pub attention: Vec<DraftAttention>,
    /// Rows of a pass: the last token of the text and as many masks as make up the rest.
    pub block_size: usize,
    /// Layers of the target whose outputs it reads, in the order in which they are joined.
    pub target_layer_ids: Vec<usize>,
    /// Layers of the target that it was made for.
    pub num_target_layers: usize,
    /// The token that stands for a place to be guessed.
    pub mask_token_id: u32,
    /// The target's tokens that it can guess, in the order of its own scores; `None` for all of them.
    pub draft_to_target: Option<Vec<u32>>,
}

/// What the rows of a block see in one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftAttention {
    /// All of the text, and all rows of the block.
    Full,
    /// The last tokens up to and with the row itself, this many; so within the block a row sees those before it.
    Sliding {
        /// Tokens that a row sees at most, its own included.
        window: usize,
    },
}

/// Longest block: no drafter is trained to look further.
const BLOCK: std::ops::RangeInclusive<usize> = 2..=64;

impl DrafterCheckpoint {
    /// Opens the folder of a drafter.
    ///
    /// # Errors
    ///
    /// Files that are missing, damaged or not those of a drafter; tensors that do not fit the config; tensors that this
    /// kind of drafter does not have, since leaving them out would guess something else.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        let config_file = dir.join("config.json");
        let file = read_optional(&config_file)?.ok_or_else(|| CheckpointError::NoConfig { dir: dir.to_owned() })?;
        let mut config = DrafterConfig::from_json(&file.bytes, &config_file)?;
        let Weights { mut pool, mut files, mappings, .. } = read_weights(dir)?;
        let origin = Origin { weights: dir, config: &config_file };
        config.draft_to_target = draft_to_target(&mut pool, config.model.vocab_size)?;
        let tensors = expected::assemble_drafter(&config.model, config.target_layer_ids.len(), &mut pool, &origin)?;
        refuse_others(&pool)?;
        files.insert(0, file.source);
        Ok(Self { config, tensors: tensors.with_mappings(mappings), files })
    }
}

impl DrafterConfig {
    /// Reads a `config.json`. `file` is the name that errors give; `draft_to_target` is in the tensors and `None` here.
    ///
    /// # Errors
    ///
    /// A missing field, a value that no drafter can have, or the config of something else.
    pub fn from_json(json: &[u8], file: &Path) -> Result<Self, CheckpointError> {
        let value: Value = parse_json(json, file)?;
        let root = Fields::of(&value, file)?;
        let own = root.object("dflash_config")?.ok_or_else(|| root.missing("dflash_config"))?;
        let model = parse_hugging_face(plain(&value).to_string().as_bytes(), file)?.model;
        // Some files have these beside `dflash_config`, some inside it.
        let holder = |field: &str| if own.get(field).is_some() { own.clone() } else { root.clone() };
        let num_target_layers = holder("num_target_layers").count("num_target_layers", limits::LAYERS)?;
        Ok(Self {
            attention: attention(&root, model.num_hidden_layers)?,
            block_size: holder("block_size").count("block_size", BLOCK)?,
            target_layer_ids: target_layer_ids(&holder("target_layer_ids"), num_target_layers)?,
            num_target_layers,
            mask_token_id: holder("mask_token_id").count("mask_token_id", 0..=model.vocab_size - 1)? as u32,
            draft_to_target: None,
            model,
        })
    }
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

fn attention(root: &Fields<'_>, num_layers: usize) -> Result<Vec<DraftAttention>, CheckpointError> {
    let kinds = match root.get("layer_types") {
        None => return Ok(vec![DraftAttention::Full; num_layers]),
        Some(Value::Array(kinds)) if kinds.len() == num_layers => kinds,
        Some(other) => return Err(root.wrong("layer_types", describe(other), "a list with one entry for each layer")),
    };
    let kind = |kind: &Value| match kind.as_str() {
        Some("full_attention") => Ok(DraftAttention::Full),
        Some("sliding_attention") => {
            Ok(DraftAttention::Sliding { window: root.count("sliding_window", limits::POSITIONS)? })
        }
        _ => Err(root.wrong("layer_types", describe(kind), "\"full_attention\" or \"sliding_attention\"")),
    };
    kinds.iter().map(kind).collect()
}

fn target_layer_ids(fields: &Fields<'_>, num_target_layers: usize) -> Result<Vec<usize>, CheckpointError> {
    const FIELD: &str = "target_layer_ids";
    let value = fields.get(FIELD).ok_or_else(|| fields.missing(FIELD))?;
    let wrong = |found| fields.wrong(FIELD, found, format!("a list of layers below {num_target_layers}"));
    let ids = value.as_array().filter(|ids| !ids.is_empty()).ok_or_else(|| wrong(describe(value)))?;
    let id = |id: &Value| {
        let number = id.as_u64().and_then(|id| usize::try_from(id).ok()).filter(|&id| id < num_target_layers);
        number.ok_or_else(|| wrong(describe(id)))
    };
    ids.iter().map(id).collect()
}

/// The list of tokens that the drafter scores, if it has one.
fn draft_to_target(pool: &mut Pool, vocab_size: usize) -> Result<Option<Vec<u32>>, CheckpointError> {
    const NAME: &str = "draft_to_target";
    let Some(stored) = pool.remove(NAME) else { return Ok(None) };
    let malformed = |what: String, found: String, expected: String| CheckpointError::Malformed {
        file: stored.file.to_path_buf(),
        what,
        found,
        expected,
    };
    let (Element::Other(Dtype::I32 | Dtype::U32), TensorData::Plain(bytes)) = (stored.element, &stored.data) else {
        return Err(malformed(format!("the type of tensor `{NAME}`"), "another".to_owned(), "I32 or U32".to_owned()));
    };
    let ids = bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
    match ids.clone().find(|&id| id as usize >= vocab_size) {
        None => Ok(Some(ids.collect())),
        Some(id) => Err(malformed(
            format!("an entry of tensor `{NAME}`"),
            id.to_string(),
            format!("a token below `vocab_size`, which is {vocab_size}"),
        )),
    }
}

/// Refuses tensors that nothing was taken for: they change what is guessed.
fn refuse_others(pool: &Pool) -> Result<(), CheckpointError> {
    let Some(name) = pool.names().min() else { return Ok(()) };
    let file = pool.get(name).map(|stored| stored.file.to_path_buf()).unwrap_or_default();
    Err(CheckpointError::UnsupportedFormat {
        file,
        tensor: shorten(name),
        found: "part of a drafter that is more than DFlash".to_owned(),
        advice: "supported are drafters of full and sliding attention, without convolutions, selectors or other heads",
    })
}
