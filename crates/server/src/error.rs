//! What can go wrong: with the server, and with a request.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use pleach_engine::{DecodeError, EngineError, TextError};
use serde_json::{Value, json};

/// Why a server cannot start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address is taken, or not this machine's.
    #[error("cannot listen on `{address}`")]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// An address that others can reach, without a key.
    #[error("`{address}` can be reached from other machines, and no key is asked for: give `--api-key-file`")]
    KeyRequired {
        /// The address asked for.
        address: SocketAddr,
    },
    /// The file of keys cannot be read.
    #[error("cannot read the keys in `{path}`")]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file of keys is empty.
    #[error("`{path}` holds no key: put one on a line of its own")]
    NoKeys {
        /// The file.
        path: PathBuf,
    },
    /// A key that could be guessed or not be sent.
    #[error("line {line} of `{path}` is no usable key: take 8 or more visible ASCII characters without spaces")]
    WeakKey {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
    },
    /// An origin that no web page can have.
    #[error(
        "`--cors-origin` is `{found}`, but must be a scheme and a name such as `https://example.org`, or `*` for all"
    )]
    InvalidOrigin {
        /// What was given.
        found: String,
    },
    /// A name that no machine can have.
    #[error(
        "`--allowed-host` is `{found}`, but must be a name or an address such as `box.lan`, without scheme and port"
    )]
    InvalidHost {
        /// What was given.
        found: String,
    },
    /// The model cannot be opened, or its prefix cache cannot be kept where it should be.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The grammar engine cannot use the model's vocabulary.
    #[error("cannot prepare grammars for the model's vocabulary: {detail}")]
    Grammar {
        /// What the grammar engine says.
        detail: String,
    },
    /// The system gave no thread to run requests on.
    #[error("cannot start a thread for requests")]
    Thread {
        /// The system's reason.
        source: io::Error,
    },
}

/// The protocol that an error is told in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    OpenAi,
    Anthropic,
}

