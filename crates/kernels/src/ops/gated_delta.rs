//! The gated delta rule.

use super::check;
use crate::{DeltaLayout, KernelError, Tensor};

/// Which key head a value head reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyHeadOrder {
    /// `h / (value_heads / key_heads)`: Hugging Face order.
    Grouped,
    /// `h % key_heads`: order of GGUF files.
    RoundRobin,
}

impl KeyHeadOrder {
    /// Key head of value head `h`.
    pub const fn key_head(self, h: usize, layout: &DeltaLayout) -> usize {
        match self {
            Self::Grouped => h / (layout.num_value_heads / layout.num_key_heads),
            Self::RoundRobin => h % layout.num_key_heads,
        }
    }
}

/// One gated delta-rule step per row, each row continuing its parent's state.
///
/// Per value head, with state `S: [key_dim, value_dim]`, and `q`, `k` of its key head:
///
/// ```text
/// q ← q / √(Σq² + 1e−6) · key_dim^−1/2        k ← k / √(Σk² + 1e−6)
/// S ← exp(g) S        u = beta (v − Sᵀ k)        S ← S + k uᵀ        out = Sᵀ q
/// ```
///
/// Sums in f32. A row's arithmetic is that of plain decoding whatever tree it stands in. A commit repeats the last update of
/// the state along the accepted path, with the terms that the pass kept, so committed states are the states of plain
/// decoding bit for bit.
/// Source: arXiv:2412.06464, the gated delta rule.
#[derive(Clone, Debug)]
pub struct GatedDelta {
    /// Which DeltaNet layer of the state.
    pub slot: usize,
    /// Shape of that layer's state.
    pub layout: DeltaLayout,
    /// Output of the convolution: all q heads, all k heads, all v heads: `[rows, channels]`, f32.
    pub qkv: Tensor,
    /// Log decay: `[rows, value_heads]`, f32.
    pub g: Tensor,
    /// Write strength: `[rows, value_heads]`, f32.
    pub beta: Tensor,
    /// Which key head a value head reads.
    pub key_head_order: KeyHeadOrder,
    /// What a commit needs of each row, laid out as [`DeltaLayout::term_width`] says: `k`, `u` and `exp(g)`, f32.
    pub terms: Tensor,
    /// `[rows, value_heads · value_dim]`, f32.
    pub out: Tensor,
}

impl GatedDelta {
    pub(crate) fn check(&self) -> Result<(), KernelError> {
        const OP: &str = "gated_delta";
        let layout = &self.layout;
        let divides = layout.num_key_heads > 0 && layout.num_value_heads.is_multiple_of(layout.num_key_heads);
        check::argument(OP, "value heads", layout.num_value_heads, divides, "a multiple of the key heads")?;
        check::argument(OP, "state", layout.state_elements(), layout.state_elements() > 0, "at least 1 element")?;
        check::over_rows(OP, "qkv", self.qkv)?;
        check::activation(OP, "qkv", self.qkv, layout.conv_channels())?;
        check::activation(OP, "g", self.g, layout.num_value_heads)?;
        check::activation(OP, "beta", self.beta, layout.num_value_heads)
    }
}
