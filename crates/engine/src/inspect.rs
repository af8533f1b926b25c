//! What is in a model's files and what it would take, without loading it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pleach_checkpoint::{Checkpoint, ModelConfig, SourceFile};
use pleach_model::MemoryPlan;

use crate::options::ContextLimits;
use crate::{EngineError, EngineOptions, ModelInfo, drafter, info, memory, vocabulary};

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
    /// The drafter that was named or that lies beside the model; `None` if there is none.
    pub drafter: Option<DrafterFound>,
    /// Bytes of memory that are free; `None` where the system does not say.
    pub available_bytes: Option<u64>,
}

/// What the files of a model say at a glance.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSummary {
    /// The kind of blocks, such as `qwen35`.
    pub architecture: &'static str,
    /// Elements of all weights that are used.
    pub num_parameters: u64,
    /// The number formats of the weights with their shares of the bytes, as in [`ModelInfo::quantization`].
    pub quantization: String,
    /// Mean bits of a weight in the files, scales included.
    pub bits_per_weight: f64,
    /// Tokens that the model was made for.
    pub max_context: usize,
}

/// A drafter trained for a model, looked at without loading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrafterFound {
    /// Its folder.
    pub path: PathBuf,
    /// Elements of its weights, those of its Weaver included.
    pub num_parameters: u64,
    /// Whether a Weaver scores its guesses.
    pub has_weaver: bool,
    /// Why it cannot draft for the model; `None` if it can.
    pub unfit: Option<String>,
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
    /// Elements of them all.
    pub num_parameters: u64,
    /// Bytes of them all.
    pub size_bytes: usize,
}

impl Inspection {
    /// Bytes that the model takes with a sequence of so many tokens.
    pub fn total_bytes(&self, tokens: usize) -> usize {
        self.info.memory.total_bytes(tokens)
    }

    /// Mean bits of a weight in the files, scales included.
    pub fn bits_per_weight(&self) -> f64 {
        bits_per_weight(self.formats.iter().map(|share| share.size_bytes).sum(), self.info.num_parameters)
    }
}

impl FormatShare {
    /// Bits of a weight, scales included.
    pub fn bits_per_weight(&self) -> f64 {
        bits_per_weight(self.size_bytes, self.num_parameters)
    }
}

/// Looks at the headers of a model's files. Neither its tokenizer nor its weights are read.
///
/// # Errors
/// As [`Engine::open`](crate::Engine::open), as far as these files are concerned.
pub fn summarize(path: &Path) -> Result<ModelSummary, EngineError> {
    let checkpoint = open(path)?;
    let size_bytes = checkpoint.tensors.iter().map(|tensor| tensor.size_bytes()).sum();
    let num_parameters = info::num_parameters(&checkpoint);
    Ok(ModelSummary {
        architecture: info::architecture(checkpoint.config.architecture),
        num_parameters,
        quantization: info::quantization(&checkpoint),
        bits_per_weight: bits_per_weight(size_bytes, num_parameters),
        max_context: checkpoint.config.max_position_embeddings,
    })
}

/// Looks into the model in a folder or a `.gguf` file. Its files are mapped and checked as for opening, its weights are
/// not read.
///
/// # Errors
/// As [`Engine::open`](crate::Engine::open), as far as files and options are concerned.
pub fn inspect(path: &Path, options: &EngineOptions) -> Result<Inspection, EngineError> {
    options.validate()?;
    let checkpoint = open(path)?;
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
        drafter: drafter::look(path, &checkpoint.config, options),
        files: checkpoint.files,
        config: checkpoint.config,
        has_chat_template: template.is_some(),
        available_bytes: memory::available_bytes(),
    })
}

fn open(path: &Path) -> Result<Checkpoint, EngineError> {
    Checkpoint::open(path).map_err(|source| EngineError::Checkpoint { path: path.to_owned(), source })
}