/// Why a request is refused or failed: one status and one JSON object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    /// What the request did wrong, for programs.
    pub(crate) code: Option<&'static str>,
    /// The field at fault.
    pub(crate) param: Option<String>,
    pub(crate) message: String,
    /// Seconds after which another try makes sense.
    pub(crate) retry_after: Option<u64>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code: Some(code), param: None, message: message.into(), retry_after: None }
    }

    /// A request that is no request.
    pub(crate) fn bad(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// A field with a value that it may not have.
    pub(crate) fn field(path: impl Into<String>, found: &Value, expected: &str) -> Self {
        let path = path.into();
        let message = format!("`{path}` is {}, but must be {expected}", shown(found));
        Self::bad("invalid_value", message).at(path)
    }

    /// A field that is needed and not there.
    pub(crate) fn missing(path: impl Into<String>, expected: &str) -> Self {
        let path = path.into();
        Self::bad("missing_required_parameter", format!("`{path}` is missing: give {expected}")).at(path)
    }

    /// A field that this server cannot honor.
    pub(crate) fn unsupported(path: impl Into<String>, reason: &str) -> Self {
        let path = path.into();
        Self::bad("unsupported_value", format!("`{path}` cannot be used: {reason}")).at(path)
    }

    /// What the engine says of a prompt, which stands in this field of the request.
    pub(crate) fn from_prompt(error: EngineError, field: &str) -> Self {
        let mut error = Self::from(error);
        if let Some(param) = error.param.as_mut().filter(|param| ["messages", "prompt"].contains(&param.as_str())) {
            error.message = error.message.replacen(&format!("`{param}`"), &format!("`{field}`"), 1);
            field.clone_into(param);
        }
        error
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    pub(crate) fn at(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    pub(crate) fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    fn kind(&self, dialect: Dialect) -> &'static str {
        match (dialect, self.status.as_u16()) {
            (_, 401) => "authentication_error",
            (Dialect::Anthropic, 403) => "permission_error",
            (Dialect::Anthropic, 404) => "not_found_error",
            (Dialect::Anthropic, 413) => "request_too_large",
            (_, 429) => "rate_limit_error",
            (Dialect::Anthropic, 503) => "overloaded_error",
            (Dialect::Anthropic, 500..) => "api_error",
            (Dialect::OpenAi, 500..) => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The object that tells of it.
    pub(crate) fn body(&self, dialect: Dialect) -> Value {
        let kind = self.kind(dialect);
        match dialect {
            Dialect::OpenAi => {
                json!({ "error": { "message": self.message, "type": kind, "param": self.param, "code": self.code } })
            }
            Dialect::Anthropic => json!({ "type": "error", "error": { "type": kind, "message": self.message } }),
        }
    }

    pub(crate) fn into_response_in(self, dialect: Dialect) -> Response {
        let body = self.body(dialect).to_string();
        let mut response = (self.status, [(header::CONTENT_TYPE, "application/json")], body).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        let field = self.param.map(|path| path.split(['.', '[']).next().unwrap_or_default().to_owned());
        response.extensions_mut().insert(Refused { code: self.code, field });
        response
    }
}

/// What the log may say of an error: never its message nor its whole path, which can quote the request.
#[derive(Debug, Clone)]
pub(crate) struct Refused {
    pub(crate) code: Option<&'static str>,
    /// The field of the request that holds what is at fault.
    pub(crate) field: Option<String>,
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.into_response_in(Dialect::OpenAi)
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::InvalidField { field: "logit_bias token", found, allowed } => {
                let message = format!("`logit_bias` has the token {found}, but its tokens must be {allowed}");
                Self::bad("invalid_value", message).at("logit_bias")
            }
            EngineError::InvalidField { field, found, allowed } => {
                Self::bad("invalid_value", format!("`{field}` is {found}, but must be {allowed}")).at(field)
            }
            EngineError::PromptTooLong { prompt, context } => too_long(&format!("{prompt} tokens"), context),
            EngineError::PromptFarTooLong { bytes, least, context } => {
                too_long(&format!("{bytes} bytes, which are at least {least} tokens"), context)
            }
            EngineError::NoChatTemplate => Self::bad(
                "no_chat_template",
                "the model has no chat template and cannot hold conversations: use /v1/completions",
            ),
            EngineError::Text(error) => from_text(&error),
            EngineError::Decode(error @ (DecodeError::EmptyPrompt | DecodeError::UnknownToken { .. })) => {
                Self::bad("invalid_prompt", error.to_string()).at("prompt")
            }
            // Grammars are the client's: the engine gives up on those that are too large for it.
            EngineError::Decode(DecodeError::NoTokenAllowed { .. }) => Self::bad(
                "grammar_dead_end",
                "the answer cannot go on inside the grammar that the request asks for: no text meets a part of its schema, or that \
                 is too large, such as an object of many optional properties or a long pattern",
            ),
            error @ EngineError::NonFiniteLogits { .. } => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "non_finite_logits", error.to_string())
            }
            // Chains of these name files of this machine, so only the log has them.
            error => {
                tracing::error!(error = chain(&error), "the engine failed");
                Self::internal("the model cannot be run; the server's log says more")
            }
        }
    }
}

fn too_long(found: &str, context: usize) -> ApiError {
    let message = format!(
        "the prompt has {found}, but this model's context holds {context} with at least one of the answer: shorten the prompt"
    );
    ApiError::bad("context_length_exceeded", message).at("messages")
}

