//! Drafters that guess a whole block in one pass.

use std::path::Path;
use std::sync::Arc;

use pleach_checkpoint::{CheckpointError, DrafterCheckpoint, Tensor, WeaverCheckpoint};
use pleach_decode::{BestFirst, DraftContext, Sampler, Step, TokenId, TreeBuilder};
use pleach_kernels::StatePart;
use pleach_model::{DFlash, DFlashRunner, DFlashSequence, Model, ModelError, Runner, Tap, Weaver, WeaverRunner};

use crate::pending::{Continuity, Pending};
use crate::selected;
use crate::shortlist::Shortlist;
use crate::target::SequenceTarget;
use crate::{EngineError, EngineOptions, Speculation, weaver};

/// Candidates of each place of a block.
const WIDTH: usize = 6;

/// Weight of the latest draft in the mean of guesses that came true.
const LATEST: f32 = 0.3;

/// What guesses blocks, and what scores their guesses given the path that leads to them, if anything does.
#[derive(Debug)]
pub(crate) struct BlockRunner {
    drafter: DFlashRunner,
    weaver: Option<WeaverRunner>,
}

/// Grows a tree from a block's guesses.
///
/// Without a Weaver they are independent of each other: the likeliest products of chances, one after the other, make the
/// tree. Source: DDTree (arXiv:2604.12989).
#[derive(Debug, Default)]
pub(crate) struct BlockDraft {
    sequence: Option<DFlashSequence>,
    pending: Pending,
    /// The target's hidden state of the last committed token, for a Weaver.
    hidden: Vec<f32>,
    reach: Reach,
    /// Places that a block has guessed for the step under way; 0 if none has.
    places: usize,
}

/// How far ahead blocks guess where it is known what a guess must promise: the mean of the guesses that came true lately, rounded
/// up, and one place more.
///
/// Each place takes its share of the output head and of the Weaver, whether the tree gets that deep or not. Measured in
/// `docs/benchmarks.md`, "When a drafter is asked".
#[derive(Debug, Clone, Copy)]
struct Reach {
    /// Fading mean over the steps that blocks guessed for, whoever made the guesses that came true.
    came_true: f32,
}

impl Default for Reach {
    fn default() -> Self {
        Self { came_true: 2.0 }
    }
}

impl Reach {
    /// Places that are worth guessing.
    fn places(self) -> usize {
        self.came_true.ceil() as usize + 1
    }

    fn observe(&mut self, came_true: usize) {
        self.came_true += LATEST * (came_true as f32 - self.came_true);
    }
}

/// A guess that may be added next.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    parent: usize,
    depth: usize,
    /// Among the candidates of its depth.
    rank: usize,
}

impl BlockRunner {
    /// What the target's runner has to keep: what the drafter reads, then what the Weaver does.
    pub(crate) fn taps(&self) -> Vec<Tap> {
        self.drafter.drafter().taps().into_iter().chain(self.has_weaver().then_some(Tap::Final)).collect()
    }

    /// Taps that the drafter reads.
    pub(crate) fn num_taps(&self) -> usize {
        self.drafter.drafter().taps().len()
    }

    pub(crate) fn has_weaver(&self) -> bool {
        self.weaver.is_some()
    }
}

impl BlockDraft {
    /// Takes in rows of the target's last pass, which stand at positions from `start` on. A tap after the first `num_taps` is
    /// for the Weaver.
    pub(crate) fn read(
        &mut self,
        start: usize,
        rows: impl Iterator<Item = usize>,
        runner: &Runner,
        num_taps: usize,
    ) -> Result<(), ModelError> {
        let hidden_size = runner.model().config().hidden_size;
        let taps = (0..num_taps).map(|tap| runner.tap(tap)).collect::<Result<Vec<_>, _>>()?;
        let (mut joined, mut last) = (Vec::new(), None);
        for row in rows {
            last = Some(row);
            taps.iter().for_each(|tap| joined.extend_from_slice(&tap[row * hidden_size..][..hidden_size]));
        }
        if self.pending.push(start, &joined, num_taps * hidden_size) == Continuity::Broken {
            self.sequence = None;
        }
        if let (Some(row), Ok(hidden)) = (last, runner.tap(num_taps)) {
            self.hidden.clear();
            self.hidden.extend_from_slice(&hidden[row * hidden_size..][..hidden_size]);
        }
        Ok(())
    }

    /// Goes on with the first `len` tokens of what was read, or forgets everything if it does not end there.
    pub(crate) fn resume(&mut self, len: usize) {
        if self.pending.end() != len {
            *self = Self::default();
        }
    }

    /// A copy that later drafts do not change.
    pub(crate) fn snapshot(&self) -> Self {
        Self {
            sequence: self.sequence.as_ref().map(DFlashSequence::snapshot),
            pending: self.pending.clone(),
            hidden: self.hidden.clone(),
            reach: self.reach,
            places: 0,
        }
    }