fn bits_per_weight(size_bytes: usize, num_parameters: u64) -> f64 {
    8.0 * size_bytes as f64 / num_parameters.max(1) as f64
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
    let mut shares = BTreeMap::<&str, FormatShare>::new();
    for tensor in tensors {
        let format = tensor.format.clone();
        let nothing = FormatShare { format, tensors: 0, num_parameters: 0, size_bytes: 0 };
        let share = shares.entry(&tensor.format).or_insert(nothing);
        share.tensors += 1;
        share.num_parameters += tensor.shape.iter().map(|&size| size as u64).product::<u64>();
        share.size_bytes += tensor.size_bytes;
    }
    let mut shares: Vec<FormatShare> = shares.into_values().collect();
    shares.sort_by_key(|share| std::cmp::Reverse(share.size_bytes));
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, LoadProgress, Speculation};

    fn checkout(path: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
    }

    fn look(model: &str, options: &EngineOptions) -> Inspection {
        inspect(&checkout(model), options).unwrap()
    }

    #[test]
    fn bits_per_weight_are_those_of_the_format() {
        // 32 weights of Q8_0 share a scale of 16 bits.
        let found = look("models/pleach-mini", &EngineOptions::default());
        let q8_0 = found.formats.iter().find(|share| share.format.starts_with("8-bit")).unwrap();
        assert!((8.0..9.0).contains(&q8_0.bits_per_weight()), "{q8_0:?}");
        let summary = summarize(&checkout("models/pleach-mini")).unwrap();
        assert_eq!(summary.bits_per_weight, found.bits_per_weight());
        assert_eq!((summary.num_parameters, summary.max_context), (found.info.num_parameters, found.info.max_context));
        assert_eq!(summary.quantization, found.info.quantization);
        let shared: u64 = found.formats.iter().map(|share| share.num_parameters).sum();
        assert_eq!(shared, summary.num_parameters);
    }

    #[test]
    fn a_drafter_beside_the_model_fits_and_another_does_not() {
        let found = look("models/pleach-mini", &EngineOptions::default()).drafter.unwrap();
        assert_eq!((found.unfit.as_deref(), found.path.ends_with("speculator")), (None, true));
        let draft_model = Some(checkout("models/smollm2-135m-instruct-drafter"));
        let found = look("models/pleach-mini", &EngineOptions { draft_model, ..EngineOptions::default() }).drafter;
        let reason = found.unwrap().unfit.unwrap();
        assert!(reason.starts_with("`dflash` cannot draft for this model: its `"), "{reason}");
        assert_eq!(look("fixtures/tiny-llama", &EngineOptions::default()).drafter, None);
    }

    #[test]
    fn loading_tells_how_far_it_is() {
        let mut told: Vec<LoadProgress> = Vec::new();
        let (model, options) = (checkout("fixtures/tiny-qwen35"), EngineOptions::default());
        Engine::open_watched(&model, &options, &mut |loaded| told.push(loaded)).unwrap();
        assert!(told.is_sorted_by_key(|loaded| loaded.done_bytes));
        let [.., last, end] = told[..] else { panic!("{told:?}") };
        // Only vectors are not counted on the way.
        assert!(last.done_bytes <= last.total_bytes && last.done_bytes > last.total_bytes * 9 / 10, "{last:?}");
        assert!(told.len() > 20 && told[0].done_bytes > 0 && end.done_bytes == end.total_bytes);
    }

    #[test]
    fn the_weights_of_a_drafter_count_in_loading() {
        let total_bytes = |speculation| {
            let (mut total, options) = (0, EngineOptions { speculation, ..EngineOptions::default() });
            let mut told = |loaded: LoadProgress| total = loaded.total_bytes;
            Engine::open_watched(&checkout("models/pleach-mini"), &options, &mut told).unwrap();
            total
        };
        let (alone, drafted) = (total_bytes(Speculation::Off), total_bytes(Speculation::Auto));
        assert!(drafted > alone, "{drafted} bytes with the drafter, {alone} without");
    }
}
