//! The model as the loop of generation sees it.

use pleach_decode::{Target, TreeRows};
use pleach_kernels::{Rows, SequenceRows};
use pleach_model::{ModelError, Runner, Sequence};

use crate::turns::Turn;

/// One sequence and the runner that it has for the length of one step.
///
/// Candidate rows live in the runner from `verify` to `commit`, so nobody else may run a pass in between.
pub(crate) struct SequenceTarget<'a> {
    runner: Turn<'a, Runner>,
    sequence: &'a mut Sequence,
}

impl<'a> SequenceTarget<'a> {
    pub(crate) fn new(runner: Turn<'a, Runner>, sequence: &'a mut Sequence) -> Self {
        Self { runner, sequence }
    }
}

impl Target for SequenceTarget<'_> {
    type Error = ModelError;

    fn verify(&mut self, tree: TreeRows<'_>) -> Result<(), ModelError> {
        let parents: Vec<Option<usize>> = tree.parents.iter().map(|&parent| usize::try_from(parent).ok()).collect();
        let rows = Rows::new(&[SequenceRows::tree(tree.start, tree.tokens, &parents)])?;
        let all: Vec<usize> = (0..rows.len()).collect();
        self.runner.forward(&rows, &all, &[self.sequence])
    }

    fn logits(&self, row: usize) -> &[f32] {
        let vocab_size = self.runner.model().config().vocab_size;
        let logits = self.runner.logits().expect("logits are asked for after a pass that gave them");
        &logits[row * vocab_size..][..vocab_size]
    }

    fn commit(&mut self, rows: &[usize]) -> Result<(), ModelError> {
        self.runner.commit(rows, self.sequence)
    }
}
