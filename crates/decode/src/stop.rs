//! Why a text ends.

use std::fmt;

use crate::TokenId;

/// Why a generation stopped. If several reasons meet at one token, the first of this list is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// The model wrote this stop token, which is the last of the tokens given.
    StopToken(TokenId),
    /// The request's constraint ended the text: a stop string or a complete grammar.
    Constraint,
    /// The output has as many tokens as the request allows.
    MaxTokens,
    /// Prompt and output fill the context.
    Context,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StopToken(token) => write!(f, "stop token {token}"),
            Self::Constraint => f.write_str("end of the constraint"),
            Self::MaxTokens => f.write_str("token limit"),
            Self::Context => f.write_str("end of the context"),
        }
    }
}
