//! Token ids to vectors.

use crate::{Tensor, Weight};

/// The embedding of each row's token, dequantized to f32.
///
/// ```text
/// out[row] = table[token[row]]
/// ```
#[derive(Clone, Debug)]
pub struct Embed {
    /// `[vocab_size, hidden_size]`, any format.
    pub table: Weight,
    /// `[rows, hidden_size]`, f32.
    pub out: Tensor,
}
