//! Where the time of a test goes.

use std::time::{Duration, Instant};

use pleach_decode::{Target, TreeRows};
use pleach_kernels::{PartProfile, PassProfile, Rows, SequenceRows};
use pleach_model::{ModelError, Sequence};

use super::{Bencher, RowShape, step};
use crate::EngineError;
use crate::target::Runners;
use crate::turns::Turn;

/// Where the time of some passes went.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BenchProfile {
    /// From the start of the first pass to the end of what follows the last.
    pub total: Duration,
    /// The ops.
    pub pass: PassProfile,
    /// Drawing tokens.
    pub sampler: Duration,
    /// Appending accepted rows to the state.
    pub commit: Duration,
}

impl BenchProfile {
    /// Time that nothing else accounts for: laying out rows, checking inputs, reading the clock twice per op.
    pub fn rest(&self) -> Duration {
        self.total.saturating_sub(self.pass.time() + self.sampler + self.commit)
    }

    /// All of it by name, in the order of a pass; what took no time is left out.
    pub fn parts(&self) -> Vec<(&'static str, PartProfile)> {
        let besides = [("sampler", self.sampler), ("commit", self.commit), ("rest", self.rest())];
        let besides = besides.into_iter().filter(|(_, time)| !time.is_zero());
        let besides = besides.map(|(name, time)| (name, PartProfile { time, ..PartProfile::default() }));
        self.pass.parts().map(|(part, profile)| (part.name(), *profile)).chain(besides).collect()
    }
}

impl Bencher {
    /// Where the time of [`prefill`](Self::prefill) goes.
    ///
    /// # Errors
    /// As `prefill`.
    pub fn profile_prefill(&mut self, tokens: usize, depth: usize) -> Result<Option<BenchProfile>, EngineError> {
        let Some(mut sequence) = self.start(depth, tokens)? else { return Ok(None) };
        let (prompt, mut profile) = (self.tokens(depth, tokens), BenchProfile::default());
        let started = Instant::now();
        let done = self.read(&mut sequence, &prompt, Some(&mut profile))?;
        profile.total = started.elapsed();
        Ok(done.then_some(profile))
    }

    /// Where the time of [`decode`](Self::decode) goes.
    ///
    /// # Errors
    /// As `decode`.
    pub fn profile_decode(&mut self, tokens: usize, depth: usize) -> Result<Option<BenchProfile>, EngineError> {
        let Some(mut sequence) = self.start(depth, tokens)? else { return Ok(None) };
        let (mut writer, mut profile) = (self.writer(depth, tokens)?, BenchProfile::default());
        let started = Instant::now();
        for _ in 0..tokens {
            if self.cancel.is_cancelled() {
                return Ok(None);
            }
            let (runners, sequence) = (self.engine.runners().wait(), &mut sequence);
            let mut target = ProfiledTarget { runners, sequence, profile: &mut profile, elapsed: Duration::ZERO };
            let started = Instant::now();
            step(&mut writer, &mut target)?;
            let outside = started.elapsed().saturating_sub(target.elapsed);
            drop(target);
            profile.sampler += outside;
        }
        profile.total = started.elapsed();
        Ok(Some(profile))
    }

    /// Where the time of [`rows`](Self::rows) goes.
    ///
    /// # Errors
    /// As `rows`.
    pub fn profile_rows(
        &mut self,
        rows: usize,
        shape: RowShape,
        depth: usize,
        passes: usize,
    ) -> Result<Option<BenchProfile>, EngineError> {
        let Some(sequence) = self.start(depth, rows)? else { return Ok(None) };
        let (rows, mut profile) = (self.pass_rows(rows, shape, depth)?, BenchProfile::default());
        let all: Vec<usize> = (0..rows.len()).collect();
        let started = Instant::now();
        for _ in 0..passes {
            if self.cancel.is_cancelled() {
                return Ok(None);
            }
            self.engine.runners().wait().target.forward_profiled(&rows, &all, &[&sequence], &mut profile.pass)?;
        }
        profile.total = started.elapsed();
        Ok(Some(profile))
    }
}

/// One sequence for the length of one step, with a clock.
struct ProfiledTarget<'a> {
    runners: Turn<'a, Runners>,
    sequence: &'a mut Sequence,
    profile: &'a mut BenchProfile,
    /// Time of this step that was spent in here.
    elapsed: Duration,
}

impl Target for ProfiledTarget<'_> {
    type Error = ModelError;

    fn verify(&mut self, tree: TreeRows<'_>) -> Result<(), ModelError> {
        let started = Instant::now();
        // Without drafts a tree is its root.
        let rows = Rows::new(&[SequenceRows::chain(tree.start, tree.tokens)])?;
        self.runners.target.forward_profiled(&rows, &[0], &[self.sequence], &mut self.profile.pass)?;
        self.elapsed += started.elapsed();
        Ok(())
    }

    fn logits(&self, _row: usize) -> &[f32] {
        self.runners.target.logits().expect("logits are asked for after a pass that gave them")
    }

    fn commit(&mut self, rows: &[usize]) -> Result<(), ModelError> {
        let started = Instant::now();
        self.runners.target.commit(rows, self.sequence)?;
        let time = started.elapsed();
        self.profile.commit += time;
        self.elapsed += time;
        Ok(())
    }
}
