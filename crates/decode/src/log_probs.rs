//! Natural logarithms of the model's own probabilities, for reports.
//!
//! They come from the logits as the model gave them, before penalties, temperature and filters.

use crate::math::exp;
use crate::{DecodeError, TokenId};

/// Log-probabilities of one row of logits.
#[derive(Debug, Clone, Copy)]
pub struct LogProbs<'a> {
    logits: &'a [f32],
    /// Logarithm of the sum of `exp(logit)`.
    log_total: f64,
}

impl<'a> LogProbs<'a> {
    /// Log-softmax of a row: `log p = logit − ln Σ exp(logit)`, sum in f64.
    ///
    /// # Errors
    ///
    /// [`DecodeError::NonFiniteLogits`] if a logit is NaN or +∞, or all are −∞. `position` is for the message.
    pub fn new(logits: &'a [f32], position: u64) -> Result<Self, DecodeError> {
        let bad = (0..).zip(logits).find(|(_, logit)| logit.is_nan() || **logit == f32::INFINITY);
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if let Some((token, &value)) = bad {
            return Err(DecodeError::NonFiniteLogits { position, token, value });
        }
        if highest == f32::NEG_INFINITY {
            return Err(DecodeError::NonFiniteLogits { position, token: 0, value: highest });
        }
        let total: f64 = logits.iter().map(|&logit| f64::from(exp(logit - highest))).sum();
        Ok(Self { logits, log_total: f64::from(highest) + total.ln() })
    }

    /// Log-probability of a token; −∞ for one outside the vocabulary.
    pub fn of(&self, token: TokenId) -> f32 {
        let logit = self.logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
        (f64::from(logit) - self.log_total) as f32
    }

    /// The `count` likeliest tokens with their log-probabilities, likeliest first, ties by lowest id.
    ///
    /// Made for the few that a report shows: each of them may be moved by every later one.
    pub fn top(&self, count: usize) -> Vec<(TokenId, f32)> {
        let mut likeliest: Vec<(TokenId, f32)> = Vec::with_capacity(count.min(self.logits.len()) + 1);
        for (token, &logit) in (0..).zip(self.logits) {
            if likeliest.len() >= count && likeliest.last().is_none_or(|&(_, lowest)| logit <= lowest) {
                continue;
            }
            let place = likeliest.partition_point(|&(_, other)| other >= logit);
            likeliest.insert(place, (token, logit));
            likeliest.truncate(count);
        }
        likeliest.into_iter().map(|(token, _)| (token, self.of(token))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one() {
        let logits: Vec<f32> = (0..1000).map(|token| ((token * 37) % 101) as f32 * 0.3 - 400.0).collect();
        let log_probs = LogProbs::new(&logits, 0).unwrap();
        let total: f64 = (0..1000).map(|token| f64::from(log_probs.of(token)).exp()).sum();
        assert!((total - 1.0).abs() < 1e-4, "{total}");
    }

    #[test]
    fn top_is_sorted_with_ties_by_lowest_id() {
        let logits = [1.0, 3.0, f32::NEG_INFINITY, 3.0, 2.0];
        let log_probs = LogProbs::new(&logits, 0).unwrap();
        let tokens = |count| log_probs.top(count).into_iter().map(|(token, _)| token).collect::<Vec<_>>();
        assert_eq!(tokens(0), []);
        assert_eq!(tokens(3), [1, 3, 4]);
        assert_eq!(tokens(9), [1, 3, 4, 0, 2]);
        assert_eq!(log_probs.of(2), f32::NEG_INFINITY);
        assert_eq!(log_probs.of(99), f32::NEG_INFINITY);
        assert_eq!(log_probs.top(1), [(1, log_probs.of(1))]);
    }

    #[test]
    fn broken_rows_are_refused() {
        let error = LogProbs::new(&[0.0, f32::NAN], 12).unwrap_err();
        assert!(matches!(error, DecodeError::NonFiniteLogits { position: 12, token: 1, value } if value.is_nan()));
        assert!(LogProbs::new(&[f32::NEG_INFINITY; 3], 0).is_err());
        assert!(LogProbs::new(&[], 0).is_err());
    }
}
