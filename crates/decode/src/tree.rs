//! Draft trees: grown by drafters in any order, verified as rows in preorder.

use crate::TokenId;

/// Nodes that a builder takes at most, so that no drafter can exhaust memory. Passes have some dozens of rows.
const MAX_NODES: usize = 4096;

/// A growing tree of guesses, shared by all drafters of a step.
///
/// Nodes are numbered in the order they came, the root first, and keep their numbers. A token that two drafters
/// propose in one place is one node.
#[derive(Debug, Clone)]
pub struct TreeBuilder {
    start: usize,
    max_depth: usize,
    vocab_size: usize,
    nodes: Vec<Node>,
    /// Rows to build at most, whatever the budget.
    limit: usize,
}

/// A guess of a tree that still grows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guess {
    /// The guessed token.
    pub token: TokenId,
    /// Node that it continues.
    pub parent: usize,
    /// Distance from the root, at least 1.
    pub depth: usize,
    /// The belief that it is picked given that its parent is, as a natural log-probability; at most 0.
    pub log_prob: f32,
}

#[derive(Debug, Clone)]
struct Node {
    token: TokenId,
    parent: usize,
    depth: u32,
    /// Of this token after its parent, at most 0.
    log_prob: f32,
    /// In the order they were added.
    children: Vec<usize>,
}

impl TreeBuilder {
    /// The root of every tree: the last token of the text, which the target has not run yet.
    pub const ROOT: usize = 0;

    /// A tree of its root alone. `start` is the root's position; no node goes deeper than `max_depth` below it or
    /// carries a token outside the vocabulary.
    pub fn new(root: TokenId, start: usize, max_depth: usize, vocab_size: usize) -> Self {
        let root = Node { token: root, parent: Self::ROOT, depth: 0, log_prob: 0.0, children: Vec::new() };
        Self { start, max_depth, vocab_size, nodes: vec![root], limit: usize::MAX }
    }

    /// Adds a token after `parent`, or finds it there, and returns its node.
    ///
    /// `log_prob`: the drafter's belief that the target picks this token given that it picks the parent, as a natural
    /// log-probability. Values above 0 count as 0, NaN as −∞; of two beliefs about one node the higher stays.
    ///
    /// `None` if the tree may not hold such a node: the token is outside the vocabulary, the parent unknown or at the
    /// greatest depth, or the tree full. The drafter then simply leaves this branch.
    pub fn add(&mut self, parent: usize, token: TokenId, log_prob: f32) -> Option<usize> {
        let log_prob = belief(log_prob);
        if let Some(node) = self.child(parent, token) {
            self.nodes[node].log_prob = self.nodes[node].log_prob.max(log_prob);
            return Some(node);
        }
        let depth = self.nodes.get(parent)?.depth + 1;
        let fits = depth as usize <= self.max_depth && (token as usize) < self.vocab_size;
        if !fits || self.nodes.len() == MAX_NODES {
            return None;
        }
        let node = self.nodes.len();
        self.nodes.push(Node { token, parent, depth, log_prob, children: Vec::new() });
        self.nodes[parent].children.push(node);
        Some(node)
    }

    /// Adds a chain of tokens after `parent`, each with the same `log_prob`, and returns the last node that fits.
    pub fn add_branch(&mut self, parent: usize, tokens: &[TokenId], log_prob: f32) -> usize {
        let mut last = parent;
        for &token in tokens {
            let Some(node) = self.add(last, token, log_prob) else { break };
            last = node;
        }
        last
    }

    /// The child of `node` with this token.
    pub fn child(&self, node: usize, token: TokenId) -> Option<usize> {
        self.nodes.get(node)?.children.iter().copied().find(|&child| self.nodes[child].token == token)
    }

    /// Number of nodes, the root included.
    pub fn num_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Depth below the root that a node may have at most.
    pub fn max_depth(&self) -> usize {
        self.max_depth
    }

    /// What is guessed at a node; `None` for the root and for nodes that do not exist.
    pub fn guess(&self, node: usize) -> Option<Guess> {
        let Node { token, parent, depth, log_prob, .. } = *self.nodes.get(node).filter(|_| node != Self::ROOT)?;
        Some(Guess { token, parent, depth: depth as usize, log_prob })
    }

