//! `/v1/chat/completions`: from the request to the internal form.

use pleach_engine::{ChatRequest, Message, Prompt};
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::generate::Generate;
use crate::wire::offered::{self, Layout, Offered};
use crate::wire::sampling::{self, StreamOptions};
use crate::wire::thinking;

/// A request of this protocol.
pub(crate) struct ChatCall {
    pub(crate) generate: Generate,
    pub(crate) stream: StreamOptions,
    pub(crate) ignored_tools: Vec<String>,
}

/// Reads a request.
///
/// # Errors
/// The first field at fault.
pub(crate) fn read(body: &Value) -> Result<ChatCall, ApiError> {
    let fields = Fields::top(body)?;
    // Any name asks for the one model that there is.
    fields.text("model")?;
    let messages = messages(&fields)?;
    let (thinking, kwargs) = thinking::read(&fields)?;
    let Offered { tools, ignored, choice, parallel } = offered::read(&fields, Layout::Nested)?;
    let mut settings = sampling::settings(&fields)?;
    settings.logprobs = sampling::logprobs(&fields)?;
    settings.max_tokens = match fields.limit("max_completion_tokens")? {
        None => fields.limit("max_tokens")?,
        given => given,
    };
    check_kinds(&fields)?;
    let continues = fields.boolean("continue_final_message")?.unwrap_or(false);
    let chat = ChatRequest {
        messages,
        tools: tools.iter().map(crate::tools::Tool::to_template).collect(),
        kwargs,
        add_generation_prompt: fields.boolean("add_generation_prompt")?.unwrap_or(true) && !continues,
    };
    Ok(ChatCall {
        generate: Generate {
            prompts: vec![Prompt::Chat(chat)],
            settings,
            n: sampling::n(&fields)?,
            tools,
            tool_choice: choice,
            parallel_tool_calls: parallel,
            format: offered::format(fields.get("response_format"), "response_format")?,
            thinking,
            min_tokens: sampling::min_tokens(&fields)?,
            is_raw: false,
            continues,
            prompt_field: "messages",
        },
        stream: sampling::stream_options(&fields)?,
        ignored_tools: ignored,
    })
}

/// Refuses other answers than texts, and the older form of tools, whose answers have another form too.
fn check_kinds(fields: &Fields<'_>) -> Result<(), ApiError> {
    let older = |name, newer| ApiError::unsupported(name, &format!("it is the older form of `{newer}`: give that"));
    if fields.get("functions").is_some_and(|value| value.as_array().is_none_or(|functions| !functions.is_empty())) {
        return Err(older("functions", "tools"));
    }
    if fields.get("function_call").is_some_and(|value| value != "none" && value != "auto") {
        return Err(older("function_call", "tool_choice"));
    }
    let kinds = fields.list("modalities")?.map_or(&[][..], Vec::as_slice);
    match kinds.iter().position(|kind| kind != "text") {
        Some(index) => Err(fields.wrong(&format!("modalities[{index}]"), &kinds[index], "\"text\": answers are texts")),
        None => Ok(()),
    }
}

fn messages(fields: &Fields<'_>) -> Result<Vec<Message>, ApiError> {
    let list = fields.list("messages")?;
    let list = list.ok_or_else(|| ApiError::missing("messages", "a list with at least one message"))?;
    if list.is_empty() {
        return Err(ApiError::field("messages", &Value::from(Vec::<Value>::new()), "a list with at least one message"));
    }
    list.iter().enumerate().map(|(index, value)| message(value, index)).collect()
}

/// One message. `function`, the older name of `tool`, is read as that.
fn message(value: &Value, index: usize) -> Result<Message, ApiError> {
    let path = format!("messages[{index}]");
    let map = value.as_object().ok_or_else(|| ApiError::field(&path, value, "an object with a `role`"))?;
    let role = map.get("role").filter(|role| !role.is_null());
    let role =
        role.ok_or_else(|| ApiError::missing(format!("{path}.role"), "`system`, `user`, `assistant` or `tool`"))?;
    let mut map = without_nulls(map);
    if role == "function" {
        map.insert("role".to_owned(), Value::from("tool"));
    }
    serde_json::from_value(Value::Object(map))
        .map_err(|error| ApiError::bad("invalid_message", format!("`{path}` cannot be used: {error}")).at(path))
}

fn without_nulls(map: &Map<String, Value>) -> Map<String, Value> {
    map.iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(body: Value) -> String {
        read(&body).map(|_| ()).unwrap_err().message
    }

    #[test]
    fn messages_are_named_where_they_are_wrong() {
        assert_eq!(refusal(json!({})), "`messages` is missing: give a list with at least one message");
        assert_eq!(
            refusal(json!({ "messages": [] })),
            "`messages` is a list of 0, but must be a list with at least one message"
        );
        assert_eq!(refusal(json!({ "messages": "hi" })), "`messages` is \"hi\", but must be a list");
        assert_eq!(
            refusal(json!({ "messages": [{ "role": "bogus" }] })),
            "`messages[0]` cannot be used: unknown role `bogus`: expected `system`, `developer`, `user`, `assistant` or `tool`"
        );
        assert!(refusal(json!({ "messages": [{ "role": "user", "content": 5 }] })).contains("found a number"));
    }

    /// Fields as Zed, LM Studio's clients and others send them.
    #[test]
    fn requests_of_real_clients_are_read() {
        let body = json!({
            "model": "any", "max_tokens": -1, "stop": [], "tools": [], "stream": true, "parallel_tool_calls": true,
            "stream_options": { "include_usage": true }, "temperature": null, "user": "x", "metadata": {}, "unknown": [1],
            "messages": [
                { "role": "developer", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] },
                { "role": "user", "content": "c" },
                { "role": "assistant", "content": null, "tool_calls": [
                    { "id": "1", "type": "function", "function": { "name": "f", "arguments": "{\"a\": 1}" } } ] },
                { "role": "tool", "tool_call_id": "1", "content": "5", "name": null },
            ],
        });
        let call = read(&body).unwrap();
        assert!(call.stream.stream && call.stream.include_usage);
        assert_eq!((call.generate.settings.max_tokens, call.generate.n), (None, 1));
        let Prompt::Chat(chat) = &call.generate.prompts[0] else { panic!("a chat") };
        assert_eq!(chat.messages.len(), 4);
    }

    #[test]
    fn the_newer_limit_counts() {
        let message = json!([{ "role": "user", "content": "x" }]);
        let body = json!({ "messages": message, "max_tokens": 5, "max_completion_tokens": 7 });
        assert_eq!(read(&body).unwrap().generate.settings.max_tokens, Some(7));
    }
}
