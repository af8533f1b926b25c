//! The shared expert joins the routed ones.

use super::check;
use crate::{KernelError, Tensor};

/// `out = x + sigmoid(gate) · y`, one gate per row.
#[derive(Clone, Debug)]
pub struct AddGated {
    /// `[rows, width]`, f32.
    pub x: Tensor,
    /// `[rows, width]`, f32.
    pub y: Tensor,
    /// Before the sigmoid: `[rows, 1]`, f32.
    pub gate: Tensor,
    /// `[rows, width]`, f32.
    pub out: Tensor,
}

impl AddGated {
    pub(crate) fn check(&self) -> Result<(), KernelError> {
        check::activation("add_gated", "x", self.x, self.x.width)?;
        check::activation("add_gated", "y", self.y, self.x.width)?;
        check::activation("add_gated", "gate", self.gate, 1)
    }
}
