//! Faults of other local engines, tried on this one; and where else each of them is tried.
//!
//! | what happened elsewhere | tests |
//! |---|---|
//! | An empty prompt killed the engine. | here; `malformed::other_routes_name_their_fields_too` |
//! | Token -1 crashed the server. | `malformed::other_routes_name_their_fields_too` |
//! | The chunk with usage had no `choices`. | `streams::usage_comes_in_a_chunk_of_its_own_if_asked_for` |
//! | Embeddings in base64, and of token ids, were refused. | `answers::embeddings_come_as_numbers_and_as_base64`, `clients/` |
//! | Fields that are null failed. | here; `wire::sampling` |
//! | Hostile JSON. | `malformed::bodies_that_are_no_requests_are_refused` |
//! | Stop strings leaked, in streams above all. | here; `pleach-text`'s `stop` at every cut |
//! | Too much was held back for a stop. | `pleach-text`'s `stop`, `tools::parser_tests` |
//! | Calls differed between streams and whole answers. | `tools::parser_tests` at every cut, `structured::demanded_calls_are_made` |
//! | Pieces of calls without index or id. | `structured::demanded_calls_are_made`, `clients/` |
//! | Arguments had guessed types. | `tools::typed` |
//! | Other kinds of tools sank the request. | `wire::offered`, `clients/` |
//! | A broken schema was left out in silence. | `malformed::a_broken_schema_is_named_by_its_path` |
//! | Ordinary patterns were refused, one tool sank the request. | `structured::ordinary_schemas_are_taken`, `structured::one_odd_tool_does_not_spoil_the_others` |
//! | References failed. | `structured::ordinary_schemas_are_taken`, `malformed::every_wrong_field_is_named` |
//! | A schema turned thinking off. | `structured::a_thought_comes_before_the_json` |
//! | Guesses ran past the end of a grammar. | `structured::a_schema_holds_and_speculation_changes_nothing`, `clients/schemas.py` |
//! | A plain request broke the next strict one. | `structured::strict_and_plain_requests_take_turns` |
//! | Schemas as bombs. | `grammar::schema`, `malformed::every_wrong_field_is_named` |
//! | States were reused wrongly. | `pleach-engine` |
//! | A change of `tool_choice` missed the cache. | here |
//! | Requests at once mixed or failed by their lengths. | here; `cancel::requests_at_once_do_not_mix` |
//! | Some numbers of rows computed rubbish. | `pleach-kernels`' conformance |
//! | Two first requests loaded a model twice. | `cancel::a_loading_server_says_so`: there is one model, loaded before any request |
//! | Long prompts were cut in silence. | `answers::an_overlong_prompt_is_an_error_with_both_counts` |
//! | The edge of the context ended the process. | here; `pleach-engine`'s `refusals` |
//! | Large numbers wrapped. | here; `fields` |
//! | The context was not what it seemed. | here |
//! | A context of 0 crashed. | `pleach-engine`'s `refusals` |
//! | Work for clients that had gone, slow clients. | `cancel` |
//! | Silence for minutes. | `streams::silence_is_filled_with_comments` |
//! | Errors told paths. | here; `error` |
//! | Names that lead to this machine got in. | `guarded::other_names_of_this_machine_are_refused` |
//! | Open to all without a key. | `guarded` |
//! | URLs of images were fetched. | `malformed::every_wrong_field_is_named`, `clients/` |
//! | System messages that come late. | `protocols::late_system_messages_are_taken_everywhere` |
//! | Contents that are null, empty or parts. | here; `wire::chat` |
//! | Bodies in other encodings. | `malformed::a_body_must_be_utf_8` |
//! | Seeds without effect, or with too much. | here |

use pleach_server::ServerOptions;
use serde_json::{Value, json};

use crate::support::{TestServer, fixture, with_message};

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

fn streamed(server: &TestServer, mut body: Value) -> String {
    body["stream"] = json!(true);
    let events = server.chat(body).events();
    events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect()
}

#[test]
fn prompts_of_nothing_are_errors_or_answers() {
    let server = TestServer::llama();
    for prompt in [json!(""), json!([]), json!([""]), json!(null), json!([[]])] {
        server.post("/v1/completions", &json!({ "prompt": prompt, "max_tokens": 2 })).error(400);
    }
    server.post("/v1/completions", &json!({ "prompt": "   ", "max_tokens": 2 })).json(200);
    for text in ["", "   ", "\n"] {
        server.chat(json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 2 })).json(200);
    }
}

