//! `/v1/messages`: from the request to the internal form.

use pleach_engine::{ChatRequest, Content, FunctionCall, Message, Part, Prompt, Role, ToolCall};
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::generate::{Format, Generate};
use crate::wire::offered::{self, Layout, Offered};
use crate::wire::{sampling, thinking};

/// What Claude Code writes before its instructions; it differs in every conversation.
const BILLING_LINE: &str = "x-anthropic-billing-header:";

/// A request of this protocol.
pub(crate) struct MessagesCall {
    pub(crate) generate: Generate,
    pub(crate) stream: bool,
    pub(crate) ignored_tools: Vec<String>,
}

/// What is asked: an answer, or the number of tokens alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Answer,
    Count,
}

/// Reads a request.
///
/// # Errors
/// The first field at fault.
pub(crate) fn read(body: &Value, purpose: Purpose, drop_billing_line: bool) -> Result<MessagesCall, ApiError> {
    let fields = Fields::top(body)?;
    fields.text("model")?;
    let (thinking, kwargs) = thinking::read(&fields)?;
    let Offered { tools, ignored, choice, parallel } = offered::read(&fields, Layout::Anthropic)?;
    let mut settings = sampling::settings(&fields)?;
    settings.max_tokens = fields.limit("max_tokens")?;
    if purpose == Purpose::Answer && fields.get("max_tokens").is_none() {
        return Err(ApiError::missing("max_tokens", "the most tokens that the answer may have"));
    }
    settings.stop = sampling::stop(&fields, "stop_sequences")?;
    let chat = ChatRequest {
        messages: messages(&fields, drop_billing_line)?,
        tools: tools.iter().map(crate::tools::Tool::to_template).collect(),
        kwargs,
        add_generation_prompt: true,
    };
    // Here an assistant's last message is the beginning of the answer.
    let continues = chat.messages.last().is_some_and(|last| last.role == Role::Assistant && last.tool_calls.is_empty());
    Ok(MessagesCall {
        generate: Generate {
            prompts: vec![Prompt::Chat(chat)],
            settings,
            n: 1,
            tools,
            tool_choice: choice,
            parallel_tool_calls: parallel,
            format: output_format(&fields)?,
            thinking,
            min_tokens: sampling::min_tokens(&fields)?,
            is_raw: false,
            continues,
            prompt_field: "messages",
        },
        stream: fields.boolean("stream")?.unwrap_or(false),
        ignored_tools: ignored,
    })
}

/// `output_format`, or `output_config.format`: `{type: "json_schema", schema}`.
fn output_format(fields: &Fields<'_>) -> Result<Format, ApiError> {
    if let Some(config) = fields.get("output_config") {
        let format = Fields::inside(config, "output_config")?.get("format");
        if format.is_some() {
            return offered::format(format, "output_config.format");
        }
    }
    offered::format(fields.get("output_format"), "output_format")
}

fn messages(fields: &Fields<'_>, drop_billing_line: bool) -> Result<Vec<Message>, ApiError> {
    let mut messages = Vec::new();
    let instructions = system(fields, drop_billing_line)?;
    if !instructions.is_empty() {
        messages.push(Message::text(Role::System, instructions));
    }
    let list = fields.list("messages")?;
    let list = list.filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| ApiError::missing("messages", "a list with at least one message"))?;
    for (index, value) in list.iter().enumerate() {
        let path = format!("messages[{index}]");
        turn(&Fields::inside(value, &path)?, &mut messages)?;
    }
    Ok(messages)
}

/// A text or text blocks, with a blank line between.
fn system(fields: &Fields<'_>, drop_billing_line: bool) -> Result<String, ApiError> {
    let blocks: Vec<&str> = match fields.get("system") {
        None => return Ok(String::new()),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(blocks)) => {
            let text = |(index, block): (usize, &Value)| {
                let found = block.get("text").and_then(Value::as_str);
                // The lifetimes of the texts are those of the request, so they are looked up again below.
                found.map(|_| index).ok_or_else(|| {
                    ApiError::field(format!("system[{index}]"), block, "a block of type \"text\" with a string `text`")
                })
            };
            let indices = blocks.iter().enumerate().map(text).collect::<Result<Vec<_>, _>>()?;
            indices.into_iter().filter_map(|index| blocks[index]["text"].as_str()).collect()
        }
        Some(other) => return Err(fields.wrong("system", other, "a string or a list of text blocks")),
    };
    let kept = blocks.into_iter().map(|text| if drop_billing_line { without_billing_line(text) } else { text });
    Ok(kept.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n"))
}

fn without_billing_line(text: &str) -> &str {
    match text.strip_prefix(BILLING_LINE) {
        Some(rest) => rest.split_once('\n').map_or("", |(_, after)| after.trim_start_matches('\n')),
        None => text,
    }
}

