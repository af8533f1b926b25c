//! Answers in pieces: the right pieces, in the right order, and the same text as in one.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use pleach_server::ServerOptions;
use serde_json::{Value, json};

use crate::support::{TestServer, endless, request, with_message};

fn joined(events: &[Value], pointer: &str) -> String {
    events.iter().filter_map(|event| event.pointer(pointer)?.as_str()).collect()
}

#[test]
fn a_stream_has_its_role_once_and_one_end() {
    let server = TestServer::llama();
    let whole = server.chat(json!({})).json(200);
    let stream = server.chat(json!({ "stream": true }));
    assert!(stream.body.ends_with("data: [DONE]\n\n"), "{}", stream.body);
    let events = stream.events();
    assert_eq!(
        joined(&events, "/choices/0/delta/content"),
        whole["choices"][0]["message"]["content"].as_str().unwrap()
    );
    let count = |pointer: &str| {
        events.iter().filter(|event| event.pointer(pointer).is_some_and(|found| !found.is_null())).count()
    };
    assert_eq!((count("/choices/0/delta/role"), count("/choices/0/finish_reason")), (1, 1));
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let same = |name: &str| events.iter().all(|event| event[name] == events[0][name]);
    assert!(["id", "created", "model", "system_fingerprint", "object"].into_iter().all(same));
    assert!(events.iter().all(|event| event.get("usage").is_none() && event["choices"].as_array().unwrap().len() == 1));
    let last = events.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert_eq!(last["timings"]["predicted_n"], 12);
}

/// `{}` is as good as absent.
#[test]
fn usage_comes_in_a_chunk_of_its_own_if_asked_for() {
    let server = TestServer::llama();
    let events = server.chat(json!({ "stream": true, "stream_options": { "include_usage": true } })).events();
    let (last, others) = events.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 12);
    assert!(others.iter().all(|event| event["usage"].is_null()));
    assert!(!others.last().unwrap()["choices"][0]["finish_reason"].is_null());
    for options in [json!({}), Value::Null, json!({ "include_usage": null })] {
        let events = server.chat(json!({ "stream": true, "stream_options": options })).events();
        assert!(events.iter().all(|event| event.get("usage").is_none()));
    }
}

#[test]
fn log_probabilities_stream_as_they_stand_in_the_whole() {
    let server = TestServer::llama();
    let options = json!({ "logprobs": true, "top_logprobs": 1 });
    let whole = server.chat(options.clone()).json(200);
    let mut streamed = options;
    streamed["stream"] = Value::Bool(true);
    let events = server.chat(streamed).events();
    let tokens = events.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array());
    let tokens: Vec<Value> = tokens.flatten().cloned().collect();
    assert_eq!(Value::from(tokens), whole["choices"][0]["logprobs"]["content"]);
}

#[test]
fn a_thought_comes_before_the_answer_under_both_names() {
    let server = TestServer::qwen();
    let events = server.chat(json!({ "stream": true, "thinking_budget": 6, "max_tokens": 30 })).events();
    let thought = joined(&events, "/choices/0/delta/reasoning_content");
    assert!(!thought.is_empty());
    assert_eq!(thought, joined(&events, "/choices/0/delta/reasoning"));
    let content_at = events
        .iter()
        .position(|event| event["choices"][0]["delta"]["content"].as_str().is_some_and(|text| !text.is_empty()));
    let thought_at = events.iter().rposition(|event| event["choices"][0]["delta"]["reasoning"].is_string());
    assert!(thought_at < content_at, "{events:?}");
    let whole = server.chat(json!({ "thinking_budget": 6, "max_tokens": 30 })).json(200);
    assert_eq!(whole["choices"][0]["message"]["reasoning_content"].as_str().unwrap(), thought);
    assert!(whole["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() >= 5);
    let none = server.chat(json!({ "reasoning_effort": "none" })).json(200);
    assert!(none["choices"][0]["message"].get("reasoning_content").is_none());
}

#[test]
fn progress_is_told_if_asked_for() {
    let server = TestServer::llama();
    let events = server.chat(json!({ "stream": true, "return_progress": true })).events();
    let progress: Vec<&Value> = events.iter().filter_map(|event| event.get("prompt_progress")).collect();
    assert!(progress.len() >= 2);
    assert_eq!(progress.last().unwrap()["processed"], progress.last().unwrap()["total"]);
}

#[test]
fn completions_stream_the_same_text() {
    let server = TestServer::llama();
    let body =
        json!({ "prompt": ["Hello", "World"], "max_tokens": 6, "temperature": 0, "ignore_eos": true, "echo": true });
    let whole = server.post("/v1/completions", &body).json(200);
    let mut streamed = body;
    streamed["stream"] = Value::Bool(true);
    let events = server.post("/v1/completions", &streamed).events();
    for index in 0..2 {
        let of_text = events.iter().filter(|event| event["choices"][0]["index"] == index);
        let text: String = of_text.filter_map(|event| event["choices"][0]["text"].as_str()).collect();
        assert_eq!(whole["choices"][index]["text"].as_str().unwrap(), text);
    }
}

#[test]
fn silence_is_filled_with_comments() {
    let mut options = ServerOptions::default();
    options.parallel = 1;
    options.keep_alive = Duration::from_millis(20);
    let server = TestServer::long(options);
    let mut busy = server.connect();
    let send = |stream: &mut TcpStream, body: &Value| {
        stream.write_all(request("POST", "/v1/chat/completions", &[], &body.to_string()).as_bytes()).unwrap();
    };
    send(&mut busy, &endless(json!({ "stream": true })));
    server.wait_for("pleach_requests_running", 1);
    // This one waits for its turn, with its head sent and comments in it.
    let mut waiting = server.connect();
    send(&mut waiting, &with_message(json!({ "stream": true, "max_tokens": 2 })));
    let mut read = String::new();
    while !read.contains(": keep-alive\n\n") {
        let mut piece = [0; 512];
        let length = waiting.read(&mut piece).unwrap();
        assert!(length > 0, "{read}");
        read.push_str(std::str::from_utf8(&piece[..length]).unwrap());
    }
    assert!(read.starts_with("HTTP/1.1 200 OK\r\n") && !read.contains("data: [DONE]"), "{read}");
    drop(busy);
    waiting.read_to_string(&mut read).unwrap();
    assert!(read.contains("data: [DONE]\n\n"), "{read}");
}
