//! The model's own multi-token-prediction head as a drafter.

use pleach_decode::{DraftContext, Step, TokenId, TreeBuilder};
use pleach_kernels::{Rows, SequenceRows, StatePart};
use pleach_model::{ModelError, MtpRunner, MtpSequence, Runner};

use crate::chain::{self, Chain};
use crate::pending::{Continuity, Pending};
use crate::target::SequenceTarget;

/// Drafts a chain with siblings: each pass of the head guesses the token after the next.
///
/// The head has keys and values of its own, one row per committed token. Rows are not run as tokens are committed but when
/// the next draft needs them, so a step that is not drafted costs a copy of hidden states and nothing more. Only the
/// last few hundred are kept: after a long stretch without a draft the head starts anew with these. Rotary positions
/// are relative, so it may count from any place.
#[derive(Debug, Default)]
pub(crate) struct MtpDraft {
    sequence: Option<MtpSequence>,
    pending: Pending,
}

/// The head at the end of its guesses. What it makes of them stays in a copy of its memory.
struct Guessing<'a> {
    runner: &'a mut MtpRunner,
    guesses: MtpSequence,
}

impl MtpDraft {
    /// A copy that later drafts do not change.
    pub(crate) fn snapshot(&self) -> Self {
        Self { sequence: self.sequence.as_ref().map(MtpSequence::snapshot), pending: self.pending.clone() }
    }

    /// The pieces of its memory, some of which copies share, and the bytes of what no copy shares.
    pub(crate) fn memory(&self) -> (Vec<StatePart>, usize) {
        (self.sequence.as_ref().map(MtpSequence::parts).unwrap_or_default(), self.pending.size_bytes())
    }

    /// Takes in the hidden states of tokens that were committed from position `start` on: `[rows, hidden_size]`.
    pub(crate) fn read(&mut self, start: usize, hidden: &[f32], hidden_size: usize) {
        if self.pending.push(start, hidden, hidden_size) == Continuity::Broken {
            self.sequence = None;
        }
    }

    /// Goes on with the first `len` tokens of what was read, or forgets everything if it does not end there. A row that was
    /// run pairs its token with the next, so what was run is of these tokens as well.
    pub(crate) fn resume(&mut self, len: usize) {
        if self.pending.end() != len {
            *self = Self::default();
        }
    }

    /// Runs the head over what is pending. Its logits are then those for the token after the text's last.
    fn catch_up(&mut self, runner: &mut MtpRunner, text: &[TokenId]) -> Result<(), ModelError> {
        let sequence = match &mut self.sequence {
            Some(sequence) => sequence,
            none => none.insert(runner.new_sequence()?),
        };
        let Pending { start, num_rows, values } = &self.pending;
        // The row of a token pairs its hidden state with the token that follows.
        let tokens = &text[*start + 1..][..*num_rows];
        let rows = Rows::new(&[SequenceRows::chain(sequence.len(), tokens)])?;
        runner.forward(&rows, values, &[*num_rows - 1], &[sequence])?;
        runner.commit(&(0..*num_rows).collect::<Vec<_>>(), sequence)?;
        self.pending.clear();
        Ok(())
    }

    /// Grows the tree after the text.
    pub(crate) fn draft(
        &mut self,
        runner: &mut MtpRunner,
        context: &DraftContext<'_>,
        tree: &mut TreeBuilder,
    ) -> Result<(), ModelError> {
        let text = context.history.tokens();
        // After a prompt that was known already there are no hidden states until the first step.
        if self.pending.num_rows == 0 || self.pending.end() + 1 != text.len() {
            return Ok(());
        }
        self.catch_up(runner, text)?;
        let Some(sequence) = &self.sequence else { return Ok(()) };
        chain::draft(&mut Guessing { runner, guesses: sequence.snapshot() }, context, tree)
    }

    /// Takes in the hidden states of the rows that a step committed.
    pub(crate) fn observe(&mut self, target: &SequenceTarget<'_>, step: &Step) -> Result<(), ModelError> {
        let start = target.committed() - step.rows.len();
        let hidden_size = target.hidden_size();
        let hidden = hidden_of(target.runner())?;
        for (position, &row) in (start..).zip(&step.rows) {
            self.read(position, &hidden[target.row(row) * hidden_size..][..hidden_size], hidden_size);
        }
        Ok(())
    }
}

impl Chain for Guessing<'_> {
    fn logits(&self) -> Result<&[f32], ModelError> {
        self.runner.logits()
    }

    fn follow(&mut self, token: TokenId) -> Result<(), ModelError> {
        // For guesses the head's own hidden state takes the place of the model's.
        let hidden = self.runner.last_hidden()?.to_vec();
        let tokens = [token];
        let rows = Rows::new(&[SequenceRows::chain(self.guesses.len(), &tokens)])?;
        self.runner.forward(&rows, &hidden, &[0], &[&self.guesses])?;
        self.runner.commit(&[0], &mut self.guesses)
    }
}

/// Hidden states of the last pass after the final norm, as the head reads them: `[rows, hidden_size]`.
///
/// # Errors
/// [`ModelError::NoTap`] if the runner keeps none.
pub(crate) fn hidden_of(runner: &Runner) -> Result<&[f32], ModelError> {
    runner.tap(0)
}
