//! Softmax attention over the committed cache and the rows of the pass.

use std::num::NonZeroUsize;
use std::ops::Range;

use super::{AttentionShape, check};
use crate::{DType, KernelError, KvLayout, Tensor};

/// Grouped-query attention of each row over its sequence's cache and over its own ancestors in the pass.
///
/// ```text
/// out = softmax(scale · q Kᵀ) V · sigmoid(gate)
/// ```
///
/// The keys of a row are, by position: the committed tokens, then the rows from its root down to itself, or all rows of its
/// [block](crate::Parents::Block); of these, the ones in its [`Sight`]. Siblings and other sequences are never seen. Sums in f32; the order of summation depends on positions only, so a row gives the
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
    /// Which of the positions that the rows of the pass let a row see it does see.
    pub sight: Sight,
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

/// What a row sees in one layer, of the positions that the rows of the pass let it see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// Positions at a smaller distance than this, its own included; `None` for all.
    pub window: Option<NonZeroUsize>,
    /// Whether a row of a block does not see those after it.
    pub causal: bool,
}

impl Sight {
    /// All that the rows of the pass allow.
    pub const ALL: Self = Self { window: None, causal: false };

    /// The positions that the row at `position` sees, which could see those below `seen`. Its own is among them.
    pub fn positions(self, position: usize, seen: usize) -> Range<usize> {
        let end = if self.causal { seen.min(position + 1) } else { seen };
        match self.window {
            None => 0..end,
            Some(window) => (position + 1).saturating_sub(window.get())..end.min(position.saturating_add(window.get())),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_reach_to_both_sides_unless_causal() {
        let sight = |window, causal| Sight { window: NonZeroUsize::new(window), causal };
        // Row 1 of a block of four after ten tokens.
        assert_eq!(Sight::ALL.positions(11, 14), 0..14);
        assert_eq!(sight(0, true).positions(11, 14), 0..12);
        assert_eq!(sight(3, true).positions(11, 14), 9..12);
        assert_eq!(sight(2, false).positions(11, 14), 10..13);
        assert_eq!(sight(1, false).positions(11, 14), 11..12);
        assert_eq!(sight(99, false).positions(11, 14), 0..14);
    }
}