/// One turn. Results of tools stand in the user's turns and become messages of their own.
fn turn(fields: &Fields<'_>, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    let name = fields.required_text("role")?;
    let role = match name {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "system" | "developer" => Role::System,
        _ => return Err(fields.wrong("role", &Value::from(name), "`user`, `assistant` or `system`")),
    };
    let mut message = Message::text(role, "");
    match fields.get("content") {
        Some(Value::String(text)) => message.content = Content::Text(text.clone()),
        Some(Value::Array(blocks)) => {
            let mut parts = Vec::new();
            for (index, block) in blocks.iter().enumerate() {
                let path = format!("{}[{index}]", fields.path("content"));
                block_of(&Fields::inside(block, &path)?, block, &mut message, &mut parts, messages)?;
            }
            let is_only_results = parts.is_empty() && role == Role::User && !blocks.is_empty();
            message.content = Content::Parts(parts);
            if is_only_results {
                return Ok(());
            }
        }
        Some(other) => return Err(fields.wrong("content", other, "a string or a list of blocks")),
        None => return Err(ApiError::missing(fields.path("content"), "a string or a list of blocks")),
    }
    messages.push(message);
    Ok(())
}

fn block_of(
    block: &Fields<'_>,
    value: &Value,
    message: &mut Message,
    parts: &mut Vec<Part>,
    messages: &mut Vec<Message>,
) -> Result<(), ApiError> {
    match block.required_text("type")? {
        "text" => parts.push(Part::Text(block.required_text("text")?.to_owned())),
        "thinking" => {
            let thought = block.text("thinking")?.unwrap_or_default();
            message.reasoning_content.get_or_insert_default().push_str(thought);
        }
        "redacted_thinking" => {}
        "tool_use" => message.tool_calls.push(ToolCall {
            id: block.text("id")?.map(str::to_owned),
            function: FunctionCall {
                name: block.required_text("name")?.to_owned(),
                arguments: block.get("input").cloned().unwrap_or_else(|| Value::Object(Map::new())),
            },
        }),
        "tool_result" => messages.push(Message {
            tool_call_id: block.text("tool_use_id")?.map(str::to_owned),
            content: result(block)?,
            ..Message::text(Role::Tool, "")
        }),
        _ => parts.push(Part::Other(value.as_object().cloned().unwrap_or_default())),
    }
    Ok(())
}

fn result(block: &Fields<'_>) -> Result<Content, ApiError> {
    let part = |value: &Value| match value.get("text").and_then(Value::as_str) {
        Some(text) => Part::Text(text.to_owned()),
        None => Part::Other(value.as_object().cloned().unwrap_or_default()),
    };
    match block.get("content") {
        None => Ok(Content::default()),
        Some(Value::String(text)) => Ok(Content::Text(text.clone())),
        Some(Value::Array(parts)) => Ok(Content::Parts(parts.iter().map(part).collect())),
        Some(other) => Err(block.wrong("content", other, "a string or a list of blocks")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read_messages(body: Value) -> Vec<Message> {
        let Prompt::Chat(chat) = read(&body, Purpose::Answer, true).unwrap().generate.prompts.remove(0) else {
            panic!("a chat")
        };
        chat.messages
    }

    #[test]
    fn blocks_become_turns() {
        let messages = read_messages(json!({
            "max_tokens": 5,
            "system": [{ "type": "text", "text": "x-anthropic-billing-header: cch=1;" }, { "type": "text", "text": "Be brief." }],
            "messages": [
                { "role": "user", "content": "hi" },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "plan", "signature": "" },
                    { "type": "text", "text": "I look." },
                    { "type": "tool_use", "id": "t1", "name": "f", "input": { "a": 1 } },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "t1", "content": [{ "type": "text", "text": "5" }] },
                    { "type": "text", "text": "go on" },
                ] },
            ],
        }));
        let roles: Vec<&str> = messages.iter().map(|message| message.role.as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "user"]);
        assert_eq!(messages[0].content, Content::Text("Be brief.".to_owned()));
        assert_eq!(messages[2].reasoning_content.as_deref(), Some("plan"));
        assert_eq!(messages[2].tool_calls[0].function.arguments, json!({ "a": 1 }));
    }

    #[test]
    fn refusals_name_the_field() {
        let refusal = |body: Value| read(&body, Purpose::Answer, true).map(|_| ()).unwrap_err().message;
        let user = json!([{ "role": "user", "content": "x" }]);
        assert_eq!(
            refusal(json!({ "messages": user })),
            "`max_tokens` is missing: give the most tokens that the answer may have"
        );
        assert_eq!(
            refusal(json!({ "max_tokens": 1, "messages": [{ "role": "user", "content": 5 }] })),
            "`messages[0].content` is 5, but must be a string or a list of blocks"
        );
        assert!(refusal(json!({ "max_tokens": 1, "messages": user, "system": [5] })).starts_with("`system[0]` is 5"));
    }

    #[test]
    fn the_billing_line_alone_is_dropped() {
        assert_eq!(without_billing_line("x-anthropic-billing-header: a=b\nYou are"), "You are");
        assert_eq!(without_billing_line("You are"), "You are");
    }
}
