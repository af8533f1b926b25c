//! What can be wrong with a model's files, said so that the reader can act on it.

use std::{io, path::PathBuf};

/// Why a checkpoint cannot be opened.
///
/// Every message names the file, the field or tensor, the value met, the value expected, and what to do where that is
/// not plain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The path holds no model in a form this crate reads.
    #[error("`{path}` is neither a folder nor a `.gguf` file: give the folder of a model or its `.gguf` file")]
    NotAModel {
        /// The path as given.
        path: PathBuf,
    },
    /// A folder of weights without the description of the model.
    #[error("no `config.json` in `{dir}`: point at the folder that holds the model's files")]
    NoConfig {
        /// The folder searched.
        dir: PathBuf,
    },
    /// A folder with a drafter where a model was asked for.
    #[error(
        "`{dir}` holds a drafter, which guesses ahead for a model and is none itself: open the model that it was made for"
    )]
    ADrafter {
        /// The drafter's folder.
        dir: PathBuf,
    },
    /// A folder without weights.
    #[error("no `.safetensors` or `.gguf` file in `{dir}`: the download is probably incomplete, fetch it again")]
    NoWeights {
        /// The folder searched.
        dir: PathBuf,
    },
    /// A folder whose weight files belong to several models, or to shards without an index.
    #[error("`{dir}` holds several weight files and nothing that joins them ({found}): {advice}")]
    SeveralModels {
        /// The folder searched.
        dir: PathBuf,
        /// The file names met, comma separated; the first few of them.
        found: String,
        /// What to do.
        advice: &'static str,
    },
    /// A folder without a tokenizer this engine reads.
    #[error("no `tokenizer.json` in `{dir}`: copy it from the model's own repository")]
    NoTokenizer {
        /// The folder searched.
        dir: PathBuf,
    },
    /// The operating system would not give us the file.
    #[error("cannot read `{path}`")]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// A path that exists but is no regular file.
    #[error("`{path}` is not a regular file: a checkpoint is read by mapping its files")]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A JSON text that does not parse, or parses to another type than the format asks for.
    #[error("`{file}` is not the JSON expected there")]
    Json {
        /// The file, or the file whose header it is.
        file: PathBuf,
        /// The parser's reason, with line and column.
        source: serde_json::Error,
    },
    /// A field without which the model is not defined.
    #[error(
        "`{file}` has no `{field}`, and guessing it would give a different model: take the file from the model's own repository"
    )]
    MissingField {
        /// The file, whose name says whether the field is a JSON field or GGUF metadata.
        file: PathBuf,
        /// The field, as the file spells it.
        field: String,
    },
    /// A field with a value that no model can have, or that this engine does not run.
    #[error("`{field}` in `{file}` is {found}, expected {expected}")]
    Field {
        /// The file.
        file: PathBuf,
        /// The field, as the file spells it.
        field: String,
        /// The value met.
        found: String,
        /// The values allowed.
        expected: String,
    },
    /// A model of a kind that this engine does not run.
    #[error("`{file}` holds a `{found}` model, which is not supported: supported are {supported}")]
    UnsupportedArchitecture {
        /// The file.
        file: PathBuf,
        /// The architecture met.
        found: String,
        /// The architectures this engine runs, in the same spelling.
        supported: &'static str,
    },
    /// A file that ends before what it announces.
    #[error(
        "`{file}` ends inside {what}: {needed} bytes are announced at byte {offset}, {left} are left; the download is probably incomplete, fetch it again"
    )]
    Truncated {
        /// The file.
        file: PathBuf,
        /// What was being read.
        what: String,
        /// Where it starts in the file.
        offset: u64,
        /// Bytes that it takes.
        needed: u64,
        /// Bytes that the file still has there.
        left: u64,
    },
    /// A file whose bytes contradict its format.
    #[error("`{file}` is damaged or not what its name says: {what} is {found}, expected {expected}")]
    Malformed {
        /// The file.
        file: PathBuf,
        /// What was being read, with the tensor's or key's name.
        what: String,
        /// The value met.
        found: String,
        /// The values allowed.
        expected: String,
    },
    /// One name used twice where it must be unique.
    #[error("{what} `{name}` occurs twice in `{file}`: the file is damaged")]
    Duplicate {
        /// The file.
        file: PathBuf,
        /// The kind of thing named: a tensor, a metadata key.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Two tensors of the files stand for one tensor of the model.
    #[error(
        "`{first}` in `{first_file}` and `{second}` in `{second_file}` both stand for tensor `{name}`: remove the file that does not belong to the model"
    )]
    TwoSources {
        /// The canonical name.
        name: String,
        /// The first tensor's name in its file.
        first: String,
        /// The first tensor's file.
        first_file: PathBuf,
        /// The second tensor's name in its file.
        second: String,
        /// The second tensor's file.
        second_file: PathBuf,
    },
    /// A tensor stored in a number format that this engine does not compute with.
    #[error("tensor `{tensor}` in `{file}` is stored as {found}, which is not supported: {advice}")]
    UnsupportedFormat {
        /// The file.
        file: PathBuf,
        /// The tensor's name in the file.
        tensor: String,
        /// The format met.
        found: String,
        /// What to do, with the formats allowed.
        advice: &'static str,
    },
    /// A tensor that the config asks for and no file has.
    #[error(
        "tensor `{name}` is missing from `{file}`: `{rule}` in `{config}` asks for it with shape {expected:?}; the download is incomplete, or weights and config are of different models"
    )]
    MissingTensor {
        /// The canonical name.
        name: String,
        /// Where it was looked for.
        file: PathBuf,
        /// The file that holds the config.
        config: PathBuf,
        /// The config's fields behind the shape.
        rule: &'static str,
        /// The shape asked for.
        expected: Vec<usize>,
    },
    /// A tensor of a layer that the config does not count: without it the model would be another one.
    #[error(
        "tensor `{name}` in `{file}` belongs to a layer past the {layers} that `{config}` announces (`num_hidden_layers`, in GGUF `block_count`): weights and config are of different models, fetch both again"
    )]
    MoreLayers {
        /// The tensor's name in its file.
        name: String,
        /// Its file.
        file: PathBuf,
        /// The file that holds the config.
        config: PathBuf,
        /// Layers of the trunk that the config announces.
        layers: usize,
    },
    /// A tensor whose shape contradicts the config.
    #[error("tensor `{name}` in `{file}` has shape {found:?}, but `{rule}` in `{config}` asks for {expected:?}")]
    Shape {
        /// The tensor's name in its file.
        name: String,
        /// Its file.
        file: PathBuf,
        /// The file that holds the config.
        config: PathBuf,
        /// The config's fields behind the shape.
        rule: &'static str,
        /// The shape met.
        found: Vec<usize>,
        /// The shape asked for.
        expected: Vec<usize>,
    },
    /// A tensor asked for that the checkpoint never had or that was taken before.
    #[error("tensor `{name}` is not in the checkpoint, or was taken before")]
    NoSuchTensor {
        /// The canonical name.
        name: String,
    },
}
