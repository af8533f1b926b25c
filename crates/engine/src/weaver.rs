//! Trees that a Weaver grows out of a block drafter's candidates.

use pleach_decode::{DraftContext, History, TokenId, TreeBuilder};
use pleach_model::{DFlashRunner, ModelError, WeaverNode, WeaverRunner};

use crate::shortlist::Shortlist;

/// Children that a node gets at most.
const WIDTH: usize = 8;

/// Nodes of a depth that are expanded at most, the likeliest.
const MOST_EXPANDED: usize = 16;

/// Candidates of a place that are scored at most where guesses must pay: with few rows, fewer than the Weaver was trained with
/// give as many tokens per pass, and each takes a row of the output head (`docs/benchmarks.md`, "Less for each draft").
const MOST_SCORED: usize = 32;

/// A node is expanded if its chance is at least this share of an even one, `1 / rows of the pass`.
const LEAST_SHARE: f32 = 0.2;

/// A node that may be expanded.
#[derive(Debug, Clone, Copy)]
struct Open {
    node: usize,
    weaver: WeaverNode,
    /// Logarithm of its chance to be visited.
    path: f32,
}

/// Adds the likeliest paths through the candidates of the drafter's last block, level by level: a node is expanded if it
/// is one of the likeliest found so far, as many as the pass has rows for and as pay for them.
///
/// `hidden`: the target's hidden state that chose the last token of the text, after the final norm. `guesses`: places that
/// the drafter has logits for.
///
/// # Errors
/// What a pass of the Weaver meets.
pub(crate) fn grow(
    weaver: &mut WeaverRunner,
    drafter: &DFlashRunner,
    hidden: &[f32],
    guesses: usize,
    context: &DraftContext<'_>,
    tree: &mut TreeBuilder,
) -> Result<(), ModelError> {
    let logits = drafter.logits()?;
    let per_depth = logits.len() / guesses;
    // The target's hidden state takes the place of row 0 of the block, the last token of the text. Rows beyond the guesses have
    // no candidates: left out, they cost nothing and are not missed.
    weaver.begin(&[hidden, drafter.hidden()?].concat())?;
    let pool = weaver.weaver().config().candidate_pool_size;
    let size = if context.must_pay() { pool.min(MOST_SCORED) } else { pool };
    let mut growth = Growth::new(context, tree);
    for depth in 0..guesses.min(weaver.weaver().config().max_depth) {
        if growth.level.is_empty() {
            break;
        }
        let vocabulary = drafter.drafter().config().draft_to_target.as_deref();
        let list = Shortlist::new(&logits[depth * per_depth..][..per_depth], vocabulary, size);
        // A drafter whose weights give no numbers has nothing to say.
        if list.tokens.is_empty() {
            break;
        }
        let nodes: Vec<WeaverNode> = growth.level.iter().map(|open| open.weaver).collect();
        let queries = weaver.expand(&nodes)?;
        let scores = weaver.score(&queries, &list.tokens, &list.logits)?;
        growth.add_level(depth, &list, &scores);
    }
    Ok(())
}

/// A tree while it grows.
struct Growth<'a, 'c> {
    context: &'a DraftContext<'c>,
    tree: &'a mut TreeBuilder,
    /// Nodes of one depth that are to be expanded.
    level: Vec<Open>,
    num_expanded: usize,
    /// Of all guesses so far, highest first: as many as the pass has rows for.
    paths: Vec<f32>,
}

impl<'a, 'c> Growth<'a, 'c> {
    fn new(context: &'a DraftContext<'c>, tree: &'a mut TreeBuilder) -> Self {
        let root = context.history.tokens().last().copied().unwrap_or_default();
        let root = Open { node: TreeBuilder::ROOT, weaver: WeaverNode { token: root, parent: None }, path: 0.0 };
        Self { context, tree, level: vec![root], num_expanded: 0, paths: Vec::new() }
    }

