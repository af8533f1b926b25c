//! Only the rows whose logits are wanted go on to the head.

use super::check;
use crate::{DType, KernelError, Tensor};

/// `out[i] = x[outputs[i]]`: the rows asked for in [`PassInputs::outputs`](crate::PassInputs).
#[derive(Clone, Debug)]
pub struct GatherOutputs {
    /// `[rows, width]`, f32.
    pub x: Tensor,
    /// `[outputs, width]`, f32.
    pub out: Tensor,
}

impl GatherOutputs {
    pub(crate) fn check(&self) -> Result<(), KernelError> {
        check::dtype("gather_outputs", "x", self.x, DType::F32)?;
        check::over_rows("gather_outputs", "x", self.x)
    }
}
