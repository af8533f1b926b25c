//! The convolutions of DFlash2, whose kernels the rows themselves add to.

use super::check;
use crate::{KernelError, Param, Tensor};

/// Depthwise causal convolution along each row's own path inside the pass.
///
/// ```text
/// out[row, c] = Σ_{j=0}^{taps−1} (base[side, j, c] + dynamic[row, side, j, c / group_size]) · x[ancestor j of row, c]
/// ```
///
/// Ancestor 0 is the row itself; what would come before the root counts as 0, so nothing of the state is read. Sums in
/// f32, over `j` in ascending order. Source: the repository `z-lab/dflash`, `GroupedDynamicCausalConv`.
#[derive(Clone, Debug)]
pub struct GroupedConv {
    /// `[rows, channels]`, f32.
    pub x: Tensor,
    /// `[2, taps, channels]`: the kernels before and after what the convolutions are around.
    pub base: Param,
    /// What the rows add to them: `[rows, 2 · taps · channels / group_size]`, f32.
    pub dynamic: Tensor,
    /// Which of the two: 0 before, 1 after.
    pub side: usize,
    /// Rows that a row is mixed of.
    pub taps: usize,
    /// Channels that share what is added.
    pub group_size: usize,
    /// `[rows, channels]`, f32.
    pub out: Tensor,
}

impl GroupedConv {
    /// Groups of channels.
    pub(crate) fn groups(&self) -> usize {
        self.x.width / self.group_size
    }

    pub(crate) fn check(&self) -> Result<(), KernelError> {
        const OP: &str = "grouped_conv";
        let channels = self.x.width;
        check::argument(OP, "taps", self.taps, self.taps > 0, "at least 1")?;
        check::argument(OP, "side", self.side, self.side < 2, "0 or 1")?;
        let divides = self.group_size > 0 && channels.is_multiple_of(self.group_size);
        check::argument(OP, "group_size", self.group_size, divides, "a divisor of the channels")?;
        check::over_rows(OP, "x", self.x)?;
        check::activation(OP, "x", self.x, channels)?;
        check::size(OP, "base", self.base.len, 2 * self.taps * channels)?;
        check::over_rows(OP, "dynamic", self.dynamic)?;
        check::activation(OP, "dynamic", self.dynamic, 2 * self.taps * self.groups())
    }
}
