//! The multi-token-prediction head of Qwen3.5: one block that guesses the token after the next.

use std::fmt;
use std::sync::Arc;

use pleach_kernels::{KernelError, Ops, Rows, State, StateLayout, Tensor, Weight};

use crate::block::{Block, Residual, Wanted};
use crate::linear::{Linear, RmsNorm};
use crate::pass_cache::{PassCache, RunOf};
use crate::state::MtpSequence;
use crate::{Model, ModelError};

/// ```text
/// x = [ norm_e(embed(token after t)) ; norm_h(hidden of t) ] Wfcᵀ
/// hidden = norm(block(x))        logits of the token after that = hidden Wheadᵀ
/// ```
///
/// Embedding and output head are the model's own.
#[derive(Debug)]
pub(crate) struct MtpHead {
    pub(crate) pre_fc_norm_embedding: RmsNorm,
    pub(crate) pre_fc_norm_hidden: RmsNorm,
    pub(crate) fc: Linear,
    pub(crate) block: Block,
    pub(crate) norm: RmsNorm,
    pub(crate) layout: StateLayout,
}

/// Tensors of a recorded pass of the head.
#[derive(Clone, Copy, Debug)]
struct MtpTensors {
    /// `[rows, hidden_size]`, given by the caller.
    target_hidden: Tensor,
    /// `[rows, hidden_size]`, after the head's norm.
    hidden: Tensor,
    /// `[outputs, vocab_size]`.
    logits: Tensor,
}

impl MtpHead {
    fn record(&self, ops: &mut Ops, embed_tokens: &Weight, lm_head: &Linear) -> Result<MtpTensors, KernelError> {
        let embedded = ops.embed(embed_tokens)?;
        let target_hidden = ops.input(embed_tokens.columns);
        let (norm_e, norm_h) = (&self.pre_fc_norm_embedding, &self.pre_fc_norm_hidden);
        let embedded = ops.rms_norm(embedded, &norm_e.weight, norm_e.eps)?;
        let normed_hidden = ops.rms_norm(target_hidden, &norm_h.weight, norm_h.eps)?;
        let joined = ops.concat(embedded, normed_hidden)?;
        let [stream] = ops.linear(joined, [self.fc.parts()])?;

        let first = &self.block.input_layernorm;
        let normed = ops.rms_norm(stream, &first.weight, first.eps)?;
        let hidden = self.block.record(ops, Residual { stream, normed }, &self.norm, Wanted::Rows)?.normed;
        let wanted = ops.gather_outputs(hidden)?;
        let [logits] = ops.linear(wanted, [lm_head.parts()])?;
        ops.keep(hidden);
        ops.keep(logits);
        Ok(MtpTensors { target_hidden, hidden, logits })
    }
}

/// Runs the head of one model.
///
/// Row `t` of a sequence pairs the hidden state of token `t` with token `t + 1` and predicts token `t + 2`. For further
/// drafts the head's own hidden state takes the place of the model's.
pub struct MtpRunner {
    model: Arc<Model>,
    passes: PassCache<MtpTensors>,
}

impl MtpRunner {
    /// A runner for the head of `model`.
    ///
    /// # Errors
    /// [`ModelError::NoMtpHead`] if there is none.
    pub fn new(model: Arc<Model>) -> Result<Self, ModelError> {
        match model.has_mtp() {
            true => Ok(Self { model, passes: PassCache::new() }),
            false => Err(ModelError::NoMtpHead),
        }
    }

    /// The head's memory for a new, empty sequence.
    ///
    /// # Errors
    /// What the device says when its memory is full.
    pub fn new_sequence(&self) -> Result<MtpSequence, ModelError> {
        self.model.new_mtp_sequence()
    }

    /// Runs `rows`, whose tokens are those that follow; `hidden` holds the state of each row: `[rows, hidden_size]`,
    /// from [`Tap::Final`](crate::Tap) or from [`hidden`](Self::hidden).
    ///
    /// # Errors
    /// Rows, tokens or values that do not fit the head; nothing is changed then.
    pub fn forward(
        &mut self,
        rows: &Rows,
        hidden: &[f32],
        outputs: &[usize],
        sequences: &[&MtpSequence],
    ) -> Result<(), ModelError> {
        let head = self.model.mtp.as_ref().ok_or(ModelError::NoMtpHead)?;
        let model = &self.model;
        let states: Vec<&dyn State> = sequences.iter().map(|sequence| sequence.0.state()).collect();
        let run = RunOf { rows, outputs, states: &states, profile: None };
        let record = |ops: &mut Ops| head.record(ops, &model.embed_tokens, &model.lm_head);
        self.passes.run(&*model.device, run, record, |tensors| vec![(tensors.target_hidden, hidden)])
    }

    /// Logits of the last pass: `[outputs, vocab_size]`.
    ///
    /// # Errors
    /// [`ModelError::NotRun`] if no pass was run.
    pub fn logits(&self) -> Result<&[f32], ModelError> {
        let (pass, tensors) = self.passes.last()?;
        Ok(pass.read(tensors.logits)?)
    }

    /// Hidden states of the last pass after the head's norm: `[rows, hidden_size]`.
    ///
    /// # Errors
    /// [`ModelError::NotRun`] if no pass was run.
    pub fn hidden(&self) -> Result<&[f32], ModelError> {
        let (pass, tensors) = self.passes.last()?;
        Ok(pass.read(tensors.hidden)?)
    }

    /// [`hidden`](Self::hidden) of the last pass's last row: `[hidden_size]`.
    ///
    /// # Errors
    /// [`ModelError::NotRun`] if no pass was run.
    pub fn last_hidden(&self) -> Result<&[f32], ModelError> {
        let hidden = self.hidden()?;
        Ok(&hidden[hidden.len() - self.model.config.hidden_size..])
    }

    /// Appends the rows `path` of the last pass to the head's memory.
    ///
    /// # Errors
    /// A path that is no chain from the sequence's end; nothing is changed then.
    pub fn commit(&mut self, path: &[usize], sequence: &mut MtpSequence) -> Result<(), ModelError> {
        Ok(self.passes.last_mut()?.commit(path, &mut *sequence.0.state)?)
    }
}

impl fmt::Debug for MtpRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MtpRunner").finish_non_exhaustive()
    }
}
