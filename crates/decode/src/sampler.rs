//! From one row of logits to the next token.

mod foresee;

pub(crate) use foresee::Foreseen;

use crate::filter::{Candidate, ScaledRow, needs_shortlist, score_floor, shortlist};
use crate::noise::{BLOCK, GUMBEL_MAX, gumbel_bound, gumbel_of};
use crate::{Count, DecodeError, History, Noise, SamplingParams, TokenId, TokenMask};

/// Draws tokens from logits.
///
/// The token at a position is a function of the row's logits, the tokens before it, the mask, the parameters and the
/// position; the sampler keeps nothing from one draw to the next but buffers. Order of work:
///
/// ```text
/// penalties → logit bias → mask → 1/temperature → top-k → top-p → min-p → + Gumbel noise → argmax
/// ```
///
/// At temperature 0 the argmax is taken after the mask. Equal scores go to the lowest id, everywhere.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    vocab_size: usize,
    noise: Noise,
    edited: Vec<f32>,
    candidates: Vec<Candidate>,
}

/// Highest entry of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Peak {
    token: TokenId,
    logit: f32,
}

impl Sampler {
    /// A sampler for rows of `vocab_size` logits.
    ///
    /// # Errors
    ///
    /// [`DecodeError::InvalidOption`] if a parameter lies outside its range.
    pub fn new(params: SamplingParams, vocab_size: usize) -> Result<Self, DecodeError> {
        params.validate(vocab_size)?;
        let noise = Noise::new(params.seed);
        Ok(Self { params, vocab_size, noise, edited: Vec::new(), candidates: Vec::new() })
    }

    /// The parameters it draws by.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Number of logits in a row.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The noise that draws are decided by, for drafters that want to foresee them; `None` at temperature 0.
    pub fn noise(&self) -> Option<&Noise> {
        (!self.params.is_greedy()).then_some(&self.noise)
    }

    /// Draws the token at `position`, given the tokens before it.
    ///
    /// `logits`: `[vocab_size]`, of the row before `position`. `history` holds the tokens at all earlier positions.
    ///
    /// # Errors
    ///
    /// - [`DecodeError::LogitsLength`], [`DecodeError::MaskLength`]: the row or the mask has another vocabulary.
    /// - [`DecodeError::NonFiniteLogits`]: a logit is NaN or +∞, or all are −∞.
    /// - [`DecodeError::NoTokenAllowed`]: the mask leaves no token with a finite logit.
    pub fn sample(
        &mut self,
        logits: &[f32],
        position: u64,
        history: &History,
        mask: Option<&TokenMask>,
    ) -> Result<TokenId, DecodeError> {
        if logits.len() != self.vocab_size {
            return Err(DecodeError::LogitsLength { position, found: logits.len(), expected: self.vocab_size });
        }
        let non_finite = |(token, value)| DecodeError::NonFiniteLogits { position, token, value };
        let mut peak = peak(logits).map_err(non_finite)?;
        if peak.logit == f32::NEG_INFINITY {
            return Err(non_finite((0, f32::NEG_INFINITY)));
        }
        let mut logits = logits;
        if self.edit(logits, history, mask)? {
            logits = &self.edited;
            peak = self::peak(logits).map_err(non_finite)?;
        }
        if peak.logit == f32::NEG_INFINITY {
            return Err(DecodeError::NoTokenAllowed { position });
        }
        if self.params.is_greedy() {
            return Ok(peak.token);
        }
        let row = ScaledRow { logits, highest: peak.logit, temperature: self.params.temperature };
        if !needs_shortlist(&self.params, self.vocab_size) {
            return Ok(draw_from_row(row, peak.token, score_floor(&self.params), &self.noise, position));
        }
        shortlist(row, &self.params, &mut self.candidates);
        Ok(draw_from_list(&self.candidates, peak.token, &self.noise, position))
    }

    /// Writes penalized, biased and masked logits into `edited`; returns false if there is nothing to change.
    fn edit(&mut self, logits: &[f32], history: &History, mask: Option<&TokenMask>) -> Result<bool, DecodeError> {
        if !self.params.has_penalties() && self.params.logit_bias.is_empty() && mask.is_none() {
            return Ok(false);
        }
        self.edited.clear();
        self.edited.extend_from_slice(logits);
        if self.params.has_penalties() {
            penalize(&mut self.edited, &self.params, history);
        }
        for &(token, bias) in &self.params.logit_bias {
            change(&mut self.edited, token, |logit| logit + bias);
        }
        mask.map_or(Ok(()), |mask| mask.apply(&mut self.edited))?;
        Ok(true)
    }
}

fn penalize(logits: &mut [f32], params: &SamplingParams, history: &History) {
    for (token, count) in history.counts() {
        change(logits, token, |logit| penalized(logit, params, count));
    }
}

