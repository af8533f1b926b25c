//! Drafters of the DFlash kind: what they are, whichever way their files are laid out.

mod mirai;
mod z_lab;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{
    CheckpointError, ModelConfig, SourceFile, TensorData, TensorMap,
    expected::{self, Origin},
    fields::{parse_json, shorten},
    hugging_face::read_optional,
    pool::{Element, Pool},
    safetensors::Dtype,
};

/// A drafter that guesses a block of tokens in one pass, from hidden states of its target.
///
/// It has no embedding and no output matrix: both are the target's. Its tensors are `fc.weight`, `hidden_norm.weight`,
/// `norm.weight`, blocks named as those of Qwen3, and with DFlash2 `attention_conv` and `mlp_conv` in each block and
/// `candidate_selector`. Source: DFlash (arXiv:2602.06036) and the repository `z-lab/dflash`.
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
    /// DFlash2's convolutions around attention and MLP of each layer.
    pub conv: Option<DraftConv>,
    /// DFlash2's scores of neighboring guesses.
    pub selector: Option<DraftSelector>,
}

/// What the rows of a block see in one layer, of the text and of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftAttention {
    /// Rows and tokens at a smaller distance than this; `None` for all.
    pub window: Option<usize>,
    /// Whether a row does not see those after it.
    pub causal: bool,
}

impl DraftAttention {
    /// All of the text, and all rows of the block.
    pub const FULL: Self = Self { window: None, causal: false };
}

/// Sizes of DFlash2's convolutions, which reach back inside the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftConv {
    /// Rows that a row is mixed of, its own included.
    pub kernel_size: usize,
    /// Channels that share what the row's own input adds to the kernel.
    pub group_size: usize,
}

/// Sizes of DFlash2's candidate selector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftSelector {
    /// Width of a token's entry in its two codebooks.
    pub rank: usize,
    /// Likeliest tokens of a place that it weighs.
    pub top_k: usize,
}

/// How the files of a drafter are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrafterLayout {
    /// z-lab's: a Hugging Face config with `dflash_config`, tensors named as the model's modules.
    ZLab,
    /// Mirai's: `speculator_config` with `draft_config`, tensors under `speculator.`.
    Mirai,
}

impl DrafterLayout {
    /// The layout of the drafter in a folder, by its `config.json`; `None` where it describes something else, or nothing
    /// that can be read.
    pub fn of(dir: &Path) -> Option<Self> {
        let config = std::fs::read(dir.join("config.json")).ok()?;
        Self::of_config(&serde_json::from_slice(&config).ok()?)
    }

    /// The layout that a config describes.
    pub(crate) fn of_config(config: &Value) -> Option<Self> {
        if config.get("speculator_config").is_some() {
            return Some(Self::Mirai);
        }
        let names_itself = |name: &Value| name.as_str().is_some_and(|name| name.starts_with("DFlash"));
        let architectures = config.get("architectures").and_then(Value::as_array);
        let is_drafter =
            config.get("dflash_config").is_some() || architectures.is_some_and(|names| names.iter().any(names_itself));
        is_drafter.then_some(Self::ZLab)
    }
}

/// The drafter that came with a model: in the folder `speculator` inside the model's own.
pub fn drafter_beside(model: &Path) -> Option<PathBuf> {
    let dir = model.join("speculator");
    DrafterLayout::of(&dir).map(|_| dir)
}

/// Longest block: no drafter is trained to look further.
const BLOCK: std::ops::RangeInclusive<usize> = 2..=64;

impl DrafterCheckpoint {
    /// Opens the folder of a drafter, in either layout.
    ///
    /// # Errors
    ///
    /// Files that are missing, damaged or not those of a drafter; tensors that do not fit the config; tensors that this
    /// kind of drafter does not have, since leaving them out would guess something else.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        let config_file = dir.join("config.json");
        let file = read_optional(&config_file)?.ok_or_else(|| CheckpointError::NoConfig { dir: dir.to_owned() })?;
        let mut config = DrafterConfig::from_json(&file.bytes, &config_file)?;
        let layout = DrafterLayout::of_config(&parse_json(&file.bytes, &config_file)?);
        let Parts { mut pool, mut files, mappings } = match layout {
            Some(DrafterLayout::Mirai) => mirai::read_tensors(dir, &config)?,
            _ => z_lab::read_tensors(dir)?,
        };
        let origin = Origin { weights: dir, config: &config_file };
        config.draft_to_target = draft_to_target(&mut pool, config.model.vocab_size)?;
        let tensors = expected::assemble_drafter(&config, &mut pool, &origin)?;
        refuse_others(&pool)?;
        files.insert(0, file.source);
        Ok(Self { config, tensors: tensors.with_mappings(mappings), files })
    }
}

/// The tensors of a drafter under their canonical names, and what they came from.
struct Parts {
    pool: Pool,
    files: Vec<SourceFile>,
    mappings: Vec<crate::map::Mapping>,
}

impl DrafterConfig {
    /// Reads a `config.json` of either layout. `file` is the name that errors give; `draft_to_target` is in the tensors and
    /// `None` here.
    ///
    /// # Errors
    ///
    /// A missing field, a value that no drafter can have, or the config of something else.
    pub fn from_json(json: &[u8], file: &Path) -> Result<Self, CheckpointError> {
        let value: Value = parse_json(json, file)?;
        match DrafterLayout::of_config(&value) {
            Some(DrafterLayout::Mirai) => mirai::config(&value, file),
            _ => z_lab::config(&value, file),
        }
    }
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
    let stored = pool.get(name);
    Err(CheckpointError::UnsupportedFormat {
        file: stored.map(|stored| stored.file.to_path_buf()).unwrap_or_default(),
        tensor: shorten(stored.map_or(name, |stored| &stored.source_name)),
        found: "part of a drafter that is neither DFlash nor DFlash2".to_owned(),
        advice: "supported are full and sliding attention, DFlash2's convolutions and its candidate selector",
    })
}
