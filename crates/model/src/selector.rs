//! DFlash2's candidate selector: scores of neighboring guesses.

use pleach_kernels::WeightData;

use crate::linear::Linear;

/// ```text
/// score of b after a, at a row with hidden state h = logit(b) + ⟨ A[a] ∘ (h Wᵀ), B[b] ⟩
/// ```
///
/// The product with `W` is part of the drafter's pass. A few rows of the two codebooks are looked up afterwards, so they stay
/// as they are in the file. Source: the repository `z-lab/dflash`.
#[derive(Debug)]
pub(crate) struct Selector {
    /// `A`: `[vocab_size, rank]`.
    pub(crate) predecessors: WeightData,
    /// `B`: `[vocab_size, rank]`.
    pub(crate) successors: WeightData,
    /// `W`.
    pub(crate) hidden_projection: Linear,
}

impl Selector {
    /// What comes to the logits of `candidates` after `before`; `gate` is `h Wᵀ` of their row. Nothing for tokens that the
    /// codebooks do not have.
    pub(crate) fn transitions(&self, before: u32, gate: &[f32], candidates: &[u32]) -> Vec<f32> {
        let context: Vec<f32> = entry(&self.predecessors, before).iter().zip(gate).map(|(a, h)| a * h).collect();
        let score = |&token: &u32| entry(&self.successors, token).iter().zip(&context).map(|(b, c)| b * c).sum();
        candidates.iter().map(score).collect()
    }
}

/// A token's row of a codebook.
fn entry(codebook: &WeightData, token: u32) -> Vec<f32> {
    let mut values = vec![0.0; codebook.columns];
    if (token as usize) < codebook.rows {
        codebook.row(token as usize).dequantize(&mut values);
    }
    values
}