/// The logit of a token that occurs so often.
fn penalized(logit: f32, params: &SamplingParams, count: Count) -> f32 {
    let scaled = if logit > 0.0 { logit / params.repetition_penalty } else { logit * params.repetition_penalty };
    let present = if count.generated > 0 { params.presence_penalty } else { 0.0 };
    scaled - present - params.frequency_penalty * count.generated as f32
}

/// Replaces one logit. A finite one stays finite, so that an extreme penalty cannot pass for a broken model.
fn change(logits: &mut [f32], token: TokenId, change: impl FnOnce(f32) -> f32) {
    if let Some(logit) = logits.get_mut(token as usize)
        && logit.is_finite()
    {
        *logit = change(*logit).clamp(f32::MIN, f32::MAX);
    }
}

/// The highest entry, the first of equals; of a row without finite entries, token 0 at −∞.
///
/// Returns the first entry that is NaN or +∞, if one is.
fn peak(logits: &[f32]) -> Result<Peak, (TokenId, f32)> {
    const CHUNK: usize = 512;
    let mut best = Peak { token: 0, logit: f32::NEG_INFINITY };
    for (index, chunk) in logits.chunks(CHUNK).enumerate() {
        let (highest, all_usable) = highest(chunk);
        let first = index * CHUNK;
        if !all_usable {
            let is_bad = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
            return Err(first_where(chunk, first, is_bad).unwrap_or((first as TokenId, highest)));
        }
        if highest > best.logit
            && let Some((token, logit)) = first_where(chunk, first, |logit| *logit == highest)
        {
            best = Peak { token, logit };
        }
    }
    Ok(best)
}

/// Highest entry, and whether all are below +∞; lane by lane, so that it compiles to vector instructions.
fn highest(chunk: &[f32]) -> (f32, bool) {
    const LANES: usize = 16;
    let mut highest = [f32::NEG_INFINITY; LANES];
    let mut usable = [true; LANES];
    for group in chunk.chunks(LANES) {
        for (lane, &logit) in group.iter().enumerate() {
            highest[lane] = if logit > highest[lane] { logit } else { highest[lane] };
            usable[lane] &= logit < f32::INFINITY;
        }
    }
    (highest.into_iter().fold(f32::NEG_INFINITY, f32::max), usable == [true; LANES])
}

fn first_where(chunk: &[f32], first: usize, matches: impl Fn(&f32) -> bool) -> Option<(TokenId, f32)> {
    let place = chunk.iter().position(matches)?;
    Some(((first + place) as TokenId, chunk[place]))
}

