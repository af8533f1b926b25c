//! Residual addition followed by normalization.

use super::check;
use crate::{KernelError, Param, Tensor};

/// Adds a block's output to the residual stream and normalizes the sum for the next block.
///
/// ```text
/// sum = x + y        out = sum / √(mean(sum²) + eps) · w
/// ```
#[derive(Clone, Debug)]
pub struct AddRmsNorm {
    /// Residual stream: `[rows, width]`, f32.
    pub x: Tensor,
    /// Output of a block: `[rows, width]`, f32.
    pub y: Tensor,
    /// `[width]`.
    pub weight: Param,
    /// Added to the mean square.
    pub eps: f32,
    /// New residual stream: `[rows, width]`, f32.
    pub sum: Tensor,
    /// Normalized sum: `[rows, width]`, f32.
    pub out: Tensor,
}

impl AddRmsNorm {
    pub(crate) fn check(&self) -> Result<(), KernelError> {
        check::activation("add_rms_norm", "x", self.x, self.weight.len)?;
        check::activation("add_rms_norm", "y", self.y, self.weight.len)
    }
}
