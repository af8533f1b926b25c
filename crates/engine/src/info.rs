//! What a model is, for people and for programs that report it.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use pleach_checkpoint::{Architecture, Checkpoint, SkippedTensor, SourceKind, TensorFormat};
use pleach_model::MemoryPlan;
use pleach_text::{ChatTemplate, Tokenizer};

use crate::options::ContextLimits;
use crate::{locate, vocabulary};

/// What was opened.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelInfo {
    /// What people call it.
    pub name: String,
    /// The kind of blocks, such as `qwen35`.
    pub architecture: &'static str,
    /// Elements of all weights that are used.
    pub num_parameters: u64,
    /// The kind of files: `Hugging Face`, `GGUF` or `MLX`.
    pub file_format: &'static str,
    /// The number formats of the weights with their shares of the bytes, largest first, such as
    /// `Q4_1 91 %, Q6_K 9 %`.
    pub quantization: String,
    /// Tokens that prompt and answer may have together.
    pub context: usize,
    /// The longest context that can be asked for: what the model was made for, as far as the free memory holds it.
    pub largest_context: usize,
    /// Tokens that the model was made for.
    pub max_context: usize,
    /// Rows of the embedding, padding included.
    pub vocab_size: usize,
    /// The device in words.
    pub device: String,
    /// What the model takes.
    pub memory: MemoryPlan,
    /// Tensors of the files that are not used, with the reason.
    pub skipped: Vec<SkippedTensor>,
    /// What is doubtful about the files, to be shown once; often nothing.
    pub warnings: Vec<String>,
}

/// The part that is known before the weights are loaded, which uses up the list of tensors.
pub(crate) struct About(ModelInfo);

/// Describes a checkpoint.
pub(crate) fn describe(
    path: &Path,
    checkpoint: &Checkpoint,
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
) -> About {
    About(ModelInfo {
        name: locate::name_of(path),
        architecture: architecture(checkpoint.config.architecture),
        num_parameters: num_parameters(checkpoint),
        file_format: file_format(checkpoint.source),
        quantization: quantization(checkpoint),
        context: 0,
        largest_context: 0,
        max_context: checkpoint.config.max_position_embeddings,
        vocab_size: checkpoint.config.vocab_size,
        device: String::new(),
        memory: MemoryPlan { weights_bytes: 0, state_bytes: 0, token_bytes: 0 },
        skipped: checkpoint.skipped.clone(),
        warnings: vocabulary::warnings(tokenizer, template),
    })
}

impl About {
    /// Adds what the device and its memory decide.
    pub(crate) fn with_plan(
        self,
        device: String,
        memory: MemoryPlan,
        context: usize,
        limits: &ContextLimits,
    ) -> ModelInfo {
        let largest_context = limits.largest();
        ModelInfo { context, largest_context, device, memory, ..self.0 }
    }
}

/// Elements of all weights that are used.
pub(crate) fn num_parameters(checkpoint: &Checkpoint) -> u64 {
    checkpoint.tensors.iter().map(|tensor| tensor.num_elements() as u64).sum()
}

pub(crate) fn architecture(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::Llama => "llama",
        Architecture::Qwen3 => "qwen3",
        Architecture::Qwen35 => "qwen35",
        Architecture::Qwen35Moe => "qwen35moe",
    }
}

fn file_format(source: SourceKind) -> &'static str {
    match source {
        SourceKind::HuggingFace => "Hugging Face",
        SourceKind::Gguf => "GGUF",
        SourceKind::Mlx => "MLX",
    }
}

/// Formats by their share of the bytes; those below half a percent, such as norms in f32, are left out.
pub(crate) fn quantization(checkpoint: &Checkpoint) -> String {
    let mut bytes = HashMap::<TensorFormat, usize>::new();
    for tensor in checkpoint.tensors.iter() {
        *bytes.entry(tensor.format).or_default() += tensor.size_bytes();
    }
    let total = bytes.values().sum::<usize>().max(1) as f64;
    let mut shares: Vec<(f64, String)> =
        bytes.into_iter().map(|(format, bytes)| (100.0 * bytes as f64 / total, Format(format).to_string())).collect();
    shares.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    shares.retain(|(share, _)| *share >= 0.5);
    match shares.as_slice() {
        [(_, only)] => only.clone(),
        several => {
            several.iter().map(|(share, format)| format!("{format} {share:.0} %")).collect::<Vec<_>>().join(", ")
        }
    }
}

/// A format as people write it.
pub(crate) struct Format(pub(crate) TensorFormat);

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            TensorFormat::Affine { bits, group_size, .. } => write!(f, "{bits}-bit, groups of {group_size}"),
            other => write!(f, "{other:?}"),
        }
    }
}