    /// Adds the children of a level, and puts those that are worth it in its place. `scores`: `[level, candidates]`.
    fn add_level(&mut self, depth: usize, list: &Shortlist, scores: &[f32]) {
        let mut sampler = self.context.sampler.clone();
        let position = (self.context.history.tokens().len() + depth) as u64;
        let mut children = Vec::new();
        for (place, (open, scores)) in self.level.iter().zip(scores.chunks_exact(list.tokens.len())).enumerate() {
            let history = self.history_at(open.node);
            let history = history.as_ref().unwrap_or(self.context.history);
            for (token, log_prob) in sampler.foresee_among(&list.tokens, scores, position, history, WIDTH) {
                let Some(node) = self.tree.add(open.node, token, log_prob) else { continue };
                let weaver = WeaverNode { token, parent: Some(self.num_expanded + place) };
                children.push(Open { node, weaver, path: open.path + log_prob.min(0.0) });
            }
        }
        self.num_expanded += self.level.len();
        self.level = self.worth_expanding(children);
    }

    fn worth_expanding(&mut self, mut children: Vec<Open>) -> Vec<Open> {
        let most = self.context.budget.saturating_sub(1);
        self.paths.extend(children.iter().map(|open| open.path));
        self.paths.sort_by(|a, b| b.total_cmp(a));
        self.paths.truncate(most);
        // The first that does not pay is left out, and with it all that are no likelier.
        let unpaid = (1..).zip(&self.paths).find(|&(rows, path)| path.exp() < self.context.least_chance(rows));
        let least_path = match unpaid {
            Some((_, path)) => path.next_up(),
            None => self.paths.get(most.wrapping_sub(1)).copied().unwrap_or(f32::NEG_INFINITY),
        };
        let least = least_path.max((LEAST_SHARE / self.context.budget as f32).ln());
        children.retain(|open| open.path >= least);
        children.sort_by(|a, b| b.path.total_cmp(&a.path));
        children.truncate(MOST_EXPANDED);
        children
    }

    /// The text with the path to a node; `None` if that makes no difference to what is drawn.
    fn history_at(&self, node: usize) -> Option<History> {
        if !self.context.sampler.params().has_penalties() {
            return None;
        }
        let guesses = std::iter::successors(self.tree.guess(node), |guess| self.tree.guess(guess.parent));
        let path: Vec<TokenId> = guesses.map(|guess| guess.token).collect();
        let mut history = self.context.history.clone();
        path.into_iter().rev().for_each(|token| history.push(token));
        Some(history)
    }
}

#[cfg(test)]
mod tests {
    use pleach_decode::{Sampler, SamplingParams};

    use super::*;

    #[test]
    fn nodes_are_expanded_that_pay_among_those_found_so_far() {
        let (history, sampler) = (History::new(&[0]), Sampler::new(SamplingParams::default(), 50).unwrap());
        let expanded = |budget, least_chances: &[f32]| -> Vec<usize> {
            let context = DraftContext { history: &history, budget, least_chances, sampler: &sampler };
            let mut tree = TreeBuilder::new(0, 10, 8, 50);
            let mut growth = Growth::new(&context, &mut tree);
            // Chances of the nodes of a level, and of the next one.
            let levels = [[0.1f32, 0.6, 0.2], [0.05, 0.15, 0.3]].map(|chances| {
                let open = |(node, chance): (usize, f32)| Open {
                    node,
                    weaver: WeaverNode { token: 0, parent: None },
                    path: chance.ln(),
                };
                growth.worth_expanding(chances.into_iter().enumerate().map(open).collect())
            });
            levels.concat().into_iter().map(|open| open.node).collect()
        };
        assert_eq!(expanded(8, &[]), [1, 2, 0, 2, 1, 0], "the likeliest first");
        assert_eq!(expanded(3, &[]), [1, 2, 2], "as many as there are rows");
        assert_eq!(expanded(8, &[0.0, 0.15, 0.25]), [1, 2, 2], "once 0.2 does not pay as the fourth row, nothing does");
    }
}
