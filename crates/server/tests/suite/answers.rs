//! Each route, whole answers.

use serde_json::{Value, json};

use crate::support::{TestServer, with_message};

#[test]
fn a_chat_is_answered_with_all_that_clients_read() {
    let server = TestServer::llama();
    let answer = server.chat(json!({})).json(200);
    assert_eq!((&answer["object"], &answer["model"]), (&json!("chat.completion"), &json!("tiny-llama")));
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(answer["system_fingerprint"].as_str().unwrap().starts_with("fp_") && answer["created"].is_u64());
    let choice = &answer["choices"][0];
    assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("length")));
    assert_eq!(choice["message"]["role"], "assistant");
    assert!(!choice["message"]["content"].as_str().unwrap().is_empty());
    let usage = &answer["usage"];
    assert_eq!(usage["completion_tokens"], 12);
    let total = usage["prompt_tokens"].as_u64().unwrap() + 12;
    assert_eq!(
        (usage["total_tokens"].as_u64(), &usage["prompt_tokens_details"]["cached_tokens"]),
        (Some(total), &json!(0))
    );
    assert!(usage["spec_verify_ct"].as_u64().unwrap() >= 1);
    assert_eq!(answer["timings"]["predicted_n"], 12);
}

#[test]
fn the_same_request_gives_the_same_text_from_the_cache() {
    let server = TestServer::llama();
    let cold = server.chat(json!({})).json(200);
    let warm = server.chat(json!({})).json(200);
    assert_eq!(cold["choices"][0]["message"], warm["choices"][0]["message"]);
    assert_eq!(warm["usage"]["prompt_tokens_details"]["cached_tokens"], warm["usage"]["prompt_tokens"]);
}

/// The next turn of a conversation meets the session of the last one, also when others came in between.
#[test]
fn a_conversation_finds_its_own_session() {
    let server = TestServer::llama();
    let turn = |messages: Value| {
        let body = json!({ "messages": messages, "max_tokens": 4, "temperature": 0 });
        server.post("/v1/chat/completions", &body).json(200)
    };
    let opening = |topic: &str| json!({ "role": "user", "content": format!("Tell me a lot about {topic}, please") });
    let first = turn(json!([opening("apples")]));
    turn(json!([opening("pears")]));
    let said = first["choices"][0]["message"]["content"].clone();
    let second = turn(
        json!([opening("apples"), { "role": "assistant", "content": said }, { "role": "user", "content": "go on" }]),
    );
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached > 0, "{second}");
}

#[test]
fn n_answers_share_a_prompt_and_differ_by_seed() {
    let server = TestServer::llama();
    let answer = server.chat(json!({ "n": 3, "temperature": 1.5, "seed": 7 })).json(200);
    let texts: Vec<&str> = answer["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| choice["message"]["content"].as_str().unwrap())
        .collect();
    assert_eq!(texts.len(), 3);
    assert!(texts[0] != texts[1] && texts[1] != texts[2]);
    assert_eq!((&answer["usage"]["completion_tokens"], &answer["seed"]), (&json!(36), &json!(7)));
    let alone = server.chat(json!({ "temperature": 1.5, "seed": 9 })).json(200);
    assert_eq!(alone["choices"][0]["message"]["content"], texts[2]);
    let error = server.chat(json!({ "n": 17 })).error(400);
    assert_eq!((&error["param"], &error["code"]), (&json!("n"), &json!("invalid_value")));
}

#[test]
fn log_probabilities_are_complete() {
    let server = TestServer::llama();
    let answer = server.chat(json!({ "logprobs": true, "top_logprobs": 3 })).json(200);
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 12);
    for token in content {
        assert!(token["logprob"].as_f64().unwrap() <= 0.0 && token["bytes"].is_array() && token["token"].is_string());
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 3);
        // Greedy: the token itself is the likeliest.
        assert_eq!(token["top_logprobs"][0]["bytes"], token["bytes"]);
    }
    let plain = server.chat(json!({})).json(200);
    assert_eq!(plain["choices"][0]["message"], answer["choices"][0]["message"]);
    assert!(plain["choices"][0]["logprobs"].is_null());
}

