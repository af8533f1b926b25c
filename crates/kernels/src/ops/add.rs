//! Elementwise addition.

use super::check;
use crate::{KernelError, Tensor};

/// `out = x + y`.
#[derive(Clone, Debug)]
pub struct Add {
    /// `[rows, width]`, f32.
    pub x: Tensor,
    /// `[rows, width]`, f32.
    pub y: Tensor,
    /// `[rows, width]`, f32.
    pub out: Tensor,
}

impl Add {
    pub(crate) fn check(&self) -> Result<(), KernelError> {
        check::activation("add", "x", self.x, self.x.width)?;
        check::activation("add", "y", self.y, self.x.width)
    }
}
