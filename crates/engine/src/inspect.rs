//! What is in a model's files and what it would take, without loading it.

use std::collections::BTreeMap;
use std::path::Path;

use pleach_checkpoint::{Checkpoint, ModelConfig, SourceFile};
use pleach_model::MemoryPlan;

use crate::options::ContextLimits;
use crate::{EngineError, EngineOptions, ModelInfo, info, memory, vocabulary};

/// A model that was looked into.
#[derive(Debug, Clone)]
pub struct Inspection {
    /// What it is, with the context that would be chosen now and the longest that could be asked for.
    pub info: ModelInfo,
    /// Its sizes.
    pub config: ModelConfig,
    /// The tensors that are used, in the order of names.
    pub tensors: Vec<TensorInfo>,
    /// The number formats of the weights, the one with the most bytes first.
    pub formats: Vec<FormatShare>,
    /// The files that it is read from.
    pub files: Vec<SourceFile>,
    /// Whether it was made for conversations.
    pub has_chat_template: bool,
    /// Bytes of memory that are free; `None` where the system does not say.
    pub available_bytes: Option<u64>,
}

/// A tensor of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name in the engine.
    pub name: String,
    /// Its name in the file.
    pub source_name: String,
    /// Its sizes, outermost first.
    pub shape: Vec<usize>,
    /// Its number format.
    pub format: String,
    /// Bytes in the file.
    pub size_bytes: usize,
}

/// All tensors of one format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormatShare {
    /// The format.
    pub format: String,
    /// How many tensors have it.
    pub tensors: usize,
    /// Bytes of them all.
    pub size_bytes: usize,
}

impl Inspection {
    /// Bytes that the model takes with a sequence of so many tokens.
    pub fn total_bytes(&self, tokens: usize) -> usize {
        self.info.memory.total_bytes(tokens)
    }
}

/// Looks into the model in a folder or a `.gguf` file. Its files are mapped and checked as for opening, its weights are
/// not read.
///
/// # Errors
/// As [`Engine::open`](crate::Engine::open), as far as files and options are concerned.
pub fn inspect(path: &Path, options: &EngineOptions) -> Result<Inspection, EngineError> {
    options.validate()?;
    let checkpoint =
        Checkpoint::open(path).map_err(|source| EngineError::Checkpoint { path: path.to_owned(), source })?;
    let tokenizer = vocabulary::tokenizer(&checkpoint, path)?;
    let template = vocabulary::chat_template(&checkpoint, &tokenizer, path)?;
    let about = info::describe(path, &checkpoint, &tokenizer, template.as_ref());
    let tensors = tensors(&checkpoint);
    let weights_bytes = tensors.iter().map(|tensor| tensor.size_bytes).sum();
    let plan = MemoryPlan::of(&checkpoint.config, weights_bytes, &options.load_options());
    let limits = ContextLimits::of(&checkpoint.config, &plan, plan.weights_bytes);
    let context = options.context.resolve(&limits)?;
    Ok(Inspection {
        info: about.with_plan(options.open_device()?.describe(), plan, context, &limits),
        formats: formats(&tensors),
        tensors,
        files: checkpoint.files,
        config: checkpoint.config,
        has_chat_template: template.is_some(),
        available_bytes: memory::available_bytes(),
    })
}

fn tensors(checkpoint: &Checkpoint) -> Vec<TensorInfo> {
    let mut tensors: Vec<TensorInfo> = checkpoint
        .tensors
        .iter()
        .map(|tensor| TensorInfo {
            name: tensor.name.clone(),
            source_name: tensor.source_name.clone(),
            shape: tensor.shape.clone(),
            format: info::Format(tensor.format).to_string(),
            size_bytes: tensor.size_bytes(),
        })
        .collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors
}

fn formats(tensors: &[TensorInfo]) -> Vec<FormatShare> {
    let mut shares = BTreeMap::<&str, (usize, usize)>::new();
    for tensor in tensors {
        let share = shares.entry(&tensor.format).or_default();
        *share = (share.0 + 1, share.1 + tensor.size_bytes);
    }
    let mut shares: Vec<FormatShare> = shares
        .into_iter()
        .map(|(format, (tensors, size_bytes))| FormatShare { format: format.to_owned(), tensors, size_bytes })
        .collect();
    shares.sort_by_key(|share| std::cmp::Reverse(share.size_bytes));
    shares
}
