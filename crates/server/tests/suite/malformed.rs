//! What must not work: every request here is one JSON error, and the next request works.

use std::io::Write as _;
use std::net::Shutdown;

use pleach_server::ServerOptions;
use serde_json::{Value, json};

use crate::support::{TestServer, read_answer, request, with_message};

/// Fields of a chat with values that they may not have.
fn wrong_fields() -> Vec<(&'static str, Value)> {
    vec![
        ("messages", json!("hi")),
        ("messages", json!([])),
        ("messages", json!({})),
        ("messages", json!([5])),
        ("messages", json!([{}])),
        ("messages", json!([{ "role": null, "content": "x" }])),
        ("messages", json!([{ "role": "bogus", "content": "x" }])),
        ("messages", json!([{ "role": "user", "content": 5 }])),
        ("messages", json!([{ "role": "user", "content": [5] }])),
        ("messages", json!([{ "role": "user", "content": [{ "type": "text" }] }])),
        (
            "messages",
            json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": "file:///etc/passwd" } }] }]),
        ),
        ("messages", json!([{ "role": "assistant", "tool_calls": [{}] }])),
        ("messages", json!([{ "role": "assistant", "tool_calls": 5 }])),
        ("model", json!(5)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(-2)),
        ("max_tokens", json!(1.5)),
        ("max_tokens", json!("5")),
        ("max_completion_tokens", json!([])),
        ("temperature", json!("hot")),
        ("temperature", json!(-0.1)),
        ("temperature", json!(1e300)),
        ("top_p", json!(0)),
        ("top_p", json!(1.5)),
        ("top_k", json!(-2)),
        ("top_k", json!(2.5)),
        ("min_p", json!(2)),
        ("presence_penalty", json!(3)),
        ("frequency_penalty", json!(-3)),
        ("repetition_penalty", json!(0)),
        ("seed", json!(1e30)),
        ("seed", json!("7")),
        ("stop", json!(5)),
        ("stop", json!([5])),
        ("stop", json!([""])),
        ("stop", json!(vec!["x"; 65])),
        ("stop", json!("x".repeat(1025))),
        ("n", json!(0)),
        ("n", json!(-1)),
        ("n", json!(1000)),
        ("logprobs", json!(5)),
        ("top_logprobs", json!(21)),
        ("top_logprobs", json!(5)),
        ("logit_bias", json!([])),
        ("logit_bias", json!({ "x": 1 })),
        ("logit_bias", json!({ "-1": 1 })),
        ("logit_bias", json!({ "99999999": 1 })),
        ("logit_bias", json!({ "5": 101 })),
        ("logit_bias", json!({ "5": "much" })),
        ("stream", json!("yes")),
        ("stream_options", json!(5)),
        ("stream_options", json!({ "include_usage": "yes" })),
        ("tools", json!({})),
        ("tools", json!([5])),
        ("tools", json!([{ "type": "function" }])),
        ("tools", json!([{ "type": "function", "function": { "name": "" } }])),
        ("tools", json!([{ "type": "function", "function": { "name": "a b" } }])),
        ("tools", json!([{ "type": "function", "function": { "name": "f", "parameters": 5 } }])),
        ("tool_choice", json!("always")),
        ("tool_choice", json!("required")),
        ("tool_choice", json!({ "type": "function", "function": { "name": "missing" } })),
        ("parallel_tool_calls", json!(5)),
        ("response_format", json!("json")),
        ("response_format", json!({ "type": "xml" })),
        ("response_format", json!({ "type": "json_schema" })),
        ("response_format", json!({ "type": "json_schema", "json_schema": { "schema": 5 } })),
        ("response_format", json!({ "type": "json_schema", "json_schema": { "schema": { "type": "wrong" } } })),
        (
            "response_format",
            json!({ "type": "json_schema", "json_schema": { "schema": { "properties": { "a": { "pattern": "(" , "type": "string" } } } } }),
        ),
        (
            "response_format",
            json!({ "type": "json_schema", "json_schema": { "schema": { "$ref": "#/$defs/missing" } } }),
        ),
        ("response_format", json!({ "type": "json_schema", "json_schema": { "schema": { "enum": vec![1; 50_000] } } })),
        ("chat_template_kwargs", json!(5)),
        ("chat_template_kwargs", json!({ "messages": [] })),
        ("chat_template_kwargs", json!({ "x": "y".repeat(100_000) })),
        ("enable_thinking", json!("no")),
        ("reasoning_effort", json!("huge")),
        ("reasoning", json!(5)),
        ("thinking", json!({ "type": "sometimes" })),
        ("continue_final_message", json!(true)),
        ("ignore_eos", json!("yes")),
        ("repeat_last_n", json!(-5)),
        ("functions", json!([{ "name": "f" }])),
        ("function_call", json!({ "name": "f" })),
        ("modalities", json!(["text", "audio"])),
        ("modalities", json!("text")),
        ("functions", json!("auto")),
        ("function_call", json!([])),
        ("min_tokens", json!(-1)),
        ("min_tokens", json!("5")),
        ("messages", json!([{ "role": "user", "content": "word ".repeat(5000) }])),
        ("messages", json!([{ "role": "user", "content": "word ".repeat(800_000) }])),
    ]
}

