//! The Responses and Messages protocols over the same engine.

use serde_json::{Value, json};

use crate::support::TestServer;

fn joined(events: &[Value], kind: &str, pointer: &str) -> String {
    let of_kind = events.iter().filter(|event| event["type"] == kind);
    of_kind.filter_map(|event| event.pointer(pointer)?.as_str()).collect()
}

#[test]
fn a_response_is_answered_whole_and_in_pieces() {
    let server = TestServer::qwen();
    let body = json!({
        "input": "Hello there", "max_output_tokens": 40, "temperature": 0, "ignore_eos": true, "thinking_budget": 5, "metadata": { "a": "b" },
    });
    let whole = server.post("/v1/responses", &body).json(200);
    assert_eq!((&whole["object"], &whole["status"]), (&json!("response"), &json!("incomplete")));
    assert_eq!(whole["incomplete_details"]["reason"], "max_output_tokens");
    let kinds: Vec<&str> =
        whole["output"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "message"]);
    assert_eq!((&whole["usage"]["output_tokens"], &whole["metadata"]), (&json!(40), &json!({ "a": "b" })));

    let mut streamed = body;
    streamed["stream"] = Value::Bool(true);
    let events = server.post("/v1/responses", &streamed).events();
    let numbers: Vec<u64> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(
        kinds[..4],
        ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
    );
    assert_eq!(kinds.last(), Some(&"response.incomplete"));
    let text = whole["output"][1]["content"][0]["text"].as_str().unwrap();
    assert_eq!(joined(&events, "response.output_text.delta", "/delta"), text);
    assert_eq!(joined(&events, "response.output_text.done", "/text"), text);
    let thought = whole["output"][0]["content"][0]["text"].as_str().unwrap();
    assert_eq!(joined(&events, "response.reasoning_text.delta", "/delta"), thought);
    let last = &events.last().unwrap()["response"];
    assert_eq!((&last["usage"]["output_tokens"], last["output"].as_array().unwrap().len()), (&json!(40), 2));
}

#[test]
fn messages_are_answered_whole_and_in_pieces() {
    let server = TestServer::qwen();
    let body = json!({
        "max_tokens": 40, "temperature": 0, "ignore_eos": true, "system": [{ "type": "text", "text": "Be brief." }],
        "thinking": { "type": "enabled", "budget_tokens": 5 }, "messages": [{ "role": "user", "content": "Hello there" }],
    });
    let whole = server.post("/v1/messages", &body).json(200);
    assert_eq!((&whole["type"], &whole["stop_reason"]), (&json!("message"), &json!("max_tokens")));
    let kinds: Vec<&str> =
        whole["content"].as_array().unwrap().iter().map(|block| block["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["thinking", "text"]);

    let mut streamed = body.clone();
    streamed["stream"] = Value::Bool(true);
    let answer = server.post("/v1/messages", &streamed);
    assert!(answer.body.starts_with("event: message_start\ndata: "), "{}", answer.body);
    let events = answer.events();
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(
        (kinds[0], kinds[kinds.len() - 2], kinds[kinds.len() - 1]),
        ("message_start", "message_delta", "message_stop")
    );
    assert_eq!(joined(&events, "content_block_delta", "/delta/text"), whole["content"][1]["text"].as_str().unwrap());
    assert_eq!(
        joined(&events, "content_block_delta", "/delta/thinking"),
        whole["content"][0]["thinking"].as_str().unwrap()
    );
    let starts = events.iter().filter(|event| event["type"] == "content_block_start").count();
    let stops = events.iter().filter(|event| event["type"] == "content_block_stop").count();
    assert_eq!((starts, stops), (2, 2));

    let count = server.post("/v1/messages/count_tokens", &body).json(200)["input_tokens"].as_u64().unwrap();
    let usage = &whole["usage"];
    let read = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(count, read);
}

/// D4: a line that changes with every conversation must not spoil the cache.
#[test]
fn the_billing_line_does_not_reach_the_model() {
    let server = TestServer::qwen();
    let ask = |line: &str| {
        let system = json!([{ "type": "text", "text": line }, { "type": "text", "text": "Be brief." }]);
        let body = json!({ "max_tokens": 4, "temperature": 0, "system": system, "messages": [{ "role": "user", "content": "Hello" }] });
        server.post("/v1/messages", &body).json(200)["usage"].clone()
    };
    let first = ask("x-anthropic-billing-header: cc_version=1; cch=aaaa;");
    let second = ask("x-anthropic-billing-header: cc_version=1; cch=bbbb;");
    assert_eq!((&first["cache_read_input_tokens"], &second["input_tokens"]), (&json!(0), &json!(0)));
}

/// A system message that comes late is no error.
#[test]
fn late_system_messages_are_taken_everywhere() {
    let server = TestServer::qwen();
    let messages = json!([
        { "role": "user", "content": "a" }, { "role": "assistant", "content": "b" }, { "role": "system", "content": "c" },
        { "role": "user", "content": "d" },
    ]);
    server.chat(json!({ "messages": messages })).json(200);
    server.post("/v1/messages", &json!({ "messages": messages, "max_tokens": 3 })).json(200);
    server.post("/v1/responses", &json!({ "input": messages, "max_output_tokens": 3 })).json(200);
}

#[test]
fn an_answer_can_be_begun() {
    let server = TestServer::qwen();
    let messages = json!([{ "role": "user", "content": "Count" }, { "role": "assistant", "content": "One, two" }]);
    let options = json!({ "messages": messages, "continue_final_message": true, "enable_thinking": false });
    let answer = server.chat(options).json(200);
    let whole = server.post("/tokenize", &json!({ "messages": messages })).json(200);
    // The prompt ends in the middle of the turn instead of opening one.
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() < whole["count"].as_u64().unwrap());
    server.post("/v1/messages", &json!({ "messages": messages, "max_tokens": 3 })).json(200);
}
