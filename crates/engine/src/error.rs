//! What can go wrong, said so that the reader can act on it.

use std::path::PathBuf;

use pleach_checkpoint::CheckpointError;
use pleach_decode::DecodeError;
use pleach_kernels::KernelError;
use pleach_model::ModelError;
use pleach_text::TextError;

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// No model was named and none is where one is looked for.
    #[error("no model was named, and there is none in {}", list(places))]
    NoDefaultModel {
        /// The folders searched, in order.
        places: Vec<PathBuf>,
    },
    /// A path that does not exist.
    #[error("there is no model `{model}`: no file or folder has this name")]
    NoSuchModel {
        /// The name as given.
        model: String,
    },
    /// The model's files cannot be used.
    #[error("cannot open the model `{path}`")]
    Checkpoint {
        /// The model's path.
        path: PathBuf,
        /// What is wrong with the files.
        source: CheckpointError,
    },
    /// The model's tokenizer cannot be used.
    #[error("cannot use the tokenizer of `{path}`")]
    Tokenizer {
        /// The model's path.
        path: PathBuf,
        /// What is wrong with it.
        source: TextError,
    },
    /// The model's chat template cannot be used.
    #[error("cannot use the chat template of `{path}`")]
    ChatTemplate {
        /// The model's path.
        path: PathBuf,
        /// What is wrong with it.
        source: TextError,
    },
    /// The tokenizer has ids that the model has no rows for.
    #[error(
        "the tokenizer has {tokenizer} ids, but `vocab_size` of the model is {model}: \
         tokenizer and weights are of different models"
    )]
    Vocabulary {
        /// Ids of the tokenizer.
        tokenizer: usize,
        /// Rows of the model's output.
        model: usize,
    },
    /// The device cannot be started.
    #[error("cannot start the device")]
    Device(#[source] KernelError),
    /// The weights cannot be put on the device, or a pass failed.
    #[error("the model cannot be run")]
    Model(#[from] ModelError),
    /// A context longer than the model was made for.
    #[error("a context of {found} tokens was asked for, but the model was made for at most {most}")]
    ContextBeyondModel {
        /// Tokens asked for.
        found: usize,
        /// Tokens that the model was made for.
        most: usize,
    },
    /// A context whose keys and values do not fit the free memory.
    #[error(
        "a context of {found} tokens takes {needed_mib} MiB, but {available_mib} MiB are free: \
         ask for at most {fits} tokens"
    )]
    ContextBeyondMemory {
        /// Tokens asked for.
        found: usize,
        /// What they take.
        needed_mib: usize,
        /// What is free.
        available_mib: usize,
        /// Tokens that fit.
        fits: usize,
    },
    /// A field of a request or of the options lies outside what it may be.
    #[error("`{field}` is {found}, but must be {allowed}")]
    InvalidField {
        /// The field, as it is spelled in the API.
        field: &'static str,
        /// The value met.
        found: String,
        /// The values allowed.
        allowed: String,
    },
    /// A drafter was asked for that does not belong to the model.
    #[error("`{drafter}` cannot draft for this model: {reason}")]
    UnfitDrafter {
        /// The drafter asked for.
        drafter: &'static str,
        /// What does not fit.
        reason: String,
    },
    /// The prompt leaves no room for an answer.
    #[error("the prompt has {prompt} tokens, but the context holds {context} with at least one of the answer")]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// The prompt is so long that its tokens were not counted to the end.
    #[error(
        "the prompt has {bytes} bytes, at least {least} tokens, but the context holds {context} with at least one of the answer"
    )]
    PromptFarTooLong {
        /// Bytes of its texts.
        bytes: usize,
        /// Tokens that they have at least.
        least: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// A chat was asked for from a model that has no chat template.
    #[error("the model has no chat template: it continues texts and was not made for conversations")]
    NoChatTemplate,
    /// The messages, the stop strings or the text of a request cannot be used.
    #[error("the request cannot be used")]
    Text(#[from] TextError),
    /// Whoever asked has given up.
    #[error("cancelled before it was done")]
    Cancelled,
    /// The model computed something that no token can be drawn from.
    ///
    /// The session has forgotten its state; its next request starts anew.
    #[error(
        "non-finite logits: the logit of token {token} at position {position} is {value}, \
         but must be a number below infinity"
    )]
    NonFiniteLogits {
        /// Position of the token to draw.
        position: u64,
        /// First offending token.
        token: u32,
        /// Its logit.
        value: f32,
    },
    /// The folder of kept states cannot be used.
    #[error("cannot keep states in `{path}`")]
    CacheDir {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A fault of the engine or of a demand's own code ended the request; others go on.
    #[error("the engine met a fault of its own; this request is lost")]
    Fault,
    /// The request or its generation breaks another rule of decoding.
    #[error(transparent)]
    Decode(DecodeError),
}

