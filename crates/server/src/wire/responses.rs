//! `/v1/responses`: from the request to the internal form. Nothing is stored.

use pleach_engine::{ChatRequest, Content, FunctionCall, Message, Part, Prompt, Role, ToolCall};
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::generate::{Format, Generate};
use crate::wire::offered::{self, Layout, Offered};
use crate::wire::{sampling, thinking};

/// A request of this protocol.
pub(crate) struct ResponseCall {
    pub(crate) generate: Generate,
    pub(crate) stream: bool,
    pub(crate) ignored_tools: Vec<String>,
    /// What the answer repeats of the request.
    pub(crate) echo: Map<String, Value>,
}

/// Fields that an answer repeats.
const ECHOED: [&str; 10] = [
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "reasoning",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
];

/// Reads a request.
///
/// # Errors
/// The first field at fault.
pub(crate) fn read(body: &Value) -> Result<ResponseCall, ApiError> {
    let fields = Fields::top(body)?;
    fields.text("model")?;
    for name in ["previous_response_id", "conversation"] {
        if fields.get(name).is_some() {
            return Err(ApiError::unsupported(name, "answers are not stored: send the whole conversation as `input`"));
        }
    }
    if fields.boolean("background")?.unwrap_or(false) {
        return Err(ApiError::unsupported("background", "answers are not stored: ask for a stream"));
    }
    let (thinking, kwargs) = thinking::read(&fields)?;
    let Offered { tools, ignored, choice, parallel } = offered::read(&fields, Layout::Flat)?;
    let mut settings = sampling::settings(&fields)?;
    settings.max_tokens = fields.limit("max_output_tokens")?;
    settings.logprobs = fields.whole("top_logprobs", 0, 20)?.filter(|&top| top > 0).map(|top| top as usize);
    let chat = ChatRequest {
        messages: messages(&fields)?,
        tools: tools.iter().map(crate::tools::Tool::to_template).collect(),
        kwargs,
        add_generation_prompt: true,
    };
    Ok(ResponseCall {
        generate: Generate {
            prompts: vec![Prompt::Chat(chat)],
            settings,
            n: 1,
            tools,
            tool_choice: choice,
            parallel_tool_calls: parallel,
            format: text_format(&fields)?,
            thinking,
            min_tokens: sampling::min_tokens(&fields)?,
            is_raw: false,
            continues: false,
            prompt_field: "input",
        },
        stream: fields.boolean("stream")?.unwrap_or(false),
        ignored_tools: ignored,
        echo: ECHOED.iter().map(|&name| (name.to_owned(), fields.get(name).cloned().unwrap_or_default())).collect(),
    })
}

fn text_format(fields: &Fields<'_>) -> Result<Format, ApiError> {
    match fields.get("text") {
        Some(text) => offered::format(Fields::inside(text, "text")?.get("format"), "text.format"),
        None => Ok(Format::Text),
    }
}

fn messages(fields: &Fields<'_>) -> Result<Vec<Message>, ApiError> {
    let mut messages = Vec::new();
    if let Some(instructions) = fields.text("instructions")?.filter(|text| !text.is_empty()) {
        messages.push(Message::text(Role::System, instructions));
    }
    match fields.get("input") {
        None => return Err(ApiError::missing("input", "a text or a list of items")),
        Some(Value::String(text)) => messages.push(Message::text(Role::User, text.as_str())),
        Some(Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                let path = format!("input[{index}]");
                read_item(&Fields::inside(item, &path)?, &mut messages)?;
            }
        }
        Some(other) => return Err(fields.wrong("input", other, "a string or a list of items")),
    }
    if messages.is_empty() {
        return Err(ApiError::missing("input", "at least one message"));
    }
    Ok(messages)
}

fn read_item(item: &Fields<'_>, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    match item.text("type")?.unwrap_or("message") {
        "message" => messages.push(message(item)?),
        "function_call" => {
            let call = ToolCall {
                id: item.text("call_id")?.map(str::to_owned),
                function: FunctionCall {
                    name: item.required_text("name")?.to_owned(),
                    arguments: arguments(item.text("arguments")?.unwrap_or_default()),
                },
            };
            of_assistant(messages).tool_calls.push(call);
        }
        "function_call_output" => {
            let content = content(item, "output")?;
            let tool_call_id = item.text("call_id")?.map(str::to_owned);
            messages.push(Message { content, tool_call_id, ..Message::text(Role::Tool, "") });
        }
        "reasoning" => {
            let thought = reasoning_text(item)?;
            if !thought.is_empty() {
                of_assistant(messages).reasoning_content.get_or_insert_default().push_str(&thought);
            }
        }
        // Records of tools that this server does not have.
        _ => tracing::debug!("an item of `input` of another kind is left out"),
    }
    Ok(())
}