/// A request that must be refused.
struct Case {
    bytes: Vec<u8>,
    status: u16,
    code: Option<&'static str>,
    /// The field that is named: exactly, or a part of it.
    param: Option<Param>,
}

enum Param {
    Exactly(&'static str),
    Within(&'static str),
}

impl Param {
    fn is_met(&self, found: &str) -> bool {
        match self {
            Self::Exactly(name) => found == *name,
            Self::Within(name) => found.starts_with(name),
        }
    }
}

fn posted(path: &str, kind: &str, body: &str) -> Vec<u8> {
    request("POST", path, &[("content-type", kind)], body).into_bytes()
}

/// All tables as bytes on the wire.
fn cases() -> Vec<Case> {
    let json = "application/json";
    let wrong = wrong_fields().into_iter().map(|(name, value)| Case {
        bytes: posted("/v1/chat/completions", json, &with_message(json!({ name: value })).to_string()),
        status: 400,
        code: None,
        param: Some(Param::Within(name)),
    });
    let elsewhere = wrong_elsewhere().into_iter().map(|(path, body, param)| Case {
        bytes: posted(path, json, &body.to_string()),
        status: 400,
        code: None,
        param: (!param.is_empty()).then_some(Param::Exactly(param)),
    });
    let bodies = broken_bodies().into_iter().map(|body| Case {
        bytes: posted("/v1/chat/completions", json, &body),
        status: 400,
        code: None,
        param: None,
    });
    let kinds = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/xml"];
    let kinds = kinds.into_iter().map(|kind| Case {
        bytes: posted("/v1/chat/completions", kind, &with_message(json!({})).to_string()),
        status: 415,
        code: Some("unsupported_media_type"),
        param: None,
    });
    let raw = broken_http();
    let raw = raw.into_iter().map(|(status, code, bytes)| Case { bytes, status, code: Some(code), param: None });
    wrong.chain(elsewhere).chain(bodies).chain(kinds).chain(raw).collect()
}

#[test]
fn malformed_requests_are_one_json_error_each() {
    let server = TestServer::llama();
    let cases = cases();
    for Case { bytes, status, code, param } in &cases {
        let shown = String::from_utf8_lossy(bytes).chars().take(400).collect::<String>();
        let answer = server.raw(bytes);
        assert_eq!(answer.status, *status, "{shown}: {answer:?}");
        let error = answer.error(*status);
        assert!(
            code.map_or(param.is_none() || error["code"].is_string(), |code| error["code"] == code),
            "{shown}: {error}"
        );
        assert!(*status != 400 || error["type"] == "invalid_request_error", "{shown}: {error}");
        let found = error["param"].as_str().unwrap_or_default();
        assert!(param.as_ref().is_none_or(|param| param.is_met(found)), "{shown}: {error}");
        assert!(error["message"].as_str().unwrap().len() < 500, "{error}");
        server.chat(json!({ "max_tokens": 1 })).json(200);
    }
}

/// The part of the schema at fault is named.
#[test]
fn a_broken_schema_is_named_by_its_path() {
    let server = TestServer::llama();
    let schema = json!({ "type": "object", "properties": { "ok": { "type": "integer" }, "bad": { "type": "string", "pattern": "(" } } });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    let error = server.chat(json!({ "response_format": format })).error(400);
    assert_eq!(error["param"], "response_format.json_schema.schema.properties.bad", "{error}");
}

/// Bodies for other routes, with the field at fault. Anthropic's errors name none.
fn wrong_elsewhere() -> Vec<(&'static str, Value, &'static str)> {
    let image = json!([{ "type": "input_image", "image_url": "https://example.org/x.png" }]);
    vec![
        ("/v1/completions", json!({}), "prompt"),
        ("/v1/completions", json!({ "prompt": [] }), "prompt"),
        ("/v1/completions", json!({ "prompt": [-1] }), "prompt[0]"),
        ("/v1/completions", json!({ "prompt": [1.5] }), "prompt[0]"),
        ("/v1/completions", json!({ "prompt": [4_294_967_296_u64] }), "prompt[0]"),
        ("/v1/completions", json!({ "prompt": [512] }), "prompt"),
        ("/v1/completions", json!({ "prompt": [[]] }), "prompt"),
        ("/v1/completions", json!({ "prompt": [null] }), "prompt[0]"),
        ("/v1/completions", json!({ "prompt": "x", "suffix": "y" }), "suffix"),
        ("/v1/completions", json!({ "prompt": "x", "best_of": 2 }), "best_of"),
        ("/v1/completions", json!({ "prompt": "x", "logprobs": 21 }), "logprobs"),
        ("/v1/completions", json!({ "prompt": "x", "echo": true, "logprobs": 1 }), "echo"),
        ("/v1/completions", json!({ "prompt": vec!["x"; 17] }), "prompt"),
        ("/v1/responses", json!({}), "input"),
        ("/v1/responses", json!({ "input": [] }), "input"),
        ("/v1/responses", json!({ "input": [{ "role": "bogus" }] }), "input[0].role"),
        ("/v1/responses", json!({ "input": [{ "type": "function_call" }] }), "input[0].name"),
        ("/v1/responses", json!({ "input": "x", "previous_response_id": "r" }), "previous_response_id"),
        ("/v1/responses", json!({ "input": "x", "text": { "format": { "type": "xml" } } }), "text.format.type"),
        ("/v1/embeddings", json!({}), "input"),
        ("/v1/embeddings", json!({ "input": "" }), "input[0]"),
        ("/v1/embeddings", json!({ "input": "x", "encoding_format": "hex" }), "encoding_format"),
        ("/v1/embeddings", json!({ "input": "x", "dimensions": 7 }), "dimensions"),
        ("/v1/embeddings", json!({ "input": "word ".repeat(5000) }), "input[0]"),
        ("/tokenize", json!({}), "content"),
        ("/tokenize", json!({ "content": 5 }), "content"),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({ "tokens": ["x"] }), "tokens[0]"),
        ("/detokenize", json!({ "tokens": [512] }), "tokens[0]"),
        ("/detokenize", json!({ "tokens": [-1] }), "tokens[0]"),
        ("/detokenize", json!({ "tokens": 5 }), "tokens"),
        ("/v1/completions", json!({ "prompt": 5 }), "prompt"),
        ("/v1/completions", json!({ "prompt": {} }), "prompt"),
        ("/v1/completions", json!({ "prompt": [true] }), "prompt[0]"),
        ("/v1/completions", json!({ "prompt": ["x", 5] }), "prompt[1]"),
        ("/v1/completions", json!({ "prompt": "x", "temperature": "hot" }), "temperature"),
        ("/v1/completions", json!({ "prompt": "x", "max_tokens": 0 }), "max_tokens"),
        ("/v1/completions", json!({ "prompt": "word ".repeat(5000) }), "prompt"),
        ("/v1/responses", json!({ "input": 5 }), "input"),
        ("/v1/responses", json!({ "input": [5] }), "input[0]"),
        ("/v1/responses", json!({ "input": "x", "max_output_tokens": 0 }), "max_output_tokens"),
        ("/v1/responses", json!({ "input": "x", "background": true }), "background"),
        ("/v1/responses", json!({ "input": "x", "tools": 5 }), "tools"),
        ("/v1/responses", json!({ "input": "x", "reasoning": { "effort": "huge" } }), "reasoning.effort"),
        ("/v1/embeddings", json!({ "input": 5 }), "input"),
        ("/v1/embeddings", json!({ "input": [] }), "input"),
        ("/v1/embeddings", json!({ "input": ["x", ""] }), "input[1]"),
        ("/v1/embeddings", json!({ "input": [[512]] }), "input[0]"),
        ("/v1/embeddings", json!({ "input": "x", "pooling": "max" }), "pooling"),
        ("/v1/embeddings", json!({ "input": vec!["x"; 2049] }), "input"),
        ("/tokenize", json!({ "messages": 5 }), "messages"),
        // An empty text continues nothing, unless the model begins texts with a token of its own.
        ("/v1/completions", json!({ "prompt": "" }), "prompt"),
        ("/v1/completions", json!({ "prompt": "word ".repeat(800_000) }), "prompt"),
        ("/v1/completions", json!({ "prompt": "x", "min_tokens": 1.5 }), "min_tokens"),
        ("/v1/embeddings", json!({ "input": "word ".repeat(800_000) }), "input[0]"),
        ("/v1/responses", json!({ "input": "word ".repeat(5000) }), "input"),
        ("/v1/responses", json!({ "input": "word ".repeat(800_000) }), "input"),
        ("/v1/responses", json!({ "input": [{ "role": "user", "content": image }] }), "input"),
        ("/v1/messages", json!({}), ""),
        ("/v1/messages", json!({ "max_tokens": 5, "messages": [] }), ""),
        ("/v1/messages", json!({ "max_tokens": 5, "messages": [{ "role": "user" }] }), ""),
        (
            "/v1/messages",
            json!({ "max_tokens": 5, "messages": [{ "role": "user", "content": "word ".repeat(5000) }] }),
            "",
        ),
        ("/v1/messages/count_tokens", json!({ "messages": 5 }), ""),
    ]
}

fn broken_bodies() -> Vec<String> {
    let deep = format!("{}{}", "[".repeat(50_000), "]".repeat(50_000));
    [
        "",
        " ",
        "{",
        "}",
        "null",
        "[]",
        "5",
        "\"text\"",
        "{\"messages\":}",
        "{messages:[]}",
        "{\"messages\":[],}",
        "{'messages':[]}",
        "{\"temperature\":NaN}",
        "{\"temperature\":1e999}",
        "{\"seed\":0x10}",
        "// {}",
        "{} {}",
        "{\"a\":\"\\ud800\"}",
        "{\"a\":\"\u{0}\"}",
        "\u{feff}{}",
        "{\"a\":\"\\x41\"}",
        "{\"a\":01}",
        "{\"a\":+1}",
        "{\"a\":.5}",
        "{\"a\":tru}",
        &deep,
    ]
    .map(str::to_owned)
    .into()
}

#[test]
fn bodies_of_every_spelling_of_their_type_are_read_and_packed_ones_refused() {
    let server = TestServer::llama();
    let json_text = json!({ "messages": [{ "role": "user", "content": "x" }], "max_tokens": 1 }).to_string();
    let packed = [("content-type", "application/json"), ("content-encoding", "gzip")];
    server.send("POST", "/v1/chat/completions", &packed, &json_text).error(415);
    for kind in ["application/json; charset=utf-8", "application/vnd.api+json", "APPLICATION/JSON"] {
        assert_eq!(server.send("POST", "/v1/chat/completions", &[("content-type", kind)], &json_text).status, 200);
    }
    assert_eq!(server.send("POST", "/v1/chat/completions", &[], &json_text).status, 200);
}

fn head(line: &str, headers: &str) -> Vec<u8> {
    format!("{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n").into_bytes()
}

/// Bytes on the wire that are no HTTP, or hardly, with the code and status that they get.
fn broken_http() -> Vec<(u16, &'static str, Vec<u8>)> {
    let chat = "POST /v1/chat/completions";
    let long_path = format!("GET /{}", "y".repeat(70_000));
    let mut cases: Vec<(u16, &'static str, Vec<u8>)> = [
        &b"garbage\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /health HTTP/9.9\r\nhost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1 extra\r\nhost: localhost\r\n\r\n",
        b"GET  /health HTTP/1.1\r\n\r\n",
        b"GET /he\0alth HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"G\xffT /health HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\n: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: local\0host\r\n\r\n",
        b"\x00\x00\x00\x00\r\n\r\n",
        b"{\"messages\": []}\r\n\r\n",
        b"<html>\r\n\r\n",
    ]
    .into_iter()
    .map(|bytes| (400, "malformed_http", bytes.to_vec()))
    .collect();
    cases.extend([
        (400, "malformed_http", head(chat, "content-length: -1\r\n")),
        (400, "malformed_http", head(chat, "content-length: 5x\r\n")),
        (400, "malformed_http", head(chat, "content-length: 99999999999999999999999\r\n")),
        (
            400,
            "malformed_http",
            [head(chat, "content-length: 5\r\ncontent-length: 6\r\n"), b"{}{}{}".to_vec()].concat(),
        ),
        (400, "malformed_http", [head(chat, "transfer-encoding: gzip\r\n"), b"{}".to_vec()].concat()),
        (
            415,
            "unsupported_media_type",
            [head(chat, "transfer-encoding: gzip, chunked\r\n"), b"0\r\n\r\n".to_vec()].concat(),
        ),
        (431, "headers_too_large", head("GET /health", &format!("x: {}\r\n", "y".repeat(200_000)))),
        (431, "headers_too_large", head("GET /health", &"x: y\r\n".repeat(5000))),
        (414, "uri_too_long", head(&long_path, "")),
        (400, "invalid_host", head("GET /health", "host: other\r\n")),
        (400, "invalid_host", b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n".to_vec()),
        (405, "method_not_allowed", head("GET /v1/chat/completions", "")),
        (405, "method_not_allowed", head("DELETE /v1/models", "")),
        (405, "method_not_allowed", head("PUT /v1/completions", "")),
        (405, "method_not_allowed", head("TRACE /health", "")),
        (405, "method_not_allowed", head("BREW /health", "")),
        (404, "not_found", head("GET /v1/nothing", "")),
        (404, "not_found", head("GET /v1/../etc/passwd", "")),
        (404, "not_found", head("GET //", "")),
        (404, "not_found", head("GET /%2e%2e/%2e%2e/etc/passwd", "")),
        (404, "not_found", head("POST /v1/chat/completions/", "content-length: 0\r\n")),
        (404, "model_not_found", head("GET /v1/models/a%00b", "")),
        (404, "model_not_found", head("GET /v1/models/..%2F..%2Fetc", "")),
    ]);
    cases
}

/// What a client breaks off, or breaks in the middle, leaves nothing to answer: the connection ends.
#[test]
fn requests_that_break_off_end_their_connection_alone() {
    let server = TestServer::llama();
    let chat = "POST /v1/chat/completions";
    let raw: [Vec<u8>; 8] = [
        b"".to_vec(),
        // HTTP/2 without leave: its clients understand no answer of HTTP/1.1.
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"\r\n\r\n\r\n\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        b"POST /v1/chat/comp".to_vec(),
        [head(chat, "content-length: 100\r\n"), b"{\"messages\"".to_vec()].concat(),
        [head(chat, "transfer-encoding: chunked\r\n"), b"zz\r\n".to_vec()].concat(),
        [head(chat, "transfer-encoding: chunked\r\n"), b"5\r\n{\"a\"".to_vec()].concat(),
    ];
    for bytes in raw {
        let mut stream = server.connect();
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let answer = read_answer(&mut stream);
        assert!(answer.status == 0 || answer.error(answer.status)["code"].is_string(), "{answer:?}");
        assert!(answer.status == 0 || answer.status >= 400, "{answer:?}");
        assert_eq!(server.get("/health").status, 200);
    }
}

#[test]
fn a_body_beyond_the_limit_is_413() {
    let mut options = ServerOptions::default();
    options.max_body_bytes = 1000;
    let server = TestServer::start("tiny-llama", options);
    let content = "x".repeat(2000);
    assert_eq!(
        server.chat(json!({ "messages": [{ "role": "user", "content": content }] })).error(413)["code"],
        "request_too_large"
    );
    // Without a length the limit is met on the way.
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = format!("5dc\r\n{}\r\n0\r\n\r\n", "x".repeat(1500));
    assert_eq!(server.raw(format!("{head}{chunk}").as_bytes()).error(413)["code"], "request_too_large");
    let cut = request("POST", "/v1/chat/completions", &[], "{}").replace("content-length: 2", "content-length: 1000");
    let mut stream = server.connect();
    stream.write_all(cut.as_bytes()).unwrap();
    drop(stream);
    server.chat(json!({ "max_tokens": 1 })).json(200);
}

/// A body of another encoding.
#[test]
fn a_body_must_be_utf_8() {
    let server = TestServer::llama();
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 8\r\n\r\n";
    let answer = server.raw(&[head.as_bytes(), b"{\"a\":\"\xc4\xe3"].concat());
    assert_eq!(answer.error(400)["code"], "invalid_encoding");
}

/// What a conversation is too long for is told by its bytes, before anything is rendered.
#[test]
fn prompts_far_beyond_the_context_are_refused_by_their_size() {
    let server = TestServer::qwen();
    for text in ["one two three ".repeat(200_000), "生け垣の枝。".repeat(100_000)] {
        let user = json!({ "role": "user", "content": text });
        let begun = json!({ "role": "assistant", "content": "One" });
        for body in
            [json!({ "messages": [user] }), json!({ "messages": [user, begun], "continue_final_message": true })]
        {
            let error = server.chat(body).error(400);
            assert_eq!(error["code"], "context_length_exceeded");
            let size = format!("{} bytes, which are at least", text.trim().len());
            assert!(error["message"].as_str().unwrap().contains(&size), "{error}");
        }
    }
    // Counting is for those who want to shorten a prompt.
    let counted = server.post("/tokenize", &json!({ "content": "one two three ".repeat(5000) })).json(200);
    assert!(counted["count"].as_u64().unwrap() >= 15_000);
}
