//! The model as the loop of generation sees it.

use pleach_decode::{Target, TreeRows};
use pleach_kernels::{Rows, SequenceRows};
use pleach_model::{ModelError, Runner, Sequence};

use crate::costly::CostlyRunner;
use crate::turns::Turn;

/// What runs passes, for one session at a time.
#[derive(Debug)]
pub(crate) struct Runners {
    pub(crate) target: Runner,
    /// What drafts with a model of its own, if anything does.
    pub(crate) costly: Option<CostlyRunner>,
}

/// One sequence and the runner that it has for the length of one step.
///
/// Candidate rows live in the runner from `verify` to `commit`, so nobody else may run a pass in between.
pub(crate) struct SequenceTarget<'a> {
    runners: Turn<'a, Runners>,
    sequence: &'a mut Sequence,
}

impl<'a> SequenceTarget<'a> {
    pub(crate) fn new(runners: Turn<'a, Runners>, sequence: &'a mut Sequence) -> Self {
        Self { runners, sequence }
    }

    /// The runner with the results of the last pass.
    pub(crate) fn runner(&self) -> &Runner {
        &self.runners.target
    }

    /// What drafts with a model of its own, if anything does.
    pub(crate) fn costly(&mut self) -> Option<&mut CostlyRunner> {
        self.runners.costly.as_mut()
    }

    /// Tokens that the sequence stands for.
    pub(crate) fn committed(&self) -> usize {
        self.sequence.len()
    }

    /// Width of the residual stream.
    pub(crate) fn hidden_size(&self) -> usize {
        self.runner().model().config().hidden_size
    }
}

impl Target for SequenceTarget<'_> {
    type Error = ModelError;

    fn verify(&mut self, tree: TreeRows<'_>) -> Result<(), ModelError> {
        let parents: Vec<Option<usize>> = tree.parents.iter().map(|&parent| usize::try_from(parent).ok()).collect();
        let rows = Rows::new(&[SequenceRows::tree(tree.start, tree.tokens, &parents)])?;
        let all: Vec<usize> = (0..rows.len()).collect();
        self.runners.target.forward(&rows, &all, &[self.sequence])
    }

    fn logits(&self, row: usize) -> &[f32] {
        let runner = self.runner();
        let vocab_size = runner.model().config().vocab_size;
        let logits = runner.logits().expect("logits are asked for after a pass that gave them");
        &logits[row * vocab_size..][..vocab_size]
    }

    fn commit(&mut self, rows: &[usize]) -> Result<(), ModelError> {
        self.runners.target.commit(rows, self.sequence)
    }
}
