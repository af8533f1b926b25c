//! Drafters that guess a whole block in one pass.

use std::collections::BinaryHeap;
use std::path::Path;
use std::sync::Arc;

use pleach_checkpoint::{CheckpointError, DrafterCheckpoint, Tensor};
use pleach_decode::{DraftContext, Step, TokenId, TreeBuilder};
use pleach_model::{DFlash, DFlashRunner, DFlashSequence, Model, ModelError, Runner};

use crate::pending::{Continuity, Pending};
use crate::selected;
use crate::target::SequenceTarget;
use crate::{EngineError, EngineOptions};

/// Candidates of each place of a block.
const WIDTH: usize = 6;

/// Grows a tree from a block's guesses, which are independent of each other: the likeliest products of chances, one after
/// the other. Source: DDTree (arXiv:2604.12989).
#[derive(Debug, Default)]
pub(crate) struct BlockDraft {
    sequence: Option<DFlashSequence>,
    pending: Pending,
}

/// A guess that may be added next.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Candidate {
    /// Logarithm of its chance to be visited.
    score: f32,
    parent: usize,
    depth: usize,
    /// Among the candidates of its depth.
    rank: usize,
}

impl BlockDraft {
    /// Takes in rows of the target's last pass, which stand at positions from `start` on.
    pub(crate) fn read(
        &mut self,
        start: usize,
        rows: impl Iterator<Item = usize>,
        runner: &Runner,
        num_taps: usize,
    ) -> Result<(), ModelError> {
        let hidden_size = runner.model().config().hidden_size;
        let taps = (0..num_taps).map(|tap| runner.tap(tap)).collect::<Result<Vec<_>, _>>()?;
        let mut joined = Vec::new();
        for row in rows {
            taps.iter().for_each(|tap| joined.extend_from_slice(&tap[row * hidden_size..][..hidden_size]));
        }
        if self.pending.push(start, &joined, num_taps * hidden_size) == Continuity::Broken {
            self.sequence = None;
        }
        Ok(())
    }

    /// Takes in the rows that a step committed.
    pub(crate) fn observe(
        &mut self,
        target: &SequenceTarget<'_>,
        step: &Step,
        num_taps: usize,
    ) -> Result<(), ModelError> {
        let start = target.committed() - step.rows.len();
        self.read(start, step.rows.iter().copied(), target.runner(), num_taps)
    }

    /// Grows the tree after the text.
    pub(crate) fn draft(
        &mut self,
        runner: &mut DFlashRunner,
        context: &DraftContext<'_>,
        tree: &mut TreeBuilder,
    ) -> Result<(), ModelError> {
        let text = context.history.tokens();
        let Some((&last, committed)) = text.split_last() else { return Ok(()) };
        // After a prompt that was known already there are no taps until the first step.
        if self.pending.end() != committed.len() || self.pending.end() == 0 {
            return Ok(());
        }
        let sequence = match &mut self.sequence {
            Some(sequence) => sequence,
            none => none.insert(runner.drafter().new_sequence()?),
        };
        if self.pending.num_rows > 0 {
            runner.read(&self.pending.values, sequence)?;
            self.pending.clear();
        }
        let guesses = tree.max_depth().min(runner.drafter().config().block_size - 1);
        if guesses == 0 {
            return Ok(());
        }
        let drafter = Arc::clone(runner.drafter());
        let logits = runner.draft(last, guesses, sequence)?;
        if let Some(selector) = drafter.config().selector {
            let shortlists = shortlists(&drafter, logits, guesses, selector.top_k);
            return selected::grow(runner, &shortlists, context, WIDTH, tree);
        }
        let candidates = candidates(&drafter, logits, guesses, context);
        grow(&candidates, context.budget, tree);
        Ok(())
    }
}

/// The tokens of each place that a selector weighs.
fn shortlists(drafter: &DFlash, logits: &[f32], guesses: usize, top_k: usize) -> Vec<selected::Shortlist> {
    let places = logits.chunks_exact((logits.len() / guesses.max(1)).max(1)).take(guesses);
    places
        .map(|logits| match &drafter.config().draft_to_target {
            None => selected::shortlist((0..).zip(logits.iter().copied()), top_k),
            Some(tokens) => selected::shortlist(tokens.iter().copied().zip(logits.iter().copied()), top_k),
        })
        .collect()
}

