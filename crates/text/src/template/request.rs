//! Conversations as clients send them, and what templates see of them.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value as Json};

use crate::error::TextError;

/// What a chat template renders.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest {
    /// The conversation, oldest first.
    pub messages: Vec<Message>,
    /// Tool descriptions, passed on as they are; an empty list counts as none.
    pub tools: Vec<Json>,
    /// `chat_template_kwargs`: further variables for the template, such as `enable_thinking`.
    pub kwargs: Map<String, Json>,
    /// Whether the prompt ends where the assistant's turn begins.
    pub add_generation_prompt: bool,
}

impl ChatRequest {
    /// A request for the assistant's next turn, without tools or keywords.
    #[must_use]
    pub fn new(messages: Vec<Message>) -> Self {
        Self { messages, tools: Vec::new(), kwargs: Map::new(), add_generation_prompt: true }
    }

    /// The first content part that is not text, by its type, such as `image_url`. A template may mark its place, but
    /// only a model that sees can use it.
    #[must_use]
    pub fn non_text_part(&self) -> Option<&str> {
        let parts = self.messages.iter().filter_map(|message| match &message.content {
            Content::Parts(parts) => Some(parts),
            Content::Text(_) => None,
        });
        parts.flatten().find_map(|part| match part {
            Part::Text(_) => None,
            Part::Other(part) => Some(part.get("type").and_then(Json::as_str).unwrap_or("unknown")),
        })
    }

    pub(super) fn template_messages(&self) -> Vec<Json> {
        self.messages.iter().map(Message::to_template).collect()
    }
}

/// One message of a conversation, in the form of the OpenAI chat protocol. Unknown fields are ignored.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(expecting = "a message, which is an object with `role` and `content`")]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said. Null, missing and `""` are the same.
    #[serde(default)]
    pub content: Content,
    /// The reasoning before the answer, on assistant turns; also read as `reasoning`.
    #[serde(default, alias = "reasoning")]
    pub reasoning_content: Option<String>,
    /// Tools called, on assistant turns. Null and missing are the same as none.
    #[serde(default, deserialize_with = "null_as_default")]
    pub tool_calls: Vec<ToolCall>,
    /// Name of the speaker or of the tool.
    #[serde(default)]
    pub name: Option<String>,
    /// The call that a tool message answers.
    #[serde(default)]
    pub tool_call_id: Option<String>,
}

/// In the form that it is read from.
impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_template().serialize(serializer)
    }
}

impl Message {
    /// A message that is only text.
    #[must_use]
    pub fn text(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: Content::Text(content.into()),
            reasoning_content: None,
            tool_calls: Vec::new(),
            name: None,
            tool_call_id: None,
        }
    }

    fn to_template(&self) -> Json {
        let mut message = Map::new();
        message.insert("role".to_owned(), Json::from(self.role.as_str()));
        message.insert("content".to_owned(), self.content.to_template());
        let texts = [
            ("reasoning_content", &self.reasoning_content),
            ("name", &self.name),
            ("tool_call_id", &self.tool_call_id),
        ];
        for (field, text) in texts {
            if let Some(text) = text {
                message.insert(field.to_owned(), Json::from(text.as_str()));
            }
        }
        if !self.tool_calls.is_empty() {
            let calls: Vec<Json> = self.tool_calls.iter().map(ToolCall::to_template).collect();
            message.insert("tool_calls".to_owned(), Json::from(calls));
        }
        Json::Object(message)
    }
}

/// Who speaks in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
#[non_exhaustive]
pub enum Role {
    /// Instructions; also read from `developer`.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// The role as templates spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = TextError;

    fn from_str(role: &str) -> Result<Self, TextError> {
        match role {
            "system" | "developer" => Ok(Self::System),
            "user" => Ok(Self::User),
            "assistant" => Ok(Self::Assistant),
            "tool" => Ok(Self::Tool),
            other => Err(TextError::UnknownRole { found: other.chars().take(40).collect() }),
        }
    }
}

impl TryFrom<String> for Role {
    type Error = TextError;

    fn try_from(role: String) -> Result<Self, TextError> {
        role.parse()
    }
}

impl From<Role> for &'static str {
    fn from(role: Role) -> Self {
        role.as_str()
    }
}

/// The content of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// A single text.
    Text(String),
    /// Parts in order.
    Parts(Vec<Part>),
}

impl Default for Content {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Json::deserialize(deserializer)? {
            Json::Null => Ok(Self::default()),
            Json::String(text) => Ok(Self::Text(text)),
            Json::Array(parts) => parts.into_iter().map(Part::read).collect::<Result<_, _>>().map(Self::Parts),
            other => Err(expected("`content` is null, a string or a list of parts", &other)),
        }
    }
}

impl Content {
    /// Its texts in order: what is no text is left out.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let (whole, parts) = match self {
            Self::Text(text) => (Some(text.as_str()), &[][..]),
            Self::Parts(parts) => (None, &parts[..]),
        };
        whole.into_iter().chain(parts.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            Part::Other(_) => None,
        }))
    }

    /// Text parts alone become one string, which every template takes.
    fn to_template(&self) -> Json {
        let parts = match self {
            Self::Text(text) => return Json::from(text.as_str()),
            Self::Parts(parts) => parts,
        };
        let texts: Option<String> = parts.iter().map(Part::as_text).collect();
        texts.map_or_else(|| parts.iter().map(Part::to_template).collect(), Json::from)
    }
}