#[test]
fn null_is_absent_in_every_field() {
    let server = TestServer::llama();
    let plain = server.chat(json!({ "seed": 5 })).json(200);
    let names = [
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "stop",
        "n",
        "logprobs",
        "top_logprobs",
        "logit_bias",
        "response_format",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "stream",
        "stream_options",
        "chat_template_kwargs",
        "enable_thinking",
        "reasoning_effort",
        "reasoning",
        "thinking",
        "model",
        "max_completion_tokens",
        "user",
        "metadata",
        "store",
        "service_tier",
        "continue_final_message",
        "return_progress",
    ];
    let mut body: Value = names.iter().map(|name| ((*name).to_owned(), Value::Null)).collect();
    body["seed"] = json!(5);
    assert_eq!(server.chat(body).json(200)["choices"], plain["choices"]);
}

#[test]
fn streams_end_before_a_stop_like_whole_answers() {
    let server = TestServer::llama();
    let whole = server.chat(json!({ "max_tokens": 24 })).json(200);
    let characters: Vec<char> = content(&whole).chars().collect();
    for from in 0..characters.len() - 4 {
        let stop: String = characters[from..from + 4].iter().collect();
        let body = json!({ "max_tokens": 24, "stop": [stop, "never there"] });
        let text = streamed(&server, body.clone());
        assert_eq!(text, content(&server.chat(body).json(200)), "{stop:?}");
        assert!(content(&whole).starts_with(&text) && !text.contains(&stop), "{stop:?}: {text:?}");
    }
}

#[test]
fn what_is_asked_of_the_answer_does_not_miss_the_cache() {
    let server = TestServer::qwen();
    let tool = json!({ "type": "function", "function": { "name": "pick", "parameters": { "type": "object" } } });
    let ask = |more: Value| {
        let mut body = json!({ "tools": [tool], "max_tokens": 2, "enable_thinking": false });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.chat(body).json(200)["usage"].clone()
    };
    let first = ask(json!({ "tool_choice": "auto" }));
    let requests = [
        json!({ "tool_choice": "required" }),
        json!({ "tool_choice": "auto", "temperature": 1, "seed": 3 }),
        json!({ "response_format": { "type": "json_object" } }),
    ];
    for more in requests {
        let usage = ask(more.clone());
        assert_eq!(usage["prompt_tokens"], first["prompt_tokens"]);
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"], "{more}");
    }
}

#[test]
fn prompts_of_any_lengths_at_once_are_answered_as_alone() {
    let mut options = ServerOptions::default();
    options.parallel = 8;
    let server = TestServer::start("tiny-qwen35", options);
    let bodies: Vec<Value> = [1, 9, 26, 300, 2, 700, 64, 65]
        .iter()
        .enumerate()
        .map(|(number, &length)| {
            let prompt: Vec<usize> = (0..length).map(|index| 5 + (index * 7 + number) % 200).collect();
            json!({ "prompt": prompt, "max_tokens": 16, "temperature": 0.9, "seed": number, "ignore_eos": true })
        })
        .collect();
    let ask = |body: &Value| server.post("/v1/completions", body).json(200)["choices"][0]["text"].clone();
    let in_pieces = |body: &Value| {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let events = server.post("/v1/completions", &body).events();
        Value::from(events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect::<String>())
    };
    let alone: Vec<Value> = bodies.iter().map(ask).collect();
    let together: Vec<Value> = std::thread::scope(|scope| {
        let asked: Vec<_> = bodies
            .iter()
            .enumerate()
            .map(|(number, body)| scope.spawn(move || if number % 2 == 0 { ask(body) } else { in_pieces(body) }))
            .collect();
        asked.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(together, alone);
}

#[test]
fn the_edge_of_the_context_is_an_end_of_length() {
    let server = TestServer::llama();
    let context = server.get("/v1/models").json(200)["data"][0]["context_length"].as_u64().unwrap() as usize;
    let ask = |length: usize| {
        let prompt: Vec<usize> = (0..length).map(|index| 5 + index % 300).collect();
        server.post(
            "/v1/completions",
            &json!({ "prompt": prompt, "max_tokens": -1, "ignore_eos": true, "temperature": 0 }),
        )
    };
    for room in [1, 2, 33] {
        let answer = ask(context - room).json(200);
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["completion_tokens"], room);
    }
    for length in [context, context + 1] {
        assert_eq!(ask(length).error(400)["code"], "context_length_exceeded");
    }
    server.chat(json!({})).json(200);
}

#[test]
fn whole_numbers_are_taken_or_refused_by_name() {
    let server = TestServer::llama();
    let numbers = [
        json!(-1),
        json!(0),
        json!(i32::MAX),
        json!(1_u64 << 31),
        json!(1_u64 << 63),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1e30),
        json!(-1e30),
        json!(1.5),
        json!("5"),
        json!(true),
        json!([]),
    ];
    let names = [
        "max_completion_tokens",
        "top_k",
        "n",
        "top_logprobs",
        "repeat_last_n",
        "reasoning_budget",
        "thinking_budget",
        "seed",
    ];
    for name in names {
        for number in &numbers {
            let answer = server.chat(json!({ name: number, "max_tokens": 2, "ignore_eos": false, "temperature": 0 }));
            if answer.status != 200 {
                assert_eq!(answer.error(400)["param"], name, "{name}: {number}");
            }
        }
    }
}

