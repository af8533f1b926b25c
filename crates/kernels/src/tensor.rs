//! Handles of the tensors of one recording.

use crate::DType;

/// What the first dimension of a [`Tensor`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extent {
    /// The rows of the pass.
    Rows,
    /// The rows whose logits were asked for.
    Outputs,
}

/// An activation of a recorded pass: `[rows or outputs, width]`, row-major.
///
/// A handle is small and copied freely; it means something only inside the recording that made it. Heads and the like
/// are not part of it: the op that reads a tensor says how its `width` is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tensor {
    pub(crate) id: u32,
    /// What the first dimension counts.
    pub extent: Extent,
    /// Elements per row.
    pub width: usize,
    /// Element type.
    pub dtype: DType,
}

impl Tensor {
    pub(crate) fn index(self) -> usize {
        self.id as usize
    }
}
