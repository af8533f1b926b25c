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
    /// Logits of the last pass: `[rows, vocab_size]`.
    logits: &'a mut Vec<f32>,
}

impl<'a> SequenceTarget<'a> {
    /// `logits` is a buffer that outlives the step, so that no step allocates.
    pub(crate) fn new(runner: Turn<'a, Runner>, sequence: &'a mut Sequence, logits: &'a mut Vec<f32>) -> Self {
        Self { runner, sequence, logits }
    }
}

impl Target for SequenceTarget<'_> {
    type Error = ModelError;

    fn verify(&mut self, tree: TreeRows<'_>) -> Result<(), ModelError> {
        let parents: Vec<Option<usize>> = tree.parents.iter().map(|&parent| usize::try_from(parent).ok()).collect();
        let rows = Rows::new(&[SequenceRows::tree(tree.start, tree.tokens, &parents)])?;
        let all: Vec<usize> = (0..rows.len()).collect();
        self.runner.forward(&rows, &all, &[self.sequence])?;
        self.logits.clear();
        self.logits.extend_from_slice(self.runner.logits()?);
        Ok(())
    }

    fn logits(&self, row: usize) -> &[f32] {
        let vocab_size = self.runner.model().config().vocab_size;
        &self.logits[row * vocab_size..][..vocab_size]
    }

    fn commit(&mut self, rows: &[usize]) -> Result<(), ModelError> {
        self.runner.commit(rows, self.sequence)
    }
}