#[test]
fn the_context_that_is_told_is_the_context_that_is_there() {
    let server = TestServer::llama();
    let model = server.get("/v1/models").json(200)["data"][0].clone();
    assert_eq!((&model["context_length"], &model["max_model_len"]), (&json!(4096), &json!(4096)));
    assert_eq!(model["meta"]["n_ctx_train"], 4096);
}

#[test]
fn no_error_tells_where_files_are() {
    let server = TestServer::llama();
    let home = fixture("");
    let places = [home.to_str().unwrap(), "tiny-llama/", env!("CARGO_MANIFEST_DIR"), "src/"];
    let template = json!({ "chat_template_kwargs": { "messages": 5 } });
    let answers = [
        server.get("/nothing"),
        server.get("/v1/models/..%2f..%2fetc%2fpasswd"),
        server.chat(template),
        server.chat(json!({ "messages": [{ "role": "tool", "content": "x" }] })),
        server
            .chat(json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": { "type": 5 } } } })),
        server.post("/v1/completions", &json!({ "prompt": [511_999] })),
        server.post("/v1/messages", &json!({})),
        server.send("POST", "/v1/chat/completions", &[], "{"),
        server.raw(b"garbage\r\n\r\n"),
    ];
    for answer in answers {
        assert!(places.iter().all(|place| !answer.body.contains(place)), "{answer:?}");
    }
}

#[test]
fn contents_of_nothing_are_the_same() {
    let server = TestServer::qwen();
    let call = json!([{ "id": "1", "type": "function", "function": { "name": "f", "arguments": "{\"a\":1}" } }]);
    let ask = |assistant: Value| {
        let messages = json!([
            { "role": "user", "content": "x" }, assistant, { "role": "tool", "tool_call_id": "1", "content": "5" },
        ]);
        server.chat(json!({ "messages": messages })).json(200)["choices"].clone()
    };
    let absent = ask(json!({ "role": "assistant", "tool_calls": call }));
    for content in [json!(null), json!(""), json!([]), json!([{ "type": "text", "text": "" }])] {
        assert_eq!(ask(json!({ "role": "assistant", "content": content, "tool_calls": call })), absent, "{content}");
    }
    let history = json!([{ "role": "user", "content": "x" }, { "role": "assistant", "content": "" }, { "role": "user", "content": "y" }]);
    server.chat(json!({ "messages": history })).json(200);
}

#[test]
fn a_seed_decides_the_text_and_nothing_else() {
    let server = TestServer::llama();
    let ask = |body: Value| content(&server.post("/v1/chat/completions", &body).json(200)).to_owned();
    let message = with_message(json!({ "temperature": 1.2, "seed": 11 }));
    let first = ask(message.clone());
    assert!((0..10).all(|_| ask(message.clone()) == first));
    // A seed leaves the temperature as it is.
    let mut free = with_message(json!({}));
    free.as_object_mut().unwrap().remove("temperature");
    let texts: Vec<String> = (0..4)
        .map(|seed| {
            free["seed"] = json!(seed);
            ask(free.clone())
        })
        .collect();
    let answer = server.post("/v1/chat/completions", &free).json(200);
    assert_eq!(answer["seed"], 3);
    assert!(texts.iter().any(|text| *text != texts[0]), "the model's own temperature is not 0: {texts:?}");
}
