//! Guesses one after the other, by a model that is asked for each.

use pleach_decode::{DraftContext, History, Sampler, TokenId, TreeBuilder};
use pleach_model::ModelError;

/// Tokens that a chain has at most: each costs a pass, and is right ever more rarely.
const LONGEST: usize = 8;

/// The chain ends where the chance to come so far falls below this.
const LEAST_CHANCE: f32 = 0.25;

/// Candidates that are added at each place of the chain.
const WIDTH: usize = 3;

/// A model that guesses, at some place of the text or of its own guesses.
pub(crate) trait Chain {
    /// Logits for the next token: `[vocab_size]`.
    ///
    /// # Errors
    /// What reading them meets.
    fn logits(&self) -> Result<&[f32], ModelError>;

    /// Goes on to the place after `token`.
    ///
    /// # Errors
    /// What the pass meets.
    fn follow(&mut self, token: TokenId) -> Result<(), ModelError>;
}

/// The end of a chain while it grows.
struct Tip {
    node: usize,
    token: TokenId,
    /// To be visited.
    chance: f32,
}

/// Adds a chain after the text, with the next likely candidates beside each of its tokens.
///
/// # Errors
/// What a pass of the model meets.
pub(crate) fn draft(
    chain: &mut impl Chain,
    context: &DraftContext<'_>,
    tree: &mut TreeBuilder,
) -> Result<(), ModelError> {
    let (mut sampler, mut history) = (context.sampler.clone(), context.history.clone());
    let mut tip = Tip { node: TreeBuilder::ROOT, token: 0, chance: 1.0 };
    for depth in 1..=longest(context, tree) {
        let Some(next) = extend(chain.logits()?, &tip, &mut sampler, &history, tree) else { break };
        tip = next;
        // At least the root and the path are likelier than what follows.
        if depth == longest(context, tree) || tip.chance < context.least_chance(1 + depth).max(LEAST_CHANCE) {
            break;
        }
        history.push(tip.token);
        chain.follow(tip.token)?;
    }
    Ok(())
}

fn longest(context: &DraftContext<'_>, tree: &TreeBuilder) -> usize {
    (context.budget - 1).min(tree.max_depth()).min(LONGEST)
}

/// Adds the likeliest tokens after the tip, and moves it to the first of them.
fn extend(logits: &[f32], tip: &Tip, sampler: &mut Sampler, history: &History, tree: &mut TreeBuilder) -> Option<Tip> {
    let position = history.tokens().len() as u64;
    let mut first = None;
    for (token, log_prob) in sampler.foresee(logits, position, history, WIDTH) {
        let Some(node) = tree.add(tip.node, token, log_prob) else { continue };
        first.get_or_insert(Tip { node, token, chance: tip.chance * log_prob.exp() });
    }
    first
}
