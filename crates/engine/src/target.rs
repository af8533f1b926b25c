//! The model as the loop of generation sees it.

use pleach_decode::{Target, TreeRows};
use pleach_kernels::{Rows, SequenceRows};
use pleach_model::{ModelError, Runner, Sequence};

use crate::costly::CostlyRunner;

/// What runs passes, for one session at a time.
#[derive(Debug)]
pub(crate) struct Runners {
    pub(crate) target: Runner,
    /// What drafts with a model of its own, if anything does.
    pub(crate) costly: Option<CostlyRunner>,
}

/// One sequence, the runner of the pass that it is in, and where its rows lie there.
///
/// Candidate rows live in the runner from `verify` to `commit`, so nobody else may run a pass in between.
pub(crate) struct SequenceTarget<'a> {
    runners: &'a mut Runners,
    sequence: &'a mut Sequence,
    /// Its first row among those of the pass, which is also the first of its rows of logits.
    first_row: usize,
}

impl<'a> SequenceTarget<'a> {
    /// A sequence in a pass of its own.
    pub(crate) fn new(runners: &'a mut Runners, sequence: &'a mut Sequence) -> Self {
        Self::in_company(runners, sequence, 0)
    }

    /// A sequence whose rows start at `first_row` of a pass with others.
    pub(crate) fn in_company(runners: &'a mut Runners, sequence: &'a mut Sequence, first_row: usize) -> Self {
        Self { runners, sequence, first_row }
    }

    /// Place of one of its rows among those of the pass.
    pub(crate) fn row(&self, row: usize) -> usize {
        self.first_row + row
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
        let parents = parents(tree);
        let rows = Rows::new(&[SequenceRows::tree(tree.start, tree.tokens, &parents)])?;
        let all: Vec<usize> = (0..rows.len()).collect();
        self.runners.target.forward(&rows, &all, &[self.sequence])
    }

    fn logits(&self, row: usize) -> &[f32] {
        let runner = self.runner();
        let vocab_size = runner.model().config().vocab_size;
        let logits = runner.logits().expect("logits are asked for after a pass that gave them");
        &logits[self.row(row) * vocab_size..][..vocab_size]
    }

    fn commit(&mut self, rows: &[usize]) -> Result<(), ModelError> {
        let path: Vec<usize> = rows.iter().map(|&row| self.row(row)).collect();
        self.runners.target.commit(&path, self.sequence)
    }
}

/// Row that each row of a tree continues, as passes take it.
pub(crate) fn parents(tree: TreeRows<'_>) -> Vec<Option<usize>> {
    tree.parents.iter().map(|&parent| usize::try_from(parent).ok()).collect()
}
