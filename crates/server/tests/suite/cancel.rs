//! Clients that go away, queues that are full, servers that end.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use pleach_server::{Server, ServerOptions};
use serde_json::{Value, json};

use crate::support::{TestServer, endless, engine, read_answer, request, with_message};

fn options(parallel: usize, queue: usize) -> ServerOptions {
    let mut options = ServerOptions::default();
    options.parallel = parallel;
    options.queue = queue;
    options
}

fn begin(server: &TestServer, body: &Value) -> TcpStream {
    let mut stream = server.connect();
    stream.write_all(request("POST", "/v1/chat/completions", &[], &body.to_string()).as_bytes()).unwrap();
    stream
}

#[test]
fn a_closed_connection_ends_its_request() {
    let server = TestServer::long(options(1, 8));
    for (round, stream) in [true, false].into_iter().enumerate() {
        let mut client = begin(&server, &endless(json!({ "stream": stream })));
        if stream {
            client.read_exact(&mut [0; 200]).unwrap();
        }
        server.wait_for("pleach_requests_running", 1);
        drop(client);
        server.wait_for("pleach_texts_cancelled_total", round as u64 + 1);
        assert_eq!(server.metric("pleach_clients_gone_total"), round as u64 + 1);
        server.chat(json!({ "max_tokens": 2 })).json(200);
    }
}

#[test]
fn who_gives_up_in_the_queue_never_runs() {
    let server = TestServer::long(options(1, 8));
    let busy = begin(&server, &endless(json!({})));
    server.wait_for("pleach_requests_running", 1);
    let waiting: Vec<TcpStream> = (0..4).map(|_| begin(&server, &endless(json!({})))).collect();
    server.wait_for("pleach_requests_waiting", 4);
    drop(waiting);
    server.wait_for("pleach_clients_gone_total", 4);
    drop(busy);
    server.wait_for("pleach_texts_total", 1);
    server.chat(json!({ "max_tokens": 2 })).json(200);
    assert_eq!(server.metric("pleach_texts_total"), 2);
}

#[test]
fn a_full_queue_is_429_with_a_time_to_come_back() {
    let server = TestServer::long(options(1, 1));
    let busy = begin(&server, &endless(json!({})));
    server.wait_for("pleach_requests_running", 1);
    let waiting = begin(&server, &endless(json!({})));
    server.wait_for("pleach_requests_waiting", 1);
    let refused = server.chat(json!({}));
    assert_eq!((refused.header("retry-after"), &refused.error(429)["code"]), (Some("1"), &json!("queue_full")));
    // The place of one who gave up is free again.
    drop(waiting);
    server.wait_for("pleach_clients_gone_total", 1);
    let mut next = begin(&server, &with_message(json!({ "stream": true, "max_tokens": 2 })));
    let mut status = [0; 12];
    next.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    drop(busy);
    let mut rest = String::new();
    next.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
}

/// Texts of requests that run at once are those of requests alone.
#[test]
fn requests_at_once_do_not_mix() {
    let server = TestServer::start("tiny-qwen35", options(3, 16));
    let body = |number: usize| {
        let content = format!("Word number {number} ").repeat(number + 1);
        json!({ "messages": [{ "role": "user", "content": content }], "max_tokens": 24, "temperature": 0.8, "seed": number })
    };
    let alone: Vec<Value> = (0..6).map(|number| server.chat(body(number)).json(200)).collect();
    std::thread::scope(|scope| {
        let together: Vec<_> = (0..6)
            .map(|number| {
                let server = &server;
                scope.spawn(move || server.chat(body(number)).json(200))
            })
            .collect();
        for (number, thread) in together.into_iter().enumerate() {
            assert_eq!(thread.join().unwrap()["choices"], alone[number]["choices"], "request {number}");
        }
    });
}

#[test]
fn an_ending_server_finishes_its_streams() {
    let mut server = TestServer::start("tiny-llama", options(1, 8));
    let mut client = begin(&server, &with_message(json!({ "stream": true, "max_tokens": 400 })));
    let mut head = [0; 200];
    client.read_exact(&mut head).unwrap();
    server.begin_stop();
    let mut rest = String::new();
    client.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"), "{rest}");
    server.stop();
}

#[test]
fn an_ended_server_takes_no_connection() {
    let mut server = TestServer::llama();
    // Nobody else gets the port while a connection of its own holds it.
    let held = server.connect();
    server.stop();
    assert!(TcpStream::connect(server.address).is_err());
    drop(held);
}

#[test]
fn a_loading_server_says_so() {
    let server = Server::new(ServerOptions::default());
    let (go, wait) = std::sync::mpsc::channel::<()>();
    server.open_with(move || {
        let _ = wait.recv();
        Ok(engine("tiny-llama"))
    });
    let server = TestServer::of(server);
    for answer in [server.get("/health"), server.get("/v1/models"), server.chat(json!({}))] {
        assert_eq!((answer.header("retry-after"), &answer.error(503)["code"]), (Some("2"), &json!("model_loading")));
    }
    assert_eq!(server.metric("pleach_ready"), 0);
    go.send(()).unwrap();
    server.wait_for("pleach_ready", 1);
    server.chat(json!({})).json(200);
}

#[test]
fn slow_clients_meet_deadlines() {
    let mut options = options(1, 8);
    options.header_timeout = Duration::from_millis(200);
    options.body_timeout = Duration::from_millis(200);
    let server = TestServer::start("tiny-llama", options);
    let half_open: Vec<TcpStream> = (0..50)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: local").unwrap();
            stream
        })
        .collect();
    server.chat(json!({ "max_tokens": 2 })).json(200);
    for mut stream in half_open {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    let mut slow = server.connect();
    slow.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{\"mess")
        .unwrap();
    assert_eq!(read_answer(&mut slow).error(408)["code"], "request_timeout");
    // One that drips is never silent for long, and is ended all the same.
    let mut dripping = server.connect();
    dripping
        .write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n")
        .unwrap();
    let mut drips = 0;
    while drips < 200 && dripping.write_all(b" ").is_ok() {
        drips += 1;
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(drips < 200, "a body that drips was taken for {drips} drips");
    // An idle connection between two requests ends as well.
    let mut idle = server.connect();
    idle.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    assert_eq!(read_answer(&mut idle).status, 200);
}
