//! What a session remembers, and how much of it a new prompt can use.

use pleach_kernels::{Rows, SequenceRows};
use pleach_model::{Model, ModelError, Runner, Sequence};

use crate::target::{Runners, SequenceTarget};
use crate::turns::Turns;

/// The committed tokens of a session and the state that stands for exactly these.
///
/// A recurrent state cannot be shortened, so the only ways to use it again are to extend it and to go back to a copy.
/// One copy is kept: the end of the last prompt, for a prompt that is tried again or whose answer was edited.
#[derive(Debug)]
pub(crate) struct Prefix {
    sequence: Sequence,
    /// As many as the sequence has.
    tokens: Vec<u32>,
    /// Stands for the first of `tokens`.
    prompt_end: Option<PromptEnd>,
}

#[derive(Debug)]
struct PromptEnd {
    sequence: Sequence,
    /// After the prompt's last token: `[vocab_size]`.
    logits: Vec<f32>,
}

impl Prefix {
    pub(crate) fn new(model: &Model) -> Result<Self, ModelError> {
        Ok(Self { sequence: model.new_sequence()?, tokens: Vec::new(), prompt_end: None })
    }

    /// Committed tokens.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Committed tokens, in order.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Bytes of the state and of the copy, blocks that both share counted twice.
    pub(crate) fn size_bytes(&self) -> usize {
        self.sequence.size_bytes() + self.prompt_end.as_ref().map_or(0, |end| end.sequence.size_bytes())
    }

    /// Keeps as many tokens as stand at the front of `prompt`, and returns how many that are.
    ///
    /// If they are the whole prompt, [`prompt_logits`](Self::prompt_logits) has what comes after.
    pub(crate) fn reuse(&mut self, prompt: &[u32], model: &Model) -> Result<usize, ModelError> {
        let extends = prompt.len() > self.len() && prompt.starts_with(&self.tokens);
        let end = self.prompt_end.as_ref().filter(|end| prompt.starts_with(&self.tokens[..end.sequence.len()]));
        match end {
            _ if extends && self.len() > 0 => {}
            Some(end) => {
                self.sequence = end.sequence.snapshot();
                self.tokens.truncate(end.sequence.len());
            }
            None => *self = Self::new(model)?,
        }
        Ok(self.len())
    }

    /// What [`reuse`](Self::reuse) would return.
    pub(crate) fn usable(&self, prompt: &[u32]) -> usize {
        if self.len() > 0 && prompt.len() > self.len() && prompt.starts_with(&self.tokens) {
            return self.len();
        }
        let end = self.prompt_end.as_ref().map_or(0, |end| end.sequence.len());
        if prompt.starts_with(&self.tokens[..end]) { end } else { 0 }
    }

    /// Forgets everything: the state may be wrong.
    pub(crate) fn forget(&mut self) {
        self.tokens.clear();
        self.prompt_end = None;
    }

    /// Runs and commits the next tokens of a prompt.
    pub(crate) fn extend(&mut self, runner: &mut Runner, chunk: &[u32], place: Place) -> Result<(), ModelError> {
        let rows = Rows::new(&[SequenceRows::chain(self.len(), chunk)])?;
        let last = [chunk.len() - 1];
        let outputs: &[usize] = match place {
            Place::Inside => &[],
            Place::End => &last,
        };
        runner.forward(&rows, outputs, &[&self.sequence])?;
        let path: Vec<usize> = (0..chunk.len()).collect();
        runner.commit(&path, &mut self.sequence)?;
        self.tokens.extend_from_slice(chunk);
        if place == Place::End {
            self.prompt_end = Some(PromptEnd { logits: runner.logits()?.to_vec(), sequence: self.sequence.snapshot() });
        }
        Ok(())
    }

    /// Logits after the last committed token, if that is the end of a prompt: `[vocab_size]`.
    pub(crate) fn prompt_logits(&self) -> Option<&[f32]> {
        let end = self.prompt_end.as_ref().filter(|end| end.sequence.len() == self.len())?;
        Some(&end.logits)
    }

    /// The state as the loop of generation sees it, for one step.
    pub(crate) fn target<'a>(&'a mut self, runners: &'a Turns<Runners>) -> SequenceTarget<'a> {
        SequenceTarget::new(runners.wait(), &mut self.sequence)
    }

    /// Notes the tokens that a step committed.
    pub(crate) fn note(&mut self, committed: &[u32]) {
        self.tokens.extend_from_slice(committed);
        debug_assert_eq!(self.tokens.len(), self.sequence.len());
    }
}

/// Where a chunk lies in its prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// More of the prompt follows.
    Inside,
    /// The prompt ends with it.
    End,
}
