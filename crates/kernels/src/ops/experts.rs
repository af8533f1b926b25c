//! The feed-forward blocks of the chosen experts.

use std::sync::Arc;

use super::check;
use crate::{DType, KernelError, Tensor, Weight};

/// The matrices of one expert.
#[derive(Clone, Debug)]
pub struct ExpertWeights {
    /// `[moe_intermediate_size, hidden_size]`.
    pub gate: Weight,
    /// `[moe_intermediate_size, hidden_size]`.
    pub up: Weight,
    /// `[hidden_size, moe_intermediate_size]`.
    pub down: Weight,
}

/// The weighted sum of the chosen experts' outputs.
///
/// ```text
/// out[row] = Σ_j weights[row, j] · down_e( silu(gate_e x[row]) · up_e x[row] ),   e = chosen[row, j]
/// ```
///
/// Summed in the order of `j`. Each matrix is read once for all rows that chose it; its products are those of
/// [`Linear`](super::Linear).
#[derive(Clone, Debug)]
pub struct Experts {
    /// `[rows, hidden_size]`, f32.
    pub x: Tensor,
    /// All experts of the layer.
    pub experts: Arc<[ExpertWeights]>,
    /// Expert indices: `[rows, top_k]`, i32.
    pub chosen: Tensor,
    /// `[rows, top_k]`, f32.
    pub weights: Tensor,
    /// `[rows, hidden_size]`, f32.
    pub out: Tensor,
}

impl Experts {
    pub(crate) fn check(&self) -> Result<(), KernelError> {
        const OP: &str = "experts";
        let hidden_size = self.x.width;
        check::argument(OP, "experts", self.experts.len(), !self.experts.is_empty(), "at least 1")?;
        let intermediate_size = self.experts[0].gate.rows;
        for expert in self.experts.iter() {
            for (name, weight) in [("gate", &expert.gate), ("up", &expert.up)] {
                check::size(OP, name, weight.rows, intermediate_size)?;
                check::size(OP, name, weight.columns, hidden_size)?;
            }
            check::size(OP, "down", expert.down.rows, hidden_size)?;
            check::size(OP, "down", expert.down.columns, intermediate_size)?;
        }
        check::dtype(OP, "chosen", self.chosen, DType::I32)?;
        check::activation(OP, "weights", self.weights, self.chosen.width)
    }
}
