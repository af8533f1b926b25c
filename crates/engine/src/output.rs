//! From drawn tokens to what the user sees.

use pleach_decode::{Constraint, Flow, TokenId, TokenMask};
use pleach_text::{Detokenizer, Span, SpanSplitter, StopMatcher};

use crate::Event;

/// Cuts a stream of tokens: into whole characters, before stop strings, into thought and answer.
///
/// It listens as the constraint of a generation, so that no token is drawn past a stop string.
pub(crate) struct Output {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    /// `None` if all is answer.
    splitter: Option<SpanSplitter>,
    /// What the caller demands of the text beside stop strings.
    demand: Option<Box<dyn Constraint + Send>>,
    stopped: Option<String>,
    ready: Vec<Event>,
}

impl Output {
    pub(crate) fn new(detokenizer: Detokenizer, stops: StopMatcher, splitter: Option<SpanSplitter>) -> Self {
        Self { detokenizer, stops, splitter, demand: None, stopped: None, ready: Vec::new() }
    }

    /// With a demand on the text.
    pub(crate) fn with_demand(self, demand: Option<Box<dyn Constraint + Send>>) -> Self {
        Self { demand, ..self }
    }

    /// The stop string that ended the text.
    pub(crate) fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    /// Ends the text: what was held back can no longer become anything else.
    pub(crate) fn finish(&mut self) {
        let rest = self.detokenizer.finish();
        self.show(&rest);
        let rest = self.stops.finish();
        self.split(&rest);
        let spans = self.splitter.as_mut().map(SpanSplitter::finish).unwrap_or_default();
        self.add(spans);
    }

    /// Text and thought since the last call, each piece as long as it can be.
    pub(crate) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.ready)
    }

    fn show(&mut self, text: &str) {
        let output = self.stops.push(text);
        self.split(&output.text);
        if output.stopped.is_some() {
            self.stopped = output.stopped;
        }
    }

    fn split(&mut self, text: &str) {
        let spans = match &mut self.splitter {
            Some(splitter) => splitter.push(text),
            None => vec![Span::Content(text.to_owned())],
        };
        self.add(spans);
    }

    fn add(&mut self, spans: Vec<Span>) {
        for span in spans {
            match (span, self.ready.last_mut()) {
                (Span::Reasoning(text) | Span::Content(text), _) if text.is_empty() => {}
                (Span::Reasoning(text), Some(Event::Reasoning(last))) => last.push_str(&text),
                (Span::Content(text), Some(Event::Text(last))) => last.push_str(&text),
                (Span::Reasoning(text), _) => self.ready.push(Event::Reasoning(text)),
                (Span::Content(text), _) => self.ready.push(Event::Text(text)),
                (other, _) => unreachable!("a span of a kind that the splitter does not make: {other:?}"),
            }
        }
    }
}

impl Constraint for Output {
    fn allowed(&mut self) -> Option<&TokenMask> {
        self.demand.as_mut()?.allowed()
    }

    fn forced(&mut self, most: usize) -> Vec<TokenId> {
        self.demand.as_mut().map(|demand| demand.forced(most)).unwrap_or_default()
    }

    fn push(&mut self, token: TokenId) -> Flow {
        let text = self.detokenizer.push(token);
        self.show(&text);
        let flow = self.demand.as_mut().map_or(Flow::Continue, |demand| demand.push(token));
        if self.stopped.is_some() { Flow::Stop } else { flow }
    }
}
