//! One request while it runs, with all that is its own.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pleach_decode::{
    Company, Constraint, CostCurve, DecodeError, DraftTree, Drafter, Generation as Writer, GenerationOptions, LogProbs,
    Lookup, Paced, Step, StepError, StopReason, Target,
};
use pleach_model::{ModelError, Sequence};
use pleach_text::{Detokenizer, SpanSplitter, StopMatcher};

use crate::costly::Costly;
use crate::engine::EncodedPrompt;
use crate::keeper::{Check, Keeper};
use crate::output::Output;
use crate::prefix_cache::Kept;
use crate::speculation::WallClock;
use crate::target::{Runners, SequenceTarget};
use crate::{
    CancelToken, Drafting, Engine, EngineError, Event, FinishReason, Finished, Prefill, Settings, Timings, TokenEvent,
    TokenLogProbs, Usage,
};

/// What guesses ahead in one request.
pub(crate) type Drafters = Paced<Option<Lookup>, Option<Costly>, WallClock>;

/// One request: the state of its sequence, its text so far, and the events that nobody has taken yet.
///
/// It runs no pass of its own: [`Forest`](crate::forest::Forest) does that, for any number of them at once.
pub(crate) struct Running {
    engine: Engine,
    keeper: Option<Keeper>,
    /// Stands for the first tokens of the prompt, or of prompt and output.
    sequence: Sequence,
    writer: Writer,
    drafters: Drafters,
    output: Output,
    prompt: EncodedPrompt,
    /// What is read beside the prompt to see whether the cache is right.
    check: Option<Check>,
    /// After the prompt's last token, once that is known: `[vocab_size]`.
    logits: Option<Arc<[f32]>>,
    phase: Phase,
    ready: VecDeque<Event>,
    error: Option<EngineError>,
    /// Tokens of the prompt that were known at the start.
    cached: usize,
    most_rows: usize,
    logprobs: Option<usize>,
    cancel: CancelToken,
    seed: u64,
    started: Instant,
    /// Number of the pass that last read of its prompt, or before which it came.
    last_read: usize,
    /// Times since the start.
    prefilled_at: Option<Duration>,
    first_token_at: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The prompt is being read.
    Prefill,
    /// Tokens are being written.
    Decode,
    /// Nothing more will be done.
    Over,
}

impl Running {
    /// A request that has done nothing yet but look at what is known of its prompt. Its times count from `started`.
    ///
    /// # Errors
    /// A field outside its range, a prompt that is empty, has unknown tokens or leaves no room for an answer; what the device
    /// says when its memory is full.
    pub(crate) fn new(
        engine: &Engine,
        prompt: EncodedPrompt,
        settings: &Settings,
        demand: Option<Box<dyn Constraint + Send>>,
        mut keeper: Option<Keeper>,
        started: Instant,
    ) -> Result<Self, EngineError> {
        let stops = settings.stop_strings()?;
        settings.spec_budget.validate()?;
        let most_rows = if engine.drafter_names().is_empty() { 1 } else { settings.spec_budget.most_rows() };
        let options = GenerationOptions {
            sampling: settings.sampling.resolve(engine.generation_config()),
            stop_tokens: if settings.ignore_eos { Vec::new() } else { engine.stop_tokens().to_vec() },
            max_tokens: settings.max_tokens,
            budget: most_rows,
            ..GenerationOptions::new(engine.model().config().vocab_size, engine.info().context)
        };
        let seed = options.sampling.seed;
        let writer = Writer::new(options, &prompt.tokens)?;
        let detokenizer = Detokenizer::new(engine.tokenizer().clone(), settings.special_tokens);
        let splitter = settings.split_reasoning.then(|| SpanSplitter::new(prompt.opens_reasoning));
        let found = keeper.as_mut().map(|keeper| keeper.look_up(engine, &prompt)).unwrap_or_default();
        let (known, check) = match found.kept {
            Some(kept) if found.verify => (None, Some(Check::new(kept, &prompt.tokens))),
            known => (known, None),
        };
        let (sequence, costly, logits) = match known {
            Some(Kept { sequence, costly, logits }) => (sequence, costly, logits),
            None => (engine.model().new_sequence()?, None, None),
        };
        let cached = sequence.len();
        let mut running = Self {
            drafters: engine.drafters(settings.spec_budget, costly, cached),
            output: Output::new(detokenizer, StopMatcher::new(stops), splitter).with_demand(demand),
            logits: logits.filter(|_| cached == prompt.tokens.len()),
            engine: engine.clone(),
            keeper,
            sequence,
            writer,
            prompt,
            check,
            phase: Phase::Prefill,
            ready: VecDeque::new(),
            error: None,
            cached,
            most_rows,
            logprobs: settings.logprobs,
            cancel: settings.cancel.clone(),
            seed,
            started,
            last_read: 0,
            prefilled_at: None,
            first_token_at: None,
        };
        running.report_prefill();
        Ok(running)
    }

