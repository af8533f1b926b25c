//! Tools: what a request offers, how a model writes calls of them, and how calls are read from its text.

pub(crate) mod grammar;
mod json_call;
mod parser;
mod typed;
mod xml_call;

use pleach_engine::{ChatRequest, Engine, Message, Role};
use serde_json::{Value, json};

pub(crate) use self::parser::{CallParser, Piece};

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tool {
    pub(crate) name: String,
    /// What it does, in words.
    pub(crate) description: Option<String>,
    /// JSON Schema of its arguments.
    pub(crate) parameters: Value,
}

/// Which calls the answer may or must have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// None; text that looks like a call is text.
    None,
    /// At least one, of any tool.
    Required,
    /// One of this tool.
    Named(String),
}

/// How a model was trained to write calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallStyle {
    /// Qwen3.5's: `<tool_call>`, `<function=name>`, `<parameter=key>`, values as text.
    Xml,
    /// Hermes', which most others follow: `<tool_call>` around `{"name": ..., "arguments": {...}}`.
    Json,
}

impl Tool {
    /// The form that chat templates take.
    pub(crate) fn to_template(&self) -> Value {
        let mut function = json!({ "name": self.name });
        if let Some(description) = &self.description {
            function["description"] = Value::from(description.as_str());
        }
        function["parameters"] = self.parameters.clone();
        json!({ "type": "function", "function": function })
    }
}

impl CallStyle {
    /// Finds the style in what the model's template says about tools. A template that takes no tools gets the JSON style.
    pub(crate) fn of(engine: &Engine) -> Self {
        let mut chat = ChatRequest::new(vec![Message::text(Role::User, "Hello")]);
        let tool = Tool { name: "look_up".to_owned(), description: None, parameters: json!({ "type": "object" }) };
        chat.tools = vec![tool.to_template()];
        match engine.render(&chat) {
            Ok(prompt) if prompt.contains("<function=") => Self::Xml,
            _ => Self::Json,
        }
    }
}
