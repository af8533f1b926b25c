//! From events of the engine to what clients are told, the same for answers in pieces and in one piece.

use std::sync::Arc;

use pleach_engine::{CancelToken, Event, FinishReason, Finished, Prefill, TokenEvent};

use crate::error::ApiError;
use crate::generate::Answering;
use crate::ids;
use crate::schedule::Update;
use crate::tools::{CallParser, Piece, Tool};

/// A change to one text of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Delta {
    /// More of the prompt was read.
    Progress(Prefill),
    Reasoning(String),
    Content(String),
    /// A call begins; calls of a text are numbered from 0.
    CallBegins {
        index: usize,
        id: String,
        name: String,
    },
    /// More of the JSON text of its arguments.
    CallArguments {
        index: usize,
        text: String,
    },
    /// The text has ended.
    Finished(Box<Outcome>),
}

/// How a text ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) reason: Reason,
    pub(crate) finished: Finished,
    /// Tokens of the thought.
    pub(crate) reasoning_tokens: usize,
}

/// Why a text ended, for clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reason {
    Stop,
    StopString(String),
    Length,
    ToolCalls,
}

/// Turns the events of one text into changes.
pub(crate) struct Assembler {
    calls: Option<CallParser>,
    most_calls: usize,
    num_calls: usize,
    cancel: CancelToken,
    /// Set once no more is to be shown.
    is_cut: bool,
    num_tokens: usize,
    reasoning_tokens: usize,
    stop_tokens: Arc<[u32]>,
    tokens: Vec<TokenEvent>,
}

impl Assembler {
    /// One for each text of a request.
    pub(crate) fn all(running: &Answering) -> Vec<Self> {
        let one = |cancel: &CancelToken| Self {
            calls: running.tools.as_ref().map(|tools: &Arc<[Tool]>| CallParser::new(Arc::clone(tools))),
            most_calls: if running.parallel_tool_calls { usize::MAX } else { 1 },
            num_calls: 0,
            cancel: cancel.clone(),
            is_cut: false,
            num_tokens: 0,
            reasoning_tokens: 0,
            stop_tokens: Arc::clone(&running.head.stop_tokens),
            tokens: Vec::new(),
        };
        running.texts.iter().map(|text| one(&text.cancel)).collect()
    }

    /// Tokens with log-probabilities since the last call.
    pub(crate) fn take_tokens(&mut self) -> Vec<TokenEvent> {
        std::mem::take(&mut self.tokens)
    }

    pub(crate) fn event(&mut self, event: Event) -> Vec<Delta> {
        match event {
            Event::Prefill(progress) => vec![Delta::Progress(progress)],
            Event::Token(token) => {
                self.note(token);
                Vec::new()
            }
            Event::Reasoning(text) => {
                self.reasoning_tokens = self.num_tokens;
                vec![Delta::Reasoning(text)]
            }
            Event::Text(text) => match &mut self.calls {
                Some(calls) => {
                    let pieces = calls.push(&text);
                    self.pieces(pieces)
                }
                None => vec![Delta::Content(text)],
            },
            Event::Finished(finished) => self.finish(finished),
            _ => Vec::new(),
        }
    }

    fn note(&mut self, token: TokenEvent) {
        self.num_tokens += 1;
        // A token that ends the text is no part of it.
        if token.log_probs.is_some() && !self.stop_tokens.contains(&token.id) {
            self.tokens.push(token);
        }
    }

    fn pieces(&mut self, pieces: Vec<Piece>) -> Vec<Delta> {
        let mut deltas = Vec::new();
        for piece in pieces {
            if matches!(piece, Piece::Begin(_)) && self.num_calls == self.most_calls {
                // The client wants no further call, so the model need not write it.
                self.is_cut = true;
                self.cancel.cancel();
            }
            if self.is_cut {
                break;
            }
            deltas.extend(self.piece(piece));
        }
        deltas
    }

    fn piece(&mut self, piece: Piece) -> Option<Delta> {
        match piece {
            Piece::Text(text) => Some(Delta::Content(text)),
            Piece::Begin(name) => {
                let index = self.num_calls;
                self.num_calls += 1;
                Some(Delta::CallBegins { index, id: ids::fresh("call_"), name })
            }
            Piece::Arguments(text) => Some(Delta::CallArguments { index: self.num_calls.saturating_sub(1), text }),
            Piece::End => None,
        }
    }

