//! Reading a request's body: within its size, within its time, as JSON.

use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::time::timeout;

use crate::ServerOptions;
use crate::app::App;
use crate::error::ApiError;
use crate::fields::nameable;
use crate::openapi;

/// The JSON value of a body.
///
/// # Errors
/// 415 for another type, 413 for too many bytes, 408 if they do not come, 400 for what is no JSON.
pub(crate) async fn read(request: Request, app: &App) -> Result<Value, ApiError> {
    check_type(request.headers())?;
    let route = request.extensions().get::<MatchedPath>().cloned();
    let bytes = bytes(request.into_body(), &app.options).await?;
    if bytes.is_empty() {
        return Err(ApiError::bad("invalid_json", "the body is empty, but must be a JSON object"));
    }
    let body = match bytes.len() {
        ..LARGE_BYTES => parse(&bytes),
        _ => app.prepare(move || parse(&bytes)).await,
    }?;
    if let Some(route) = route.filter(|_| tracing::enabled!(tracing::Level::DEBUG)) {
        for field in openapi::unknown_fields(route.as_str(), &body) {
            tracing::debug!(route = route.as_str(), field = nameable(field), "a field that is not known is ignored");
        }
    }
    Ok(body)
}

/// Bodies from this size on are not parsed on the threads of connections.
const LARGE_BYTES: usize = 64 << 10;

fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING).filter(|encoding| *encoding != "identity") {
        return Err(unsupported("Content-Encoding", encoding.as_bytes(), "`identity`, or be left out"));
    }
    let is_plain = |encoding: &HeaderValue| encoding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    if let Some(encoding) = headers.get_all(header::TRANSFER_ENCODING).iter().find(|encoding| !is_plain(encoding)) {
        return Err(unsupported("Transfer-Encoding", encoding.as_bytes(), "`chunked`, or be left out"));
    }
    let Some(found) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let kind = found.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json")) {
        return Ok(());
    }
    Err(unsupported("Content-Type", found.as_bytes(), "`application/json`"))
}

fn unsupported(header: &str, found: &[u8], expected: &str) -> ApiError {
    let found: String = String::from_utf8_lossy(found).chars().take(60).collect();
    let message = format!("the header `{header}` is `{found}`, but must be {expected}");
    ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message).at(header)
}

/// A whole body may take as long as so many waits for a piece of it: a client that drips must not hold its connection for ever.
const MOST_WAITS: u32 = 10;

async fn bytes(body: Body, options: &ServerOptions) -> Result<Vec<u8>, ApiError> {
    let most = options.body_timeout.saturating_mul(MOST_WAITS);
    timeout(most, pieces(body, options)).await.unwrap_or_else(|_| {
        let message = format!("the body was not complete within {} s", most.as_secs());
        Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", message))
    })
}

async fn pieces(mut body: Body, options: &ServerOptions) -> Result<Vec<u8>, ApiError> {
    let most = options.max_body_bytes;
    let announced = axum::body::HttpBody::size_hint(&body).lower();
    if announced > most as u64 {
        return Err(too_large(most));
    }
    let mut bytes = Vec::new();
    loop {
        let frame = timeout(options.body_timeout, body.frame()).await.map_err(|_| {
            let seconds = options.body_timeout.as_secs();
            let message = format!("no more of the body came for {seconds} s");
            ApiError::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", message)
        })?;
        let Some(frame) = frame else { return Ok(bytes) };
        let frame = frame.map_err(|_| ApiError::bad("incomplete_body", "the body ended before it was complete"))?;
        if let Some(data) = frame.data_ref() {
            if bytes.len() + data.len() > most {
                return Err(too_large(most));
            }
            bytes.extend_from_slice(data);
        }
    }
}

fn too_large(most: usize) -> ApiError {
    let message = format!("the body is too large: it must have at most {most} bytes");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
}

fn parse(bytes: &[u8]) -> Result<Value, ApiError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let message = format!("the body must be UTF-8, but is not from byte {} on", error.valid_up_to());
        ApiError::bad("invalid_encoding", message)
    })?;
    serde_json::from_str(text).map_err(|error| ApiError::bad("invalid_json", format!("the body is no JSON: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_json_is_refused() {
        let deep = "[".repeat(100_000);
        for text in
            ["{", "nul", "{\"a\":}", "[1,]", "{\"a\":NaN}", "{\"a\":1e999}", "// x", "\u{feff}{}", "\"\\ud800\"", &deep]
        {
            let error = parse(text.as_bytes()).unwrap_err();
            assert_eq!(
                (error.status.as_u16(), error.code),
                (400, Some("invalid_json")),
                "{}",
                &text[..text.len().min(9)]
            );
        }
        assert_eq!(
            parse(b"{\"a\":\"\xc4\xe3\"}").unwrap_err().message,
            "the body must be UTF-8, but is not from byte 6 on"
        );
    }
}
