//! Matrix products of rows with weights.

use super::check;
use crate::{KernelError, Param, Tensor, Weight};

/// One weight of a [`Linear`] and where its product goes.
#[derive(Clone, Debug)]
pub struct Projection {
    /// `[out_features, in_features]`, any format.
    pub weight: Weight,
    /// `[out_features]`, added at the end.
    pub bias: Option<Param>,
    /// `[rows, out_features]`, f32.
    pub out: Tensor,
}

/// Products of the same rows with one or several weights.
///
/// ```text
/// out = x Wᵀ + bias
/// ```
///
/// Float weights multiply f32 activations and sum in f32. A quantized weight is, in each row and each group `g` of its
/// elements, `scale[g] · code + bias[g]`; how it meets the activations depends on its [`Activations`](crate::Activations):
///
/// - `Float`: dequantize and multiply in f32;
/// - `Int8PerGroup`, `Int8PerRow`: `x` becomes `xscale · xcode`, `xscale = max|x| / 127` over 32 elements or the whole
///   row, `xcode = x / xscale` rounded to nearest (ties to even), as [`quantize::int8`](crate::quantize::int8) does; then, summed over groups in ascending order in f32,
///
/// ```text
/// out = Σ_g xscale[g] · (scale[g] · Σ code · xcode + bias[g] · Σ xcode)       (inner sums exact in i32)
/// ```
///
/// A row's result never depends on the other rows of the pass or on the number of threads.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[rows, in_features]`, f32.
    pub x: Tensor,
    /// Weights with `in_features` columns each.
    pub projections: Vec<Projection>,
}

impl Linear {
    pub(crate) fn check(&self) -> Result<(), KernelError> {
        for projection in &self.projections {
            check::activation("linear", "x", self.x, projection.weight.columns)?;
            if let Some(bias) = &projection.bias {
                check::size("linear", "bias", bias.len, projection.weight.rows)?;
            }
        }
        Ok(())
    }
}
