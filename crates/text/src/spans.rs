//! Tells a model's reasoning from its answer in a stream of text.

use crate::{error::TextError, stop::held_prefix_bytes};

/// A piece of a model's output with the channel it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Span {
    /// Thought, from between the reasoning markers.
    Reasoning(String),
    /// The answer.
    Content(String),
}

/// The texts that open and close a reasoning span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasoningMarkers {
    open: String,
    close: String,
}

impl ReasoningMarkers {
    /// Markers of one's own.
    ///
    /// # Errors
    /// [`TextError::EmptyMarker`] if one is empty.
    pub fn new(open: impl Into<String>, close: impl Into<String>) -> Result<Self, TextError> {
        let markers = Self { open: open.into(), close: close.into() };
        if markers.open.is_empty() {
            return Err(TextError::EmptyMarker { which: "opening" });
        }
        if markers.close.is_empty() {
            return Err(TextError::EmptyMarker { which: "closing" });
        }
        Ok(markers)
    }

    /// Whether one of them stands in `text`.
    #[must_use]
    pub fn occur_in(&self, text: &str) -> bool {
        text.contains(&self.open) || text.contains(&self.close)
    }

    /// Whether `prompt` ends inside a reasoning span: it opens one after the last that it closes.
    #[must_use]
    pub fn left_open_by(&self, prompt: &str) -> bool {
        let closed_until = prompt.rfind(&self.close).map_or(0, |start| start + self.close.len());
        let Some(opened) = prompt[closed_until..].rfind(&self.open) else {
            return false;
        };
        // A user who writes the tag does not open a span: nothing but white space may follow it.
        prompt[closed_until + opened + self.open.len()..].trim().is_empty()
    }
}

impl Default for ReasoningMarkers {
    /// `<think>` and `</think>`.
    fn default() -> Self {
        Self { open: "<think>".to_owned(), close: "</think>".to_owned() }
    }
}

/// Splits a stream of text into [`Span`]s.
///
/// The rules, the same for every way to cut the stream:
///
/// - Reasoning comes first or not at all. It starts either before the text (the prompt opened it)
///   or with an opening marker that only white space precedes. An opening marker repeated after the
///   prompt's own is dropped.
/// - It ends at the first closing marker. Everything after that is content: markers in it are text.
/// - Without reasoning, all text is content, a stray closing marker included.
/// - Line breaks right after the opening marker and on both sides of the closing marker belong to the
///   markers and are dropped. All other white space is kept.
///
/// Text is held back only where it may still turn out to be a marker or a line break before one.
#[derive(Debug, Clone)]
pub struct SpanSplitter {
    markers: ReasoningMarkers,
    phase: Phase,
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Only white space so far; `inside` if the prompt opened the reasoning.
    Start { inside: bool },
    /// `fresh` until the first text after the opening marker.
    Reasoning { fresh: bool },
    /// `fresh` until the first text after the closing marker.
    Content { fresh: bool },
}

impl SpanSplitter {
    /// A splitter for `<think>` and `</think>`; `inside_reasoning` if the prompt opened the span
    /// (see [`crate::opens_reasoning`]).
    #[must_use]
    pub fn new(inside_reasoning: bool) -> Self {
        Self::with_markers(ReasoningMarkers::default(), inside_reasoning)
    }

    /// A splitter for other markers.
    #[must_use]
    pub fn with_markers(markers: ReasoningMarkers, inside_reasoning: bool) -> Self {
        Self { markers, phase: Phase::Start { inside: inside_reasoning }, held: String::new() }
    }

    /// Takes the next piece of text and gives the spans it settles, in order, none of them empty.
    pub fn push(&mut self, text: &str) -> Vec<Span> {
        self.held.push_str(text);
        let mut spans = Vec::new();
        while self.advance(&mut spans) {}
        spans
    }

    /// Ends the text and gives what was held back.
    pub fn finish(&mut self) -> Vec<Span> {
        let rest = std::mem::take(&mut self.held);
        match self.phase {
            _ if rest.is_empty() => Vec::new(),
            Phase::Start { inside: true } | Phase::Reasoning { .. } => vec![Span::Reasoning(rest)],
            Phase::Start { inside: false } | Phase::Content { .. } => vec![Span::Content(rest)],
        }
    }

    /// Settles what it can in the current phase; true if a new phase began.
    fn advance(&mut self, spans: &mut Vec<Span>) -> bool {
        match self.phase {
            Phase::Start { inside } => self.settle_start(inside),
            Phase::Reasoning { fresh } => self.settle_reasoning(fresh, spans),
            Phase::Content { fresh } => {
                self.settle_content(fresh, spans);
                false
            }
        }
    }

    fn settle_start(&mut self, inside: bool) -> bool {
        let text = self.held.trim_start();
        if let Some(rest) = text.strip_prefix(&self.markers.open) {
            self.held = rest.to_owned();
            self.phase = Phase::Reasoning { fresh: true };
        } else if self.markers.open.starts_with(text) {
            return false;
        } else if inside {
            self.phase = Phase::Reasoning { fresh: true };
        } else {
            self.phase = Phase::Content { fresh: false };
        }
        true
    }

