//! Any text as a chat template, with any conversation: an error or a prompt.
//!
//! The input is the template, then optionally a zero byte and `{"messages": [...], "tools": [...], "kwargs": {...}}`.
//! Without the second part the conversation is one that uses every field.
#![no_main]

use std::str;

use libfuzzer_sys::fuzz_target;
use pleach_text::{ChatRequest, ChatTemplate, SpecialTokenStrings};
use serde_json::Value;

const CONVERSATION: &str = r#"{
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi <think>"}, {"type": "image_url", "image_url": {}}]},
        {"role": "assistant", "reasoning_content": "plan", "tool_calls": [
            {"id": "1", "function": {"name": "add", "arguments": "{\"a\": 1, \"b\": [2.5, null, true]}"}}]},
        {"role": "tool", "tool_call_id": "1", "name": "add", "content": "3\n"},
        {"role": "system", "content": "Be kind: 文字."}
    ],
    "tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}],
    "kwargs": {"enable_thinking": false}
}"#;

fuzz_target!(|bytes: &[u8]| {
    let (source, conversation) = match bytes.iter().position(|&byte| byte == 0) {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, CONVERSATION.as_bytes()),
    };
    let (Ok(source), Some(request)) = (str::from_utf8(source), request(conversation)) else { return };
    let special_tokens = SpecialTokenStrings { eos: Some("<|im_end|>".to_owned()), ..SpecialTokenStrings::default() };
    let Ok(template) = ChatTemplate::new(source, &special_tokens) else { return };
    let first = template.render(&request).map_err(|error| error.to_string());
    // A template that asks for the time may differ from one second to the next.
    if !source.contains("strftime_now") {
        assert_eq!(first, template.render(&request).map_err(|error| error.to_string()));
    }
});

fn request(json: &[u8]) -> Option<ChatRequest> {
    let mut json: Value = serde_json::from_slice(json).ok()?;
    let mut request = ChatRequest::new(serde_json::from_value(json.get_mut("messages")?.take()).ok()?);
    if let Some(tools) = json.get_mut("tools") {
        request.tools = serde_json::from_value(tools.take()).ok()?;
    }
    if let Some(kwargs) = json.get_mut("kwargs") {
        request.kwargs = serde_json::from_value(kwargs.take()).ok()?;
    }
    Some(request)
}
