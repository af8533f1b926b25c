//! Measuring a model: passes without text, as benchmarks and profiles need them.

mod profile;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pleach_decode::{Generation as Writer, GenerationOptions, NoDraft, SamplingParams, Target, Unconstrained};
use pleach_kernels::{PassWork, Rows, SequenceRows};
use pleach_model::{MAX_ROWS, ModelError, Sequence};

use crate::running::from_step;
use crate::target::SequenceTarget;
use crate::{CancelToken, Engine, EngineError};

pub use profile::BenchProfile;

/// Most rows of a pass.
pub const MAX_PASS_ROWS: usize = MAX_ROWS;

/// Measures passes of one model, each test from a state that stands for a given number of tokens, its *depth*.
///
/// The tokens are arbitrary and always the same: speed depends on how many there are, not on which. States are made
/// once per depth, and every test starts from a copy. A test that is cancelled gives `None`; it stops after the pass in
/// which it was.
///
/// ```
/// # let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-llama");
/// use pleach_engine::{CancelToken, Engine, EngineOptions};
///
/// let engine = Engine::open(dir.as_ref(), &EngineOptions::default())?;
/// let mut bencher = engine.bencher(CancelToken::new())?;
/// let time = bencher.decode(8, 16)?.expect("nobody cancels it");
/// assert!(8.0 / time.as_secs_f64() > 0.0);
/// # Ok::<(), pleach_engine::EngineError>(())
/// ```
#[derive(Debug)]
pub struct Bencher {
    engine: Engine,
    cancel: CancelToken,
    work: PassWork,
    /// States by their depth.
    starts: BTreeMap<usize, Sequence>,
}

/// How the rows of a pass hang together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RowShape {
    /// Each row continues the one before it.
    #[default]
    Chain,
    /// Each row is continued by two.
    Tree,
}

/// Spreads the tokens of the tests over the vocabulary: 2⁶⁴ divided by the golden ratio.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

impl Engine {
    /// Measures this model until `cancel` says otherwise.
    ///
    /// # Errors
    /// Those of recording a pass.
    pub fn bencher(&self, cancel: CancelToken) -> Result<Bencher, EngineError> {
        let work = self.model().pass_work()?;
        Ok(Bencher { engine: self.clone(), cancel, work, starts: BTreeMap::new() })
    }
}

impl Bencher {
    /// What a pass reads and multiplies at least.
    pub fn work(&self) -> PassWork {
        self.work
    }

    /// Reads `tokens` of a prompt in chunks of [`EngineOptions::prefill_chunk`](crate::EngineOptions) and gives the time
    /// until its state and the logits of its last token are there.
    ///
    /// # Errors
    /// Tokens beyond the context that the model was opened with; what a pass meets.
    pub fn prefill(&mut self, tokens: usize, depth: usize) -> Result<Option<Duration>, EngineError> {
        let Some(mut sequence) = self.start(depth, tokens)? else { return Ok(None) };
        let prompt = self.tokens(depth, tokens);
        let started = Instant::now();
        Ok(self.read(&mut sequence, &prompt, None)?.then(|| started.elapsed()))
    }

    /// Writes `tokens` tokens, one per pass, each the likeliest after the last: the loop of a
    /// [`Session`](crate::Session) without the text.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill); logits that no token can be drawn from.
    pub fn decode(&mut self, tokens: usize, depth: usize) -> Result<Option<Duration>, EngineError> {
        let Some(mut sequence) = self.start(depth, tokens)? else { return Ok(None) };
        let mut writer = self.writer(depth, tokens)?;
        let started = Instant::now();
        for _ in 0..tokens {
            if self.cancel.is_cancelled() {
                return Ok(None);
            }
            let mut runners = self.engine.runners().wait();
            let mut target = SequenceTarget::new(&mut runners, &mut sequence);
            step(&mut writer, &mut target)?;
        }
        Ok(Some(started.elapsed()))
    }

    /// Runs `passes` passes over the same `rows` rows with logits for every row, and commits none of them: what
    /// verifying a draft costs. Gives the time of all.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill); more than [`MAX_PASS_ROWS`] rows.
    pub fn rows(
        &mut self,
        rows: usize,
        shape: RowShape,
        depth: usize,
        passes: usize,
    ) -> Result<Option<Duration>, EngineError> {
        let Some(sequence) = self.start(depth, rows)? else { return Ok(None) };
        let rows = self.pass_rows(rows, shape, depth)?;
        let all: Vec<usize> = (0..rows.len()).collect();
        let started = Instant::now();
        for _ in 0..passes {
            if self.cancel.is_cancelled() {
                return Ok(None);
            }
            self.engine.runners().wait().target.forward(&rows, &all, &[&sequence])?;
        }
        Ok(Some(started.elapsed()))
    }

