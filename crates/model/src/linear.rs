//! A matrix product with the weight's own format.

use pleach_kernels::{Param, Weight};

/// `y = x Wᵀ + bias`; the weight knows its format.
#[derive(Clone, Debug)]
pub(crate) struct Linear {
    pub(crate) weight: Weight,
    pub(crate) bias: Option<Param>,
}

impl Linear {
    /// The form in which ops take weights.
    pub(crate) fn parts(&self) -> (&Weight, Option<&Param>) {
        (&self.weight, self.bias.as_ref())
    }
}

/// A root-mean-square normalization.
#[derive(Clone, Debug)]
pub(crate) struct RmsNorm {
    pub(crate) weight: Param,
    pub(crate) eps: f32,
}
