//! What a drafter expects the target to draw, given the noise that will decide.

use super::{Sampler, change, penalized};
use crate::math::exp;
use crate::{History, Noise, TokenId, top_k};

/// Candidates of a drafter that are weighed against each other; the rest of its distribution counts as one.
const SHORTLIST: usize = 24;

/// How far a drafter's logits are from the target's, as the scale of a Gumbel distribution; see [`Foreseen`]. Chosen by what
/// trained drafters gain at temperature 0.7: `docs/benchmarks.md`, "Guesses that know the noise".
const ERROR_SCALE: f32 = 1.5;

/// Mean of standard Gumbel noise: what the noise of tokens that are not weighed one by one is taken for.
const MEAN_NOISE: f32 = 0.577_215_7;

/// Candidates with the beliefs that the target draws them.
///
/// Above temperature 0 the target's token is the argmax of `log p + G`, and `G` is known beforehand. If a drafter's
/// `log q` differs from `log p` by Gumbel noise of scale `s`, then, given `G`,
///
/// ```text
/// P(token is drawn) = softmax( (log q + G) / s )
/// ```
///
/// so this is what the guesses of a tree are ordered by, and not `q`. At temperature 0 it is `q` itself.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Foreseen(Vec<(TokenId, f32)>);

impl Foreseen {
    /// `beliefs`: tokens with probabilities `q`, of the sampler's processed distribution; what they lack to 1 is that of
    /// all other tokens.
    pub(crate) fn of(sampler: &Sampler, position: u64, beliefs: impl Iterator<Item = (TokenId, f32)>) -> Self {
        let mut log_probs: Vec<_> = beliefs.map(|(token, belief)| (token, belief.min(1.0).ln())).collect();
        if let Some(noise) = sampler.noise() {
            perturb(&mut log_probs, noise, position);
        }
        log_probs.sort_by(|a, b| b.1.total_cmp(&a.1));
        Self(log_probs)
    }

    /// Tokens with the logarithms of the beliefs, likeliest first.
    pub(crate) fn into_log_probs(self) -> Vec<(TokenId, f32)> {
        self.0
    }
}

impl Sampler {
    /// What a drafter with these logits expects to be drawn at `position`: the `count` likeliest tokens with the
    /// log-probability of each, likeliest first; none if the logits are broken.
    ///
    /// `logits`: `[vocab_size]`, the drafter's own, for the target's next token. `history` holds the tokens at all
    /// earlier positions, guesses included. Penalties, bias and temperature apply as in [`sample`](Self::sample); above
    /// temperature 0 the noise of the position is counted in, so the first is what `sample` would draw without top-k,
    /// top-p and min-p.
    pub fn foresee(&mut self, logits: &[f32], position: u64, history: &History, count: usize) -> Vec<(TokenId, f32)> {
        let Ok(edited) = self.edit(logits, history, None) else { return Vec::new() };
        let logits = if edited { &self.edited } else { logits };
        self.beliefs(logits, |index| index as TokenId, position, count)
    }

    /// As [`foresee`](Self::foresee), for a drafter that scores some tokens only: `logits[i]` is that of `tokens[i]`, and no
    /// other token is expected.
    pub fn foresee_among(
        &mut self,
        tokens: &[TokenId],
        logits: &[f32],
        position: u64,
        history: &History,
        count: usize,
    ) -> Vec<(TokenId, f32)> {
        if !self.params.has_penalties() && self.params.logit_bias.is_empty() {
            return self.beliefs(logits, |index| tokens[index], position, count);
        }
        let edited: Vec<f32> =
            tokens.iter().zip(logits).map(|(&token, &logit)| self.edited_logit(token, logit, history)).collect();
        self.beliefs(&edited, |index| tokens[index], position, count)
    }

