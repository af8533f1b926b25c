//! Answers in pieces: server-sent events, with comments while there is nothing to say.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use futures_core::Stream;
use pleach_engine::TokenEvent;
use serde_json::Value;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use crate::answer::{Assembler, Delta, Totals};
use crate::error::ApiError;
use crate::generate::Answering;
use crate::schedule::Update;

/// How a protocol tells an answer in pieces. Each piece is the text of one event, ready to be sent.
pub(crate) trait Writer: Send {
    /// What is said at once.
    fn open(&mut self) -> Vec<String>;

    /// A change to the text of this number, with the tokens that led to it if their log-probabilities were asked for.
    fn change(&mut self, text: usize, delta: Delta, tokens: Vec<TokenEvent>) -> Vec<String>;

    /// The end of all texts.
    fn close(&mut self, totals: &Totals) -> Vec<String>;

    /// The end of a request that failed.
    fn fail(&mut self, error: &ApiError) -> Vec<String>;
}

/// An event with only data.
pub(crate) fn data(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// An event with a name.
pub(crate) fn named(name: &str, value: &Value) -> String {
    format!("event: {name}\ndata: {value}\n\n")
}

/// The response that carries a stream.
pub(crate) fn respond(running: Answering, writer: Box<dyn Writer>, keep_alive: Duration) -> Response {
    let body = Body::from_stream(Events::new(running, writer, keep_alive));
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that collect answers before they pass them on would spoil the stream.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The body of a stream. Dropping it, as is done when the client has gone, ends the request.
struct Events {
    running: Answering,
    assemblers: Vec<Assembler>,
    writer: Box<dyn Writer>,
    totals: Totals,
    ready: VecDeque<String>,
    keep_alive: Interval,
    num_finished: usize,
}

impl Events {
    fn new(running: Answering, mut writer: Box<dyn Writer>, period: Duration) -> Self {
        let mut keep_alive = interval_at(Instant::now() + period, period);
        keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            assemblers: Assembler::all(&running),
            totals: Totals::new(running.prompt_tokens),
            ready: writer.open().into(),
            writer,
            running,
            keep_alive,
            num_finished: 0,
        }
    }

    fn take(&mut self, update: Option<Update>) {
        match update {
            Some(Update::Event(number, event)) => {
                for delta in self.assemblers[number].event(event) {
                    self.totals.take(self.running.leads(number), &delta);
                    self.num_finished += usize::from(matches!(delta, Delta::Finished(_)));
                    let tokens = match delta {
                        Delta::Progress(_) => Vec::new(),
                        _ => self.assemblers[number].take_tokens(),
                    };
                    self.ready.extend(self.writer.change(number, delta, tokens));
                }
            }
            Some(Update::Failed(error)) => self.fail(&error),
            None if self.num_finished < self.assemblers.len() => {
                self.fail(&ApiError::internal("the request ended before its answer was complete"));
            }
            None => {
                self.running.is_over = true;
                self.ready.extend(self.writer.close(&self.totals));
            }
        }
    }

    fn fail(&mut self, error: &ApiError) {
        self.running.is_over = true;
        self.ready.extend(self.writer.fail(error));
    }

    /// All that is ready, as one piece.
    fn flush(&mut self) -> Option<Bytes> {
        (!self.ready.is_empty()).then(|| Bytes::from(self.ready.drain(..).collect::<String>()))
    }
}

impl Stream for Events {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        while !this.running.is_over {
            match this.running.updates.poll_recv(context) {
                Poll::Ready(update) => this.take(update),
                Poll::Pending => break,
            }
        }
        if let Some(piece) = this.flush() {
            this.keep_alive.reset();
            return Poll::Ready(Some(Ok(piece)));
        }
        if this.running.is_over {
            return Poll::Ready(None);
        }
        match this.keep_alive.poll_tick(context) {
            Poll::Ready(_) => Poll::Ready(Some(Ok(Bytes::from_static(b": keep-alive\n\n")))),
            Poll::Pending => Poll::Pending,
        }
    }
}