    /// The pieces of its memory, some of which copies share, and the bytes of what no copy shares.
    pub(crate) fn memory(&self) -> (Vec<StatePart>, usize) {
        let parts = self.sequence.as_ref().map(DFlashSequence::parts).unwrap_or_default();
        (parts, self.pending.size_bytes() + size_of_val(&self.hidden[..]))
    }

    /// Reads what is pending.
    fn catch_up(&mut self, runner: &mut DFlashRunner) -> Result<(), ModelError> {
        let sequence = match &mut self.sequence {
            Some(sequence) => sequence,
            none => none.insert(runner.drafter().new_sequence()?),
        };
        runner.read(&self.pending.values, sequence)?;
        self.pending.clear();
        Ok(())
    }

    /// Takes in the rows that a step committed.
    pub(crate) fn observe(
        &mut self,
        target: &SequenceTarget<'_>,
        step: &Step,
        num_taps: usize,
    ) -> Result<(), ModelError> {
        let places = std::mem::take(&mut self.places);
        if places > 0 {
            self.reach.observe(places.min(step.tokens.len().saturating_sub(1)));
        }
        let start = target.committed() - step.rows.len();
        self.read(start, step.rows.iter().map(|&row| target.row(row)), target.runner(), num_taps)
    }

    /// Grows the tree after the text.
    pub(crate) fn draft(
        &mut self,
        BlockRunner { drafter: runner, weaver }: &mut BlockRunner,
        context: &DraftContext<'_>,
        tree: &mut TreeBuilder,
    ) -> Result<(), ModelError> {
        let text = context.history.tokens();
        let Some((&last, committed)) = text.split_last() else { return Ok(()) };
        // After a prompt that was known already there are no taps until the first step.
        let is_current = self.pending.end() == committed.len() && !committed.is_empty();
        if !is_current || tree.max_depth() == 0 || context.budget < 2 {
            return Ok(());
        }
        if self.pending.num_rows > 0 {
            self.catch_up(runner)?;
        }
        let Some(sequence) = &self.sequence else { return Ok(()) };
        // A tree is no deeper than it has guesses, and the output head is a large part of a draft.
        let deepest = runner.drafter().config().block_size - 1;
        let reach = if context.must_pay() { self.reach.places() } else { deepest };
        let guesses = deepest.min(tree.max_depth()).min(context.budget - 1).min(reach);
        runner.draft(last, guesses, sequence)?;
        self.places = guesses;
        if let Some(weaver) = weaver {
            return weaver::grow(weaver, runner, &self.hidden, guesses, context, tree);
        }
        let logits = runner.logits()?;
        let places = logits.chunks_exact(logits.len() / guesses);
        if let Some(selector) = runner.drafter().config().selector {
            let vocabulary = runner.drafter().config().draft_to_target.as_deref();
            let shortlists: Vec<_> = places.map(|logits| Shortlist::new(logits, vocabulary, selector.top_k)).collect();
            return selected::grow(runner, &shortlists, context, WIDTH, tree);
        }
        let rows: Vec<&[f32]> = places.collect();
        let mut sampler = context.sampler.clone();
        let place = |place: usize| candidates(runner.drafter(), rows.get(place)?, place, context, &mut sampler);
        grow(place, context, tree);
        Ok(())
    }
}

/// The likeliest tokens of a place, the first after the text being place 0, whatever stands between.
fn candidates(
    drafter: &DFlash,
    logits: &[f32],
    place: usize,
    context: &DraftContext<'_>,
    sampler: &mut Sampler,
) -> Option<Vec<(TokenId, f32)>> {
    let position = (context.history.tokens().len() + place) as u64;
    Some(match &drafter.config().draft_to_target {
        None => sampler.foresee(logits, position, context.history, WIDTH),
        Some(tokens) => sampler.foresee_among(tokens, logits, position, context.history, WIDTH),
    })
}

/// Candidates by depth, asked for once each and only as deep as a tree grows.
struct Marginals<F> {
    ask: F,
    known: Vec<Vec<(TokenId, f32)>>,
}

impl<F: FnMut(usize) -> Option<Vec<(TokenId, f32)>>> Marginals<F> {
    fn get(&mut self, depth: usize, rank: usize) -> Option<(TokenId, f32)> {
        if depth == self.known.len() {
            self.known.push((self.ask)(depth)?);
        }
        self.known.get(depth)?.get(rank).copied()
    }

    /// Puts a candidate among those that may be added, after a path of log-probability `before`, if there is such a one.
    fn offer(&mut self, open: &mut BestFirst<Candidate>, before: f32, candidate: Candidate) {
        if let Some((_, log_prob)) = self.get(candidate.depth, candidate.rank) {
            open.push(before + log_prob, candidate);
        }
    }
}

