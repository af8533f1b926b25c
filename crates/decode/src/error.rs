//! What can go wrong in one generation step.

use crate::{StopReason, TokenId};

/// An error of sampling, of a request's options, or of a generation step.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// A request's option lies outside what it may be.
    #[error("`{field}` is {found}, but must be {allowed}")]
    InvalidOption {
        /// The option, spelled as in the request.
        field: &'static str,
        /// The value met.
        found: String,
        /// The values allowed.
        allowed: String,
    },

    /// There is nothing to continue.
    #[error("the prompt has no tokens: give it at least one, such as the model's start token")]
    EmptyPrompt,

    /// The prompt leaves no room for a single new token.
    #[error(
        "the prompt has {prompt} tokens, but the context holds {context} with the answer: \
         shorten the prompt or raise the context length"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens that prompt and output may have together.
        context: usize,
    },

    /// A prompt token that the model does not know.
    #[error(
        "prompt token {index} is {token}, but the vocabulary has {vocab_size} tokens: \
         encode the prompt with this model's tokenizer"
    )]
    UnknownToken {
        /// Place in the prompt, from 0.
        index: usize,
        /// The token met.
        token: TokenId,
        /// Tokens of the vocabulary.
        vocab_size: usize,
    },

    /// A row of logits has another length than the vocabulary.
    #[error("the logits of position {position} have {found} entries, but the vocabulary has {expected} tokens")]
    LogitsLength {
        /// Position of the token to draw.
        position: u64,
        /// Entries met.
        found: usize,
        /// Tokens of the vocabulary.
        expected: usize,
    },

    /// A mask has another length than the vocabulary.
    #[error("the token mask covers {found} tokens, but the vocabulary has {expected}")]
    MaskLength {
        /// Tokens the mask covers.
        found: usize,
        /// Tokens of the vocabulary.
        expected: usize,
    },

    /// The model computed something that no distribution can be made of: NaN, +∞, or −∞ for every token.
    ///
    /// Whoever meets this drops the sequence's state, cached prefixes included.
    #[error(
        "non-finite logits: the logit of token {token} at position {position} is {value}, \
         but must be a number below infinity; the sequence's state is unusable"
    )]
    NonFiniteLogits {
        /// Position of the token to draw.
        position: u64,
        /// First offending token.
        token: TokenId,
        /// Its logit: NaN or +∞, or −∞ where every token has it.
        value: f32,
    },

    /// The mask leaves no token that the model gives any chance.
    #[error("no token is allowed at position {position}: the mask forbids every token that has a finite logit")]
    NoTokenAllowed {
        /// Position of the token to draw.
        position: u64,
    },

    /// The generation has stopped already.
    #[error("the generation has stopped already ({reason}): start another one")]
    Finished {
        /// Why it stopped.
        reason: StopReason,
    },

    /// The prompt's last logits came after a token had been drawn.
    #[error("the first token was drawn already: give the prompt's last logits before any step")]
    AlreadyStarted,

    /// A tree was given that was not drafted for the present root.
    #[error(
        "the tree starts at position {found}, but the generation stands at {expected}: draft again after each step"
    )]
    StaleTree {
        /// Position of the tree's root.
        found: usize,
        /// Position of the token that waits to be run.
        expected: usize,
    },
}