impl From<DecodeError> for EngineError {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::InvalidOption { field, found, allowed } => Self::InvalidField { field, found, allowed },
            DecodeError::PromptTooLong { prompt, context } => Self::PromptTooLong { prompt, context },
            DecodeError::NonFiniteLogits { position, token, value } => Self::NonFiniteLogits { position, token, value },
            other => Self::Decode(other),
        }
    }
}

impl EngineError {
    /// What the user can do about it, in one sentence, where the message itself does not say.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NoDefaultModel { .. } => "`scripts/fetch-model.sh` fetches a small model; or name one",
            Self::NoSuchModel { .. } => "a model is a folder or a `.gguf` file",
            Self::NoChatTemplate => "give the prompt as plain text, or use the instruction-tuned variant of the model",
            Self::PromptTooLong { .. } | Self::PromptFarTooLong { .. } => {
                "shorten the prompt or open the model with a longer context"
            }
            Self::UnfitDrafter { .. } => "leave the drafter out to have one chosen",
            Self::ContextBeyondModel { .. } => "leave the context length out to have it chosen",
            Self::NonFiniteLogits { .. } => {
                "the weights may be damaged, or overflow 16 bits: try an f32 key-value cache and exact activations"
            }
            Self::Checkpoint { source: CheckpointError::ADrafter { .. }, .. } => {
                "name the drafter beside its model, with `--draft-model`"
            }
            Self::Device(_) => "the reference device runs everywhere",
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

/// `` `a`, `b` and `c` ``, or `nothing`.
fn list(places: &[PathBuf]) -> String {
    names(&places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>())
}

fn names(names: &[String]) -> String {
    match names {
        [] => "nothing".to_owned(),
        [only] => format!("`{only}`"),
        [first @ .., last] => {
            let first: Vec<_> = first.iter().map(|name| format!("`{name}`")).collect();
            format!("{} and `{last}`", first.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_model_says_where_it_was_looked_for() {
        let error = EngineError::NoDefaultModel { places: vec!["a/models".into(), "b/models".into(), "c".into()] };
        assert_eq!(error.to_string(), "no model was named, and there is none in `a/models`, `b/models` and `c`");
        assert!(error.hint().unwrap().contains("scripts/fetch-model.sh"));
        assert_eq!(names(&[]), "nothing");
        assert_eq!(names(&["a".to_owned()]), "`a`");
    }

    #[test]
    fn errors_of_decoding_become_variants_that_callers_can_match() {
        let error = EngineError::from(DecodeError::PromptTooLong { prompt: 9, context: 8 });
        assert!(matches!(error, EngineError::PromptTooLong { prompt: 9, context: 8 }));
        assert_eq!(
            error.to_string(),
            "the prompt has 9 tokens, but the context holds 8 with at least one of the answer"
        );
        assert!(matches!(EngineError::from(DecodeError::EmptyPrompt), EngineError::Decode(_)));
    }
}
