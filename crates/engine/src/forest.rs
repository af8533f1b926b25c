//! One pass for several requests: each text's tree, and a part of one prompt.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::Arc;
use std::time::Instant;

use pleach_decode::{Company, CostCurve, DraftTree, Step};
use pleach_kernels::{Rows, SequenceRows};
use pleach_model::{ModelError, Runner, Sequence};

use crate::chunk::ChunkPace;
use crate::running::{Phase, Running};
use crate::target::{self, Runners};
use crate::{Engine, EngineError, MAX_PREFILL_CHUNK, MAX_SPEC_ROWS};

/// Takes requests on, pass by pass: every text that is written drafts its tree, and of those that still read, one reads on.
///
/// A text is the same in any company, since a row's bits are, and since no draft changes it. A failure stays with its
/// request. One request alone is the same loop.
#[derive(Debug, Default)]
pub(crate) struct Forest {
    chunks: ChunkPace,
    /// Passes so far.
    passes: usize,
}

/// What one request brings to a pass.
struct Part<'p, 'r> {
    running: &'p mut &'r mut Running,
    work: Work,
    /// Among the rows of the pass. Trees come first and want the logits of all rows, so it is also the first of its logits.
    first_row: usize,
    step: Option<Step>,
}

enum Work {
    Tree(DraftTree),
    /// So many tokens of its prompt.
    Chunk(usize),
}

impl Forest {
    /// Puts a request at the end of those who wait to read.
    pub(crate) fn welcome(&self, running: &mut Running) {
        running.note_read(self.passes);
    }

    /// Makes one pass at most. Requests that have ended are left alone.
    pub(crate) fn step(&mut self, engine: &Engine, requests: &mut [&mut Running]) {
        requests.iter_mut().for_each(|running| running.begin_step());
        if requests.iter().all(|running| running.phase() == Phase::Over) {
            return;
        }
        let mut runners = engine.runners().wait();
        let mut costs = engine.costs();
        let mut parts = self.plan(engine, &mut runners, requests, &costs);
        self.passes = self.passes.wrapping_add(1);
        self.run(&mut runners, &mut parts, &mut costs);
        engine.keep_costs(&costs);
    }

    /// Lets texts draft and chooses what is read.
    fn plan<'p, 'r>(
        &self,
        engine: &Engine,
        runners: &mut Runners,
        requests: &'p mut [&'r mut Running],
        costs: &CostCurve,
    ) -> Vec<Part<'p, 'r>> {
        let (mut writing, reading): (Vec<_>, Vec<_>) = requests
            .iter_mut()
            .filter(|running| running.phase() != Phase::Over)
            .partition(|running| running.phase() == Phase::Decode);
        // Those who wait longest for a pass read first.
        let reader = reading.into_iter().min_by_key(|running| running.last_read());
        let chunk = reader.as_ref().map_or(0, |reader| {
            // Room for the trees is left in the largest pass.
            let most = engine.prefill_chunk().min(MAX_PREFILL_CHUNK.saturating_sub(MAX_SPEC_ROWS.max(writing.len())));
            let tokens = if writing.is_empty() { most } else { self.chunks.tokens(costs.seconds(writing.len()), most) };
            reader.next_chunk(tokens).len()
        });
        // Whoever drafts first has most of what all may have.
        let first = self.passes.checked_rem(writing.len()).unwrap_or(0);
        writing.rotate_left(first);
        let mut parts = draft(runners, writing, Company::prompt(chunk), costs);
        parts.extend(reader.map(|running| {
            running.note_read(self.passes);
            Part { running, work: Work::Chunk(chunk), first_row: 0, step: None }
        }));
        parts
    }

    /// Runs the pass and takes every request on by what it brought.
    fn run(&mut self, runners: &mut Runners, parts: &mut [Part<'_, '_>], costs: &mut CostCurve) {
        let started = Instant::now();
        if let Err(error) = forward(&mut runners.target, parts) {
            match parts {
                [] => {}
                [part] => part.running.fail_in_pass(error),
                // Whose fault it is shows when each runs alone.
                parts => parts.iter_mut().for_each(|part| self.run(runners, slice::from_mut(part), costs)),
            }
            return;
        }
        parts.iter_mut().for_each(|part| part.settle(runners));
        let seconds = started.elapsed().as_secs_f64();
        self.book(parts, seconds, costs);
        let all = parts.iter().fold(Company::default(), |all, part| all.and(part.share()));
        for Part { running, first_row, step, .. } in parts {
            let Some(step) = step else { continue };
            let others = all.without(running.share());
            running.guarded(|running| running.observe(runners, *first_row, step, (seconds, others)));
        }
    }

    /// Notes what the pass took.
    fn book(&mut self, parts: &[Part<'_, '_>], seconds: f64, costs: &mut CostCurve) {
        let rows = |part: &Part<'_, '_>| match &part.work {
            Work::Tree(tree) => (tree.num_rows(), 0),
            Work::Chunk(tokens) => (0, *tokens),
        };
        let (rows, tokens) = parts.iter().map(rows).fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
        match (tokens, costs.seconds(rows)) {
            // Tokens of prompts have no logits, so they say nothing of the cost of trees.
            (0, _) => costs.record(rows, seconds),
            (_, Some(plain_s)) if rows > 0 => self.chunks.record(tokens, seconds - plain_s),
            _ => {}
        }
    }
}

