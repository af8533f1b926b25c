//! The choice of experts.

use super::check;
use crate::{KernelError, Tensor};

/// Picks the experts of each row.
///
/// ```text
/// p = softmax(logits)        chosen = the top_k largest p, ties to the lowest expert
/// weights = p[chosen], divided by their sum if `normalize`
/// ```
#[derive(Clone, Debug)]
pub struct Route {
    /// `[rows, num_experts]`, f32.
    pub logits: Tensor,
    /// Whether the weights of the chosen experts are made to sum to one.
    pub normalize: bool,
    /// Expert indices, best first: `[rows, top_k]`, i32.
    pub chosen: Tensor,
    /// `[rows, top_k]`, f32.
    pub weights: Tensor,
}

impl Route {
    pub(crate) fn check(&self) -> Result<(), KernelError> {
        const OP: &str = "route";
        let (top_k, num_experts) = (self.chosen.width, self.logits.width);
        check::activation(OP, "logits", self.logits, num_experts)?;
        check::argument(OP, "top_k", top_k, (1..=num_experts).contains(&top_k), "between 1 and the number of experts")
    }
}