    /// The prompt as the model reads it.
    pub(crate) fn prompt(&self) -> &EncodedPrompt {
        &self.prompt
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Tokens that were written.
    pub(crate) fn num_written(&self) -> usize {
        self.writer.history().generated().len()
    }

    /// Number of the pass that last read of its prompt, or before which it came.
    pub(crate) fn last_read(&self) -> usize {
        self.last_read
    }

    /// Notes that pass number `pass` reads of its prompt.
    pub(crate) fn note_read(&mut self, pass: usize) {
        self.last_read = pass;
    }

    /// The next event, if one is there. After the last, and after an error, there are no more.
    pub(crate) fn take_event(&mut self) -> Option<Result<Event, EngineError>> {
        match self.error.take() {
            Some(error) => Some(Err(error)),
            None => self.ready.pop_front().map(Ok),
        }
    }

    /// Does `work`; a failure or a fault in it ends this request alone.
    pub(crate) fn guarded<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, EngineError>) -> Option<T> {
        let error = match catch_unwind(AssertUnwindSafe(|| work(self))) {
            Ok(Ok(value)) => return Some(value),
            // States may hold numbers that spoil every later text.
            Ok(Err(error @ (EngineError::Model(_) | EngineError::NonFiniteLogits { .. }))) => {
                self.fail_in_pass(error);
                return None;
            }
            Ok(Err(error)) => error,
            // States that are kept were there before what panics here: a constraint, a drafter, a detokenizer.
            Err(_panic) => EngineError::Fault,
        };
        self.fail(error);
        None
    }

    /// Ends the request because a pass of the model failed: the states along its text may be why.
    pub(crate) fn fail_in_pass(&mut self, error: EngineError) {
        if let Some(keeper) = &self.keeper {
            keeper.forget(self.writer.history().tokens());
        }
        self.fail(error);
    }

    /// Ends the request with an error that says nothing of the states that are kept.
    fn fail(&mut self, error: EngineError) {
        self.keeper = None;
        self.phase = Phase::Over;
        self.ready.clear();
        self.error = Some(error);
    }

    /// Ends the request.
    pub(crate) fn cancel(&mut self) {
        if self.phase != Phase::Over {
            self.finish(FinishReason::Cancelled);
        }
    }

    /// Does what needs no pass: ends a cancelled request, and writes the first token after a prompt that was known.
    pub(crate) fn begin_step(&mut self) {
        if self.cancel.is_cancelled() {
            self.cancel();
        }
        if self.phase == Phase::Prefill && self.sequence.len() == self.prompt.tokens.len() {
            self.guarded(Self::write_first);
        }
    }

    /// The tokens of the prompt that the next pass reads, at most `most`, for [`sequence`](Self::sequence).
    pub(crate) fn next_chunk(&self, most: usize) -> &[u32] {
        let (start, tokens) = (self.sequence().len(), &self.prompt.tokens);
        let place = self.keeper.as_ref().filter(|_| !self.is_checking()).and_then(|keeper| keeper.next_place(start));
        &tokens[start..place.unwrap_or(tokens.len()).min(start + most.max(1))]
    }

    /// Whether the prompt ends after `rows` more tokens.
    pub(crate) fn ends_after(&self, rows: usize) -> bool {
        self.sequence().len() + rows == self.prompt.tokens.len()
    }