    fn settle_reasoning(&mut self, fresh: bool, spans: &mut Vec<Span>) -> bool {
        if fresh && !self.drop_leading_breaks() {
            return false;
        }
        let closing = self.held.find(&self.markers.close);
        let end = closing.unwrap_or_else(|| self.held.len() - held_prefix_bytes(&self.held, &self.markers.close));
        let text = self.held[..end].trim_end_matches(LINE_BREAKS);
        let settled = text.len();
        if settled > 0 {
            spans.push(Span::Reasoning(text.to_owned()));
        }
        if closing.is_some() {
            self.held.drain(..end + self.markers.close.len());
            self.phase = Phase::Content { fresh: true };
            return true;
        }
        self.held.drain(..settled);
        self.phase = Phase::Reasoning { fresh: fresh && settled == 0 };
        false
    }

    fn settle_content(&mut self, fresh: bool, spans: &mut Vec<Span>) {
        if fresh && !self.drop_leading_breaks() {
            return;
        }
        if !self.held.is_empty() {
            spans.push(Span::Content(std::mem::take(&mut self.held)));
            self.phase = Phase::Content { fresh: false };
        }
    }

    /// Drops line breaks at the start; true if text is left.
    fn drop_leading_breaks(&mut self) -> bool {
        let kept = self.held.trim_start_matches(LINE_BREAKS).len();
        self.held.drain(..self.held.len() - kept);
        kept > 0
    }
}

const LINE_BREAKS: [char; 2] = ['\n', '\r'];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reasoning and content of the pieces, each joined.
    fn split<'a>(inside: bool, pieces: impl IntoIterator<Item = &'a str>) -> (String, String) {
        let mut splitter = SpanSplitter::new(inside);
        let mut spans: Vec<Span> = pieces.into_iter().flat_map(|piece| splitter.push(piece)).collect();
        spans.extend(splitter.finish());
        let mut joined = (String::new(), String::new());
        for span in spans {
            match span {
                Span::Reasoning(text) => {
                    assert!(joined.1.is_empty(), "reasoning after content");
                    joined.0.push_str(&text);
                }
                Span::Content(text) => joined.1.push_str(&text),
            }
        }
        joined
    }

    fn every_cut(inside: bool, text: &str) -> (String, String) {
        let whole = split(inside, [text]);
        for (at, _) in text.char_indices() {
            assert_eq!(split(inside, [&text[..at], &text[at..]]), whole);
        }
        let by_char: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(split(inside, by_char.iter().map(String::as_str)), whole);
        whole
    }

    fn pair(reasoning: &str, content: &str) -> (String, String) {
        (reasoning.to_owned(), content.to_owned())
    }

    #[test]
    fn rs_01_a_closer_alone_ends_the_reasoning_the_prompt_opened() {
        assert_eq!(every_cut(true, "plan</think>answer"), pair("plan", "answer"));
        assert_eq!(every_cut(true, "\nplan\n</think>\n\nanswer\n"), pair("plan", "answer\n"));
    }

    #[test]
    fn rs_03_tags_in_the_answer_are_text() {
        assert_eq!(
            every_cut(true, "plan</think>write <think>x</think> like this"),
            pair("plan", "write <think>x</think> like this")
        );
        assert_eq!(every_cut(false, "the tag <think> opens"), pair("", "the tag <think> opens"));
        assert_eq!(every_cut(false, "no span</think> here"), pair("", "no span</think> here"));
    }

    #[test]
    fn the_model_may_open_the_span_itself() {
        assert_eq!(every_cut(false, " \n<think>\nplan\n\n</think>\n\nhi"), pair("plan", "hi"));
        assert_eq!(every_cut(true, "<think>\nplan</think>hi"), pair("plan", "hi"));
        assert_eq!(every_cut(false, "<think></think>hi"), pair("", "hi"));
    }

    #[test]
    fn an_unfinished_span_stays_reasoning() {
        assert_eq!(every_cut(true, "plan\n</thi"), pair("plan\n</thi", ""));
        assert_eq!(every_cut(false, "\n<thin"), pair("", "\n<thin"));
        assert_eq!(every_cut(true, ""), pair("", ""));
    }

    #[test]
    fn white_space_of_a_plain_answer_is_kept() {
        assert_eq!(every_cut(false, "\n\n  code\n"), pair("", "\n\n  code\n"));
    }

    #[test]
    fn only_a_true_prefix_of_a_marker_is_held() {
        let mut splitter = SpanSplitter::new(true);
        assert_eq!(splitter.push("a < b </t"), [Span::Reasoning("a < b ".into())]);
        assert_eq!(splitter.push("able>"), [Span::Reasoning("</table>".into())]);
    }

    #[test]
    fn empty_markers_are_refused() {
        let message = |open, close| ReasoningMarkers::new(open, close).unwrap_err().to_string();
        assert_eq!(
            message("", "b"),
            "the opening reasoning marker is empty: give the text that marks it, such as `<think>`"
        );
        assert!(message("a", "").starts_with("the closing reasoning marker is empty"));
    }

    proptest! {
        #[test]
        fn every_chunking_gives_the_same_spans(
            inside: bool,
            parts in prop::collection::vec(
                prop_oneof![Just("<think>"), Just("</think>"), Just("\n"), Just("<"), Just("é"), Just(" "), Just("a</th")],
                0..12,
            ),
            cuts in prop::collection::vec(0usize..64, 0..6),
        ) {
            let text = parts.concat();
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|&at| text.is_char_boundary(at)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]);
            prop_assert_eq!(split(inside, pieces), split(inside, [text.as_str()]));
        }
    }
}
