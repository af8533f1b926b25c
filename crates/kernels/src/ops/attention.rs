//! Softmax attention over the committed cache and the rows of the pass.

use super::{AttentionShape, check};
use crate::{DType, KernelError, KvLayout, Tensor};

/// Grouped-query attention of each row over its sequence's cache and over its own ancestors in the pass.
///
/// ```text
/// out = softmax(scale · q Kᵀ) V · sigmoid(gate)
/// ```
///
/// The keys of a row are, by position: the committed tokens, then the rows from its root down to itself. Siblings and
/// other sequences are never seen. Sums in f32; the order of summation depends on positions only, so a row gives the
/// same bits whether its ancestors are committed or still in the pass.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Which attention layer of the state.
    pub slot: usize,
    /// Shape of that layer's cache.
    pub layout: KvLayout,
    /// Head counts and sizes.
    pub shape: AttentionShape,
    /// Usually `head_dim^−1/2`.
    pub scale: f32,
    /// Rotated queries: `[rows, heads · head_dim]`, f32.
    pub q: Tensor,
    /// Rotated keys: `[rows, kv_heads · head_dim]`, [type of candidates](DType::of_candidates). Appended to the cache by
    /// a commit; rows see each other's keys and values as the cache will hold them.
    pub k: Tensor,
    /// Values: `[rows, kv_heads · head_dim]`, type of candidates. Appended to the cache by a commit.
    pub v: Tensor,
    /// Output gate before the sigmoid: `[rows, heads · head_dim]`, f32.
    pub gate: Option<Tensor>,
    /// `[rows, heads · head_dim]`, f32.
    pub out: Tensor,
}

impl Attention {
    pub(crate) fn check(&self) -> Result<(), KernelError> {
        const OP: &str = "attention";
        let shape = self.shape;
        let divides =
            shape.num_key_value_heads > 0 && shape.num_attention_heads.is_multiple_of(shape.num_key_value_heads);
        check::argument(OP, "heads", shape.num_attention_heads, divides, "a multiple of the key-value heads")?;
        check::size(OP, "layout heads", self.layout.num_key_value_heads, shape.num_key_value_heads)?;
        check::size(OP, "layout head_dim", self.layout.head_dim, shape.head_dim)?;
        if self.layout.dtype == DType::I32 {
            return Err(KernelError::DType { op: OP, argument: "layout", found: DType::I32, expected: DType::F32 });
        }
        check::over_rows(OP, "q", self.q)?;
        check::activation(OP, "q", self.q, shape.query_width())?;
        for (name, tensor) in [("k", self.k), ("v", self.v)] {
            check::dtype(OP, name, tensor, self.layout.dtype.of_candidates())?;
            check::size(OP, name, tensor.width, shape.key_value_width())?;
        }
        match self.gate {
            Some(gate) => check::activation(OP, "gate", gate, shape.query_width()),
            None => Ok(()),
        }
    }
}
