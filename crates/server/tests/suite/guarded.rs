//! Who may ask.

use pleach_server::{Server, ServerOptions};
use serde_json::json;

use crate::support::{TestServer, with_message};

#[test]
fn other_names_of_this_machine_are_refused() {
    let server = TestServer::llama();
    for host in ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example"] {
        let answer = server.send("GET", "/v1/models", &[("host", host)], "");
        assert_eq!(answer.error(403)["code"], "forbidden_host", "{host}");
    }
    for host in ["localhost", "LOCALHOST:9", "127.0.0.1:8000", "[::1]:8000"] {
        assert_eq!(server.send("GET", "/v1/models", &[("host", host)], "").status, 200, "{host}");
    }
    // The name in the request's own line counts over the header.
    let text = b"GET http://evil.example/v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert_eq!(server.raw(text).error(403)["code"], "forbidden_host");
    assert_eq!(server.raw(b"GET /v1/models HTTP/1.1\r\nconnection: close\r\n\r\n").error(400)["code"], "invalid_host");
}

#[test]
fn pages_need_leave() {
    let mut options = ServerOptions::default();
    options.allowed_origins = vec!["https://app.example".to_owned()];
    let server = TestServer::start("tiny-llama", options);
    for origin in ["https://evil.example", "null", "http://localhost:3000"] {
        let headers = [("origin", origin), ("content-type", "application/json")];
        let answer = server.send("POST", "/v1/chat/completions", &headers, &with_message(json!({})).to_string());
        assert_eq!(answer.error(403)["code"], "forbidden_origin");
        assert!(answer.header("access-control-allow-origin").is_none());
        assert_eq!(server.send("OPTIONS", "/v1/chat/completions", &headers, "").status, 403);
    }
    let headers = [("origin", "https://app.example"), ("access-control-request-headers", "authorization,content-type")];
    let preflight = server.send("OPTIONS", "/v1/chat/completions", &headers, "");
    assert_eq!((preflight.status, preflight.header("access-control-allow-origin")), (204, Some("https://app.example")));
    assert_eq!(preflight.header("access-control-allow-headers"), Some("authorization,content-type"));
    let answer = server.send("GET", "/v1/models", &headers, "");
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, Some("https://app.example")));
    let plain = server.get("/v1/models");
    assert!(plain.header("access-control-allow-origin").is_none());
}

#[test]
fn keys_are_asked_for_everywhere_but_at_health() {
    let mut options = ServerOptions::default();
    options.api_keys = vec!["the-first-key".to_owned(), "the-second-key".to_owned()];
    let server = TestServer::start("tiny-llama", options);
    assert_eq!(server.get("/health").status, 200);
    for path in ["/v1/models", "/metrics", "/openapi.json", "/nothing"] {
        let answer = server.get(path);
        assert_eq!(
            (&answer.error(401)["code"], answer.header("www-authenticate")),
            (&json!("missing_api_key"), Some("Bearer"))
        );
    }
    let ask = |name: &str, value: &str| server.send("GET", "/v1/models", &[(name, value)], "");
    assert_eq!(ask("authorization", "Bearer the-wrong-key").error(401)["code"], "invalid_api_key");
    assert_eq!(ask("authorization", "Bearer the-second-key").status, 200);
    assert_eq!(ask("x-api-key", "the-first-key").status, 200);
    let anthropic = server.post("/v1/messages", &json!({})).json(401);
    assert_eq!((&anthropic["type"], &anthropic["error"]["type"]), (&json!("error"), &json!("authentication_error")));
}

/// The page asks for the key itself; what it may do stands in its policy.
#[test]
fn the_page_is_served_whole_to_this_machine_alone() {
    let mut options = ServerOptions::default();
    options.api_keys = vec!["the-first-key".to_owned()];
    let page = TestServer::start("tiny-llama", options).get("/");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(page.body.starts_with("<!doctype html>") && page.body.ends_with("</html>\n"));
    let policy = page.header("content-security-policy").unwrap();
    for rule in
        ["default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"]
    {
        assert!(policy.split("; ").any(|found| found == rule), "{rule} in {policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains('*'));
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(page.header("referrer-policy"), Some("no-referrer"));
    let foreign = TestServer::llama().send("GET", "/", &[("host", "evil.example")], "");
    assert_eq!(foreign.error(403)["code"], "forbidden_host");
}

#[test]
fn a_wide_address_needs_a_key() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let wide = "0.0.0.0:0".parse().unwrap();
    let error = runtime.block_on(Server::new(ServerOptions::default()).bind(wide)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`0.0.0.0:0` can be reached from other machines, and no key is asked for: give `--api-key-file`"
    );
    let mut options = ServerOptions::default();
    options.api_keys = vec!["the-first-key".to_owned()];
    assert!(runtime.block_on(Server::new(options).bind(wide)).is_ok());
}

#[test]
fn every_answer_has_a_name() {
    let server = TestServer::llama();
    let (first, second) = (server.get("/health"), server.get("/nothing"));
    assert!(first.header("x-request-id").unwrap().starts_with("req_"));
    assert_ne!(first.header("x-request-id"), second.header("x-request-id"));
}