    /// Replaces the belief in a node, as [`add`](Self::add) takes it. The root and unknown nodes are left alone.
    pub fn believe(&mut self, node: usize, log_prob: f32) {
        if let Some(node) = self.nodes.get_mut(node).filter(|_| node != Self::ROOT) {
            node.log_prob = belief(log_prob);
        }
    }

    /// Chances of the guesses to be visited, highest first: a tree built with `n + 1` rows verifies the first `n`.
    ///
    /// If each belief is right, their sum is the number of guesses that a pass accepts on average.
    pub fn chances(&self) -> Vec<f32> {
        let mut chances: Vec<f32> = self.path_log_probs().split_off(1).into_iter().map(f32::exp).collect();
        chances.sort_by(|a, b| b.total_cmp(a));
        chances
    }

    /// Builds `rows` rows at most, the root included, whatever budget [`build`](Self::build) is given.
    pub fn limit(&mut self, rows: usize) {
        self.limit = rows.max(1);
    }

    /// The tree of the `budget` nodes most likely to be visited, in preorder; the root is one of them, always.
    ///
    /// A node is visited if every token on its path is picked, so its log-probabilities add up along the path. No node
    /// outweighs its parent, hence the best nodes form a tree; of equals the earlier stays.
    pub fn build(&self, budget: usize) -> DraftTree {
        let budget = budget.max(1).min(self.limit);
        let kept = self.best(budget);
        let mut tree = DraftTree::with_capacity(self.start, budget.min(self.nodes.len()));
        let mut pending = vec![(Self::ROOT, -1)];
        while let Some((index, parent)) = pending.pop() {
            let node = &self.nodes[index];
            let row = tree.push(node.token, parent, node.depth);
            pending.extend(node.children.iter().rev().filter(|child| kept[**child]).map(|&child| (child, row)));
        }
        tree.close_subtrees();
        tree
    }

    /// For each node, whether it is among the `budget` likeliest.
    fn best(&self, budget: usize) -> Vec<bool> {
        let path_log_probs = self.path_log_probs();
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_by(|&a, &b| path_log_probs[b].total_cmp(&path_log_probs[a]));
        let mut kept = vec![false; self.nodes.len()];
        order.into_iter().take(budget).for_each(|node| kept[node] = true);
        kept
    }

    /// For each node, the logarithm of its chance to be visited.
    fn path_log_probs(&self) -> Vec<f32> {
        let mut path_log_probs: Vec<f32> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let before = path_log_probs.get(node.parent).copied().unwrap_or(0.0);
            path_log_probs.push(before + node.log_prob);
        }
        path_log_probs
    }
}

/// A belief as a tree keeps it: a number, at most 0.
fn belief(log_prob: f32) -> f32 {
    if log_prob.is_nan() { f32::NEG_INFINITY } else { log_prob.min(0.0) }
}

/// A finished tree: the rows of one verification pass, in depth-first preorder.
///
/// # Panics
///
/// Methods that take a row panic if the tree has no such row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftTree {
    start: usize,
    tokens: Vec<TokenId>,
    parents: Vec<i32>,
    depths: Vec<u32>,
    ends: Vec<u32>,
}

/// The rows of a tree, as a forward pass takes them. All slices have one entry per row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeRows<'a> {
    /// Position of row 0 in the sequence, which is the number of tokens committed before it.
    pub start: usize,
    /// Token of each row; row 0 is the last token of the text.
    pub tokens: &'a [TokenId],
    /// Row that each row continues; −1 for row 0, which continues the committed state. Parents come first.
    pub parents: &'a [i32],
    /// Distance from row 0. A row's position in the sequence is `start + depth`, never its index.
    pub depths: &'a [u32],
    /// Last row of the subtree below each row, so that `j` is `i` or an ancestor of it iff `j <= i <= ends[j]`.
    pub ends: &'a [u32],
}

impl TreeRows<'_> {
    /// Position of each row in the sequence.
    pub fn positions(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.depths.iter().map(|&depth| self.start + depth as usize)
    }
}

impl DraftTree {
    /// The row of the last token of the text, which is not committed yet.
    pub const ROOT: usize = 0;

    /// Position of the root in the sequence.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Number of rows, the root included.
    pub fn num_rows(&self) -> usize {
        self.tokens.len()
    }