    /// The state that the next pass goes on from.
    pub(crate) fn sequence(&self) -> &Sequence {
        self.check.as_ref().filter(|check| check.is_open()).map_or(&self.sequence, |check| &check.sequence)
    }

    fn is_checking(&self) -> bool {
        self.check.as_ref().is_some_and(Check::is_open)
    }

    /// What this request brings to the pass that it drafted for.
    pub(crate) fn share(&self) -> Company {
        self.drafters.share()
    }

    /// Drafts the tree of the next pass, of at most `most` rows.
    pub(crate) fn draft(
        &mut self,
        runners: &mut Runners,
        most: usize,
        company: Company,
        costs: &CostCurve,
    ) -> Result<DraftTree, EngineError> {
        self.writer.set_budget(self.most_rows.min(most));
        self.drafters.join(company, costs);
        let mut target = SequenceTarget::new(runners, &mut self.sequence);
        self.writer.draft(&mut target, &mut self.drafters, &mut self.output).map_err(from_step)
    }

    /// Commits the tokens of its prompt that a pass has run, the first of them as row `first_row`. `logits` are those after
    /// the last if the prompt ends with it.
    pub(crate) fn read(
        &mut self,
        runners: &mut Runners,
        first_row: usize,
        rows: usize,
        logits: Option<Arc<[f32]>>,
    ) -> Result<(), EngineError> {
        let (start, rows) = (self.sequence.len(), first_row..first_row + rows);
        let path: Vec<usize> = rows.clone().collect();
        if let Some(check) = self.check.as_mut().filter(|check| check.is_open()) {
            runners.target.commit(&path, &mut check.sequence)?;
            check.logits = logits;
            return Ok(());
        }
        runners.target.commit(&path, &mut self.sequence)?;
        if let Some(costly) = self.drafters.costly_mut() {
            costly.read(start, rows, &runners.target)?;
        }
        self.report_prefill();
        let is_place = self.keeper.as_ref().is_some_and(|keeper| keeper.is_place(self.sequence.len()));
        self.logits = logits;
        // What a wrong state spoiled is forgotten before the right one is kept.
        self.compare();
        if self.logits.is_some() || is_place {
            self.keep();
        }
        if self.logits.is_some() { self.write_first() } else { Ok(()) }
    }

    /// Compares a kept state with what the prompt has left behind, once that was read.
    fn compare(&mut self) {
        let Some(logits) = &self.logits else { return };
        if let (Some(keeper), Some(check)) = (&self.keeper, self.check.take()) {
            keeper.compare(&check, logits);
        }
    }

    /// Draws the first token from the logits that the prompt left behind.
    fn write_first(&mut self) -> Result<(), EngineError> {
        self.prefilled_at = Some(self.started.elapsed());
        let Some(logits) = self.logits.take() else { return Err(ModelError::NotRun.into()) };
        let position = self.writer.history().tokens().len() as u64;
        let step = self.writer.draw_first(&logits, &mut self.output)?;
        self.ready.push_back(token_event(&self.engine, step.tokens[0], &logits, position, self.logprobs)?);
        self.phase = Phase::Decode;
        self.after_step(step.stop);
        Ok(())
    }

    /// Draws the tokens that a verified tree allows, and commits its rows. The tree starts at row `first_row` of the pass.
    pub(crate) fn accept(
        &mut self,
        runners: &mut Runners,
        first_row: usize,
        tree: &DraftTree,
    ) -> Result<Step, EngineError> {
        let Self { engine, writer, output, logprobs, .. } = self;
        let first = writer.history().tokens().len();
        let mut target = SequenceTarget::in_company(runners, &mut self.sequence, first_row);
        let step = writer.accept(tree, |row| target.logits(row), output)?;
        for (position, (&token, &row)) in (first as u64..).zip(step.tokens.iter().zip(&step.rows)) {
            self.ready.push_back(token_event(engine, token, target.logits(row), position, *logprobs)?);
        }
        target.commit(&step.rows)?;
        Ok(step)
    }

