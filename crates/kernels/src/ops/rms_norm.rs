//! Root-mean-square normalization.

use super::check;
use crate::{KernelError, Param, Tensor};

/// Root-mean-square normalization of each row.
///
/// ```text
/// y = x / √(mean(x²) + eps) · w
/// ```
///
/// Sums in f32. Zero-centered weights are stored with the one already added. Source: arXiv:1910.07467.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    /// `[rows, width]`, f32.
    pub x: Tensor,
    /// `[width]`.
    pub weight: Param,
    /// Added to the mean square.
    pub eps: f32,
    /// `[rows, width]`, f32.
    pub out: Tensor,
}

impl RmsNorm {
    pub(crate) fn check(&self) -> Result<(), KernelError> {
        check::activation("rms_norm", "x", self.x, self.weight.len)
    }
}
