//! Trees of DFlash2's drafters, whose guesses depend on the guess before them.

use std::collections::BinaryHeap;

use pleach_decode::{DraftContext, TokenId, TreeBuilder};
use pleach_model::{DFlashRunner, ModelError};

/// The likeliest tokens of one place with their logits.
pub(crate) type Shortlist = Vec<(TokenId, f32)>;

/// A node whose children are to be added next.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Open {
    /// Logarithm of its chance to be visited.
    score: f32,
    node: usize,
    depth: usize,
    token: TokenId,
}

/// Adds the likeliest nodes, best first, each with its likeliest children, until the tree has as many as the budget and
/// none that is left out is likelier. `shortlists` has the candidates of each place, whatever comes before it.
pub(crate) fn grow(
    runner: &DFlashRunner,
    shortlists: &[Shortlist],
    context: &DraftContext<'_>,
    width: usize,
    tree: &mut TreeBuilder,
) -> Result<(), ModelError> {
    let Some(&last) = context.history.tokens().last() else { return Ok(()) };
    let mut sampler = context.sampler.clone();
    let mut open = BinaryHeap::from([Open { score: 0.0, node: TreeBuilder::ROOT, depth: 0, token: last }]);
    // Each node that is opened is among the likeliest there are, so no more are needed than the budget has rows.
    for _ in 0..context.budget {
        let Some(Open { score, node, depth, token }) = open.pop() else { break };
        let Some(shortlist) = shortlists.get(depth) else { continue };
        let tokens: Vec<TokenId> = shortlist.iter().map(|(token, _)| *token).collect();
        let transitions = runner.transitions(depth, token, &tokens)?;
        let logits: Vec<f32> = shortlist.iter().zip(transitions).map(|((_, logit), more)| logit + more).collect();
        let position = (context.history.tokens().len() + depth) as u64;
        for (token, log_prob) in sampler.foresee_among(&tokens, &logits, position, context.history, width) {
            if let Some(child) = tree.add(node, token, log_prob) {
                open.push(Open { score: score + log_prob, node: child, depth: depth + 1, token });
            }
        }
    }
    Ok(())
}

/// The `count` highest of a place's logits, of equals the lowest token.
pub(crate) fn shortlist(logits: impl Iterator<Item = (TokenId, f32)>, count: usize) -> Shortlist {
    let mut best: Shortlist = Vec::with_capacity(count + 1);
    for (token, logit) in logits.filter(|(_, logit)| logit.is_finite()) {
        if best.len() == count && best.last().is_some_and(|&(_, least)| logit <= least) {
            continue;
        }
        let place = best.partition_point(|&(_, other)| other >= logit);
        best.insert(place, (token, logit));
        best.truncate(count);
    }
    best
}

impl Eq for Open {}

impl PartialOrd for Open {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Open {
    /// By score; of equals the earlier node comes first.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.node.cmp(&self.node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortlist_has_the_highest_logits_in_order() {
        let logits = [0.5, 2.0, f32::NAN, 2.0, -1.0, f32::INFINITY, 3.0];
        let found = shortlist((0..).zip(logits), 4);
        assert_eq!(found, [(6, 3.0), (1, 2.0), (3, 2.0), (0, 0.5)]);
        assert_eq!(shortlist((0..).zip([f32::NAN]), 4), []);
    }
}
