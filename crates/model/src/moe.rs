//! The mixture of experts: a few of many feed-forward blocks per row, and one that all rows pass.

use std::sync::Arc;

use pleach_kernels::ops::ExpertWeights;
use pleach_kernels::{KernelError, Ops, Tensor};

use crate::linear::Linear;
use crate::mlp::Mlp;

/// ```text
/// p = softmax(x Wgateᵀ)
/// y = Σ_{e in top_k} p_e / Σp · mlp_e(x)  +  sigmoid(x Wsharedᵀ) · shared_expert(x)
/// ```
#[derive(Debug)]
pub(crate) struct Moe {
    pub(crate) gate: Linear,
    pub(crate) num_experts_per_tok: usize,
    pub(crate) norm_topk_prob: bool,
    pub(crate) experts: Arc<[ExpertWeights]>,
    pub(crate) shared_expert: Mlp,
    pub(crate) shared_expert_gate: Linear,
}

impl Moe {
    /// `x` and the result: `[rows, hidden_size]`, f32.
    pub(crate) fn record(&self, ops: &mut Ops, x: Tensor) -> Result<Tensor, KernelError> {
        let [logits, shared_gate] = ops.linear(x, [self.gate.parts(), self.shared_expert_gate.parts()])?;
        let (chosen, weights) = ops.route(logits, self.num_experts_per_tok, self.norm_topk_prob)?;
        let routed = ops.experts(x, &self.experts, chosen, weights)?;
        let shared = self.shared_expert.record(ops, x)?;
        ops.add_gated(routed, shared, shared_gate)
    }
}
