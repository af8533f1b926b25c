//! Sampled tokens follow the processed distribution: Pearson's chi-square at fixed seeds.

use std::convert::Infallible;

use crate::support::RandomDraft;
use pleach_decode::{
    Generation, GenerationOptions, History, LogProbs, Sampler, SamplingParams, Target, TokenId, TreeRows, Unconstrained,
};

const DRAWS: u64 = 100_000;

/// Quantile of the chi-square distribution that one run in ten thousand exceeds (Wilson and Hilferty, 1931).
fn critical(degrees: f64) -> f64 {
    let spread = 2.0 / (9.0 * degrees);
    degrees * (1.0 - spread + 3.719 * spread.sqrt()).powi(3)
}

fn assert_distribution(counts: &[u64], expected: &[f64], what: &str) {
    let draws = counts.iter().sum::<u64>() as f64;
    let mut statistic = 0.0;
    for (token, (&count, &share)) in counts.iter().zip(expected).enumerate() {
        assert!(share > 0.0 || count == 0, "{what}: token {token} was drawn {count} times against its filter");
        if share > 0.0 {
            statistic += (count as f64 - share * draws).powi(2) / (share * draws);
        }
    }
    let degrees = expected.iter().filter(|share| **share > 0.0).count() as f64 - 1.0;
    assert!(statistic < critical(degrees), "{what}: chi-square {statistic:.1} with {degrees} degrees of freedom");
}

