//! Answers inside a grammar: JSON, calls of tools, thoughts within a budget; the same with and without speculation.

use std::num::NonZeroUsize;

use pleach_engine::{Engine, EngineOptions, Speculation};
use pleach_server::{Server, ServerOptions};
use serde_json::{Value, json};

use crate::support::{TestServer, fixture};

fn with_speculation(model: &str, speculation: Speculation) -> TestServer {
    let options = EngineOptions { threads: NonZeroUsize::new(1), speculation, ..EngineOptions::default() };
    let server = Server::new(ServerOptions::default());
    server.set_engine(Engine::open(&fixture(model), &options).unwrap()).unwrap();
    TestServer::of(server)
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "kind": { "enum": ["apple", "pear", "plum"] },
            "count": { "type": "integer", "minimum": 0, "maximum": 99 },
            "ripe": { "type": "boolean" },
            "tags": { "type": "array", "items": { "enum": ["a", "b"] }, "minItems": 1, "maxItems": 2 },
        },
        "required": ["kind", "count", "ripe", "tags"],
        "additionalProperties": false,
    })
}

fn format(schema: Value) -> Value {
    json!({ "type": "json_schema", "json_schema": { "name": "fruit", "strict": true, "schema": schema } })
}

fn check(text: &str) {
    let fruit: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(fruit.as_object().unwrap().len(), 4, "{text}");
    assert!(["apple", "pear", "plum"].contains(&fruit["kind"].as_str().unwrap()));
    assert!((0..100).contains(&fruit["count"].as_i64().unwrap()) && fruit["ripe"].is_boolean());
    assert!(!fruit["tags"].as_array().unwrap().is_empty());
}

#[test]
fn a_schema_holds_and_speculation_changes_nothing() {
    for model in ["tiny-llama", "tiny-qwen35"] {
        let servers = [Speculation::Auto, Speculation::Off].map(|speculation| with_speculation(model, speculation));
        for seed in 0..4 {
            let body = json!({
                "response_format": format(schema()), "max_tokens": 400, "temperature": 1, "seed": seed, "ignore_eos": false,
                "enable_thinking": false,
            });
            let [drafted, plain] = [&servers[0], &servers[1]].map(|server| server.chat(body.clone()).json(200));
            let text = plain["choices"][0]["message"]["content"].as_str().unwrap();
            check(text);
            assert_eq!(plain["choices"][0]["finish_reason"], "stop");
            assert_eq!(drafted["choices"][0]["message"]["content"].as_str().unwrap(), text);
        }
    }
}

/// The grammar begins after the thought, which its budget ends.
#[test]
fn a_thought_comes_before_the_json() {
    let server = TestServer::qwen();
    let body = json!({
        "response_format": format(schema()), "max_tokens": 600, "temperature": 1, "seed": 3, "ignore_eos": false, "thinking_budget": 8,
    });
    let answer = server.chat(body).json(200);
    let message = &answer["choices"][0]["message"];
    check(message["content"].as_str().unwrap());
    assert!(!message["reasoning_content"].as_str().unwrap().is_empty());
    assert!(!message["reasoning_content"].as_str().unwrap().contains("</think>"));
}

#[test]
fn any_object_is_json_object() {
    let server = TestServer::llama();
    for seed in 0..4 {
        let body = json!({ "response_format": { "type": "json_object" }, "max_tokens": 60, "temperature": 1, "seed": seed, "ignore_eos": false });
        let choice = server.chat(body).json(200)["choices"][0].clone();
        let text = choice["message"]["content"].as_str().unwrap();
        assert!(text.starts_with('{'), "{text}");
        if choice["finish_reason"] == "stop" {
            assert!(serde_json::from_str::<Value>(text).unwrap().is_object());
        }
    }
}

/// A strict request leaves nothing behind for a plain one, nor the other way round.
#[test]
fn strict_and_plain_requests_take_turns() {
    let server = TestServer::llama();
    let plain = server.chat(json!({})).json(200)["choices"][0]["message"].clone();
    for _ in 0..2 {
        let body = json!({ "response_format": format(schema()), "max_tokens": 400, "temperature": 1, "seed": 5, "ignore_eos": false });
        check(server.chat(body).json(200)["choices"][0]["message"]["content"].as_str().unwrap());
        assert_eq!(server.chat(json!({})).json(200)["choices"][0]["message"], plain);
    }
}