    /// Token of a row.
    pub fn token(&self, row: usize) -> TokenId {
        self.tokens[row]
    }

    /// Distance of a row from the root.
    pub fn depth(&self, row: usize) -> usize {
        self.depths[row] as usize
    }

    /// The row that continues `row` with this token, if one was drafted.
    pub fn child(&self, row: usize, token: TokenId) -> Option<usize> {
        self.children(row).find(|&child| self.tokens[child] == token)
    }

    /// The rows that continue `row`.
    pub fn children(&self, row: usize) -> impl Iterator<Item = usize> + '_ {
        // In preorder the first child follows its parent, and each sibling the end of the one before it.
        let end = self.ends[row] as usize;
        let within = move |child: usize| (child <= end).then_some(child);
        std::iter::successors(within(row + 1), move |&child| within(self.ends[child] as usize + 1))
    }

    /// The rows as a forward pass takes them.
    pub fn rows(&self) -> TreeRows<'_> {
        let Self { start, tokens, parents, depths, ends } = self;
        TreeRows { start: *start, tokens, parents, depths, ends }
    }

    fn with_capacity(start: usize, rows: usize) -> Self {
        Self {
            start,
            tokens: Vec::with_capacity(rows),
            parents: Vec::with_capacity(rows),
            depths: Vec::with_capacity(rows),
            ends: Vec::with_capacity(rows),
        }
    }

    /// Appends a row whose subtree is itself so far, and returns it.
    fn push(&mut self, token: TokenId, parent: i32, depth: u32) -> i32 {
        let row = self.tokens.len() as u32;
        self.tokens.push(token);
        self.parents.push(parent);
        self.depths.push(depth);
        self.ends.push(row);
        row as i32
    }

    /// Stretches every row's interval over its descendants.
    fn close_subtrees(&mut self) {
        for row in (1..self.tokens.len()).rev() {
            let parent = self.parents[row] as usize;
            self.ends[parent] = self.ends[parent].max(self.ends[row]);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rows_come_in_preorder_with_subtree_intervals() {
        let mut builder = TreeBuilder::new(9, 100, 8, 50);
        let a = builder.add(TreeBuilder::ROOT, 1, -0.1).unwrap();
        let b = builder.add(TreeBuilder::ROOT, 2, -0.2).unwrap();
        builder.add(b, 4, -0.1).unwrap();
        builder.add(a, 3, -0.1).unwrap();
        let tree = builder.build(64);
        let rows = tree.rows();
        assert_eq!(rows.tokens, [9, 1, 3, 2, 4]);
        assert_eq!(rows.parents, [-1, 0, 1, 0, 3]);
        assert_eq!(rows.depths, [0, 1, 2, 1, 2]);
        assert_eq!(rows.ends, [4, 2, 2, 4, 4]);
        assert_eq!(rows.positions().collect::<Vec<_>>(), [100, 101, 102, 101, 102]);
        assert_eq!(tree.children(DraftTree::ROOT).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(tree.child(3, 4), Some(4));
        assert_eq!(tree.child(1, 4), None);
    }

    #[test]
    fn a_token_proposed_twice_is_one_node_with_the_higher_belief() {
        let mut builder = TreeBuilder::new(0, 0, 8, 50);
        let first = builder.add(TreeBuilder::ROOT, 5, -3.0);
        builder.add(TreeBuilder::ROOT, 6, -1.0);
        assert_eq!(builder.add(TreeBuilder::ROOT, 5, -0.5), first);
        assert_eq!(builder.num_nodes(), 3);
        assert_eq!(builder.build(2).rows().tokens, [0, 5]);
    }

    #[test]
    fn what_cannot_be_verified_is_not_added() {
        let mut builder = TreeBuilder::new(0, 0, 2, 50);
        assert_eq!(builder.add(TreeBuilder::ROOT, 50, 0.0), None);
        assert_eq!(builder.add(17, 1, 0.0), None);
        let last = builder.add_branch(TreeBuilder::ROOT, &[1, 2, 3], 0.0);
        assert_eq!((last, builder.num_nodes()), (2, 3));
        let mut flat = TreeBuilder::new(0, 0, 1, u32::MAX as usize);
        let added = (0..10_000).filter_map(|token| flat.add(TreeBuilder::ROOT, token, 0.0)).count();
        assert_eq!((added + 1, flat.num_nodes()), (MAX_NODES, MAX_NODES));
    }

    #[test]
    fn the_root_is_always_kept() {
        let mut builder = TreeBuilder::new(3, 0, 4, 50);
        builder.add(TreeBuilder::ROOT, 1, f32::NAN);
        assert_eq!(builder.build(0).rows().tokens, [3]);
        assert_eq!(builder.build(1).rows().tokens, [3]);
        assert_eq!(builder.build(2).rows().tokens, [3, 1]);
    }

    #[test]
    fn chances_multiply_along_a_path_and_come_sorted() {
        let mut builder = TreeBuilder::new(0, 0, 8, 50);
        let a = builder.add(TreeBuilder::ROOT, 1, 0.5f32.ln()).unwrap();
        let b = builder.add(a, 2, 0.5f32.ln()).unwrap();
        let c = builder.add(TreeBuilder::ROOT, 3, 0.25f32.ln()).unwrap();
        builder.believe(c, 0.375f32.ln());
        builder.believe(TreeBuilder::ROOT, -9.0);
        assert_eq!(
            builder.chances().iter().map(|chance| (chance * 1000.0).round()).collect::<Vec<_>>(),
            [500.0, 375.0, 250.0]
        );
        assert_eq!(builder.guess(b).map(|guess| (guess.token, guess.parent, guess.depth)), Some((2, a, 2)));
        assert_eq!((builder.guess(TreeBuilder::ROOT), builder.guess(9)), (None, None));
        builder.limit(3);
        assert_eq!(builder.build(64).rows().tokens, [0, 1, 3]);
        builder.limit(0);
        assert_eq!(builder.build(64).rows().tokens, [0]);
    }

    /// A builder grown from random (parent, token, belief) triples.
    fn grown(steps: &[(usize, u32, f32)]) -> TreeBuilder {
        let mut builder = TreeBuilder::new(0, 10, 12, 6);
        for &(parent, token, log_prob) in steps {
            builder.add(parent % builder.num_nodes(), token, log_prob);
        }
        builder
    }

    fn path(tree: &DraftTree, mut row: usize) -> Vec<TokenId> {
        let mut tokens = vec![tree.token(row)];
        while let Ok(parent) = usize::try_from(tree.rows().parents[row]) {
            row = parent;
            tokens.push(tree.token(row));
        }
        tokens.reverse();
        tokens
    }

    proptest! {
        #[test]
        fn every_built_tree_is_well_formed(
            steps in prop::collection::vec((any::<usize>(), 0u32..6, -4.0f32..0.0), 0..80),
            budget in 1usize..70,
        ) {
            let builder = grown(&steps);
            let tree = builder.build(budget);
            let rows = tree.rows();
            prop_assert_eq!(tree.num_rows(), budget.min(builder.num_nodes()));
            prop_assert_eq!(rows.parents[0], -1);
            let mut paths = std::collections::HashSet::new();
            for row in 0..tree.num_rows() {
                let path = path(&tree, row);
                prop_assert_eq!(tree.depth(row) + 1, path.len());
                for (other, &end) in rows.ends.iter().enumerate() {
                    let inside = other <= row && row <= end as usize;
                    let ancestor = path.starts_with(&self::path(&tree, other));
                    prop_assert_eq!(inside, ancestor, "rows {} and {}", other, row);
                }
                for child in tree.children(row) {
                    prop_assert_eq!(rows.parents[child], row as i32);
                    prop_assert_eq!(tree.child(row, tree.token(child)), Some(child));
                }
                prop_assert!(paths.insert(path), "a path occurs twice");
            }
        }

        /// A smaller budget keeps a part of what a larger one keeps: pruning follows one order.
        #[test]
        fn budgets_nest(
            steps in prop::collection::vec((any::<usize>(), 0u32..6, -4.0f32..0.0), 0..60),
            budget in 1usize..60,
        ) {
            let builder = grown(&steps);
            let paths = |budget| {
                let tree = builder.build(budget);
                (0..tree.num_rows()).map(|row| path(&tree, row)).collect::<std::collections::HashSet<_>>()
            };
            prop_assert!(paths(budget).is_subset(&paths(budget + 1)));
        }
    }
}
