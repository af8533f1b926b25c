//! Decay and write strength of the gated delta rule.

use super::check;
use crate::{KernelError, Param, Tensor};

/// Log decay and write strength per value head.
///
/// ```text
/// g = neg_exp_a · softplus(a + dt_bias)        beta = sigmoid(b)
/// ```
///
/// `neg_exp_a = −exp(A_log)`. `softplus(x) = ln(1 + exp(x))`, and `x` itself above 20. Source: arXiv:2412.06464.
#[derive(Clone, Debug)]
pub struct DeltaGates {
    /// `[rows, value_heads]`, f32.
    pub a: Tensor,
    /// `[rows, value_heads]`, f32.
    pub b: Tensor,
    /// `[value_heads]`.
    pub neg_exp_a: Param,
    /// `[value_heads]`.
    pub dt_bias: Param,
    /// Log decay, at most 0: `[rows, value_heads]`, f32.
    pub g: Tensor,
    /// Write strength in 0..1: `[rows, value_heads]`, f32.
    pub beta: Tensor,
}

impl DeltaGates {
    pub(crate) fn check(&self) -> Result<(), KernelError> {
        const OP: &str = "delta_gates";
        check::activation(OP, "a", self.a, self.neg_exp_a.len)?;
        check::activation(OP, "b", self.b, self.neg_exp_a.len)?;
        check::size(OP, "dt_bias", self.dt_bias.len, self.neg_exp_a.len)
    }
}