/// The assistant's turn that an item belongs to. Thoughts, text and calls of a turn come as items of their own.
fn of_assistant(messages: &mut Vec<Message>) -> &mut Message {
    if messages.last().is_none_or(|message| message.role != Role::Assistant) {
        messages.push(Message::text(Role::Assistant, ""));
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

fn message(item: &Fields<'_>) -> Result<Message, ApiError> {
    let name = item.required_text("role")?;
    let expected = "`system`, `developer`, `user` or `assistant`";
    let role = name.parse::<Role>().map_err(|_| item.wrong("role", &Value::from(name), expected))?;
    Ok(Message { content: content(item, "content")?, ..Message::text(role, "") })
}

/// A text, or parts with `text`.
fn content(item: &Fields<'_>, name: &str) -> Result<Content, ApiError> {
    let path = item.path(name);
    let part = |(index, value): (usize, &Value)| {
        let path = format!("{path}[{index}]");
        let part = Fields::inside(value, &path)?;
        match part.text("type")?.unwrap_or("text") {
            "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text" => {
                Ok::<_, ApiError>(Part::Text(part.required_text("text")?.to_owned()))
            }
            "refusal" => Ok(Part::Text(part.required_text("refusal")?.to_owned())),
            _ => Ok(Part::Other(value.as_object().cloned().unwrap_or_default())),
        }
    };
    match item.get(name) {
        None => Ok(Content::default()),
        Some(Value::String(text)) => Ok(Content::Text(text.clone())),
        Some(Value::Array(parts)) => Ok(Content::Parts(parts.iter().enumerate().map(part).collect::<Result<_, _>>()?)),
        Some(other) => Err(item.wrong(name, other, "a string or a list of parts")),
    }
}

fn reasoning_text(item: &Fields<'_>) -> Result<String, ApiError> {
    let mut thought = String::new();
    for name in ["content", "summary"] {
        if let Content::Parts(parts) = content(item, name)? {
            parts.iter().for_each(|part| {
                if let Part::Text(text) = part {
                    thought.push_str(text)
                }
            });
        }
        if !thought.is_empty() {
            break;
        }
    }
    Ok(thought)
}

/// JSON text of an object; anything else stays text.
pub(crate) fn arguments(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(value @ Value::Object(_)) => value,
        _ if text.trim().is_empty() => Value::Object(Map::new()),
        _ => Value::from(text),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read_messages(body: Value) -> Vec<Message> {
        let Prompt::Chat(chat) = read(&body).unwrap().generate.prompts.remove(0) else { panic!("a chat") };
        chat.messages
    }

    #[test]
    fn items_become_turns() {
        let messages = read_messages(json!({ "instructions": "Be brief.", "input": [
            { "role": "developer", "content": "x" },
            { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "hi" }] },
            { "type": "reasoning", "summary": [{ "type": "summary_text", "text": "plan" }] },
            { "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"a\":1}" },
            { "type": "function_call", "call_id": "c2", "name": "g", "arguments": "" },
            { "type": "web_search_call", "id": "w" },
            { "type": "function_call_output", "call_id": "c1", "output": "5" },
        ] }));
        let roles: Vec<&str> = messages.iter().map(|message| message.role.as_str()).collect();
        assert_eq!(roles, ["system", "system", "user", "assistant", "tool"]);
        assert_eq!(messages[3].reasoning_content.as_deref(), Some("plan"));
        assert_eq!(messages[3].tool_calls.len(), 2);
        assert_eq!(messages[3].tool_calls[0].function.arguments, json!({ "a": 1 }));
        assert_eq!(messages[4].tool_call_id.as_deref(), Some("c1"));
    }

    #[test]
    fn what_needs_a_store_is_refused() {
        let refusal = |body: Value| read(&body).map(|_| ()).unwrap_err().message;
        assert!(refusal(json!({ "input": "x", "previous_response_id": "r" })).contains("are not stored"));
        assert_eq!(refusal(json!({ "input": 5 })), "`input` is 5, but must be a string or a list of items");
        assert_eq!(refusal(json!({})), "`input` is missing: give a text or a list of items");
    }
}
