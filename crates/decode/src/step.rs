//! The loop of generation: draft, verify, accept, commit.

use crate::{Constraint, DecodeError, Drafter, Generation, StopReason, TokenId, TreeRows};

/// The model whose text is written, with the state of one sequence.
///
/// Between commits the state stands for exactly the committed tokens; `verify` only adds candidate rows beside it.
pub trait Target {
    /// What a pass can meet: a lost device, a full memory.
    type Error: std::error::Error + 'static;

    /// Runs the rows of a tree in one pass. Candidate rows of an earlier pass that were not committed are forgotten.
    ///
    /// # Errors
    ///
    /// Whatever the pass meets; the committed state is as before.
    fn verify(&mut self, rows: TreeRows<'_>) -> Result<(), Self::Error>;

    /// Logits for the token after a row of the last pass, `[vocab_size]`. They stay until the next pass, commits or not.
    fn logits(&self, row: usize) -> &[f32];

    /// Appends rows of the last pass to the state and forgets the others. `rows` is a path, root first.
    ///
    /// # Errors
    ///
    /// Whatever the commit meets; the sequence is lost.
    fn commit(&mut self, rows: &[usize]) -> Result<(), Self::Error>;
}

/// What one step brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// New tokens of the text, at least one. The last is not committed: it is the root of the next tree.
    pub tokens: Vec<TokenId>,
    /// Rows of the pass to commit, root first: token `i` was drawn from the logits of row `rows[i]`. Empty if no pass
    /// was made.
    pub rows: Vec<usize>,
    /// Why the text ends with the last token, if it does.
    pub stop: Option<StopReason>,
}

/// Why a step failed: in its logic or in the target's.
///
/// The state may then hold fewer rows than the text: drop both.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StepError<E: std::error::Error + 'static> {
    /// The request, its logits or the order of calls.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The target or its drafter.
    #[error(transparent)]
    Target(E),
}

impl Generation {
    /// Writes the next tokens: as many as were drafted rightly, and one more.
    ///
    /// # Errors
    ///
    /// [`StepError::Target`] for the target's and the drafter's own; [`StepError::Decode`] for logits that no token can
    /// be drawn from, and for a generation that has stopped.
    pub fn step<T: Target, D: Drafter<T> + ?Sized>(
        &mut self,
        target: &mut T,
        drafter: &mut D,
        constraint: &mut dyn Constraint,
    ) -> Result<Step, StepError<T::Error>> {
        let tree = self.draft(target, drafter, constraint)?;
        target.verify(tree.rows()).map_err(StepError::Target)?;
        let step = self.accept(&tree, |row| target.logits(row), constraint)?;
        target.commit(&step.rows).map_err(StepError::Target)?;
        drafter.observe(target, &step).map_err(StepError::Target)?;
        Ok(step)
    }
}
