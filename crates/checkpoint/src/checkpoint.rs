//! A model on disk, whatever its format.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    CheckpointError, GenerationConfig, ModelConfig, SkippedTensor, SourceFile, TensorMap, TokenizerSource, gguf,
    hugging_face,
};

/// An opened model: its description, its tensors, and what the text side needs.
///
/// Everything is checked: each tensor that the config asks for is in `tensors` with the right shape, and each tensor of
/// the files is either there or in `skipped`.
#[derive(Debug)]
pub struct Checkpoint {
    /// What the model is.
    pub config: ModelConfig,
    /// Its tensors, by canonical name.
    pub tensors: TensorMap,
    /// Where its tokenizer is defined.
    pub tokenizer: TokenizerSource,
    /// Its chat template, in Jinja; absent for base models.
    pub chat_template: Option<String>,
    /// Its makers' defaults of generation.
    pub generation: GenerationConfig,
    /// Tensors of the files that no part of the model reads, sorted by name.
    pub skipped: Vec<SkippedTensor>,
    /// The format it came in.
    pub source: SourceKind,
    /// The files read, config first: the basis of a fingerprint that needs no pass over the weights.
    pub files: Vec<SourceFile>,
}

/// The format a checkpoint came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SourceKind {
    /// `config.json` and safetensors.
    HuggingFace,
    /// One GGUF file or its parts.
    Gguf,
    /// As Hugging Face, written by MLX: group quantization, or MLX's layout of the convolution.
    Mlx,
}

impl Checkpoint {
    /// Opens a folder (Hugging Face or MLX layout, or one that holds a single GGUF model) or a `.gguf` file.
    ///
    /// Any part of a split GGUF stands for the whole; the others are found by their names. Weights are mapped, not read:
    /// the time taken does not depend on their size.
    ///
    /// # Errors
    ///
    /// Whatever stops the model from being run as its files describe it; see [`CheckpointError`]. Nothing is guessed.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let metadata = fs::metadata(path).map_err(|source| CheckpointError::Read { path: path.to_owned(), source })?;
        if metadata.is_dir() {
            return Self::open_dir(path);
        }
        let is_gguf = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
        if is_gguf { gguf::open(path) } else { Err(CheckpointError::NotAModel { path: path.to_owned() }) }
    }

    fn open_dir(dir: &Path) -> Result<Self, CheckpointError> {
        let has_safetensors = !files_with_extension(dir, "safetensors")?.is_empty();
        if has_safetensors {
            return hugging_face::open(dir);
        }
        // A projector for images lies beside many GGUF models and is none itself.
        let mut models = files_with_extension(dir, "gguf")?;
        models.retain(|path| !file_name(path).starts_with("mmproj") && gguf::is_first_part(path));
        match models.as_slice() {
            [model] => gguf::open(model),
            [] if dir.join("config.json").exists() => Err(CheckpointError::NoWeights { dir: dir.to_owned() }),
            [] => Err(CheckpointError::NoConfig { dir: dir.to_owned() }),
            several_models => Err(several(dir, several_models, "give the path of one of them")),
        }
    }
}

/// The files of `dir` with an extension, sorted by name.
pub(crate) fn files_with_extension(dir: &Path, extension: &str) -> Result<Vec<PathBuf>, CheckpointError> {
    let read_error = |source| CheckpointError::Read { path: dir.to_owned(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(read_error)? {
        let path = entry.map_err(read_error)?.path();
        if path.extension().is_some_and(|found| found.eq_ignore_ascii_case(extension)) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The error for a folder with more weight files than one model has.
pub(crate) fn several(dir: &Path, paths: &[PathBuf], advice: &'static str) -> CheckpointError {
    const SHOWN: usize = 4;
    let mut found =
        paths.iter().take(SHOWN).map(|path| format!("`{}`", file_name(path))).collect::<Vec<_>>().join(", ");
    if paths.len() > SHOWN {
        found.push_str(&format!(" and {} more", paths.len() - SHOWN));
    }
    CheckpointError::SeveralModels { dir: dir.to_owned(), found, advice }
}

/// A path's last part, for names and errors.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
