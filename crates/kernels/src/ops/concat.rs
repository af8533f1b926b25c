//! Two vectors side by side.

use super::check;
use crate::{DType, KernelError, Tensor};

/// `out[row] = [x[row] ; y[row]]`.
#[derive(Clone, Debug)]
pub struct Concat {
    /// `[rows, x_width]`, f32.
    pub x: Tensor,
    /// `[rows, y_width]`, f32.
    pub y: Tensor,
    /// `[rows, x_width + y_width]`, f32.
    pub out: Tensor,
}

impl Concat {
    pub(crate) fn check(&self) -> Result<(), KernelError> {
        check::dtype("concat", "x", self.x, DType::F32)?;
        check::dtype("concat", "y", self.y, DType::F32)
    }
}
