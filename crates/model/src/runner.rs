//! Running rows through a model.

use std::fmt;
use std::sync::Arc;

use pleach_kernels::{PassProfile, Rows, State, Tensor};

use crate::model::Outputs;
use crate::pass_cache::{PassCache, RunOf};
use crate::state::Sequence;
use crate::{Model, ModelError};

/// A point of the residual stream that a runner keeps for all rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tap {
    /// The embedding.
    Embedding,
    /// The stream after block `i`, before any norm.
    Layer(usize),
    /// After the final norm: what the head reads.
    Final,
}

impl Tap {
    /// `streams[0]` is the embedding, `streams[i + 1]` the stream after block `i`.
    pub(crate) fn pick(self, streams: &[Tensor], last: Tensor) -> Tensor {
        match self {
            Self::Embedding => streams[0],
            Self::Layer(layer) => streams[layer + 1],
            Self::Final => last,
        }
    }
}

/// Runs passes of one model: holds the recorded passes and the candidate rows of the last one.
///
/// Several runners may share a model, each for one thread.
pub struct Runner {
    model: Arc<Model>,
    taps: Vec<Tap>,
    passes: PassCache<Outputs>,
}

impl Runner {
    /// A runner that keeps `taps` of every pass.
    ///
    /// # Errors
    /// [`ModelError::NoTap`] if a tap names a layer that the model does not have.
    pub fn with_taps(model: Arc<Model>, taps: &[Tap]) -> Result<Self, ModelError> {
        let available = model.blocks.len();
        for tap in taps {
            if let Tap::Layer(found) = *tap
                && found >= available
            {
                return Err(ModelError::NoTap { found, available });
            }
        }
        Ok(Self { model, taps: taps.to_vec(), passes: PassCache::new() })
    }

    /// A runner that keeps logits only.
    pub fn new(model: Arc<Model>) -> Self {
        Self { model, taps: Vec::new(), passes: PassCache::new() }
    }

    /// The model that it runs.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Runs `rows`; `sequences[s]` is the memory of the rows' sequence `s` and stays as it is.
    ///
    /// `outputs` are the rows whose logits are wanted, in that order.
    ///
    /// # Errors
    /// Rows, tokens or sequences that do not fit the model; nothing is changed then.
    pub fn forward(&mut self, rows: &Rows, outputs: &[usize], sequences: &[&Sequence]) -> Result<(), ModelError> {
        self.run(rows, outputs, sequences, None)
    }

    /// Does what [`forward`](Self::forward) does, and adds to `profile` what each op took.
    ///
    /// # Errors
    /// As `forward`.
    pub fn forward_profiled(
        &mut self,
        rows: &Rows,
        outputs: &[usize],
        sequences: &[&Sequence],
        profile: &mut PassProfile,
    ) -> Result<(), ModelError> {
        self.run(rows, outputs, sequences, Some(profile))
    }

    fn run(
        &mut self,
        rows: &Rows,
        outputs: &[usize],
        sequences: &[&Sequence],
        profile: Option<&mut PassProfile>,
    ) -> Result<(), ModelError> {
        let states: Vec<&dyn State> = sequences.iter().map(|sequence| sequence.state()).collect();
        let run = RunOf { rows, outputs, states: &states, profile };
        let (model, taps) = (&self.model, &self.taps);
        self.passes.run(&*model.device, run, |ops| model.record(ops, taps), |_| Vec::new())
    }

    /// Logits of the last pass: `[outputs, vocab_size]`. They stay until the next pass, whatever is committed.
    ///
    /// # Errors
    /// [`ModelError::NotRun`] if no pass was run.
    pub fn logits(&self) -> Result<&[f32], ModelError> {
        let (pass, outputs) = self.passes.last()?;
        Ok(pass.read(outputs.logits)?)
    }

    /// Values of the runner's tap number `tap` in the last pass: `[rows, hidden_size]`.
    ///
    /// # Errors
    /// [`ModelError::NotRun`] if no pass was run, [`ModelError::NoTap`] if there is no such tap.
    pub fn tap(&self, tap: usize) -> Result<&[f32], ModelError> {
        let available = self.taps.len();
        let (pass, outputs) = self.passes.last()?;
        let tensor = *outputs.taps.get(tap).ok_or(ModelError::NoTap { found: tap, available })?;
        Ok(pass.read(tensor)?)
    }

    /// Appends the rows `path` of the last pass, root first, to the memory of their sequence.
    ///
    /// # Errors
    /// A path that is no chain from the sequence's end; nothing is changed then.
    pub fn commit(&mut self, path: &[usize], sequence: &mut Sequence) -> Result<(), ModelError> {
        Ok(self.passes.last_mut()?.commit(path, &mut *sequence.state)?)
    }
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").field("taps", &self.taps).finish_non_exhaustive()
    }
}