    /// One logit after penalties and bias, as [`sample`](Self::sample) has it.
    fn edited_logit(&self, token: TokenId, logit: f32, history: &History) -> f32 {
        let mut logit = [logit];
        if let Some(count) = history.count_of(token).filter(|_| self.params.has_penalties()) {
            change(&mut logit, 0, |logit| penalized(logit, &self.params, count));
        }
        for &(_, bias) in self.params.logit_bias.iter().filter(|(other, _)| *other == token) {
            change(&mut logit, 0, |logit| logit + bias);
        }
        logit[0]
    }

    fn beliefs(
        &self,
        logits: &[f32],
        token: impl Fn(usize) -> TokenId,
        position: u64,
        count: usize,
    ) -> Vec<(TokenId, f32)> {
        let temperature = if self.params.is_greedy() { 1.0 } else { self.params.temperature };
        let Some(beliefs) = likeliest(logits, temperature) else { return Vec::new() };
        let beliefs = beliefs.into_iter().map(|(index, belief)| (token(index), belief));
        let mut foreseen = Foreseen::of(self, position, beliefs).into_log_probs();
        foreseen.truncate(count);
        foreseen
    }
}

/// The likeliest places with their probabilities `softmax(logits / temperature)`, likeliest first, of equals the first.
fn likeliest(logits: &[f32], temperature: f32) -> Option<Vec<(usize, f32)>> {
    let mut best = top_k(logits, SHORTLIST);
    best.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let top = best.first().map(|&(_, logit)| logit).filter(|logit| logit.is_finite())?;
    let score = |logit: f32| (logit - top) / temperature;
    // What is no number counts, so that the total shows it.
    let is_negligible = |logit: f32| score(logit) < NEGLIGIBLE;
    let counted =
        logits.chunks(CHUNK).filter(|chunk| !chunk.iter().fold(true, |all, &logit| all & is_negligible(logit)));
    let total: f32 = counted.map(|values| values.iter().map(|&logit| exp(score(logit))).sum::<f32>()).sum();
    let probability = |(index, logit)| (index, exp(score(logit)) / total);
    total.is_finite().then(|| best.into_iter().map(probability).collect())
}

/// Values that are looked at together; few of them have one that counts.
const CHUNK: usize = 16;

/// A token this much less likely than the likeliest is not counted: a million of them are a hundredth.
const NEGLIGIBLE: f32 = -18.0;

