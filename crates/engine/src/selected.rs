//! Trees of DFlash2's drafters, whose guesses depend on the guess before them.

use pleach_decode::{BestFirst, DraftContext, TokenId, TreeBuilder};
use pleach_model::{DFlashRunner, ModelError};

use crate::shortlist::Shortlist;

/// A node whose children are to be added next.
#[derive(Debug)]
struct Open {
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
    // By the logarithm of the chance to be visited.
    let mut open = BestFirst::new();
    open.push(0.0, Open { node: TreeBuilder::ROOT, depth: 0, token: last });
    // Each node that is opened is among the likeliest there are, so fewer are needed than the budget has rows.
    for rows in 1..context.budget {
        let Some((score, Open { node, depth, token })) = open.pop() else { break };
        // Its children are less likely still.
        if score.exp() < context.least_chance(rows) {
            break;
        }
        let Some(Shortlist { tokens, logits }) = shortlists.get(depth) else { continue };
        let transitions = runner.transitions(depth, token, tokens)?;
        let logits: Vec<f32> = logits.iter().zip(transitions).map(|(logit, more)| logit + more).collect();
        let position = (context.history.tokens().len() + depth) as u64;
        for (token, log_prob) in sampler.foresee_among(tokens, &logits, position, context.history, width) {
            if let Some(child) = tree.add(node, token, log_prob) {
                open.push(score + log_prob, Open { node: child, depth: depth + 1, token });
            }
        }
    }
    Ok(())
}
