//! What can go wrong between a checkpoint and its logits.

use pleach_checkpoint::CheckpointError;
use pleach_kernels::KernelError;

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A tensor is missing or was asked for twice.
    #[error("cannot load the model's weights")]
    Checkpoint(#[from] CheckpointError),
    /// A device refused a weight, a recording or a run.
    #[error("the device refused an operation")]
    Kernel(#[from] KernelError),
    /// A tensor's weights cannot be used by a device.
    #[error("cannot load tensor `{name}`")]
    Tensor {
        /// Canonical name of the tensor.
        name: String,
        /// What the device said.
        source: KernelError,
    },
    /// A layer asks for settings that the config does not hold.
    #[error("layer {layer} is a {kind} layer, but the config has no {missing} settings")]
    Settings {
        /// Index of the layer.
        layer: usize,
        /// Kind of the layer.
        kind: &'static str,
        /// Which settings are missing.
        missing: &'static str,
    },
    /// Tensors that no part of the model asked for.
    #[error("{count} tensors were loaded by nothing, the first is `{first}`")]
    Unused {
        /// How many.
        count: usize,
        /// Name of the first.
        first: String,
    },
    /// More rows in one pass than any recording serves.
    #[error("a pass of {found} rows was asked for, at most {most} are possible: split the rows into chunks")]
    TooManyRows {
        /// Rows met.
        found: usize,
        /// Rows allowed.
        most: usize,
    },
    /// The model has no multi-token-prediction head.
    #[error("the model has no multi-token-prediction head")]
    NoMtpHead,
    /// A drafter was made for another model.
    #[error("the drafter does not fit: {field} is {found}, but the model has {expected}")]
    UnfitDrafter {
        /// What differs, as the drafter's config spells it.
        field: &'static str,
        /// The drafter's value.
        found: String,
        /// The model's.
        expected: String,
    },
    /// Results were asked for before any pass was run, or after one that failed.
    #[error("there are no results: no pass was run, or the last one failed; call `forward` first")]
    NotRun,
    /// A tap was asked for that the runner does not record.
    #[error("tap {found} does not exist, {available} are possible")]
    NoTap {
        /// Index met.
        found: usize,
        /// Taps recorded, or layers to tap.
        available: usize,
    },
}
