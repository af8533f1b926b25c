//! The gate of the feed-forward block.

use super::check;
use crate::{KernelError, Tensor};

/// `out = silu(gate) · up`, `silu(x) = x / (1 + exp(−x))`. Source: arXiv:2002.05202.
#[derive(Clone, Debug)]
pub struct SwiGlu {
    /// `[rows, intermediate_size]`, f32.
    pub gate: Tensor,
    /// `[rows, intermediate_size]`, f32.
    pub up: Tensor,
    /// `[rows, intermediate_size]`, f32.
    pub out: Tensor,
}

impl SwiGlu {
    pub(crate) fn check(&self) -> Result<(), KernelError> {
        check::activation("swiglu", "gate", self.gate, self.gate.width)?;
        check::activation("swiglu", "up", self.up, self.gate.width)
    }
}
