//! The normalization at the end of a DeltaNet layer.

use super::check;
use crate::{KernelError, Param, Tensor};

/// Normalization of each head, then a SiLU gate.
///
/// ```text
/// out = x / √(mean(x²) + eps) · w · silu(gate)
/// ```
#[derive(Clone, Debug)]
pub struct GatedRmsNorm {
    /// `[rows, heads · head_dim]`, f32.
    pub x: Tensor,
    /// `[rows, heads · head_dim]`, f32.
    pub gate: Tensor,
    /// `[head_dim]`.
    pub weight: Param,
    /// Added to the mean square of a head.
    pub eps: f32,
    /// `[rows, heads · head_dim]`, f32.
    pub out: Tensor,
}

impl GatedRmsNorm {
    pub(crate) fn check(&self) -> Result<(), KernelError> {
        const OP: &str = "gated_rms_norm";
        let (width, head_dim) = (self.x.width, self.weight.len);
        check::activation(OP, "x", self.x, width)?;
        check::argument(OP, "x", width, head_dim > 0 && width % head_dim == 0, "whole heads of the weight's size")?;
        check::activation(OP, "gate", self.gate, width)
    }
}