    /// A state that stands for `depth` tokens and has room for `more`; `None` if cancelled before it was there.
    fn start(&mut self, depth: usize, more: usize) -> Result<Option<Sequence>, EngineError> {
        let (found, context) = (depth.saturating_add(more), self.engine.info().context);
        if more == 0 || found > context {
            let allowed = format!("at least 1 and, with those before them, at most {context}, the context");
            let found = if more == 0 { "0".to_owned() } else { format!("{more} after {depth}") };
            return Err(EngineError::InvalidField { field: "tokens", found, allowed });
        }
        if let Some(start) = self.starts.get(&depth) {
            return Ok(Some(start.snapshot()));
        }
        let mut sequence = self.engine.model().new_sequence()?;
        if !self.read(&mut sequence, &self.tokens(0, depth), None)? {
            return Ok(None);
        }
        let start = sequence.snapshot();
        self.starts.insert(depth, sequence);
        Ok(Some(start))
    }

    /// Runs and commits `tokens` in chunks; whether it came to the end. Adds to `profile` what ops and commits take.
    fn read(
        &self,
        sequence: &mut Sequence,
        tokens: &[u32],
        mut profile: Option<&mut BenchProfile>,
    ) -> Result<bool, EngineError> {
        let mut left = tokens;
        while !left.is_empty() && !self.cancel.is_cancelled() {
            let (chunk, rest) = left.split_at(left.len().min(self.engine.prefill_chunk()));
            let rows = Rows::new(&[SequenceRows::chain(sequence.len(), chunk)]).map_err(ModelError::from)?;
            let last = [chunk.len() - 1];
            let outputs: &[usize] = if rest.is_empty() { &last } else { &[] };
            let path: Vec<usize> = (0..chunk.len()).collect();
            let mut runners = self.engine.runners().wait();
            let runner = &mut runners.target;
            match profile.as_deref_mut() {
                None => {
                    runner.forward(&rows, outputs, &[sequence])?;
                    runner.commit(&path, sequence)?;
                }
                Some(profile) => {
                    runner.forward_profiled(&rows, outputs, &[sequence], &mut profile.pass)?;
                    let started = Instant::now();
                    runner.commit(&path, sequence)?;
                    profile.commit += started.elapsed();
                }
            }
            left = rest;
        }
        Ok(left.is_empty())
    }

    fn pass_rows(&self, rows: usize, shape: RowShape, depth: usize) -> Result<Rows, EngineError> {
        let tokens = self.tokens(depth, rows);
        let parents: Vec<Option<usize>> = (0..rows).map(|row| row.checked_sub(1).map(|row| row / 2)).collect();
        let rows = match shape {
            RowShape::Chain => SequenceRows::chain(depth, &tokens),
            RowShape::Tree => SequenceRows::tree(depth, &tokens, &parents),
        };
        Ok(Rows::new(&[rows]).map_err(ModelError::from)?)
    }

    /// What writes `tokens` tokens after `depth` committed ones and one that is not run yet.
    fn writer(&self, depth: usize, tokens: usize) -> Result<Writer, EngineError> {
        let options = GenerationOptions {
            sampling: SamplingParams::default(),
            max_tokens: Some(tokens),
            budget: 1,
            // The last token that is written needs no place: it is never run.
            ..GenerationOptions::new(self.vocab_size(), depth + tokens + 1)
        };
        Ok(Writer::new(options, &self.tokens(0, depth + 1))?)
    }

    /// Tokens `first ..` of the text that all tests read.
    fn tokens(&self, first: usize, count: usize) -> Vec<u32> {
        let vocab_size = self.vocab_size() as u64;
        let token = |place: usize| {
            let mixed = (place as u64 + 1).wrapping_mul(SPREAD);
            ((mixed ^ (mixed >> 29)) % vocab_size) as u32
        };
        (first..first + count).map(token).collect()
    }

    fn vocab_size(&self) -> usize {
        self.engine.model().config().vocab_size
    }
}

/// Writes the next token.
fn step(writer: &mut Writer, target: &mut impl Target<Error = ModelError>) -> Result<(), EngineError> {
    writer.step(target, &mut NoDraft, &mut Unconstrained).map(drop).map_err(from_step)
}
