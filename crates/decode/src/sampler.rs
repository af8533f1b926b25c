//! From one row of logits to the next token.

use crate::filter::{Candidate, ScaledRow, needs_shortlist, score_floor, shortlist};
use crate::noise::{BLOCK, GUMBEL_MAX, gumbel_bound, gumbel_of};
use crate::{DecodeError, History, Noise, SamplingParams, TokenId, TokenMask};

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
        change(logits, token, |logit| {
            let scaled =
                if logit > 0.0 { logit / params.repetition_penalty } else { logit * params.repetition_penalty };
            let present = if count.generated > 0 { params.presence_penalty } else { 0.0 };
            scaled - present - params.frequency_penalty * count.generated as f32
        });
    }
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
