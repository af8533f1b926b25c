//! What drafting brought.

use crate::{Accepted, DraftTree};

/// Counts over the passes of a generation.
///
/// The token drawn from the prompt's own logits belongs to no pass and is not counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Verification passes.
    pub passes: u64,
    /// Tokens that came out of them.
    pub tokens: u64,
    /// Drafted rows by depth, from depth 1.
    pub drafted_by_depth: Vec<u64>,
    /// Accepted rows by depth, from depth 1; as long as `drafted_by_depth`.
    pub accepted_by_depth: Vec<u64>,
}

impl Stats {
    /// Drafted rows.
    pub fn drafted(&self) -> u64 {
        self.drafted_by_depth.iter().sum()
    }

    /// Drafted rows that were accepted.
    pub fn accepted(&self) -> u64 {
        self.accepted_by_depth.iter().sum()
    }

    /// Mean tokens per pass, 1 without drafting; `None` before the first pass.
    pub fn tokens_per_pass(&self) -> Option<f64> {
        (self.passes > 0).then(|| self.tokens as f64 / self.passes as f64)
    }

    /// Counts one pass.
    pub(crate) fn record(&mut self, tree: &DraftTree, accepted: &Accepted) {
        self.passes += 1;
        self.tokens += accepted.rows.len() as u64;
        let deepest = (1..tree.num_rows()).map(|row| tree.depth(row)).max().unwrap_or(0);
        for by_depth in [&mut self.drafted_by_depth, &mut self.accepted_by_depth] {
            by_depth.resize(by_depth.len().max(deepest), 0);
        }
        (1..tree.num_rows()).for_each(|row| self.drafted_by_depth[tree.depth(row) - 1] += 1);
        accepted.rows[1..].iter().for_each(|&row| self.accepted_by_depth[tree.depth(row) - 1] += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TreeBuilder;

    #[test]
    fn counts_rows_by_depth() {
        let mut builder = TreeBuilder::new(0, 0, 8, 10);
        builder.add_branch(TreeBuilder::ROOT, &[1, 2], 0.0);
        builder.add_branch(TreeBuilder::ROOT, &[3], 0.0);
        let mut stats = Stats::default();
        assert_eq!(stats.tokens_per_pass(), None);
        stats.record(&builder.build(8), &Accepted { rows: vec![0, 1], next: 5, stop: None });
        stats.record(&builder.build(1), &Accepted { rows: vec![0], next: 5, stop: None });
        assert_eq!(stats.drafted_by_depth, [2, 1]);
        assert_eq!(stats.accepted_by_depth, [1, 0]);
        assert_eq!((stats.drafted(), stats.accepted()), (3, 1));
        assert_eq!(stats.tokens_per_pass(), Some(1.5));
    }
}