    /// Lets the drafters learn from a step, and shows what it brought.
    pub(crate) fn observe(
        &mut self,
        runners: &mut Runners,
        first_row: usize,
        step: &Step,
        (seconds, company): (f64, Company),
    ) -> Result<(), EngineError> {
        self.drafters.pass_took(seconds, company);
        let mut target = SequenceTarget::in_company(runners, &mut self.sequence, first_row);
        self.drafters.observe(&mut target, step)?;
        self.after_step(step.stop);
        Ok(())
    }

    fn after_step(&mut self, stop: Option<StopReason>) {
        self.first_token_at.get_or_insert_with(|| self.started.elapsed());
        match stop {
            Some(stop) => {
                let reason = self.finish_reason(stop);
                self.finish(reason);
            }
            None => self.ready.extend(self.output.take()),
        }
    }

    fn finish_reason(&self, stop: StopReason) -> FinishReason {
        match (stop, self.output.stopped()) {
            (StopReason::MaxTokens | StopReason::Context, _) => FinishReason::Length,
            (StopReason::Constraint, Some(string)) => FinishReason::StopString(string.to_owned()),
            _ => FinishReason::Stop,
        }
    }

    fn finish(&mut self, reason: FinishReason) {
        self.keep_end();
        self.phase = Phase::Over;
        self.output.finish();
        self.ready.extend(self.output.take());
        self.ready.push_back(Event::Finished(Finished {
            reason,
            usage: self.usage(),
            timings: self.timings(),
            drafting: self.drafting(),
            seed: self.seed,
        }));
    }

    /// Keeps the state as it is now.
    fn keep(&self) {
        let Some(keeper) = &self.keeper else { return };
        let tokens = &self.writer.history().tokens()[..self.sequence.len()];
        let kept = Kept {
            sequence: self.sequence.snapshot(),
            costly: self.drafters.costly().as_ref().map(Costly::snapshot),
            logits: self.logits.clone(),
        };
        keeper.keep(tokens, kept);
    }

    /// Keeps what the request leaves behind, unless that is what it began with.
    fn keep_end(&mut self) {
        if self.sequence.len() > self.cached {
            self.keep();
        }
        self.keeper = None;
    }

    fn usage(&self) -> Usage {
        let stats = self.writer.stats();
        Usage {
            prompt_tokens: self.prompt.tokens.len(),
            cached_tokens: self.cached,
            output_tokens: self.num_written(),
            passes: stats.passes,
            drafted: stats.drafted(),
            accepted: stats.accepted(),
        }
    }

    fn drafting(&self) -> Drafting {
        let (stats, spent) = (self.writer.stats(), self.drafters.spent());
        let drafters = self.engine.drafter_names();
        Drafting {
            speedup: spent.speedup().filter(|_| !drafters.is_empty()),
            drafters,
            drafted_by_depth: stats.drafted_by_depth.clone(),
            accepted_by_depth: stats.accepted_by_depth.clone(),
            draft: Duration::from_secs_f64(spent.draft_s),
        }
    }

    fn timings(&self) -> Timings {
        let total = self.started.elapsed();
        Timings {
            time_to_first_token: self.first_token_at,
            prefill: self.prefilled_at.unwrap_or(total),
            generation: self.first_token_at.map_or(Duration::ZERO, |first| total.saturating_sub(first)),
            total,
        }
    }

    fn report_prefill(&mut self) {
        let (done, total) = (self.sequence.len(), self.prompt.tokens.len());
        self.ready.push_back(Event::Prefill(Prefill { done, total, cached: self.cached }));
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Running({:?}, {} + {} tokens)", self.phase, self.prompt.tokens.len(), self.num_written())
    }
}

/// A request leaves to later ones what its drafter has brought and, if it is given up, what it has read.
impl Drop for Running {
    fn drop(&mut self) {
        self.engine.keep_experience(self.drafters.experience());
        // A fault may have met the state half-way.
        if self.phase != Phase::Over && !std::thread::panicking() {
            self.keep_end();
        }
    }
}

/// `logits` are those that the token was drawn from; `top` is [`Settings::logprobs`].
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

/// What a step failed of.
pub(crate) fn from_step(error: StepError<ModelError>) -> EngineError {
    match error {
        StepError::Decode(error) => error.into(),
        StepError::Target(error) => error.into(),
        other => unreachable!("a step fails in its logic or in its target: {other}"),
    }
}