    fn finish(&mut self, finished: Finished) -> Vec<Delta> {
        let ended = matches!(finished.reason, FinishReason::Stop | FinishReason::StopString(_));
        let rest = self.calls.as_mut().map(|calls| calls.finish(ended)).unwrap_or_default();
        let mut deltas = self.pieces(rest);
        let reason = match &finished.reason {
            FinishReason::Length => Reason::Length,
            _ if self.num_calls > 0 => Reason::ToolCalls,
            FinishReason::StopString(text) => Reason::StopString(text.clone()),
            _ => Reason::Stop,
        };
        let reasoning_tokens = self.reasoning_tokens;
        deltas.push(Delta::Finished(Box::new(Outcome { reason, finished, reasoning_tokens })));
        deltas
    }
}

/// A whole text.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// Number of its prompt.
    pub(crate) prompt: usize,
    pub(crate) reasoning: String,
    pub(crate) content: String,
    pub(crate) calls: Vec<Call>,
    pub(crate) tokens: Vec<TokenEvent>,
    pub(crate) outcome: Option<Box<Outcome>>,
}

/// A whole call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    /// JSON text.
    pub(crate) arguments: String,
}

impl Answer {
    pub(crate) fn take(&mut self, delta: Delta) {
        match delta {
            Delta::Progress(_) => {}
            Delta::Reasoning(text) => self.reasoning.push_str(&text),
            Delta::Content(text) => self.content.push_str(&text),
            Delta::CallBegins { id, name, .. } => self.calls.push(Call { id, name, arguments: String::new() }),
            Delta::CallArguments { text, .. } => {
                self.calls.iter_mut().last().into_iter().for_each(|call| call.arguments.push_str(&text));
            }
            Delta::Finished(outcome) => self.outcome = Some(outcome),
        }
    }
}

/// Waits for all texts of a request.
///
/// # Errors
/// What ended the request.
pub(crate) async fn collect(mut running: Answering) -> Result<(Answering, Vec<Answer>, Totals), ApiError> {
    let mut assemblers = Assembler::all(&running);
    let mut answers: Vec<Answer> =
        running.texts.iter().map(|text| Answer { prompt: text.prompt, ..Answer::default() }).collect();
    let mut totals = Totals::new(running.prompt_tokens);
    while let Some(update) = running.updates.recv().await {
        match update {
            Update::Failed(error) => {
                running.is_over = true;
                return Err(error);
            }
            Update::Event(number, event) => {
                for delta in assemblers[number].event(event) {
                    totals.take(running.leads(number), &delta);
                    answers[number].take(delta);
                }
                answers[number].tokens.extend(assemblers[number].take_tokens());
            }
        }
    }
    running.is_over = true;
    match answers.iter().all(|answer| answer.outcome.is_some()) {
        true => Ok((running, answers, totals)),
        false => Err(ApiError::internal("the request ended before its answer was complete")),
    }
}

/// Tokens and times of all texts of a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Totals {
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) output_tokens: usize,
    pub(crate) reasoning_tokens: usize,
    pub(crate) passes: u64,
    pub(crate) drafted: u64,
    pub(crate) accepted: u64,
    pub(crate) prefill_ms: f64,
    pub(crate) generation_ms: f64,
    pub(crate) num_texts: usize,
}

impl Totals {
    pub(crate) fn new(prompt_tokens: usize) -> Self {
        Self { prompt_tokens, ..Self::default() }
    }

    /// Notes a change to a text that is the first of its prompt, or is not.
    pub(crate) fn take(&mut self, is_first: bool, delta: &Delta) {
        let Delta::Finished(outcome) = delta else { return };
        let (usage, timings) = (&outcome.finished.usage, &outcome.finished.timings);
        // Further answers to a prompt find all of it in the cache, which is no merit of an earlier request.
        if is_first {
            self.cached_tokens += usage.cached_tokens;
        }
        self.num_texts += 1;
        self.output_tokens += usage.output_tokens;
        self.reasoning_tokens += outcome.reasoning_tokens;
        self.passes += usage.passes;
        self.drafted += usage.drafted;
        self.accepted += usage.accepted;
        self.prefill_ms += timings.prefill.as_secs_f64() * 1e3;
        self.generation_ms += timings.generation.as_secs_f64() * 1e3;
    }
}
