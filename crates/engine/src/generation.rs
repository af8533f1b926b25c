//! One request while it runs.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use pleach_decode::{DecodeError, Generation as Writer, LogProbs, Lookup, Paced, StepError, StopReason, Target};
use pleach_text::RenderNote;

use crate::costly::Costly;
use crate::output::Output;
use crate::prefix::{Place, Prefix};
use crate::speculation::WallClock;
use crate::{
    CancelToken, Drafting, Engine, EngineError, Event, FinishReason, Finished, Prefill, Timings, TokenEvent,
    TokenLogProbs, Usage,
};

/// What guesses ahead in one request.
pub(crate) type Drafters<'s> = Paced<Option<Lookup>, &'s mut Option<Costly>, WallClock>;

/// The events of one request, each made when it is asked for.
///
/// The last event is [`Event::Finished`] or an error; after either there are no more. Dropping the iterator early ends
/// the request and leaves the session usable.
pub struct Generation<'s> {
    parts: Parts<'s>,
    phase: Phase,
    ready: VecDeque<Event>,
    /// Times since the start.
    prefilled_at: Option<Duration>,
    first_token_at: Option<Duration>,
}

/// What a request is made of.
pub(crate) struct Parts<'s> {
    pub(crate) engine: &'s Engine,
    pub(crate) prefix: &'s mut Prefix,
    pub(crate) writer: Writer,
    pub(crate) drafters: Drafters<'s>,
    pub(crate) output: Output,
    pub(crate) prompt: Vec<u32>,
    /// Tokens of the prompt that the prefix had at the start.
    pub(crate) cached: usize,
    pub(crate) logprobs: Option<usize>,
    pub(crate) cancel: CancelToken,
    pub(crate) seed: u64,
    pub(crate) started: Instant,
    pub(crate) notes: Vec<RenderNote>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The prompt is being read.
    Prefill,
    /// Tokens are being written.
    Decode,
    /// Nothing more will be done.
    Over,
}

impl<'s> Generation<'s> {
    pub(crate) fn new(parts: Parts<'s>) -> Self {
        let mut generation =
            Self { parts, phase: Phase::Prefill, ready: VecDeque::new(), prefilled_at: None, first_token_at: None };
        generation.report_prefill();
        generation
    }

    /// What had to be changed for the chat template to take the conversation; usually nothing.
    pub fn notes(&self) -> &[RenderNote] {
        &self.parts.notes
    }

    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> &[u32] {
        &self.parts.prompt
    }

    /// Does the next piece of work: one pass at most.
    fn advance(&mut self) -> Result<(), EngineError> {
        if self.parts.cancel.is_cancelled() {
            self.finish(FinishReason::Cancelled);
            return Ok(());
        }
        match self.phase {
            Phase::Prefill => self.read_chunk(),
            Phase::Decode => self.write_tokens(),
            Phase::Over => Ok(()),
        }
    }

    fn read_chunk(&mut self) -> Result<(), EngineError> {
        let Parts { engine, prefix, prompt, drafters, .. } = &mut self.parts;
        if let Some(start) = Some(prefix.len()).filter(|&start| start < prompt.len()) {
            let end = prompt.len().min(start + engine.prefill_chunk());
            let place = if end == prompt.len() { Place::End } else { Place::Inside };
            let mut runners = engine.runners().wait();
            prefix.extend(&mut runners.target, &prompt[start..end], place)?;
            if let Some(costly) = &mut **drafters.costly_mut() {
                costly.read(start, end - start, &runners.target)?;
            }
            drop(runners);
            self.report_prefill();
        }
        if self.parts.prefix.len() == self.parts.prompt.len() {
            self.write_first()?;
        }
        Ok(())
    }

    /// Draws the first token from the logits that the prompt left behind.
    fn write_first(&mut self) -> Result<(), EngineError> {
        self.prefilled_at = Some(self.parts.started.elapsed());
        let Parts { engine, prefix, writer, output, logprobs, .. } = &mut self.parts;
        let logits = prefix.prompt_logits().expect("the prefix ends where the prompt does");
        let position = writer.history().tokens().len() as u64;
        let step = writer.draw_first(logits, output)?;
        self.ready.push_back(token_event(engine, step.tokens[0], logits, position, *logprobs)?);
        self.phase = Phase::Decode;
        self.after_step(step.stop);
        Ok(())
    }

