//! Bodies for the answers that the HTTP library gives by itself, and a deadline for whoever does not read them.
//!
//! Bytes that are no HTTP never reach a route. The library answers them with a status alone; clients get the same kind of JSON
//! here as for every other error.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::error::{ApiError, Dialect};

/// A connection whose bare refusals get a body, and which ends once nothing can be sent for `patience`: a client that does not
/// read must not hold its answer and its place for ever.
pub(super) struct Explained<S> {
    stream: S,
    patience: Duration,
    /// Runs while the client takes nothing.
    deadline: Option<Pin<Box<Sleep>>>,
    /// What goes out in place of the refusal at hand.
    explained: Vec<u8>,
    num_sent: usize,
}

impl<S> Explained<S> {
    pub(super) fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, deadline: None, explained: Vec::new(), num_sent: 0 }
    }
}

impl<S: AsyncWrite + Unpin> Explained<S> {
    fn poll_send(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if let Poll::Ready(sent) = Pin::new(&mut self.stream).poll_write(context, bytes) {
            self.deadline = None;
            return Poll::Ready(sent);
        }
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(self.patience)));
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answer")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Explained<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Explained<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.explained.is_empty() {
            match explain(bytes) {
                Some(explained) => this.explained = explained,
                None => return this.poll_send(context, bytes),
            }
        }
        while this.num_sent < this.explained.len() {
            let rest = this.explained[this.num_sent..].to_vec();
            match ready!(this.poll_send(context, &rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                more => this.num_sent += more,
            }
        }
        this.explained = Vec::new();
        this.num_sent = 0;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The refusal with a body, if that is what these bytes are. An answer of a route has the name of its request in its head.
fn explain(bytes: &[u8]) -> Option<Vec<u8>> {
    if !bytes.starts_with(b"HTTP/1.1 4") {
        return None;
    }
    let text = std::str::from_utf8(bytes).ok()?;
    let head = text.strip_suffix("\r\n\r\n").filter(|head| !head.contains("\r\n\r\n"))?;
    let mut lines: Vec<&str> = head.split("\r\n").collect();
    let bare = lines.iter().position(|line| line.eq_ignore_ascii_case("content-length: 0"))?;
    if lines.iter().any(|line| line.to_ascii_lowercase().starts_with("x-request-id:")) {
        return None;
    }
    let status = lines[0].split(' ').nth(1)?.parse().ok()?;
    let body = refusal(status).body(Dialect::OpenAi).to_string();
    lines.remove(bare);
    let head = lines.join("\r\n");
    Some(
        format!("{head}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
            .into_bytes(),
    )
}

fn refusal(status: StatusCode) -> ApiError {
    let (code, message) = match status {
        StatusCode::URI_TOO_LONG => ("uri_too_long", "the path of the request is too long"),
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
            ("headers_too_large", "the headers of the request are too many or too long: at most 100 in 64 KiB")
        }
        _ => ("malformed_http", "the bytes on this connection are no HTTP/1.1 request"),
    };
    ApiError::new(status, code, message)
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn only_bare_refusals_get_a_body() {
        let bare = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
        let explained = String::from_utf8(explain(bare).unwrap()).unwrap();
        let (head, body) = explained.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 431 ") && head.contains(&format!("content-length: {}", body.len())));
        assert_eq!(serde_json::from_str::<serde_json::Value>(body).unwrap()["error"]["code"], "headers_too_large");
        for other in [
            &b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nx-request-id: req_1\r\n\r\n"[..],
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            b"data: HTTP/1.1 400",
            b"\xff",
        ] {
            assert_eq!(explain(other), None);
        }
    }

    /// Takes seven bytes at a time.
    #[derive(Default)]
    struct Narrow(Vec<u8>);

    impl AsyncWrite for Narrow {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let taken = &bytes[..bytes.len().min(7)];
            self.0.extend_from_slice(taken);
            Poll::Ready(Ok(taken.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Takes nothing.
    struct Stuck;

    impl AsyncWrite for Stuck {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Pending
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_loses_its_connection() {
        let mut stream = Explained::new(Stuck, Duration::from_millis(1));
        let sent = std::future::poll_fn(|context| Pin::new(&mut stream).poll_write(context, b"data")).await;
        assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_body_goes_out_whole_and_counts_as_the_bytes_that_it_replaces() {
        let bare = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
        let mut stream = Explained::new(Narrow::default(), Duration::MAX);
        let mut context = Context::from_waker(Waker::noop());
        let mut write = |bytes: &[u8]| Pin::new(&mut stream).poll_write(&mut context, bytes).map(Result::unwrap);
        assert_eq!((write(bare), write(b"more")), (Poll::Ready(bare.len()), Poll::Ready(4)));
        let text = String::from_utf8(stream.stream.0).unwrap();
        assert!(text.ends_with("}}more") && text.contains("malformed_http"), "{text}");
    }
}