fn from_text(error: &TextError) -> ApiError {
    match error {
        TextError::TemplateRefused { message, .. } => {
            let message = format!("the model's chat template refuses the conversation: {message}");
            ApiError::bad("template_refused", message).at("messages")
        }
        TextError::TemplateFailed { detail, .. } => {
            let message = format!("the model's chat template fails on the conversation: {detail}");
            ApiError::bad("template_failed", message).at("messages")
        }
        TextError::TemplateTooLong { messages, .. } => {
            let message = format!(
                "`messages` has {messages} messages with more in them than the model's chat template gets through: send fewer or \
                 shorter ones"
            );
            ApiError::bad("context_length_exceeded", message).at("messages")
        }
        TextError::TooManyStops { .. } | TextError::StopTooLong { .. } | TextError::EmptyStop { .. } => {
            ApiError::bad("invalid_value", error.to_string()).at("stop")
        }
        TextError::ReservedKwarg { .. } => ApiError::bad("invalid_value", error.to_string()).at("chat_template_kwargs"),
        TextError::NoMessages | TextError::UnknownRole { .. } => {
            ApiError::bad("invalid_value", error.to_string()).at("messages")
        }
        TextError::Encode { .. } => {
            ApiError::bad("invalid_prompt", "the model's vocabulary cannot express the prompt").at("prompt")
        }
        error => {
            tracing::error!(error = chain(error), "a text cannot be processed");
            ApiError::internal("the text cannot be processed; the server's log says more")
        }
    }
}

/// An error with its causes, for the log.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// A value in a message: short, and by its kind if it is large.
fn shown(value: &Value) -> String {
    const MOST: usize = 60;
    match value {
        Value::Null => "null".to_owned(),
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) if text.chars().count() > MOST => {
            format!("\"{}…\"", text.chars().take(MOST).collect::<String>())
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_field_value_and_expectation() {
        let error = ApiError::field("temperature", &json!("hot"), "a number from 0 on");
        assert_eq!(
            error.body(Dialect::OpenAi),
            json!({ "error": {
                "message": "`temperature` is \"hot\", but must be a number from 0 on",
                "type": "invalid_request_error", "param": "temperature", "code": "invalid_value",
            } })
        );
        assert_eq!(error.body(Dialect::Anthropic)["error"]["type"], "invalid_request_error");
        let long = ApiError::field("stop", &json!("x".repeat(1000)), "short");
        assert!(long.message.len() < 200);
    }

    #[test]
    fn both_counts_stand_in_an_error_of_length() {
        let error = ApiError::from(EngineError::PromptTooLong { prompt: 9000, context: 4096 });
        assert_eq!((error.status.as_u16(), error.code), (400, Some("context_length_exceeded")));
        assert!(error.message.contains("9000") && error.message.contains("4096"));
    }

    #[test]
    fn errors_of_a_prompt_name_the_field_that_holds_it() {
        let part =
            EngineError::InvalidField { field: "messages", found: "a part".to_owned(), allowed: "text".to_owned() };
        let error = ApiError::from_prompt(part, "input");
        assert_eq!(
            (error.message.as_str(), error.param.as_deref()),
            ("`input` is a part, but must be text", Some("input"))
        );
        let error = ApiError::from_prompt(EngineError::PromptTooLong { prompt: 9, context: 8 }, "prompt");
        assert_eq!(error.param.as_deref(), Some("prompt"));
        let other = EngineError::InvalidField { field: "n", found: "0".to_owned(), allowed: "more".to_owned() };
        assert_eq!(ApiError::from_prompt(other, "input").param.as_deref(), Some("n"));
    }

    /// Names in a schema are the client's own words.
    #[test]
    fn the_log_has_the_field_alone() {
        let response = ApiError::missing("response_format.json_schema.schema.properties.secret", "x").into_response();
        assert_eq!(response.extensions().get::<Refused>().unwrap().field.as_deref(), Some("response_format"));
        let response = ApiError::missing("messages[3].content", "x").into_response();
        assert_eq!(response.extensions().get::<Refused>().unwrap().field.as_deref(), Some("messages"));
    }

    #[test]
    fn no_path_leaves_the_machine() {
        let source = io::Error::other("/secret/model");
        let error = ApiError::from(EngineError::Text(TextError::TemplateThread { source }));
        assert!(!error.body(Dialect::OpenAi).to_string().contains("secret"));
    }
}
