//! What must not work: every request here is one JSON error, and the next request works.

use pleach_server::ServerOptions;
use serde_json::{Value, json};

use crate::support::{TestServer, request};

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
    ]
}

#[test]
fn every_wrong_field_is_named() {
    let server = TestServer::llama();
    for (name, value) in wrong_fields() {
        let answer = server.chat(json!({ name: value }));
        let error = answer.error(400);
        let param = error["param"].as_str().unwrap_or_default();
        let shown = value.to_string().chars().take(80).collect::<String>();
        assert!(param.starts_with(name) || (name == "stop" && param == "stop"), "{name}: {shown}: {error}");
        assert!(error["code"].is_string() && error["type"] == "invalid_request_error", "{error}");
        assert!(error["message"].as_str().unwrap().len() < 500, "{error}");
    }
    server.chat(json!({})).json(200);
}

/// JS-01: the part of the schema at fault is named.
#[test]
fn a_broken_schema_is_named_by_its_path() {
    let server = TestServer::llama();
    let schema = json!({ "type": "object", "properties": { "ok": { "type": "integer" }, "bad": { "type": "string", "pattern": "(" } } });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    let error = server.chat(json!({ "response_format": format })).error(400);
    assert_eq!(error["param"], "response_format.json_schema.schema.properties.bad", "{error}");
}

#[test]
fn other_routes_name_their_fields_too() {
    let server = TestServer::llama();
    let cases = [
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
        ("/v1/completions", json!({ "prompt": vec!["x"; 17] }), "n"),
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
    ];
    for (path, body, param) in cases {
        let error = server.post(path, &body).error(400);
        assert_eq!(error["param"], param, "{path}: {error}");
    }
    // RQ-01: an empty text continues nothing, unless the model begins texts with a token of its own.
    assert_eq!(server.post("/v1/completions", &json!({ "prompt": "" })).error(400)["code"], "empty_prompt");
    for body in [
        json!({}),
        json!({ "max_tokens": 5, "messages": [] }),
        json!({ "max_tokens": 5, "messages": [{ "role": "user" }] }),
    ] {
        let error = server.post("/v1/messages", &body).json(400);
        assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!("invalid_request_error")));
    }
    server.chat(json!({})).json(200);
}

/// RQ-11.
#[test]
fn bodies_that_are_no_requests_are_refused() {
    let server = TestServer::llama();
    let deep = format!("{}{}", "[".repeat(50_000), "]".repeat(50_000));
    let bodies = [
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
    ];
    for body in bodies {
        let answer = server.send("POST", "/v1/chat/completions", &[("content-type", "application/json")], body);
        let shown: String = body.chars().take(20).collect();
        assert!(answer.error(400)["code"].is_string(), "{shown}");
    }
    let json_text = json!({ "messages": [{ "role": "user", "content": "x" }], "max_tokens": 1 }).to_string();
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/xml"] {
        let answer = server.send("POST", "/v1/chat/completions", &[("content-type", kind)], &json_text);
        assert_eq!(answer.error(415)["code"], "unsupported_media_type");
    }
    let packed = [("content-type", "application/json"), ("content-encoding", "gzip")];
    server.send("POST", "/v1/chat/completions", &packed, &json_text).error(415);
    for kind in ["application/json; charset=utf-8", "application/vnd.api+json", "APPLICATION/JSON"] {
        assert_eq!(server.send("POST", "/v1/chat/completions", &[("content-type", kind)], &json_text).status, 200);
    }
    assert_eq!(server.send("POST", "/v1/chat/completions", &[], &json_text).status, 200);
}

/// Bytes on the wire that are no HTTP, or hardly: a status of 400 or more, or a closed connection.
#[test]
fn broken_http_ends_its_connection_alone() {
    let server = TestServer::llama();
    let long_header = format!("GET /health HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "y".repeat(200_000));
    let many_headers = format!("GET /health HTTP/1.1\r\nhost: localhost\r\n{}\r\n", "x: y\r\n".repeat(5000));
    let raw: [&[u8]; 14] = [
        b"\r\n\r\n\r\n\r\n",
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /health HTTP/9.9\r\nhost: localhost\r\n\r\n",
        b"GET  /health HTTP/1.1\r\n\r\n",
        b"GET /he\0alth HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n{}{}{}",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: gzip\r\n\r\n{}",
        b"GET /health HTTP/1.1\r\nhost: a\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        long_header.as_bytes(),
        many_headers.as_bytes(),
    ];
    for bytes in raw {
        use std::io::Write as _;
        let mut stream = server.connect();
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let answer = crate::support::read_answer(&mut stream);
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
    use std::io::Write as _;
    let mut stream = server.connect();
    stream.write_all(cut.as_bytes()).unwrap();
    drop(stream);
    server.chat(json!({ "max_tokens": 1 })).json(200);
}

/// TK-07: a body of another encoding.
#[test]
fn a_body_must_be_utf_8() {
    let server = TestServer::llama();
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 8\r\n\r\n";
    let answer = server.raw(&[head.as_bytes(), b"{\"a\":\"\xc4\xe3"].concat());
    assert_eq!(answer.error(400)["code"], "invalid_encoding");
}
