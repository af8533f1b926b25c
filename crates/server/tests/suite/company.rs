//! Several clients at once: each gets the answer that it would get alone, and what is read for one is not read for another.

use std::thread;

use pleach_server::ServerOptions;
use serde_json::{Value, json};

use crate::support::{TestServer, endless, with_message};

fn text(answer: &Value) -> (Value, Value) {
    let choice = &answer["choices"][0];
    (choice["message"].clone(), choice["finish_reason"].clone())
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[test]
fn answers_in_company_are_those_that_requests_get_alone() {
    for model in ["tiny-llama", "tiny-qwen35"] {
        let mut options = ServerOptions::default();
        options.parallel = 5;
        let server = TestServer::start(model, options);
        let request = |seed: u64| {
            let content = format!("Hello there, number {}", seed % 3);
            json!({
                "messages": [{ "role": "user", "content": content }],
                "max_tokens": 6 + 3 * seed, "seed": seed, "temperature": if seed.is_multiple_of(2) { 1.0 } else { 0.0 },
            })
        };
        let alone: Vec<_> = (0..8).map(|seed| text(&server.chat(request(seed)).json(200))).collect();
        let together = thread::scope(|scope| {
            let (server, request) = (&server, &request);
            let ask = move |seed| server.chat(request(seed)).json(200);
            let clients: Vec<_> = (0..8).map(|seed| scope.spawn(move || ask(seed))).collect();
            clients.into_iter().map(|client| text(&client.join().unwrap())).collect::<Vec<_>>()
        });
        assert_eq!(together, alone, "{model}");
    }
}

#[test]
fn answers_of_one_request_share_their_prompt() {
    let server = TestServer::qwen();
    let request = |body: Value| {
        let mut request = json!({ "temperature": 1.0, "max_tokens": 8, "seed": 5 });
        request.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        server.chat(request).json(200)
    };
    let several = request(json!({ "n": 4 }));
    let texts: Vec<_> = several["choices"].as_array().unwrap().iter().map(|choice| choice["message"].clone()).collect();
    for (seed, expected) in (5..).zip(texts) {
        assert_eq!(request(json!({ "seed": seed }))["choices"][0]["message"], expected);
    }
    assert_eq!(server.metric("pleach_prefix_cache_misses_total"), 1);
}

#[test]
fn keys_share_no_prefix() {
    let mut options = ServerOptions::default();
    options.api_keys = vec!["first-key".to_owned(), "other-key".to_owned()];
    let server = TestServer::start("tiny-qwen35", options);
    let ask = |key: &str| {
        let body = with_message(json!({})).to_string();
        let key = format!("Bearer {key}");
        let headers = [("content-type", "application/json"), ("authorization", &key)];
        cached(&server.send("POST", "/v1/chat/completions", &headers, &body).json(200))
    };
    assert_eq!([ask("first-key"), ask("other-key")], [0, 0]);
    assert!(ask("first-key") > 0 && ask("other-key") > 0);
}

/// Packages of clients insist on a key, so many show one that they made up.
#[test]
fn without_keys_all_clients_are_one() {
    let server = TestServer::start("tiny-qwen35", ServerOptions::default());
    let ask = |name: &str, key: &str| {
        let body = with_message(json!({})).to_string();
        cached(
            &server
                .send("POST", "/v1/chat/completions", &[("content-type", "application/json"), (name, key)], &body)
                .json(200),
        )
    };
    assert_eq!(ask("authorization", "Bearer made-up"), 0);
    assert!(ask("authorization", "Bearer other") > 0 && ask("x-api-key", "third") > 0);
}

#[test]
fn tokens_from_the_cache_are_those_of_the_texts_that_read_a_prompt() {
    let server = TestServer::qwen();
    let ask = |prompt: Value| {
        let body = json!({ "prompt": prompt, "n": 2, "max_tokens": 4, "temperature": 1.0, "ignore_eos": true });
        cached(&server.post("/v1/completions", &body).json(200))
    };
    let prompts = json!(["the first prompt of two that differ", "another that is not like it"]);
    assert_eq!(ask(prompts.clone()), 0);
    let both = ask(prompts.clone());
    assert_eq!(both, ask(json!([prompts[0]])) + ask(json!([prompts[1]])));
}

#[test]
fn a_server_without_a_prefix_cache_reads_everything() {
    let mut options = ServerOptions::default();
    options.prefix_cache.bytes = 0;
    let server = TestServer::start("tiny-qwen35", options);
    assert_eq!([(); 2].map(|()| cached(&server.chat(json!({})).json(200))), [0, 0]);
}

#[test]
fn hits_that_are_verified_are_counted() {
    let mut options = ServerOptions::default();
    options.prefix_cache.verify = 1.0;
    let server = TestServer::start("tiny-qwen35", options);
    let [first, second] = [(); 2].map(|()| text(&server.chat(json!({})).json(200)));
    assert_eq!(first, second);
    server.wait_for("pleach_prefix_cache_verified_total", 1);
    assert_eq!(server.metric("pleach_prefix_cache_mismatches_total"), 0);
}

/// A server that ends with texts under way does not wait for them for ever.
#[test]
fn what_still_runs_does_not_keep_a_server_from_ending() {
    let mut options = ServerOptions::default();
    options.drain = std::time::Duration::from_millis(100);
    let mut server = TestServer::start("tiny-llama", options);
    let address = server.address;
    let client = thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let body = endless(json!({ "stream": true })).to_string();
        let head = crate::support::request("POST", "/v1/chat/completions", &[], &body);
        stream.write_all(head.as_bytes()).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    server.wait_for("pleach_requests_running", 1);
    server.stop();
    client.join().unwrap();
}
