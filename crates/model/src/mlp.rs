//! The gated feed-forward block.

use pleach_kernels::{KernelError, Ops, Tensor};

use crate::linear::Linear;

/// `y = ( silu(x Wgateᵀ) · x Wupᵀ ) Wdownᵀ`.
#[derive(Debug)]
pub(crate) struct Mlp {
    pub(crate) gate_proj: Linear,
    pub(crate) up_proj: Linear,
    pub(crate) down_proj: Linear,
}

impl Mlp {
    /// `x` and the result: `[rows, hidden_size]`, f32.
    pub(crate) fn record(&self, ops: &mut Ops, x: Tensor) -> Result<Tensor, KernelError> {
        let [gate, up] = ops.linear(x, [self.gate_proj.parts(), self.up_proj.parts()])?;
        let hidden = ops.swiglu(gate, up)?;
        let [y] = ops.linear(hidden, [self.down_proj.parts()])?;
        Ok(y)
    }
}