/// Adds the likeliest paths of candidates, best first, until the tree has as many nodes as the budget or the rest cannot pay.
/// `ask` gives the candidates of a depth, from 0 on.
fn grow(ask: impl FnMut(usize) -> Option<Vec<(TokenId, f32)>>, context: &DraftContext<'_>, tree: &mut TreeBuilder) {
    let mut candidates = Marginals { ask, known: Vec::new() };
    // By the logarithm of the chance to be visited.
    let mut open = BestFirst::new();
    candidates.offer(&mut open, 0.0, Candidate { parent: TreeBuilder::ROOT, depth: 0, rank: 0 });
    let mut left = context.budget.saturating_sub(1);
    while left > 0
        && let Some((score, candidate)) = open.pop()
        && score.exp() >= context.least_chance(context.budget - left)
    {
        let Candidate { parent, depth, rank } = candidate;
        let Some((token, log_prob)) = candidates.get(depth, rank) else { break };
        candidates.offer(&mut open, score - log_prob, Candidate { rank: rank + 1, ..candidate });
        let Some(node) = tree.add(parent, token, log_prob) else { continue };
        candidates.offer(&mut open, score, Candidate { parent: node, depth: depth + 1, rank: 0 });
        left -= 1;
    }
}

/// Opens a drafter on the device of its target, whose stored output matrix is `head`, and the Weaver in its folder.
///
/// # Errors
/// Files that cannot be used; [`EngineError::UnfitDrafter`] if they were made for another model.
pub(crate) fn open(
    path: &Path,
    target: &Model,
    head: Option<&Tensor>,
    options: &EngineOptions,
) -> Result<BlockRunner, EngineError> {
    let failed = |source| EngineError::Checkpoint { path: path.to_owned(), source };
    let checkpoint = DrafterCheckpoint::open(path).map_err(failed)?;
    let no_head = CheckpointError::NoSuchTensor { name: "lm_head.weight".to_owned() };
    let head = head.ok_or(no_head).map_err(ModelError::from)?;
    let load = options.load_options();
    let drafter = DFlash::load(checkpoint, target, head, &load).map_err(|error| unfit("dflash", error))?;
    let weaver = match options.speculation {
        Speculation::DFlash => None,
        _ => WeaverCheckpoint::open(path).map_err(failed)?,
    };
    let block_size = drafter.config().block_size;
    let weaver = weaver.map(|weaver| Weaver::load(weaver, target, block_size, &load)).transpose();
    let weaver = weaver.map_err(|error| unfit("weaver", error))?;
    if weaver.is_none() && options.speculation == Speculation::Weaver {
        let reason = format!("there is none in `{}`", path.display());
        return Err(EngineError::UnfitDrafter { drafter: "weaver", reason });
    }
    Ok(BlockRunner {
        drafter: DFlashRunner::new(Arc::new(drafter)),
        weaver: weaver.map(|weaver| WeaverRunner::new(Arc::new(weaver))),
    })
}

/// What does not fit, in the words of the engine.
pub(crate) fn unfit(drafter: &'static str, error: ModelError) -> EngineError {
    match error {
        ModelError::UnfitDrafter { field, found, expected } => {
            let reason = format!("its `{field}` is {found}, but the model has {expected}");
            EngineError::UnfitDrafter { drafter, reason }
        }
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use pleach_decode::{History, SamplingParams};

    use super::*;

    #[test]
    fn blocks_reach_a_place_beyond_what_came_true_lately() {
        let mut reach = Reach::default();
        assert_eq!(reach.places(), 3);
        (0..20).for_each(|_| reach.observe(0));
        assert_eq!(reach.places(), 2);
        (0..20).for_each(|_| reach.observe(reach.places()));
        assert!(reach.places() > 7, "{reach:?}");
    }

    #[test]
    fn trees_take_the_likeliest_products_first() {
        let ln = |p: f32| p.ln();
        let candidates = [vec![(1, ln(0.6)), (2, ln(0.3))], vec![(3, ln(0.5)), (4, ln(0.4))], vec![(5, ln(0.9))]];
        let (history, sampler) = (History::new(&[0]), Sampler::new(SamplingParams::default(), 50).unwrap());
        let context = DraftContext { history: &history, budget: 7, least_chances: &[], sampler: &sampler };
        let grown = |context| {
            let mut tree = TreeBuilder::new(0, 10, 8, 50);
            grow(|depth| candidates.get(depth).cloned(), &context, &mut tree);
            tree
        };
        assert_eq!(grown(DraftContext { least_chances: &[0.28; 7], ..context }).num_nodes(), 4);
        assert_eq!(
            grown(DraftContext { least_chances: &[0.0, 0.0, 0.31], ..context }).num_nodes(),
            3,
            "0.3 as fourth row"
        );
        let tree = grown(context);
        let guesses: Vec<_> = (1..tree.num_nodes()).filter_map(|node| tree.guess(node)).collect();
        let found: Vec<_> = guesses.iter().map(|guess| (guess.token, guess.parent, guess.depth)).collect();
        // 0.6, then 0.3 and 0.3 · 0.9 below it, beside 0.3, 0.24 and what follows.
        assert_eq!(found[0], (1, 0, 1));
        assert_eq!(guesses.len(), 6);
        assert!(found.contains(&(2, 0, 1)) && found.contains(&(3, 1, 2)) && found.contains(&(4, 1, 2)), "{found:?}");
        let chances = tree.chances();
        assert!((chances[0] - 0.6).abs() < 1e-6 && chances.iter().all(|&chance| chance > 0.2), "{chances:?}");
    }
}
