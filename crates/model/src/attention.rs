//! Softmax attention with rotary positions, grouped queries and an optional output gate.

use pleach_kernels::ops::{AttentionShape, CacheRows, Rope, Sight};
use pleach_kernels::{HeadRows, KernelError, KvLayout, Ops, Param, Tensor};

use crate::linear::Linear;

/// ```text
/// q, k, v = x Wqᵀ, x Wkᵀ, x Wvᵀ
/// y = ( softmax(rope(norm q) rope(norm k)ᵀ / √head_dim) v · sigmoid(gate) ) Woᵀ
/// ```
#[derive(Debug)]
pub(crate) struct Attention {
    /// Which attention layer of the state.
    pub(crate) slot: usize,
    pub(crate) layout: KvLayout,
    pub(crate) shape: AttentionShape,
    /// Whether `q_proj` carries an output gate.
    pub(crate) gated: bool,
    pub(crate) q_proj: Linear,
    pub(crate) k_proj: Linear,
    pub(crate) v_proj: Linear,
    pub(crate) o_proj: Linear,
    pub(crate) q_norm: Option<Param>,
    pub(crate) k_norm: Option<Param>,
    pub(crate) rms_norm_eps: f32,
    pub(crate) rope: Rope,
    /// What a row sees of the text and the rows of its pass.
    pub(crate) sight: Sight,
}

impl Attention {
    /// `x` and the result: `[rows, hidden_size]`, f32.
    /// `x` and the result: `[rows, hidden_size]`, f32.
    pub(crate) fn record(&self, ops: &mut Ops, x: Tensor) -> Result<Tensor, KernelError> {
        let [q, k, v] = ops.linear(x, [self.q_proj.parts(), self.k_proj.parts(), self.v_proj.parts()])?;
        let heads = ops.qk_norm_rope(&HeadRows {
            q,
            k,
            v,
            shape: self.shape,
            gated: self.gated,
            q_norm: self.q_norm.as_ref(),
            k_norm: self.k_norm.as_ref(),
            eps: self.rms_norm_eps,
            rope: &self.rope,
            cache: self.layout.dtype,
        })?;
        let scale = 1.0 / (self.shape.head_dim as f32).sqrt();
        let mixed = ops.attention_within(self.sight, self.slot, self.layout, self.shape, scale, heads)?;
        let [y] = ops.linear(mixed, [self.o_proj.parts()])?;
        Ok(y)
    }

    /// Keys and values alone, for a commit to append.
    pub(crate) fn record_cache(&self, ops: &mut Ops, x: Tensor) -> Result<(), KernelError> {
        let [k, v] = ops.linear(x, [self.k_proj.parts(), self.v_proj.parts()])?;
        // The op wants queries; the keys stand in for them.
        let heads = ops.qk_norm_rope(&HeadRows {
            q: k,
            k,
            v,
            shape: AttentionShape { num_attention_heads: self.shape.num_key_value_heads, ..self.shape },
            gated: false,
            q_norm: self.k_norm.as_ref(),
            k_norm: self.k_norm.as_ref(),
            eps: self.rms_norm_eps,
            rope: &self.rope,
            cache: self.layout.dtype,
        })?;
        ops.cache(CacheRows { slot: self.slot, layout: self.layout, k: heads.k, v: heads.v })
    }
}
