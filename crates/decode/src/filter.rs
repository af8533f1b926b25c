//! Top-k, top-p and min-p without sorting the vocabulary.

use std::cmp::Ordering;

use crate::math::{exp, ln};
use crate::{SamplingParams, TokenId};

/// A token that passed the filters so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate {
    /// `(logit − highest logit) / temperature`, so at most 0.
    pub(crate) score: f32,
    pub(crate) token: TokenId,
}

/// Logits seen through a temperature above 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScaledRow<'a> {
    /// No NaN, no +∞, at least one finite.
    pub(crate) logits: &'a [f32],
    /// Highest of the logits. Taking it off first keeps any temperature from overflowing upwards.
    pub(crate) highest: f32,
    pub(crate) temperature: f32,
}

impl ScaledRow<'_> {
    /// Score of a logit; higher logits never score less.
    pub(crate) fn score(&self, logit: f32) -> f32 {
        (logit - self.highest) / self.temperature
    }
}

/// Whether the likeliest tokens have to be found before one can be drawn.
pub(crate) fn needs_shortlist(params: &SamplingParams, vocab_size: usize) -> bool {
    params.top_p < 1.0 || (1..vocab_size).contains(&params.top_k)
}

/// Lowest score that min-p keeps.
pub(crate) fn score_floor(params: &SamplingParams) -> f32 {
    if params.min_p >= f32::MIN_POSITIVE { ln(params.min_p) } else { f32::NEG_INFINITY }
}

/// Leaves in `kept` the tokens that pass top-k, then top-p, then min-p, in no order; equal scores leave by highest id.
///
/// Top-p measures shares among the tokens that top-k left; tokens at −∞ never pass.
pub(crate) fn shortlist(row: ScaledRow<'_>, params: &SamplingParams, kept: &mut Vec<Candidate>) {
    let all = row.logits.len();
    let top_k = if params.top_k == 0 { all } else { params.top_k.min(all) };
    if params.top_p >= 1.0 {
        keep_best(row, top_k, kept);
    } else if top_k == all {
        keep_share(row, params.top_p, kept);
    } else {
        keep_best(row, top_k, kept);
        let total = kept.iter().map(|candidate| weight(candidate.score)).sum();
        cut_at_weight(kept, share_of(total, params.top_p));
    }
    let floor = score_floor(params);
    kept.retain(|candidate| candidate.score >= floor);
}

/// Top-p over the whole vocabulary. Nearly always a few tokens suffice; only if not, all of them are looked through.
fn keep_share(row: ScaledRow<'_>, share: f32, kept: &mut Vec<Candidate>) {
    let total = row.logits.iter().map(|&logit| weight(row.score(logit))).sum();
    let goal = share_of(total, share);
    keep_best(row, 256, kept);
    if !cut_at_weight(kept, goal) {
        keep_best(row, row.logits.len(), kept);
        cut_at_weight(kept, goal);
    }
}

/// Probability of a score relative to the likeliest token, in units of 2⁻⁴⁰: sums are exact, so that their order, and
/// with it the algorithm, cannot matter.
fn weight(score: f32) -> u64 {
    const ONE: f64 = (1u64 << 40) as f64;
    // In a double of at least 2⁵² the mantissa's bits are the integer itself; unlike a cast, this compiles to vectors.
    const INTEGERS: f64 = (1u64 << 52) as f64;
    (f64::from(exp(score)) * ONE + INTEGERS).to_bits() - INTEGERS.to_bits()
}

/// Weight that a list with this share of the total has to reach; the share is below 1.
fn share_of(total: u64, share: f32) -> u64 {
    (f64::from(share) * total as f64).ceil() as u64
}

/// Leaves the likeliest tokens up to and including the one that lifts their weight to `goal`.
/// Returns false, and leaves all, if they do not reach it.
///
/// Halves the range in which the cut lies, by weight; linear on average, where sorting would not be.
fn cut_at_weight(kept: &mut Vec<Candidate>, goal: u64) -> bool {
    let sum = |part: &[Candidate]| part.iter().map(|candidate| weight(candidate.score)).sum::<u64>();
    if sum(kept) < goal {
        return false;
    }
    let (mut from, mut to, mut missing) = (0, kept.len(), goal);
    while to - from > 1 {
        let middle = from + (to - from) / 2;
        kept[from..to].select_nth_unstable_by(middle - from, higher_first);
        let better_half = sum(&kept[from..middle]);
        if better_half >= missing {
            to = middle;
        } else {
            missing -= better_half;
            from = middle;
        }
    }
    kept.truncate(to);
    true
}

