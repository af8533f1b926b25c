//! Gated DeltaNet: linear attention with a decaying, corrected memory.

use pleach_kernels::ops::KeyHeadOrder;
use pleach_kernels::{DeltaHeads, DeltaLayout, KernelError, Ops, Param, Tensor};

use crate::linear::{Linear, RmsNorm};

/// ```text
/// qkv, z, a, b = x Wqkvᵀ, x Wzᵀ, x Waᵀ, x Wbᵀ
/// y = ( norm(delta_rule(silu(conv(qkv)), decay(a), sigmoid(b))) · silu(z) ) Woᵀ
/// ```
#[derive(Debug)]
pub(crate) struct DeltaNet {
    /// Which DeltaNet layer of the state.
    pub(crate) slot: usize,
    pub(crate) layout: DeltaLayout,
    pub(crate) key_head_order: KeyHeadOrder,
    pub(crate) in_proj_qkv: Linear,
    pub(crate) in_proj_z: Linear,
    pub(crate) in_proj_a: Linear,
    pub(crate) in_proj_b: Linear,
    pub(crate) conv1d: Param,
    /// `−exp(A_log)`.
    pub(crate) neg_exp_a: Param,
    pub(crate) dt_bias: Param,
    pub(crate) norm: RmsNorm,
    pub(crate) out_proj: Linear,
}

impl DeltaNet {
    /// `x` and the result: `[rows, hidden_size]`, f32.
    pub(crate) fn record(&self, ops: &mut Ops, x: Tensor) -> Result<Tensor, KernelError> {
        let projections = [&self.in_proj_qkv, &self.in_proj_z, &self.in_proj_a, &self.in_proj_b];
        let [qkv, z, a, b] = ops.linear(x, projections.map(Linear::parts))?;
        let qkv = ops.causal_conv(self.slot, self.layout, qkv, &self.conv1d)?;
        let (g, beta) = ops.delta_gates(a, b, &self.neg_exp_a, &self.dt_bias)?;
        let core = ops.gated_delta(&DeltaHeads {
            slot: self.slot,
            layout: self.layout,
            qkv,
            g,
            beta,
            key_head_order: self.key_head_order,
        })?;
        let gated = ops.gated_rms_norm(core, z, &self.norm.weight, self.norm.eps)?;
        let [y] = ops.linear(gated, [self.out_proj.parts()])?;
        Ok(y)
    }
}
