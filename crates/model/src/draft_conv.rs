//! DFlash2's convolutions around the parts of a block.

use pleach_checkpoint::DraftConv as Sizes;
use pleach_kernels::{KernelError, Ops, Param, Tensor};

use crate::linear::Linear;

/// ```text
/// d = x Wᵀ
/// y = conv₁( part( conv₀(x) ) )        conv_s[row, c] = Σ_j (base[s, j, c] + d[row, s, j, group of c]) · in[row − j, c]
/// ```
///
/// Nothing reaches back beyond the first row of a block. Source: the repository `z-lab/dflash`.
#[derive(Debug)]
pub(crate) struct DraftConv {
    /// `[2, kernel_size, hidden_size]`.
    pub(crate) base_kernel: Param,
    pub(crate) kernel_projection: Linear,
    pub(crate) sizes: Sizes,
}

/// The two of a block.
#[derive(Debug)]
pub(crate) struct DraftConvs {
    pub(crate) attention: DraftConv,
    pub(crate) mlp: DraftConv,
}

impl DraftConv {
    /// The convolutions around `part`.
    pub(crate) fn around(
        &self,
        ops: &mut Ops,
        x: Tensor,
        part: impl FnOnce(&mut Ops, Tensor) -> Result<Tensor, KernelError>,
    ) -> Result<Tensor, KernelError> {
        let sizes = [self.sizes.kernel_size, self.sizes.group_size];
        let [dynamic] = ops.linear(x, [self.kernel_projection.parts()])?;
        let mixed = ops.grouped_conv(x, &self.base_kernel, dynamic, 0, sizes)?;
        let y = part(ops, mixed)?;
        ops.grouped_conv(y, &self.base_kernel, dynamic, 1, sizes)
    }
}