/// Puts `ln softmax((log q + G) / s)` in place of `log q`, with all tokens outside the list as one more entry.
fn perturb(log_probs: &mut [(TokenId, f32)], noise: &Noise, position: u64) {
    let known: f32 = log_probs.iter().map(|(_, log_prob)| log_prob.exp()).sum();
    let score = |log_prob: f32, noise: f32| (log_prob + noise) / ERROR_SCALE;
    let rest = score((1.0 - known).max(0.0).ln(), MEAN_NOISE);
    for (token, log_prob) in log_probs.iter_mut() {
        *log_prob = score(*log_prob, noise.gumbel(position, *token));
    }
    let highest = log_probs.iter().map(|(_, score)| *score).fold(rest, f32::max);
    let total: f32 = log_probs.iter().map(|(_, score)| (score - highest).exp()).sum::<f32>() + (rest - highest).exp();
    log_probs.iter_mut().for_each(|(_, score)| *score -= highest + total.ln());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SamplingParams;

    fn sampler(temperature: f32, seed: u64) -> Sampler {
        Sampler::new(SamplingParams { temperature, seed, ..SamplingParams::default() }, 60).unwrap()
    }

    fn logits() -> Vec<f32> {
        (0..60).map(|token| (token * 17 % 23) as f32 * 0.3).collect()
    }

    #[test]
    fn at_temperature_0_it_is_the_drafters_own_distribution() {
        let foreseen = sampler(0.0, 1).foresee(&logits(), 5, &History::new(&[0]), 3);
        let total: f32 = logits().iter().map(|logit| logit.exp()).sum();
        let tokens: Vec<_> = foreseen.iter().map(|(token, _)| *token).collect();
        let highest: Vec<_> = (0..60).filter(|&token| logits()[token as usize] == 22.0 * 0.3).take(3).collect();
        assert_eq!(tokens, highest);
        assert!((foreseen[0].1.exp() - (22.0f32 * 0.3).exp() / total).abs() < 1e-5);
    }

    #[test]
    fn with_the_targets_own_logits_the_first_is_what_will_be_drawn() {
        let history = History::new(&[0]);
        let peaked: Vec<f32> = logits().iter().map(|logit| 2.0 * logit).collect();
        for seed in 0..50 {
            let mut sampler = sampler(0.7, seed);
            let drawn = sampler.sample(&peaked, 9, &history, None).unwrap();
            assert_eq!(sampler.foresee(&peaked, 9, &history, 1)[0].0, drawn, "seed {seed}");
        }
    }

    /// If the drafter's error is what it is taken for, the beliefs are the shares that come true.
    #[test]
    fn beliefs_are_right_on_average() {
        let error = Noise::new(99);
        let history = History::new(&[0]);
        // No more than are weighed one by one.
        let logits: Vec<f32> = logits().into_iter().take(SHORTLIST).chain([-40.0; 36]).collect();
        let (mut believed, mut hits) = (0.0, 0);
        for seed in 0..2000 {
            let mut sampler = sampler(1.0, seed);
            let error = |token| ERROR_SCALE * error.gumbel(seed, token);
            let target: Vec<f32> = (0..).zip(&logits).map(|(token, logit)| logit + error(token)).collect();
            let (token, log_prob) = sampler.foresee(&logits, 9, &history, 1)[0];
            believed += log_prob.exp();
            hits += u32::from(sampler.sample(&target, 9, &history, None) == Ok(token));
        }
        let ratio = believed / hits as f32;
        assert!((0.9..1.1).contains(&ratio), "believed {believed}, {hits} came true");
    }

    #[test]
    fn penalties_follow_the_guessed_path() {
        let params = SamplingParams { frequency_penalty: 2.0, ..SamplingParams::default() };
        let mut sampler = Sampler::new(params, 3).unwrap();
        let mut history = History::new(&[0]);
        assert_eq!(sampler.foresee(&[0.0, 1.0, 0.5], 1, &history, 1)[0].0, 1);
        history.push(1);
        assert_eq!(sampler.foresee(&[0.0, 1.0, 0.5], 2, &history, 1)[0].0, 2);
    }

    /// A drafter that scores all tokens, in any order, expects the same as one with a row of logits.
    #[test]
    fn listed_tokens_are_foreseen_as_a_row_is() {
        let params = SamplingParams {
            temperature: 0.8,
            seed: 3,
            repetition_penalty: 1.3,
            frequency_penalty: 0.4,
            presence_penalty: 0.2,
            logit_bias: vec![(5, 2.0), (9, -1.0)],
            ..SamplingParams::default()
        };
        let mut history = History::new(&[0, 4, 22]);
        [5, 22, 7].into_iter().for_each(|token| history.push(token));
        let tokens: Vec<TokenId> = (0..60).map(|index| index * 7 % 60).collect();
        for params in [params, SamplingParams::default()] {
            let mut sampler = Sampler::new(params, 60).unwrap();
            let listed: Vec<f32> = tokens.iter().map(|&token| logits()[token as usize] + token as f32 * 1e-3).collect();
            let row: Vec<f32> = (0..60).map(|token| logits()[token as usize] + token as f32 * 1e-3).collect();
            let expected = sampler.foresee(&row, 9, &history, 5);
            let found = sampler.foresee_among(&tokens, &listed, 9, &history, 5);
            for ((token, log_prob), (other, other_log_prob)) in expected.iter().zip(&found) {
                assert_eq!(token, other);
                assert!((log_prob - other_log_prob).abs() < 1e-4);
            }
        }
    }

    #[test]
    fn broken_logits_are_no_guess() {
        let history = History::new(&[0]);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for temperature in [0.0, 1.0] {
                assert_eq!(sampler(temperature, 1).foresee(&[bad; 60], 1, &history, 4), []);
            }
        }
    }
}