/// Leaves in `kept` the `count` best tokens above −∞.
///
/// One pass over the row: a list of at most twice the count is halved whenever it is full, and a token that does not
/// beat the worst of the best half never enters it.
fn keep_best(row: ScaledRow<'_>, count: usize, kept: &mut Vec<Candidate>) {
    let full = count.saturating_mul(2).max(64);
    let mut floor = f32::NEG_INFINITY;
    kept.clear();
    for (token, &logit) in (0..).zip(row.logits) {
        // An equal logit loses by its higher id.
        if logit <= floor {
            continue;
        }
        kept.push(Candidate { score: row.score(logit), token });
        if kept.len() == full {
            let (_, worst, _) = kept.select_nth_unstable_by(count - 1, higher_first);
            floor = row.logits[worst.token as usize];
            kept.truncate(count);
        }
    }
    if kept.len() > count {
        kept.select_nth_unstable_by(count - 1, higher_first);
        kept.truncate(count);
    }
    kept.retain(|candidate| candidate.score > f32::NEG_INFINITY);
}

/// Higher score first, then lower id; scores are never NaN.
fn higher_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.score.partial_cmp(&a.score).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The filters by their definition: sort everything, keep what each rule keeps.
    fn by_sorting(logits: &[f32], params: &SamplingParams) -> Vec<TokenId> {
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut all: Vec<(f32, TokenId)> =
            logits.iter().zip(0..).map(|(&logit, token)| ((logit - highest) / params.temperature, token)).collect();
        all.retain(|(score, _)| *score > f32::NEG_INFINITY);
        all.sort_by(|a, b| b.0.partial_cmp(&a.0).unwrap().then(a.1.cmp(&b.1)));
        if params.top_k > 0 {
            all.truncate(params.top_k);
        }
        let weights: Vec<f64> = all.iter().map(|(score, _)| f64::from(exp(*score))).collect();
        let total: f64 = weights.iter().sum();
        let mut before = 0.0;
        let mut kept = Vec::new();
        for ((score, token), weight) in all.into_iter().zip(weights) {
            if params.top_p < 1.0 && before >= f64::from(params.top_p) * total {
                break;
            }
            before += weight;
            if score >= score_floor(params) {
                kept.push(token);
            }
        }
        kept
    }

    fn filtered(logits: &[f32], params: &SamplingParams) -> Vec<TokenId> {
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut kept = Vec::new();
        shortlist(ScaledRow { logits, highest, temperature: params.temperature }, params, &mut kept);
        kept.sort_by(higher_first);
        kept.iter().map(|candidate| candidate.token).collect()
    }

    fn params(top_k: usize, top_p: f32, min_p: f32) -> SamplingParams {
        SamplingParams { temperature: 1.0, top_k, top_p, min_p, ..SamplingParams::default() }
    }

    #[test]
    fn equal_logits_leave_by_highest_id() {
        assert_eq!(filtered(&[1.0; 500], &params(3, 1.0, 0.0)), [0, 1, 2]);
        assert_eq!(filtered(&[0.0, 2.0, 2.0, 2.0, 3.0], &params(3, 1.0, 0.0)), [4, 1, 2]);
        assert_eq!(filtered(&[0.0; 4], &params(0, 0.5, 0.0)), [0, 1]);
    }

    #[test]
    fn zeros_of_either_sign_are_equal() {
        assert_eq!(filtered(&[-0.0, 0.0, -0.0, -1.0], &params(2, 1.0, 0.0)), [0, 1]);
    }

    #[test]
    fn top_p_keeps_the_token_that_crosses_the_share() {
        let logits = [0.5f32, 0.3, 0.15, 0.05].map(f32::ln);
        assert_eq!(filtered(&logits, &params(0, 0.6, 0.0)), [0, 1]);
        assert_eq!(filtered(&logits, &params(0, 1e-9, 0.0)), [0]);
        // Among the two that top-k left, the first alone has 0.625.
        assert_eq!(filtered(&logits, &params(2, 0.6, 0.0)), [0]);
    }

    #[test]
    fn min_p_always_keeps_the_likeliest() {
        let logits = [0.5f32, 0.3, 0.15, 0.05].map(f32::ln);
        assert_eq!(filtered(&logits, &params(3, 1.0, 1.0)), [0]);
        assert_eq!(filtered(&logits, &params(4, 0.999, 0.2)), [0, 1, 2]);
    }

    #[test]
    fn tokens_at_minus_infinity_never_pass() {
        let mut logits = [f32::NEG_INFINITY; 300];
        logits[7] = -3.0;
        assert_eq!(filtered(&logits, &params(5, 1.0, 0.0)), [7]);
        assert_eq!(filtered(&logits, &params(0, 0.99, 0.0)), [7]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// Coarse logits make ties frequent.
        #[test]
        fn same_tokens_as_by_sorting_everything(
            logits in prop::collection::vec((-40i32..40).prop_map(|step| step as f32 * 0.25), 1..700),
            top_k in prop_oneof![Just(0usize), 1usize..40, 100usize..800],
            top_p in prop_oneof![Just(1.0f32), 0.01f32..0.999],
            min_p in prop_oneof![Just(0.0f32), 0.001f32..1.0],
            temperature in prop_oneof![Just(1.0f32), 0.1f32..3.0],
        ) {
            let params = SamplingParams { temperature, ..params(top_k, top_p, min_p) };
            prop_assert_eq!(filtered(&logits, &params), by_sorting(&logits, &params));
        }
    }
}
