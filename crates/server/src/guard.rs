//! Who may ask: by which name, from which page, with which key. And what is written down of each request.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use pleach_engine::CacheOwner;
use subtle::ConstantTimeEq as _;

use crate::app::App;
use crate::error::{ApiError, Dialect, Refused};
use crate::{ServerOptions, ids};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Lets a request pass, or answers it.
pub(crate) async fn check(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = ids::fresh("req_");
    let method = request.method().clone();
    let dialect = dialect(request.uri().path());
    let route = request.extensions().get::<MatchedPath>().map_or("unknown", MatchedPath::as_str).to_owned();
    let origin = request.headers().get(header::ORIGIN).cloned();
    let mut response = match admit(&app.options, &request) {
        Err(error) => error.into_response_in(dialect),
        Ok(Admission::Preflight) => preflight(request.headers()),
        Ok(Admission::Pass) => run(request, next, dialect).await,
    };
    let is_refused = response.status() == StatusCode::FORBIDDEN;
    if let Some(origin) = origin.filter(|_| !is_refused) {
        response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        response.headers_mut().insert(header::VARY, HeaderValue::from_static("origin"));
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let status = response.status().as_u16();
    app.metrics.respond(&route, status);
    let refused = response.extensions().get::<Refused>();
    tracing::info!(
        id,
        %method,
        route,
        status,
        code = refused.and_then(|refused| refused.code),
        field = refused.and_then(|refused| refused.field.as_deref()),
        ms = started.elapsed().as_millis() as u64,
        "request"
    );
    response
}

/// The protocol whose errors a path's clients expect.
pub(crate) fn dialect(path: &str) -> Dialect {
    if path.starts_with("/v1/messages") || path.starts_with("/messages") { Dialect::Anthropic } else { Dialect::OpenAi }
}

/// A fault in a handler ends its request alone.
async fn run(request: Request, next: Next, dialect: Dialect) -> Response {
    let mut answer = Box::pin(next.run(request));
    let caught = poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(_panic) => Poll::Ready(Err(())),
    });
    caught.await.unwrap_or_else(|()| {
        tracing::error!("a handler met a fault");
        ApiError::internal("the server met a fault of its own; this request is lost").into_response_in(dialect)
    })
}

/// Paths that need no key: the page, which asks for one itself, and what watches the server.
const KEYLESS: [&str; 3] = ["/", "/health", "/v1/health"];

enum Admission {
    Pass,
    /// A browser asks whether it may ask.
    Preflight,
}

fn admit(options: &ServerOptions, request: &Request) -> Result<Admission, ApiError> {
    let headers = request.headers();
    let host = host(request.uri(), headers)?;
    // With keys, a page that reaches this server by another name still cannot show one.
    if options.api_keys.is_empty() {
        check_host(options, &host)?;
    }
    if let Some(origin) = headers.get(header::ORIGIN) {
        check_origin(options, origin, &host)?;
    }
    if request.method() == Method::OPTIONS {
        return Ok(Admission::Preflight);
    }
    if !options.api_keys.is_empty() && !KEYLESS.contains(&request.uri().path()) {
        check_key(options, headers)?;
    }
    Ok(Admission::Pass)
}

/// The name by which the server was addressed, with its port.
fn host(uri: &Uri, headers: &HeaderMap) -> Result<String, ApiError> {
    let in_uri = uri.authority().map(|authority| authority.as_str().to_owned());
    let mut in_headers = headers.get_all(header::HOST).iter();
    let first = in_headers.next().and_then(|host| Some(host.to_str().ok()?.to_owned()));
    if in_headers.next().is_some() {
        return Err(ApiError::bad("invalid_host", "the header `Host` stands twice, but must stand once").at("Host"));
    }
    let host = in_uri.or(first);
    let host =
        host.ok_or_else(|| ApiError::bad("invalid_host", "the header `Host` is missing or no text").at("Host"))?;
    Ok(host.to_ascii_lowercase())
}

/// The name without its port and without the brackets of an address; `None` if what follows it is no port.
fn name_of(host: &str) -> Option<&str> {
    let (name, rest) = match host.strip_prefix('[') {
        Some(address) => address.split_once(']')?,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port)).then_some(name)
}

/// A page whose own name leads to this machine must not get in.
fn check_host(options: &ServerOptions, host: &str) -> Result<(), ApiError> {
    let shown = |text: &str| text.chars().take(60).collect::<String>();
    let name = name_of(host).ok_or_else(|| {
        let found = shown(host);
        let message =
            format!("the header `Host` is `{found}`, but must be a name, with a port up to 65535 or without one");
        ApiError::bad("invalid_host", message).at("Host")
    })?;
    let is_loopback = name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    let is_known = || options.allowed_hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(name));
    if name == "localhost" || is_loopback || is_known() {
        return Ok(());
    }
    let shown = shown(name);
    let message =
        format!("the header `Host` is `{shown}`, but must be `localhost` or a name given with `--allowed-host`");
    Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden_host", message).at("Host"))
}