/// Argmax of score plus noise over the whole vocabulary, above a floor.
///
/// Few tokens need their noise in full: a block whose best score could not win with the largest noise needs no random
/// words, and a word whose bound cannot win needs no logarithm. Rounding is monotonic, so neither test can be wrong.
fn draw_from_row(row: ScaledRow<'_>, likeliest: TokenId, floor: f32, noise: &Noise, position: u64) -> TokenId {
    let mut best = Candidate { score: noise.gumbel(position, likeliest), token: likeliest };
    for (block, logits) in (0u32..).zip(row.logits.chunks(BLOCK)) {
        let highest = row.score(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        if highest < floor || highest + GUMBEL_MAX < best.score {
            continue;
        }
        let words = noise.words(position, block);
        for (lane, (&logit, word)) in (0u32..).zip(logits.iter().zip(words)) {
            let score = row.score(logit);
            if score < floor || score + gumbel_bound(word) < best.score {
                continue;
            }
            best = better(best, Candidate { score: score + gumbel_of(word), token: block * BLOCK as u32 + lane });
        }
    }
    best.token
}

/// Argmax of score plus noise over a list.
fn draw_from_list(candidates: &[Candidate], likeliest: TokenId, noise: &Noise, position: u64) -> TokenId {
    candidates
        .iter()
        .map(|candidate| Candidate { score: candidate.score + noise.gumbel(position, candidate.token), ..*candidate })
        .reduce(better)
        .map_or(likeliest, |best| best.token)
}

/// The higher score, of equals the lower id.
fn better(a: Candidate, b: Candidate) -> Candidate {
    if b.score > a.score || (b.score == a.score && b.token < a.token) { b } else { a }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn draw(params: SamplingParams, logits: &[f32]) -> Result<TokenId, DecodeError> {
        Sampler::new(params, logits.len()).unwrap().sample(logits, 5, &History::new(&[0]), None)
    }

    fn greedy() -> SamplingParams {
        SamplingParams::default()
    }

    fn sampled(seed: u64) -> SamplingParams {
        SamplingParams { temperature: 1.0, seed, ..greedy() }
    }

    #[test]
    fn greedy_takes_the_highest_and_of_equals_the_first() {
        assert_eq!(draw(greedy(), &[1.0, 3.0, 3.0, 2.0]), Ok(1));
        assert_eq!(draw(greedy(), &[-0.0, 0.0]), Ok(0));
        assert_eq!(draw(greedy(), &[0.5; 2000]), Ok(0));
        let mut late = vec![f32::MIN; 2000];
        late[1999] = -5.0;
        late[1500] = -5.0;
        assert_eq!(draw(greedy(), &late), Ok(1500));
    }

    /// Rows that a broken model gives: an error that names the place, whatever the parameters.
    #[test]
    fn nu_03_non_finite_logits_are_errors() {
        let filtered = SamplingParams { top_k: 2, top_p: 0.9, min_p: 0.1, ..sampled(1) };
        for params in [greedy(), sampled(1), filtered] {
            for value in [f32::NAN, f32::INFINITY] {
                let mut logits = vec![1.0; 1100];
                logits[1050] = value;
                logits[1051] = value;
                let error = draw(params.clone(), &logits).unwrap_err();
                let shown = if value.is_nan() { "NaN" } else { "inf" };
                assert_eq!(
                    error.to_string(),
                    format!(
                        "non-finite logits: the logit of token 1050 at position 5 is {shown}, but must be a number \
                         below infinity; the sequence's state is unusable"
                    )
                );
            }
            for row in [[f32::NEG_INFINITY; 3], [f32::NAN; 3]] {
                let error = draw(params.clone(), &row).unwrap_err();
                assert!(matches!(error, DecodeError::NonFiniteLogits { position: 5, token: 0, .. }), "{error}");
            }
        }
    }

    #[test]
    fn nu_03_equal_logits_and_lone_finite_logits_are_drawn_from() {
        let mut lone = vec![f32::NEG_INFINITY; 600];
        lone[599] = -1e30;
        for seed in 0..50 {
            assert!(draw(sampled(seed), &[7.0; 5]).unwrap() < 5);
            assert_eq!(draw(sampled(seed), &lone), Ok(599));
            assert_eq!(draw(SamplingParams { top_p: 0.5, ..sampled(seed) }, &lone), Ok(599));
        }
    }

    #[test]
    fn another_vocabulary_is_refused() {
        let mut sampler = Sampler::new(greedy(), 4).unwrap();
        let error = sampler.sample(&[0.0; 3], 9, &History::new(&[]), None).unwrap_err();
        assert_eq!(error.to_string(), "the logits of position 9 have 3 entries, but the vocabulary has 4 tokens");
        let mask = TokenMask::all(5);
        let error = sampler.sample(&[0.0; 4], 9, &History::new(&[]), Some(&mask)).unwrap_err();
        assert_eq!(error, DecodeError::MaskLength { found: 5, expected: 4 });
    }

    #[test]
    fn penalties_follow_prompt_and_output() {
        let params = SamplingParams {
            repetition_penalty: 2.0,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            ..SamplingParams::default()
        };
        let mut history = History::new(&[0, 1]);
        [1, 2, 2].into_iter().for_each(|token| history.push(token));
        let mut logits = [4.0, -4.0, 4.0, 4.0, f32::NEG_INFINITY];
        penalize(&mut logits, &params, &history);
        // Token 0 stands in the prompt only, token 1 in both, token 2 twice in the output.
        assert_eq!(logits, [2.0, -8.0 - 0.5 - 0.25, 2.0 - 0.5 - 0.5, 4.0, f32::NEG_INFINITY]);
    }

    #[test]
    fn extreme_penalties_stay_finite() {
        let params = SamplingParams { repetition_penalty: f32::MIN_POSITIVE, ..greedy() };
        assert_eq!(draw(params, &[1e30, 2e30]), Ok(0));
        let params = SamplingParams { repetition_penalty: f32::MAX, ..greedy() };
        assert_eq!(draw(params, &[-1e30, -2e30]), Ok(1));
    }

    #[test]
    fn bias_comes_after_penalties_and_before_the_mask() {
        let params = SamplingParams { logit_bias: vec![(2, 10.0), (1, 1.0), (2, -9.0)], ..greedy() };
        assert_eq!(draw(params.clone(), &[0.0, 0.0, 0.5]), Ok(2));
        let mut mask = TokenMask::all(3);
        mask.forbid(2);
        let mut sampler = Sampler::new(params, 3).unwrap();
        assert_eq!(sampler.sample(&[0.0, 0.0, 0.5], 0, &History::new(&[]), Some(&mask)), Ok(1));
    }

    #[test]
    fn a_mask_without_a_reachable_token_is_an_error() {
        let mut mask = TokenMask::none(3);
        let mut sampler = Sampler::new(sampled(0), 3).unwrap();
        let refused = Err(DecodeError::NoTokenAllowed { position: 4 });
        assert_eq!(sampler.sample(&[1.0; 3], 4, &History::new(&[]), Some(&mask)), refused);
        mask.allow(1);
        let row = [1.0, f32::NEG_INFINITY, 1.0];
        assert_eq!(sampler.sample(&row, 4, &History::new(&[]), Some(&mask)), refused);
        assert_eq!(sampler.sample(&[1.0, -50.0, 1.0], 4, &History::new(&[]), Some(&mask)), Ok(1));
    }

    #[test]
    fn of_equal_perturbed_scores_the_lower_id_wins() {
        let (low, high) = (Candidate { score: 1.5, token: 3 }, Candidate { score: 1.5, token: 8 });
        assert_eq!(better(low, high), low);
        assert_eq!(better(high, low), low);
        assert_eq!(better(low, Candidate { score: 1.6, token: 9 }).token, 9);
    }

    #[test]
    fn the_smallest_temperature_is_nearly_greedy() {
        let logits = [1.0, 2.0, 5.0, 4.999];
        for seed in 0..100 {
            let params = SamplingParams { temperature: f32::MIN_POSITIVE, ..sampled(seed) };
            assert_eq!(draw(params, &logits), Ok(2));
        }
    }

    #[test]
    fn a_draw_depends_on_seed_and_position_alone() {
        let logits: Vec<f32> = (0..64).map(|token| (token % 7) as f32 * 0.3).collect();
        let history = History::new(&[]);
        let mut sampler = Sampler::new(sampled(11), 64).unwrap();
        let forward: Vec<_> = (0..200).map(|p| sampler.sample(&logits, p, &history, None).unwrap()).collect();
        let mut again = Sampler::new(sampled(11), 64).unwrap();
        let mut backward: Vec<_> = (0..200).rev().map(|p| again.sample(&logits, p, &history, None).unwrap()).collect();
        backward.reverse();
        assert_eq!(forward, backward);
        let mut other = Sampler::new(sampled(12), 64).unwrap();
        let differing = (0..200).filter(|p| other.sample(&logits, *p, &history, None) != Ok(forward[*p as usize]));
        assert!(differing.count() > 150);
    }

    #[test]
    fn buffers_are_kept_from_draw_to_draw() {
        let logits: Vec<f32> = (0..5000).map(|token| (token * 7919 % 1000) as f32 * 0.01).collect();
        let params = SamplingParams { top_p: 0.9, logit_bias: vec![(1, 1.0)], ..sampled(1) };
        let mut sampler = Sampler::new(params, 5000).unwrap();
        let mut places = (0..20).map(|position| {
            sampler.sample(&logits, position, &History::new(&[]), None).unwrap();
            (sampler.edited.as_ptr() as usize, sampler.candidates.as_ptr() as usize)
        });
        let first = places.next();
        assert!(places.all(|place| Some(place) == first));
    }

    proptest! {
        /// Skipping tokens that cannot win changes nothing: the draw equals the plain argmax over every token.
        #[test]
        fn same_token_as_by_trying_every_one(
            logits in prop::collection::vec(
                prop_oneof![9 => (-60i32..60).prop_map(|step| step as f32 * 0.25), 1 => Just(f32::NEG_INFINITY)],
                1..300,
            ),
            temperature in prop_oneof![Just(1.0f32), 0.05f32..5.0],
            min_p in prop_oneof![Just(0.0f32), 0.001f32..1.0],
            seed: u64,
            position: u64,
        ) {
            prop_assume!(logits.iter().any(|logit| logit.is_finite()));
            let params = SamplingParams { temperature, min_p, seed, ..greedy() };
            let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let noise = Noise::new(seed);
            let expected = (0..)
                .zip(&logits)
                .map(|(token, logit)| (token, (logit - highest) / temperature))
                .filter(|(_, score)| *score >= score_floor(&params))
                .map(|(token, score)| Candidate { score: score + noise.gumbel(position, token), token })
                .reduce(better);
            let mut sampler = Sampler::new(params, logits.len()).unwrap();
            let found = sampler.sample(&logits, position, &History::new(&[]), None).unwrap();
            prop_assert_eq!(found, expected.unwrap().token);
        }

        /// A top-p of nearly everything goes another way and ends at the same token.
        #[test]
        fn filters_that_keep_everything_change_nothing(
            logits in prop::collection::vec((-60i32..60).prop_map(|step| step as f32 * 0.25), 2..300),
            seed: u64,
        ) {
            let all_but_nothing = SamplingParams { top_p: 1.0 - f32::EPSILON, ..sampled(seed) };
            let plain = draw(sampled(seed), &logits);
            let listed = draw(all_but_nothing, &logits);
            // The share may cut tokens of almost no weight; only then may the draws differ.
            let weight = |token: TokenId| logits[token as usize] - logits.iter().copied().fold(f32::MIN, f32::max);
            prop_assert!(plain == listed || weight(plain.unwrap()) < -10.0);
        }
    }
}