    fn write_tokens(&mut self) -> Result<(), EngineError> {
        let Parts { engine, prefix, writer, drafters, output, logprobs, .. } = &mut self.parts;
        let first = writer.history().tokens().len();
        let mut target = prefix.target(engine.runners());
        let step = writer.step(&mut target, drafters, output).map_err(from_step)?;
        for (position, (&token, &row)) in (first as u64..).zip(step.tokens.iter().zip(&step.rows)) {
            self.ready.push_back(token_event(engine, token, target.logits(row), position, *logprobs)?);
        }
        drop(target);
        prefix.note(&writer.history().tokens()[prefix.len()..writer.committed()]);
        self.after_step(step.stop);
        Ok(())
    }

    fn after_step(&mut self, stop: Option<StopReason>) {
        self.first_token_at.get_or_insert_with(|| self.parts.started.elapsed());
        match stop {
            Some(stop) => {
                let reason = self.finish_reason(stop);
                self.finish(reason);
            }
            None => self.ready.extend(self.parts.output.take()),
        }
    }

    fn finish_reason(&self, stop: StopReason) -> FinishReason {
        match (stop, self.parts.output.stopped()) {
            (StopReason::MaxTokens | StopReason::Context, _) => FinishReason::Length,
            (StopReason::Constraint, Some(string)) => FinishReason::StopString(string.to_owned()),
            _ => FinishReason::Stop,
        }
    }

    fn finish(&mut self, reason: FinishReason) {
        self.phase = Phase::Over;
        self.parts.output.finish();
        self.parts.engine.keep_costs(self.parts.drafters.costs());
        self.ready.extend(self.parts.output.take());
        self.ready.push_back(Event::Finished(Finished {
            reason,
            usage: self.usage(),
            timings: self.timings(),
            drafting: self.drafting(),
            seed: self.parts.seed,
        }));
    }

    fn usage(&self) -> Usage {
        let stats = self.parts.writer.stats();
        Usage {
            prompt_tokens: self.parts.prompt.len(),
            cached_tokens: self.parts.cached,
            output_tokens: self.parts.writer.history().generated().len(),
            passes: stats.passes,
            drafted: stats.drafted(),
            accepted: stats.accepted(),
        }
    }

    fn drafting(&self) -> Drafting {
        let (stats, spent) = (self.parts.writer.stats(), self.parts.drafters.spent());
        let drafters = self.parts.engine.drafter_names();
        Drafting {
            speedup: spent.speedup().filter(|_| !drafters.is_empty()),
            drafters,
            drafted_by_depth: stats.drafted_by_depth.clone(),
            accepted_by_depth: stats.accepted_by_depth.clone(),
            draft: Duration::from_secs_f64(spent.draft_s),
        }
    }

    fn timings(&self) -> Timings {
        let total = self.parts.started.elapsed();
        Timings {
            time_to_first_token: self.first_token_at,
            prefill: self.prefilled_at.unwrap_or(total),
            generation: self.first_token_at.map_or(Duration::ZERO, |first| total.saturating_sub(first)),
            total,
        }
    }

    fn report_prefill(&mut self) {
        let done = self.parts.prefix.len();
        let progress = Prefill { done, total: self.parts.prompt.len(), cached: self.parts.cached };
        self.ready.push_back(Event::Prefill(progress));
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Event, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            if self.phase == Phase::Over {
                return None;
            }
            if let Err(error) = self.advance() {
                // The state may stand for other tokens than it should, or hold numbers that spoil every later text.
                self.parts.prefix.forget();
                **self.parts.drafters.costly_mut() = None;
                self.phase = Phase::Over;
                self.ready.clear();
                return Some(Err(error));
            }
        }
    }
}

impl fmt::Debug for Generation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let output = self.parts.writer.history().generated().len();
        write!(f, "Generation({:?}, {} + {output} tokens)", self.phase, self.parts.prompt.len())
    }
}

/// `logits` are those that the token was drawn from; `top` is [`Settings::logprobs`](crate::Settings::logprobs).
fn token_event(
    engine: &Engine,
    id: u32,
    logits: &[f32],
    position: u64,
    top: Option<usize>,
) -> Result<Event, DecodeError> {
    let log_probs = top.map(|top| token_log_probs(id, logits, position, top)).transpose()?;
    let bytes = engine.tokenizer().token_bytes(id).unwrap_or_default();
    Ok(Event::Token(TokenEvent { id, bytes, log_probs }))
}

fn token_log_probs(id: u32, logits: &[f32], position: u64, top: usize) -> Result<TokenLogProbs, DecodeError> {
    let log_probs = LogProbs::new(logits, position)?;
    Ok(TokenLogProbs { log_prob: log_probs.of(id), top: log_probs.top(top) })
}

fn from_step(error: StepError<pleach_model::ModelError>) -> EngineError {
    match error {
        StepError::Decode(error) => error.into(),
        StepError::Target(error) => error.into(),
        other => unreachable!("a step fails in its logic or in its target: {other}"),
    }
}
