//! What can go wrong between characters and tokens.

use std::error::Error;

use crate::stop::{MAX_STOP_BYTES, MAX_STOP_STRINGS};

/// Every failure of this crate. Nothing here ends the process; each message says what was met,
/// what was expected, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The file is not JSON of the shape of a `tokenizer.json`.
    #[error("cannot read `{source_name}` as a tokenizer")]
    TokenizerJson {
        /// The file, as the caller names it.
        source_name: String,
        /// Line, column and reason.
        source: serde_json::Error,
    },
    /// One part of the tokenizer has a value that makes no sense.
    #[error("`{field}` of `{source_name}` is {found}, expected {expected}")]
    TokenizerField {
        /// The file, as the caller names it.
        source_name: String,
        /// Path of the field inside the file.
        field: String,
        /// The value met.
        found: String,
        /// The values that would do.
        expected: String,
    },
    /// The tokenizer is of a kind that this crate does not run.
    #[error("`{field}` of `{source_name}` is {found}, which is not supported: use a model with {supported}")]
    UnsupportedTokenizer {
        /// The file, as the caller names it.
        source_name: String,
        /// Path of the field inside the file.
        field: String,
        /// The value met.
        found: String,
        /// What is supported in its place.
        supported: String,
    },
    /// The tokenizer library refused a part that looked well-formed, such as a bad regex.
    #[error("`{field}` of `{source_name}` cannot be used")]
    TokenizerPart {
        /// The file, as the caller names it.
        source_name: String,
        /// Path of the field inside the file.
        field: String,
        /// The library's reason.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The text cannot be encoded with this vocabulary.
    #[error("cannot encode the text")]
    Encode {
        /// The library's reason.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The chat template is not valid Jinja, or too large.
    #[error("chat template `{template}` does not compile{}: {detail}", at_line(*line))]
    TemplateSyntax {
        /// Name given to the template.
        template: String,
        /// Line of the template, from 1.
        line: Option<usize>,
        /// What the template engine says.
        detail: String,
    },
    /// The chat template called `raise_exception`: it refuses this conversation.
    #[error("chat template `{template}` refuses the conversation{}: {message}", at_line(*line))]
    TemplateRefused {
        /// Name given to the template.
        template: String,
        /// Line of the template, from 1.
        line: Option<usize>,
        /// The text given to `raise_exception`.
        message: String,
    },
    /// The chat template failed while rendering.
    #[error("chat template `{template}` failed{}: {detail}", at_line(*line))]
    TemplateFailed {
        /// Name given to the template.
        template: String,
        /// Line of the template, from 1.
        line: Option<usize>,
        /// What the template engine says.
        detail: String,
    },
    /// The conversation is more than a rendering may take.
    #[error(
        "chat template `{template}` failed: it takes more than {steps} steps for a conversation of {messages} messages: send fewer or shorter messages"
    )]
    TemplateTooLong {
        /// Name given to the template.
        template: String,
        /// Messages of the conversation.
        messages: usize,
        /// Units of work that a rendering may take.
        steps: u64,
    },
    /// The system gave no thread to render in.
    #[error("cannot start a thread to render the chat template")]
    TemplateThread {
        /// The system's reason.
        source: std::io::Error,
    },
    /// A template keyword that the engine sets itself.
    #[error("`chat_template_kwargs` sets `{name}`, which is taken from the request itself: leave it out")]
    ReservedKwarg {
        /// The keyword met.
        name: String,
    },
    /// A conversation without messages.
    #[error("`messages` is empty: give at least one message")]
    NoMessages,
    /// A message role that no template knows.
    #[error("unknown role `{found}`: expected `system`, `developer`, `user`, `assistant` or `tool`")]
    UnknownRole {
        /// The role met.
        found: String,
    },
    /// Too many stop strings.
    #[error("{found} stop strings are too many: give at most {MAX_STOP_STRINGS}")]
    TooManyStops {
        /// Stop strings met.
        found: usize,
    },
    /// A stop string that would hold back too much text.
    #[error("stop string {index} has {found} bytes: give at most {MAX_STOP_BYTES}")]
    StopTooLong {
        /// Position in the list, from 0.
        index: usize,
        /// Its size in bytes.
        found: usize,
    },
    /// A stop string that would match everywhere.
    #[error("stop string {index} is empty: leave it out")]
    EmptyStop {
        /// Position in the list, from 0.
        index: usize,
    },
    /// A reasoning marker that would match everywhere.
    #[error("the {which} reasoning marker is empty: give the text that marks it, such as `<think>`")]
    EmptyMarker {
        /// `opening` or `closing`.
        which: &'static str,
    },
}

fn at_line(line: Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!(" at line {line}"))
}