/// Lets every text draft, knowing what those before it have drafted.
fn draft<'p, 'r>(
    runners: &mut Runners,
    writing: Vec<&'p mut &'r mut Running>,
    chunk: Company,
    costs: &CostCurve,
) -> Vec<Part<'p, 'r>> {
    let most = (MAX_SPEC_ROWS / writing.len().max(1)).max(1);
    let mut waiting = writing.len();
    let mut company = chunk;
    let mut parts = Vec::with_capacity(waiting + 1);
    for running in writing {
        waiting -= 1;
        let others = company.and(Company::plain(waiting));
        if let Some(tree) = running.guarded(|running| running.draft(runners, most, others, costs)) {
            company = company.and(running.share());
            parts.push(Part { running, work: Work::Tree(tree), first_row: 0, step: None });
        }
    }
    parts
}

/// Runs the rows of all parts. A fault of the pass is an error like any other.
fn forward(runner: &mut Runner, parts: &mut [Part<'_, '_>]) -> Result<(), EngineError> {
    if parts.is_empty() {
        return Ok(());
    }
    let parents: Vec<Vec<Option<usize>>> = parts.iter().map(Part::parents).collect();
    let mut sequences = Vec::with_capacity(parts.len());
    let mut outputs = Vec::new();
    let mut num_rows = 0;
    for (part, parents) in parts.iter_mut().zip(&parents) {
        part.first_row = num_rows;
        num_rows += part.num_rows();
        match &part.work {
            Work::Tree(_) => outputs.extend(part.first_row..num_rows),
            Work::Chunk(rows) if part.running.ends_after(*rows) => outputs.push(num_rows - 1),
            Work::Chunk(_) => {}
        }
        sequences.push(part.rows(parents));
    }
    let rows = Rows::new(&sequences).map_err(ModelError::from)?;
    let states: Vec<&Sequence> = parts.iter().map(|part| part.running.sequence()).collect();
    let run = AssertUnwindSafe(|| runner.forward(&rows, &outputs, &states));
    Ok(catch_unwind(run).map_err(|_panic| EngineError::Fault)??)
}

impl Part<'_, '_> {
    fn num_rows(&self) -> usize {
        match &self.work {
            Work::Tree(tree) => tree.num_rows(),
            Work::Chunk(rows) => *rows,
        }
    }

    fn parents(&self) -> Vec<Option<usize>> {
        match &self.work {
            Work::Tree(tree) => target::parents(tree.rows()),
            Work::Chunk(_) => Vec::new(),
        }
    }

    fn rows<'a>(&'a self, parents: &'a [Option<usize>]) -> SequenceRows<'a> {
        match &self.work {
            Work::Tree(tree) => SequenceRows::tree(tree.start(), tree.rows().tokens, parents),
            Work::Chunk(rows) => SequenceRows::chain(self.running.sequence().len(), self.running.next_chunk(*rows)),
        }
    }

    /// What it brought to the pass.
    fn share(&self) -> Company {
        match &self.work {
            Work::Tree(_) => self.running.share(),
            Work::Chunk(rows) => Company::prompt(*rows),
        }
    }

    /// Draws tokens and commits rows.
    fn settle(&mut self, runners: &mut Runners) {
        let Self { running, work, first_row, step } = self;
        match work {
            Work::Tree(tree) => *step = running.guarded(|running| running.accept(runners, *first_row, tree)),
            Work::Chunk(rows) => {
                running.guarded(|running| {
                    let logits = running.ends_after(*rows).then(|| last_logits(&runners.target)).transpose()?;
                    running.read(runners, *first_row, *rows, logits)
                });
            }
        }
    }
}

/// The last row of logits that the last pass gave.
fn last_logits(runner: &Runner) -> Result<Arc<[f32]>, EngineError> {
    let logits = runner.logits()?;
    let vocab_size = runner.model().config().vocab_size;
    Ok(logits[logits.len().saturating_sub(vocab_size)..].into())
}