#[test]
fn stop_strings_end_the_text_before_them() {
    let server = TestServer::llama();
    let whole = server.chat(json!({})).json(200);
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    let stop: String = text.chars().skip(4).take(3).collect();
    let answer = server.chat(json!({ "stop": stop })).json(200);
    let choice = &answer["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!(stop)));
    assert_eq!(choice["message"]["content"].as_str().unwrap(), &text[..text.find(&stop).unwrap()]);
}

#[test]
fn a_bias_decides_the_token() {
    let server = TestServer::llama();
    let token = server.post("/tokenize", &json!({ "content": "e" })).json(200)["tokens"][0].as_u64().unwrap();
    let answer = server.chat(json!({ "logit_bias": { token.to_string(): 100 }, "max_tokens": 3 })).json(200);
    assert_eq!(answer["choices"][0]["message"]["content"], "eee");
    let error = server.chat(json!({ "logit_bias": { "512": 1 } })).error(400);
    assert_eq!(error["message"], "`logit_bias` has the token 512, but its tokens must be below the vocabulary's 512");
    assert_eq!(error["param"], "logit_bias");
    assert!(error["message"].as_str().unwrap().contains("must be below the vocabulary's 512"), "{error}");
}

#[test]
fn completions_take_texts_and_tokens() {
    let server = TestServer::llama();
    let complete = |body: Value| {
        let mut whole = json!({ "max_tokens": 4, "temperature": 0, "ignore_eos": true });
        whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        server.post("/v1/completions", &whole)
    };
    let one = complete(json!({ "prompt": "Hello" })).json(200);
    assert_eq!((&one["object"], &one["choices"][0]["finish_reason"]), (&json!("text_completion"), &json!("length")));
    let tokens =
        server.post("/tokenize", &json!({ "content": "Hello", "add_special": true })).json(200)["tokens"].clone();
    let text = &one["choices"][0]["text"];
    for prompt in [json!(["Hello"]), tokens.clone(), json!([tokens])] {
        assert_eq!(&complete(json!({ "prompt": prompt })).json(200)["choices"][0]["text"], text);
    }
    let two = complete(json!({ "prompt": ["Hello", "World"], "n": 2 })).json(200);
    assert_eq!(two["choices"].as_array().unwrap().len(), 4);
    let echo = complete(json!({ "prompt": "Hello", "echo": true })).json(200);
    assert_eq!(echo["choices"][0]["text"].as_str().unwrap(), format!("Hello{}", text.as_str().unwrap()));
    let likely = complete(json!({ "prompt": "Hello", "logprobs": 2 })).json(200);
    let logprobs = &likely["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 4);
    assert_eq!(logprobs["text_offset"][0], 0);
}

#[test]
fn embeddings_come_as_numbers_and_as_base64() {
    let server = TestServer::qwen();
    let embed = |body: Value| server.post("/v1/embeddings", &body).json(200);
    let one = embed(json!({ "input": "Hello there" }));
    let vector: Vec<f64> =
        one["data"][0]["embedding"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect();
    assert_eq!(vector.len(), 64);
    let length: f64 = vector.iter().map(|value| value * value).sum();
    assert!((length - 1.0).abs() < 1e-5, "{length}");
    let tokens = server.post("/tokenize", &json!({ "content": "Hello there" })).json(200)["tokens"].clone();
    for input in [json!(["Hello there"]), tokens.clone(), json!([tokens])] {
        assert_eq!(embed(json!({ "input": input }))["data"][0]["embedding"], one["data"][0]["embedding"]);
    }
    let packed = embed(json!({ "input": "Hello there", "encoding_format": "base64" }));
    assert_eq!(packed["data"][0]["embedding"].as_str().unwrap().len(), (64_usize * 4).div_ceil(3) * 4);
    let last = embed(json!({ "input": "Hello there", "pooling": "last" }));
    assert_ne!(last["data"][0]["embedding"], one["data"][0]["embedding"]);
    let many = embed(json!({ "input": ["a", "Hello there", "b"] }));
    assert_eq!(many["data"][1]["embedding"], one["data"][0]["embedding"]);
    let long = json!({ "input": ["a", "b", "word ".repeat(5000)] });
    let error = server.post("/v1/embeddings", &long).error(400);
    assert_eq!((&error["code"], &error["param"]), (&json!("context_length_exceeded"), &json!("input[2]")));
}

#[test]
fn small_routes_answer() {
    let server = TestServer::llama();
    assert_eq!(server.get("/health").json(200), json!({ "status": "ok" }));
    for path in ["/v1/models", "/models"] {
        let models = server.get(path).json(200);
        assert_eq!(
            (&models["data"][0]["id"], &models["data"][0]["context_length"]),
            (&json!("tiny-llama"), &json!(4096))
        );
    }
    assert_eq!(server.get("/v1/models/tiny-llama").json(200)["id"], "tiny-llama");
    assert_eq!(server.get("/v1/models/other/name").error(404)["code"], "model_not_found");
    assert_eq!(server.get("/v1/models/%ff%00").error(400)["code"], "invalid_path");
    assert!(server.get("/openapi.json").json(200)["paths"].is_object());
    assert_eq!(server.get("/nothing").error(404)["code"], "not_found");
    assert_eq!(server.get("/v1/chat/completions").error(405)["code"], "method_not_allowed");
    let text = "Hello wörld 😀";
    let tokens = server.post("/tokenize", &json!({ "content": text, "with_pieces": false })).json(200);
    assert_eq!(tokens["tokens"].as_array().unwrap().len() as u64, tokens["count"].as_u64().unwrap());
    assert_eq!(server.post("/detokenize", &json!({ "tokens": tokens["tokens"] })).json(200)["content"], text);
    let chat = server.post("/tokenize", &with_message(json!({}))).json(200);
    assert_eq!(chat["count"], server.chat(json!({})).json(200)["usage"]["prompt_tokens"]);
    assert!(server.metric("pleach_output_tokens_total") >= 12);
}

#[test]
fn an_overlong_prompt_is_an_error_with_both_counts() {
    let server = TestServer::llama();
    let content = "word ".repeat(5000);
    let error = server.chat(json!({ "messages": [{ "role": "user", "content": content }] })).error(400);
    assert_eq!(error["code"], "context_length_exceeded");
    assert!(error["message"].as_str().unwrap().contains("context holds 4096"), "{error}");
    server.chat(json!({})).json(200);
}

/// The token that ends a text waits until there are enough others.
#[test]
fn a_text_has_its_least_tokens() {
    let server = TestServer::llama();
    let end = server.post("/tokenize", &json!({ "content": "<|im_end|>" })).json(200)["tokens"][0].to_string();
    for stream in [false, true] {
        let ask = |least: u64| {
            let body = json!({ "logit_bias": { end.as_str(): 100 }, "ignore_eos": false, "min_tokens": least, "stream": stream, "stream_options": { "include_usage": true } });
            let answer = server.chat(body);
            let usage = if stream {
                answer.events().pop().unwrap()["usage"].clone()
            } else {
                answer.json(200)["usage"].clone()
            };
            usage["completion_tokens"].as_u64().unwrap()
        };
        assert_eq!(ask(5) - ask(0), 5);
    }
    let format = json!({ "type": "json_object" });
    assert_eq!(server.chat(json!({ "min_tokens": 5, "response_format": format })).error(400)["param"], "min_tokens");
}