#[test]
fn ordinary_schemas_are_taken() {
    let server = TestServer::llama();
    for schema in [
        json!({ "type": "string", "pattern": "\\S", "maxLength": 8 }),
        json!({ "$defs": { "n": { "type": "object", "properties": { "next": { "$ref": "#/$defs/n" } } } }, "$ref": "#/$defs/n" }),
        json!({ "anyOf": [{ "type": "null" }, { "type": "integer" }] }),
        json!({ "type": "array", "items": { "type": "string", "format": "date" } }),
        json!({ "type": "array", "items": { "type": "string", "minLength": 1 }, "minItems": 1, "uniqueItems": true }),
        json!({ "type": "array", "items": { "enum": ["a", "b", "c"] }, "uniqueItems": true, "minItems": 2 }),
        json!({ "type": "object", "properties": { "a": { "type": "null" }, "b": { "type": "null" } }, "minProperties": 1 }),
        json!(true),
    ] {
        let answer = server.chat(json!({ "response_format": format(schema.clone()), "max_tokens": 5 }));
        assert_eq!(answer.status, 200, "{schema}: {answer:?}");
    }
}

fn tools() -> Value {
    let function = |name: &str, parameters: Value| json!({ "type": "function", "function": { "name": name, "parameters": parameters } });
    json!([
        function(
            "pick",
            json!({
                "type": "object", "required": ["kind", "count"],
                "properties": { "kind": { "enum": ["apple", "pear"] }, "count": { "type": "integer", "minimum": 1, "maximum": 9 }, "fast": { "type": "boolean" } },
            })
        ),
        function("wait", json!({ "type": "object", "properties": {} })),
    ])
}

/// A call is demanded by grammar in both styles of models; in pieces it is the same as whole.
#[test]
fn demanded_calls_are_made() {
    for model in ["tiny-llama", "tiny-qwen35"] {
        let server = TestServer::start(model, ServerOptions::default());
        for (seed, choice) in [
            (1, json!("required")),
            (2, json!({ "type": "function", "function": { "name": "pick" } })),
            (3, json!("required")),
        ] {
            let body = json!({
                "tools": tools(), "tool_choice": choice, "max_tokens": 400, "temperature": 1, "seed": seed, "ignore_eos": false,
                "enable_thinking": false, "parallel_tool_calls": false,
            });
            let whole = server.chat(body.clone()).json(200)["choices"][0].clone();
            assert_eq!(whole["finish_reason"], "tool_calls", "{model}: {whole}");
            assert!(whole["message"]["content"].is_null(), "{model}: {whole}");
            let call = &whole["message"]["tool_calls"][0];
            let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
            match call["function"]["name"].as_str().unwrap() {
                "pick" => assert!(
                    arguments["kind"].is_string() && (1..10).contains(&arguments["count"].as_i64().unwrap()),
                    "{call}"
                ),
                "wait" => assert_eq!(arguments, json!({})),
                other => panic!("{other} was not offered"),
            }
            let mut streamed = body;
            streamed["stream"] = Value::Bool(true);
            same_in_pieces(&server.chat(streamed).events(), call);
        }
    }
}

fn same_in_pieces(events: &[Value], call: &Value) {
    let pieces: Vec<&Value> =
        events.iter().filter_map(|event| event.pointer("/choices/0/delta/tool_calls/0")).collect();
    assert!(pieces.iter().all(|piece| piece["index"] == 0));
    assert_eq!(pieces[0]["function"]["name"], call["function"]["name"]);
    assert!(pieces[0]["id"].as_str().unwrap().starts_with("call_") && pieces[0]["type"] == "function");
    assert!(pieces[1..].iter().all(|piece| piece.get("id").is_none() && piece["function"].get("name").is_none()));
    let arguments: String = pieces.iter().filter_map(|piece| piece["function"]["arguments"].as_str()).collect();
    assert_eq!(arguments, call["function"]["arguments"].as_str().unwrap());
    assert_eq!(events.iter().rev().find_map(|event| event["choices"][0]["finish_reason"].as_str()), Some("tool_calls"));
}