/// A part of a message's content.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Part {
    /// Text.
    Text(String),
    /// Anything else, such as an image, passed on to the template as it is.
    Other(Map<String, Json>),
}

impl Part {
    fn read<E: serde::de::Error>(part: Json) -> Result<Self, E> {
        match part {
            Json::String(text) => Ok(Self::Text(text)),
            Json::Object(part) if part.get("type").is_none_or(|kind| kind == "text") => match part.get("text") {
                Some(Json::String(text)) => Ok(Self::Text(text.clone())),
                other => Err(expected("a text part has a string `text`", other.unwrap_or(&Json::Null))),
            },
            Json::Object(part) => Ok(Self::Other(part)),
            other => Err(expected("a content part is an object with a `type`", &other)),
        }
    }

    fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Other(_) => None,
        }
    }

    fn to_template(&self) -> Json {
        match self {
            Self::Text(text) => serde_json::json!({ "type": "text", "text": text }),
            Self::Other(part) => Json::Object(part.clone()),
        }
    }
}

/// A call of a tool in an assistant's message, in the nested form of the protocol or flat
/// (`{"name": ..., "arguments": ...}`).
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The call's name in the conversation.
    pub id: Option<String>,
    /// What is called.
    pub function: FunctionCall,
}

/// The function of a tool call.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionCall {
    /// Its name.
    pub name: String,
    /// Its arguments, decoded: normally a map. The protocol's JSON string is decoded once; a string that holds no JSON
    /// map stays a string, and nothing at all is the empty map.
    pub arguments: Json,
}

impl<'de> Deserialize<'de> for ToolCall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(expecting = "a tool call, which is an object with `function`")]
        struct Wire {
            id: Option<String>,
            function: Option<WireFunction>,
            name: Option<String>,
            arguments: Option<Json>,
        }
        #[derive(Deserialize)]
        #[serde(expecting = "a function, which is an object with `name` and `arguments`")]
        struct WireFunction {
            name: String,
            arguments: Option<Json>,
        }
        let wire = Wire::deserialize(deserializer)?;
        let (name, arguments) = match wire.function {
            Some(function) => (Some(function.name), function.arguments),
            None => (wire.name, wire.arguments),
        };
        let name = name.ok_or_else(|| serde::de::Error::missing_field("function"))?;
        Ok(Self { id: wire.id, function: FunctionCall { name, arguments: decode_arguments(arguments) } })
    }
}

impl ToolCall {
    fn to_template(&self) -> Json {
        let function = serde_json::json!({ "name": self.function.name, "arguments": self.function.arguments });
        let mut call = Map::new();
        if let Some(id) = &self.id {
            call.insert("id".to_owned(), Json::from(id.as_str()));
        }
        call.insert("type".to_owned(), Json::from("function"));
        call.insert("function".to_owned(), function);
        Json::Object(call)
    }
}

fn decode_arguments(arguments: Option<Json>) -> Json {
    match arguments {
        None | Some(Json::Null) => Json::Object(Map::new()),
        Some(Json::String(text)) if text.trim().is_empty() => Json::Object(Map::new()),
        Some(Json::String(text)) => match serde_json::from_str(&text) {
            Ok(Json::Object(map)) => Json::Object(map),
            _ => Json::String(text),
        },
        Some(decoded) => decoded,
    }
}

fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn expected<E: serde::de::Error>(rule: &str, found: &Json) -> E {
    let kind = match found {
        Json::Null => "nothing",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    };
    E::custom(format_args!("{rule}, found {kind}"))
}

/// Makes one system message at the front out of all, in order, with a blank line between; returns how many were not at
/// the front. Zero, and no change, if none was.
pub(super) fn merge_system_to_front(messages: &mut Vec<Json>) -> usize {
    let is_system = |message: &Json| message["role"] == "system";
    let moved = messages.iter().skip(1).filter(|message| is_system(message)).count();
    if moved == 0 {
        return 0;
    }
    let (system, others): (Vec<Json>, Vec<Json>) = std::mem::take(messages).into_iter().partition(is_system);
    let contents: Vec<Json> = system.into_iter().map(|mut message| message["content"].take()).collect();
    let content = joined_content(contents);
    messages.push(serde_json::json!({ "role": "system", "content": content }));
    messages.extend(others);
    moved
}

/// Texts become one text; parts of any other kind keep theirs, for the template to judge.
fn joined_content(contents: Vec<Json>) -> Json {
    let texts: Option<Vec<&str>> = contents.iter().map(Json::as_str).collect();
    if let Some(texts) = texts {
        return Json::from(texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n"));
    }
    let as_parts = |content| match content {
        Json::Array(parts) => parts,
        text => vec![serde_json::json!({ "type": "text", "text": text })],
    };
    let blank_line = [serde_json::json!({ "type": "text", "text": "\n\n" })];
    contents.into_iter().map(as_parts).collect::<Vec<_>>().join(&blank_line[..]).into()
}