/// The likeliest tokens of each place, the first after the text first.
fn candidates(
    drafter: &DFlash,
    logits: &[f32],
    guesses: usize,
    context: &DraftContext<'_>,
) -> Vec<Vec<(TokenId, f32)>> {
    let mut sampler = context.sampler.clone();
    let text_len = context.history.tokens().len();
    let vocab_size = sampler.vocab_size();
    let mut row = vec![f32::NEG_INFINITY; vocab_size];
    let places = logits.chunks_exact(logits.len() / guesses.max(1)).take(guesses);
    places
        .enumerate()
        .map(|(place, logits)| {
            let logits = match &drafter.config().draft_to_target {
                None => logits,
                Some(tokens) => {
                    tokens.iter().zip(logits).for_each(|(&token, &logit)| row[token as usize] = logit);
                    &row
                }
            };
            sampler.foresee(logits, (text_len + place) as u64, context.history, WIDTH)
        })
        .collect()
}

/// Adds the likeliest paths of candidates, best first, until the tree has as many nodes as the budget.
fn grow(candidates: &[Vec<(TokenId, f32)>], budget: usize, tree: &mut TreeBuilder) {
    let log_prob = |depth: usize, rank: usize| Some(candidates.get(depth)?.get(rank)?.1);
    let mut open = BinaryHeap::new();
    let offer = |open: &mut BinaryHeap<Candidate>, before: f32, parent, depth, rank| {
        if let Some(log_prob) = log_prob(depth, rank) {
            open.push(Candidate { score: before + log_prob, parent, depth, rank });
        }
    };
    offer(&mut open, 0.0, TreeBuilder::ROOT, 0, 0);
    let mut left = budget.saturating_sub(1);
    while left > 0
        && let Some(Candidate { score, parent, depth, rank }) = open.pop()
    {
        let (token, log_prob) = candidates[depth][rank];
        offer(&mut open, score - log_prob, parent, depth, rank + 1);
        let Some(node) = tree.add(parent, token, log_prob) else { continue };
        offer(&mut open, score, node, depth + 1, 0);
        left -= 1;
    }
}

impl Eq for Candidate {}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Candidate {
    /// By score; of equals the earlier parent, then the better rank comes first.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.score.total_cmp(&other.score).then_with(|| (other.parent, other.rank).cmp(&(self.parent, self.rank)))
    }
}

/// Opens a drafter on the device of its target, whose stored output matrix is `head`.
///
/// # Errors
/// Files that cannot be used; [`EngineError::UnfitDrafter`] if it was made for another model.
pub(crate) fn open(
    path: &Path,
    target: &Model,
    head: Option<&Tensor>,
    options: &EngineOptions,
) -> Result<DFlashRunner, EngineError> {
    let checkpoint =
        DrafterCheckpoint::open(path).map_err(|source| EngineError::Checkpoint { path: path.to_owned(), source })?;
    let no_head = CheckpointError::NoSuchTensor { name: "lm_head.weight".to_owned() };
    let head = head.ok_or(no_head).map_err(ModelError::from)?;
    match DFlash::load(checkpoint, target, head, &options.load_options()) {
        Ok(drafter) => Ok(DFlashRunner::new(Arc::new(drafter))),
        Err(ModelError::UnfitDrafter { field, found, expected }) => {
            let reason = format!("its `{field}` is {found}, but the model has {expected}");
            Err(EngineError::UnfitDrafter { drafter: "dflash", reason })
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_take_the_likeliest_products_first() {
        let ln = |p: f32| p.ln();
        let candidates = vec![vec![(1, ln(0.6)), (2, ln(0.3))], vec![(3, ln(0.5)), (4, ln(0.4))], vec![(5, ln(0.9))]];
        let mut tree = TreeBuilder::new(0, 10, 8, 50);
        grow(&candidates, 7, &mut tree);
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
