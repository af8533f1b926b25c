//! Queries and keys made ready for attention.

use super::check;
use crate::{DType, KernelError, Param, Tensor};

/// Head counts and sizes of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key-value heads; each serves `num_attention_heads / num_key_value_heads` consecutive query heads.
    pub num_key_value_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
}

impl AttentionShape {
    /// Elements of all query heads of a row.
    pub const fn query_width(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    /// Elements of all key (or value) heads of a row.
    pub const fn key_value_width(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }
}

/// Which two elements of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairing {
    /// `(i, i + rotary_dim / 2)`: Hugging Face layout.
    Halves,
    /// `(2i, 2i + 1)`: GGUF layout of the Llama architecture.
    Neighbors,
}

/// Rotary position embedding of the first `rotary_dim` elements of each head.
///
/// Pair `i` turns by the angle `position · inv_freq[i]`, computed in f32. Source: arXiv:2104.09864.
#[derive(Clone, Debug)]
pub struct Rope {
    /// `[rotary_dim / 2]`.
    pub inv_freq: Param,
    /// Which elements form a pair.
    pub pairing: RopePairing,
    /// With sections `[t, h, w]`, frequencies 1, 4, 7, … below 3h take the height position and 2, 5, 8, … below 3w the
    /// width position (interleaved multimodal RoPE); all others, and all without sections, take the temporal position.
    pub sections: Option<[usize; 3]>,
}

impl Rope {
    /// Elements of a head that are rotated.
    pub fn rotary_dim(&self) -> usize {
        2 * self.inv_freq.len
    }

    /// Axis of the position that frequency `i` turns with: see [`Rope::sections`].
    pub fn axis(&self, i: usize) -> usize {
        match self.sections {
            Some([_, height, _]) if i % 3 == 1 && i < 3 * height => 1,
            Some([_, _, width]) if i % 3 == 2 && i < 3 * width => 2,
            _ => 0,
        }
    }
}

/// Normalizes and rotates the query and key heads of each row, and casts keys and values to the
/// [type of candidates](DType::of_candidates) of the cache.
///
/// ```text
/// q′ = rope(norm(q) · q_norm)      k′ = rope(norm(k) · k_norm)      v′ = v
/// ```
///
/// Without norm weights there is no normalization. With `gate`, `q` holds per head `head_dim` query elements, then
/// `head_dim` gate elements, which are split off unchanged.
#[derive(Clone, Debug)]
pub struct QkNormRope {
    /// `[rows, heads · head_dim]`, or twice that with a gate, f32.
    pub q: Tensor,
    /// `[rows, kv_heads · head_dim]`, f32.
    pub k: Tensor,
    /// `[rows, kv_heads · head_dim]`, f32.
    pub v: Tensor,
    /// Head counts and sizes.
    pub shape: AttentionShape,
    /// `[head_dim]`.
    pub q_norm: Option<Param>,
    /// `[head_dim]`.
    pub k_norm: Option<Param>,
    /// Added to the mean square of a head.
    pub eps: f32,
    /// Rotation.
    pub rope: Rope,
    /// `[rows, heads · head_dim]`, f32.
    pub out_q: Tensor,
    /// `[rows, heads · head_dim]`, f32, if `q` carries gates.
    pub out_gate: Option<Tensor>,
    /// `[rows, kv_heads · head_dim]`, type of candidates of the cache.
    pub out_k: Tensor,
    /// `[rows, kv_heads · head_dim]`, type of candidates of the cache.
    pub out_v: Tensor,
}

impl QkNormRope {
    pub(crate) fn check(&self) -> Result<(), KernelError> {
        const OP: &str = "qk_norm_rope";
        let shape = self.shape;
        let per_head = if self.out_gate.is_some() { 2 } else { 1 };
        check::over_rows(OP, "q", self.q)?;
        check::activation(OP, "q", self.q, per_head * shape.query_width())?;
        check::activation(OP, "k", self.k, shape.key_value_width())?;
        check::activation(OP, "v", self.v, shape.key_value_width())?;
        for norm in [&self.q_norm, &self.k_norm].into_iter().flatten() {
            check::size(OP, "q_norm or k_norm", norm.len, shape.head_dim)?;
        }
        if let found @ (DType::I32 | DType::I8) = self.out_k.dtype {
            return Err(KernelError::DType { op: OP, argument: "cache", found, expected: DType::F32 });
        }
        let rotary_dim = self.rope.rotary_dim();
        check::argument(OP, "rotary_dim", rotary_dim, rotary_dim <= shape.head_dim, "at most `head_dim`")
    }
}