fn check_origin(options: &ServerOptions, origin: &HeaderValue, host: &str) -> Result<(), ApiError> {
    let origin = origin.to_str().unwrap_or_default();
    let is_own = origin.split_once("://").is_some_and(|(_, name)| name.eq_ignore_ascii_case(host));
    let is_allowed = |allowed: &String| allowed == "*" || allowed.trim_end_matches('/').eq_ignore_ascii_case(origin);
    if is_own || options.allowed_origins.iter().any(is_allowed) {
        return Ok(());
    }
    let shown: String = origin.chars().take(60).collect();
    let message = format!("pages of `{shown}` may not ask this server; `--cors-origin` allows an origin");
    Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden_origin", message).at("Origin"))
}

/// Who asks: clients that show the same key are one, and so are all of a server without keys.
/// There a key is whatever the client's package made up, and says nothing.
pub(crate) fn owner(options: &ServerOptions, request: &Request) -> CacheOwner {
    let key = shown_key(request.headers()).filter(|_| !options.api_keys.is_empty());
    key.map_or_else(CacheOwner::default, CacheOwner::of)
}

fn shown_key(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    bearer.or_else(|| headers.get("x-api-key").and_then(|value| value.to_str().ok()))
}

/// `Authorization: Bearer KEY` or `x-api-key: KEY`. Every key is compared, each in constant time for its length.
fn check_key(options: &ServerOptions, headers: &HeaderMap) -> Result<(), ApiError> {
    let shown = shown_key(headers);
    let refuse = |code, message: &str| Err(ApiError::new(StatusCode::UNAUTHORIZED, code, message));
    let Some(shown) = shown else {
        return refuse("missing_api_key", "this server asks for a key: send `Authorization: Bearer KEY`");
    };
    let matches = options.api_keys.iter().map(|key| bool::from(key.as_bytes().ct_eq(shown.as_bytes())));
    if matches.fold(false, |found, is_same| found | is_same) {
        return Ok(());
    }
    refuse("invalid_api_key", "the key is none of this server's")
}

fn preflight(headers: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let answer = response.headers_mut();
    answer.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, OPTIONS"));
    answer.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    answer.insert(header::ALLOW, HeaderValue::from_static("GET, POST, OPTIONS"));
    if let Some(wanted) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        answer.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_port_and_brackets() {
        for (host, name) in [("localhost:8000", "localhost"), ("[::1]:80", "::1"), ("[::1]", "::1"), ("a.b", "a.b")] {
            assert_eq!(name_of(host), Some(name));
        }
    }

    #[test]
    fn what_follows_a_name_is_a_port() {
        for host in
            ["localhost:9101, evil.example", "localhost:99999", "localhost:", "localhost:+1", "[::1]x", "[::1", "::1"]
        {
            let error = check_host(&ServerOptions::default(), host).unwrap_err();
            assert_eq!((error.status.as_u16(), error.code), (400, Some("invalid_host")), "{host}");
        }
    }

    #[test]
    fn only_names_of_this_machine_are_served_without_a_key() {
        let options = ServerOptions { allowed_hosts: vec!["box.lan".to_owned()], ..ServerOptions::default() };
        for host in ["localhost", "localhost:1", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000", "box.lan:8000"] {
            assert!(check_host(&options, host).is_ok(), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "10.0.0.1", "", ":80"] {
            assert_eq!(check_host(&options, host).unwrap_err().status, 403, "{host}");
        }
    }

    #[test]
    fn pages_of_others_are_refused() {
        let options =
            ServerOptions { allowed_origins: vec!["https://app.example/".to_owned()], ..ServerOptions::default() };
        let check = |origin: &'static str| check_origin(&options, &HeaderValue::from_static(origin), "localhost:8000");
        assert!(check("http://localhost:8000").is_ok() && check("https://app.example").is_ok());
        for origin in ["http://localhost:9000", "https://evil.example", "null", "", "https://app.example.evil"] {
            assert_eq!(check(origin).unwrap_err().code, Some("forbidden_origin"), "{origin}");
        }
    }

    #[test]
    fn keys_are_read_from_both_headers() {
        let options = ServerOptions {
            api_keys: vec!["first-key".to_owned(), "other-key".to_owned()],
            ..ServerOptions::default()
        };
        let check = |name: &'static str, value: &'static str| {
            check_key(
                &options,
                &HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))]),
            )
        };
        assert!(check("authorization", "Bearer other-key").is_ok() && check("x-api-key", "first-key").is_ok());
        assert_eq!(check("authorization", "Bearer other-kez").unwrap_err().code, Some("invalid_api_key"));
        assert_eq!(check("authorization", "Basic other-key").unwrap_err().code, Some("missing_api_key"));
        assert_eq!(check("x-other", "").unwrap_err().status, 401);
    }
}
