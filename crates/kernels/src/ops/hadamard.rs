//! The rotation that spreads outliers before quantization.

use super::check;
use crate::{KernelError, Param, Tensor};

/// Multiplies each block of a row by a sign vector and a normalized Hadamard matrix.
///
/// ```text
/// out[block] = (x[block] · signs[block]) H / √n        H[i, j] = (−1)^popcount(i & j)
/// ```
///
/// `H / √n` is orthogonal, so a weight whose input features were rotated the same way gives the same products.
#[derive(Clone, Debug)]
pub struct Hadamard {
    /// `[rows, width]`, f32, `width` a multiple of `block`.
    pub x: Tensor,
    /// ±1 each: `[width]`.
    pub signs: Param,
    /// Elements per block, a power of two.
    pub block: usize,
    /// `[rows, width]`, f32.
    pub out: Tensor,
}

impl Hadamard {
    pub(crate) fn check(&self) -> Result<(), KernelError> {
        const OP: &str = "hadamard";
        check::argument(OP, "block", self.block, self.block.is_power_of_two(), "a power of two")?;
        check::argument(OP, "x", self.x.width, self.x.width.is_multiple_of(self.block), "a multiple of `block`")?;
        check::activation(OP, "x", self.x, self.signs.len)
    }
}
