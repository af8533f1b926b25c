//! The tokens of one place of a block that are weighed against each other.

use pleach_decode::{TokenId, top_k};

/// A block drafter's likeliest tokens of one place, in no order.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Shortlist {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) logits: Vec<f32>,
}

impl Shortlist {
    /// The `size` highest logits, of the tokens of `vocabulary` if the drafter does not score all.
    pub(crate) fn new(logits: &[f32], vocabulary: Option<&[TokenId]>, size: usize) -> Self {
        let places = top_k(logits, size);
        let token = |&(place, _): &(usize, f32)| vocabulary.map_or(place as TokenId, |tokens| tokens[place]);
        Self {
            tokens: places.iter().map(token).collect(),
            logits: places.into_iter().map(|(_, logit)| logit).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_tokens_of_the_drafters_vocabulary() {
        let list = Shortlist::new(&[0.5, 2.0, f32::NAN, 1.0], Some(&[10, 11, 12, 13]), 2);
        let mut pairs: Vec<_> = list.tokens.into_iter().zip(list.logits).collect();
        pairs.sort_by_key(|(token, _)| *token);
        assert_eq!(pairs, [(11, 2.0), (13, 1.0)]);
    }
}
