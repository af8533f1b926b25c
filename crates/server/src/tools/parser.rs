//! Calls in a stream of text.

use std::sync::Arc;

use super::Tool;
use super::json_call::JsonCall;
use super::xml_call::XmlCall;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const FUNCTION: &str = "<function=";

/// What a piece of the model's text turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Text of the answer.
    Text(String),
    /// A call of this tool begins.
    Begin(String),
    /// More of the JSON text of its arguments.
    Arguments(String),
    /// The call is complete.
    End,
}

/// What a call's own parser says about the text that it was given.
pub(super) enum Progress {
    /// It needs more.
    Wait,
    /// The call has ended.
    Done,
    /// It is no call.
    NoCall,
}

/// Tells calls from text, the same for every way to cut the stream.
///
/// A call stands between `<tool_call>` and `</tool_call>`, as JSON or as `<function=...>` with `<parameter=...>`: which one
/// it is, its first characters tell. `<function=` alone also begins a call, if a tool of that name was offered: models
/// forget the marker around it. White space around calls is dropped; what turns out to be no call is text as it stands.
/// Text is held back only while it may become a marker, and white space until something follows it.
pub(crate) struct CallParser {
    tools: Arc<[Tool]>,
    held: String,
    state: State,
    num_calls: usize,
}

enum State {
    Text,
    /// After a marker; its text with the white space before it.
    Opened(String),
    Xml(String, XmlCall),
    Json(String, JsonCall),
    /// After a call, before its closing marker.
    Closing,
}

impl CallParser {
    pub(crate) fn new(tools: Arc<[Tool]>) -> Self {
        Self { tools, held: String::new(), state: State::Text, num_calls: 0 }
    }

    /// Takes the next piece of text and gives what it settles, in order.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while self.advance(&mut pieces) {}
        self.count(&pieces);
        pieces
    }

    /// Ends the text. The arguments of a call that was not finished are completed only if the model ended the text itself:
    /// half a command must not look like a whole one. A call that was cut before its name is neither a call nor text.
    pub(crate) fn finish(&mut self, ended: bool) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let held = std::mem::take(&mut self.held);
        let mut left = String::new();
        let mut unnamed = |markup: String| left = if ended { markup } else { String::new() };
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text if self.num_calls > 0 && held.trim().is_empty() => {}
            State::Text => text(held, &mut pieces),
            State::Opened(prefix) => unnamed(prefix + &held),
            State::Xml(prefix, call) => match call.finish(&held, ended, &mut pieces) {
                Progress::NoCall => unnamed(prefix + &held),
                _ => pieces.push(Piece::End),
            },
            State::Json(prefix, call) => match call.finish() {
                Progress::NoCall => unnamed(prefix + call.raw() + &held),
                _ => pieces.push(Piece::End),
            },
            State::Closing => {}
        }
        text(left, &mut pieces);
        self.count(&pieces);
        pieces
    }

    fn count(&mut self, pieces: &[Piece]) {
        self.num_calls += pieces.iter().filter(|piece| matches!(piece, Piece::Begin(_))).count();
    }

    /// Settles what it can in the present state; true if another began.
    fn advance(&mut self, pieces: &mut Vec<Piece>) -> bool {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text => self.read_text(pieces),
            State::Opened(prefix) => self.read_opened(prefix, pieces),
            State::Xml(prefix, mut call) => match call.push(&mut self.held, &self.tools, pieces) {
                Progress::Wait => self.stay(State::Xml(prefix, call)),
                Progress::Done => self.end_call(pieces),
                Progress::NoCall => self.was_text(prefix, pieces),
            },
            State::Json(prefix, mut call) => match call.push(&mut self.held, pieces) {
                Progress::Wait => self.stay(State::Json(prefix, call)),
                Progress::Done => self.end_call(pieces),
                Progress::NoCall => self.was_text(prefix + call.raw(), pieces),
            },
            State::Closing => self.read_closing(),
        }
    }

    fn stay(&mut self, state: State) -> bool {
        self.state = state;
        false
    }

    fn enter(&mut self, state: State) -> bool {
        self.state = state;
        true
    }

    fn end_call(&mut self, pieces: &mut Vec<Piece>) -> bool {
        pieces.push(Piece::End);
        self.enter(State::Closing)
    }

    fn was_text(&mut self, prefix: String, pieces: &mut Vec<Piece>) -> bool {
        text(prefix, pieces);
        self.enter(State::Text)
    }

    fn read_text(&mut self, pieces: &mut Vec<Piece>) -> bool {
        let markers = [OPEN, FUNCTION];
        let found = markers.iter().filter_map(|marker| Some((self.held.find(marker)?, *marker))).min();
        let end = match found {
            Some((start, _)) => start,
            None => {
                self.held.len() - markers.map(|marker| held_bytes(&self.held, marker)).into_iter().max().unwrap_or(0)
            }
        };
        let shown = self.held[..end].trim_end().len();
        let settled: String = self.held.drain(..shown).collect();
        text(settled, pieces);
        let Some((_, marker)) = found else { return false };
        let prefix: String = self.held.drain(..end - shown + marker.len()).collect();
        if marker == OPEN {
            return self.enter(State::Opened(prefix));
        }
        self.enter(State::Xml(prefix, XmlCall::of_offered_tool()))
    }

    fn read_opened(&mut self, prefix: String, pieces: &mut Vec<Piece>) -> bool {
        let blanks = self.held.len() - self.held.trim_start().len();
        let rest = &self.held[blanks..];
        if rest.starts_with('{') {
            let prefix = prefix + &self.held[..blanks];
            self.held.drain(..blanks);
            return self.enter(State::Json(prefix, JsonCall::default()));
        }
        if rest.starts_with(FUNCTION) {
            let prefix = prefix + &self.held[..blanks + FUNCTION.len()];
            self.held.drain(..blanks + FUNCTION.len());
            return self.enter(State::Xml(prefix, XmlCall::default()));
        }
        if FUNCTION.starts_with(rest) {
            return self.stay(State::Opened(prefix));
        }
        self.was_text(prefix, pieces)
    }

    fn read_closing(&mut self) -> bool {
        let rest = self.held.trim_start();
        if let Some(after) = rest.strip_prefix(CLOSE) {
            self.held = after.to_owned();
            return self.enter(State::Text);
        }
        if CLOSE.starts_with(rest) {
            return self.stay(State::Closing);
        }
        self.enter(State::Text)
    }
}

fn text(text: String, pieces: &mut Vec<Piece>) {
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
}

/// Bytes of the longest end of `text` that is a proper prefix of `marker`.
pub(super) fn held_bytes(text: &str, marker: &str) -> usize {
    let longest = text.len().min(marker.len() - 1);
    (1..=longest).rev().find(|&bytes| text.as_bytes().ends_with(&marker.as_bytes()[..bytes])).unwrap_or(0)
}

#[cfg(test)]
#[path = "parser_tests.rs"]
mod tests;
