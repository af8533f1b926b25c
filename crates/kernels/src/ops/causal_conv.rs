//! The short convolution of a DeltaNet layer.

use super::check;
use crate::{DeltaLayout, KernelError, Param, Tensor};

/// Depthwise causal convolution along each row's own path, then SiLU.
///
/// ```text
/// out[row, c] = silu( Σ_{j=0}^{taps−1} weight[c, taps − 1 − j] · x[ancestor j of row, c] )
/// ```
///
/// Ancestor 0 is the row itself; past the root come the committed inputs, newest first, and zeros before the first token.
#[derive(Clone, Debug)]
pub struct CausalConv {
    /// Which DeltaNet layer of the state.
    pub slot: usize,
    /// Shape of that layer's state.
    pub layout: DeltaLayout,
    /// `[rows, channels]`, f32. A commit keeps the last `taps − 1` of the path.
    pub x: Tensor,
    /// `[channels, taps]`, last tap = the row itself.
    pub weight: Param,
    /// `[rows, channels]`, f32.
    pub out: Tensor,
}

impl CausalConv {
    pub(crate) fn check(&self) -> Result<(), KernelError> {
        const OP: &str = "causal_conv";
        let taps = self.layout.conv_kernel_dim;
        check::argument(OP, "conv_kernel_dim", taps, taps > 0, "at least 1")?;
        check::over_rows(OP, "x", self.x)?;
        check::activation(OP, "x", self.x, self.layout.conv_channels())?;
        check::size(OP, "weight", self.weight.len, self.layout.conv_channels() * taps)
    }
}