#[test]
fn demanded_calls_reach_the_other_protocols() {
    let server = TestServer::qwen();
    let schema =
        json!({ "type": "object", "required": ["kind"], "properties": { "kind": { "enum": ["apple", "pear"] } } });
    let message = json!([{ "role": "user", "content": "Pick one" }]);
    let body = json!({
        "messages": message, "max_tokens": 200, "temperature": 0, "thinking": { "type": "disabled" },
        "tools": [{ "name": "pick", "input_schema": schema }], "tool_choice": { "type": "tool", "name": "pick" },
    });
    let whole = server.post("/v1/messages", &body).json(200);
    assert_eq!((&whole["stop_reason"], &whole["content"][0]["type"]), (&json!("tool_use"), &json!("tool_use")));
    assert!(whole["content"][0]["input"]["kind"].is_string(), "{whole}");
    let mut streamed = body;
    streamed["stream"] = Value::Bool(true);
    let events = server.post("/v1/messages", &streamed).events();
    let text: String = events.iter().filter_map(|event| event.pointer("/delta/partial_json")?.as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), whole["content"][0]["input"]);

    let body = json!({
        "input": "Pick one", "max_output_tokens": 200, "temperature": 0, "reasoning": { "effort": "none" },
        "tools": [{ "type": "web_search" }, { "type": "sóme\r\nkind" }, { "type": "function", "name": "pick", "parameters": schema }], "tool_choice": "required",
    });
    let mut num_cut = 0;
    let answer = server.post("/v1/responses", &body);
    assert_eq!(answer.header("x-pleach-ignored-tools"), Some("web_search, s?me??kind"));
    let item = &answer.json(200)["output"][0];
    assert_eq!((&item["type"], &item["name"]), (&json!("function_call"), &json!("pick")));
    assert_eq!(item["status"], "completed");
    for most in (1..200).step_by(3) {
        let mut cut = body.clone();
        cut["max_output_tokens"] = Value::from(most);
        let answer = server.post("/v1/responses", &cut).json(200);
        let Some(item) = answer["output"].as_array().unwrap().iter().find(|item| item["type"] == "function_call")
        else {
            continue;
        };
        let is_whole = serde_json::from_str::<Value>(item["arguments"].as_str().unwrap()).is_ok();
        assert_eq!(item["status"], if is_whole { "completed" } else { "incomplete" }, "{most}: {item}");
        num_cut += usize::from(!is_whole);
        if is_whole {
            break;
        }
    }
    assert!(num_cut > 0);
    assert!(serde_json::from_str::<Value>(item["arguments"].as_str().unwrap()).unwrap()["kind"].is_string());
}

/// In the Messages protocol the input of a call is an object, which half a call has not.
#[test]
fn calls_that_were_cut_are_left_out_of_messages() {
    let server = TestServer::llama();
    let schema =
        json!({ "type": "object", "required": ["kind"], "properties": { "kind": { "enum": ["apple", "pear"] } } });
    let body = json!({
        "messages": [{ "role": "user", "content": "Pick one" }], "temperature": 0, "max_tokens": 200,
        "tools": [{ "name": "pick", "input_schema": schema }], "tool_choice": { "type": "any" },
    });
    let whole = server.post("/v1/messages", &body).json(200)["usage"]["output_tokens"].as_u64().unwrap();
    let mut num_cut = 0;
    for most in 1..whole {
        let mut cut = body.clone();
        cut["max_tokens"] = Value::from(most);
        let answer = server.post("/v1/messages", &cut).json(200);
        let calls = answer["content"].as_array().unwrap().iter().filter(|block| block["type"] == "tool_use");
        calls.for_each(|call| assert!(call["input"]["kind"].is_string(), "{most}: {call}"));
        num_cut += usize::from(answer["stop_reason"] == "max_tokens");
    }
    assert!(num_cut > 0);
}

/// A schema that cannot be enforced does not sink the request.
#[test]
fn one_odd_tool_does_not_spoil_the_others() {
    let server = TestServer::llama();
    let odd = json!([{ "type": "function", "function": { "name": "odd", "parameters": { "type": "object", "properties": { "a": { "type": "string", "pattern": "(" } } } } }]);
    let body = json!({ "tools": odd, "tool_choice": "required", "max_tokens": 30 });
    assert_eq!(server.chat(body).status, 200);
}