/// Softmax over the tokens in `kept` at a temperature.
fn softmax(logits: &[f32], temperature: f64, kept: impl Fn(usize) -> bool) -> Vec<f64> {
    let weight = |(token, logit): (usize, &f32)| {
        if kept(token) { (f64::from(*logit) / temperature).exp() } else { 0.0 }
    };
    let weights: Vec<f64> = logits.iter().enumerate().map(weight).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

/// How often each token is drawn at the first `draws` positions.
fn count(params: SamplingParams, logits: &[f32], draws: u64) -> Vec<u64> {
    let mut sampler = Sampler::new(params, logits.len()).unwrap();
    let mut counts = vec![0; logits.len()];
    for position in 0..draws {
        counts[sampler.sample(logits, position, &History::new(&[]), None).unwrap() as usize] += 1;
    }
    counts
}

/// Falling from 0 to −7 in steps of different height; ids are shuffled so that order cannot help.
fn logits() -> Vec<f32> {
    (0..16u32).map(|token| -(((token * 7 + 3) % 16) as f32).powf(0.7)).collect()
}

/// Rank of a token among `logits()`, 0 the likeliest.
fn rank(token: usize) -> usize {
    (token * 7 + 3) % 16
}

#[test]
fn plain_sampling_follows_the_softmax() {
    for (seed, temperature) in [(1, 1.0), (2, 0.7), (3, 1.6)] {
        let params = SamplingParams { temperature, seed, ..SamplingParams::default() };
        let expected = softmax(&logits(), f64::from(temperature), |_| true);
        assert_distribution(&count(params, &logits(), DRAWS), &expected, &format!("temperature {temperature}"));
    }
}

#[test]
fn filtered_sampling_follows_what_the_filters_leave() {
    let base = SamplingParams { temperature: 1.0, seed: 21, ..SamplingParams::default() };
    let plain = softmax(&logits(), 1.0, |_| true);

    let top_k = SamplingParams { top_k: 5, ..base.clone() };
    assert_distribution(&count(top_k, &logits(), DRAWS), &softmax(&logits(), 1.0, |token| rank(token) < 5), "top-k");

    let mut by_rank: Vec<f64> = plain.clone();
    by_rank.sort_by(|a, b| b.total_cmp(a));
    let share_before = |token: usize| by_rank[..rank(token)].iter().sum::<f64>();
    let top_p = SamplingParams { top_p: 0.8, ..base.clone() };
    let expected = softmax(&logits(), 1.0, |token| share_before(token) < 0.8);
    assert_distribution(&count(top_p, &logits(), DRAWS), &expected, "top-p");

    let min_p = SamplingParams { min_p: 0.1, ..base };
    let expected = softmax(&logits(), 1.0, |token| plain[token] >= 0.1 * by_rank[0]);
    assert_distribution(&count(min_p, &logits(), DRAWS), &expected, "min-p");
}

/// A model that thinks the same after every text.
struct Constant(Vec<f32>);

impl Target for Constant {
    type Error = Infallible;

    fn verify(&mut self, _: TreeRows<'_>) -> Result<(), Infallible> {
        Ok(())
    }

    fn logits(&self, _: usize) -> &[f32] {
        &self.0
    }

    fn commit(&mut self, _: &[usize]) -> Result<(), Infallible> {
        Ok(())
    }
}

/// The first token of a text and the one after it, over seeds: whatever was guessed, and whether or not it was right.
#[test]
fn tokens_of_drafted_texts_follow_the_softmax() {
    let (mut first, mut second, mut accepted) = (vec![0; 16], vec![0; 16], 0);
    for seed in 0..30_000 {
        let sampling = SamplingParams { temperature: 0.8, seed, ..SamplingParams::default() };
        let options = GenerationOptions { sampling, budget: 12, max_tokens: Some(2), ..GenerationOptions::new(16, 99) };
        let mut generation = Generation::new(options, &[1, 2]).unwrap();
        let mut drafter = RandomDraft { state: seed };
        while generation.stopped().is_none() {
            generation.step(&mut Constant(logits()), &mut drafter, &mut Unconstrained).unwrap();
        }
        let text: &[TokenId] = &generation.history().tokens()[2..];
        first[text[0] as usize] += 1;
        second[text[1] as usize] += 1;
        accepted += generation.stats().accepted_by_depth.iter().sum::<u64>();
    }
    assert!(accepted > 3000, "only {accepted} guesses came true");
    let expected = softmax(&logits(), 0.8, |_| true);
    assert_distribution(&first, &expected, "the first token");
    assert_distribution(&second, &expected, "the second token");
}

/// Rare tokens need fine noise: with 24 random bits near one, their shares would be off by a few percent.
#[test]
fn rare_tokens_are_as_rare_as_they_should_be() {
    let mut logits = vec![0.0f32; 4096];
    logits[0] = 8.0;
    let params = SamplingParams { temperature: 1.0, seed: 5, ..SamplingParams::default() };
    let counts = count(params, &logits, 30_000);
    let grouped: Vec<u64> =
        std::iter::once(counts[0]).chain(counts[1..].chunks(585).map(|chunk| chunk.iter().sum())).collect();
    let shares = softmax(&logits, 1.0, |_| true);
    let expected: Vec<f64> =
        std::iter::once(shares[0]).chain(shares[1..].chunks(585).map(|chunk| chunk.iter().sum())).collect();
    assert_distribution(&grouped, &expected, "one peak over 4095 rare tokens");
}

#[test]
fn neighboring_positions_and_seeds_are_independent() {
    let logits = [0.0f32, -0.5, 0.3, -1.0];
    let shares = softmax(&logits, 1.0, |_| true);
    let expected: Vec<f64> = shares.iter().flat_map(|a| shares.iter().map(move |b| a * b)).collect();
    let draw = |seed, position| {
        let params = SamplingParams { temperature: 1.0, seed, ..SamplingParams::default() };
        Sampler::new(params, 4).unwrap().sample(&logits, position, &History::new(&[]), None).unwrap() as usize
    };
    let mut by_position = vec![0; 16];
    let mut by_seed = vec![0; 16];
    for i in 0..50_000 {
        by_position[draw(77, 2 * i) * 4 + draw(77, 2 * i + 1)] += 1;
        by_seed[draw(2 * i, 6) * 4 + draw(2 * i + 1, 6)] += 1;
    }
    assert_distribution(&by_position, &expected, "pairs of positions");
    assert_distribution(&by_seed, &expected, "pairs of seeds");
}

#[test]
fn log_probs_are_the_logarithms_of_the_softmax() {
    let logits = logits();
    let log_probs = LogProbs::new(&logits, 0).unwrap();
    for (token, share) in softmax(&logits, 1.0, |_| true).into_iter().enumerate() {
        assert!((f64::from(log_probs.of(token as u32)) - share.ln()).abs() < 1e-5);
    }
}
