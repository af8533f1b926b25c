//! What a commit appends to a key-value cache.

use super::check;
use crate::{KernelError, KvLayout, Tensor};

/// Key and value rows of a pass that a commit appends to a cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheRows {
    /// Which attention layer of the state.
    pub slot: usize,
    /// Shape of that layer's cache.
    pub layout: KvLayout,
    /// Rotated keys: `[rows, kv_heads · head_dim]`, [type of candidates](crate::DType::of_candidates).
    pub k: Tensor,
    /// Values, as `k`.
    pub v: Tensor,
}

impl CacheRows {
    pub(crate) fn check(&self) -> Result<(), KernelError> {
        const OP: &str = "cache";
        for (name, tensor) in [("k", self.k), ("v", self.v)] {
            check::over_rows(OP, name, tensor)?;
            check::dtype(OP, name, tensor, self.layout.dtype.of_candidates())?;
            check::size(OP, name, tensor.width, self.layout.width())?;
        }
        Ok(())
    }
}
