//! Which tokens may come next, and who decides it.

use crate::{DecodeError, TokenId};

const BITS: usize = u32::BITS as usize;

/// A set of allowed tokens: one bit per token of the vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMask {
    /// Bit `t % 32` of word `t / 32` stands for token `t`; bits past the vocabulary are zero.
    words: Vec<u32>,
    vocab_size: usize,
}

impl TokenMask {
    /// A mask that allows nothing.
    pub fn none(vocab_size: usize) -> Self {
        Self { words: vec![0; vocab_size.div_ceil(BITS)], vocab_size }
    }

    /// A mask that allows every token.
    pub fn all(vocab_size: usize) -> Self {
        let mut mask = Self { words: vec![u32::MAX; vocab_size.div_ceil(BITS)], vocab_size };
        mask.clear_padding();
        mask
    }

    /// Tokens the mask covers, allowed or not.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Adds a token; one outside the vocabulary is ignored.
    pub fn allow(&mut self, token: TokenId) {
        if (token as usize) < self.vocab_size {
            self.words[token as usize / BITS] |= 1 << (token as usize % BITS);
        }
    }

    /// Removes a token; one outside the vocabulary is ignored.
    pub fn forbid(&mut self, token: TokenId) {
        if (token as usize) < self.vocab_size {
            self.words[token as usize / BITS] &= !(1 << (token as usize % BITS));
        }
    }

    /// Whether a token may come next.
    pub fn is_allowed(&self, token: TokenId) -> bool {
        self.words.get(token as usize / BITS).is_some_and(|word| word >> (token as usize % BITS) & 1 == 1)
    }

    /// Number of allowed tokens.
    pub fn num_allowed(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Hands out the bits to a grammar engine that computes them: bit `t % 32` of word `t / 32` stands for token `t`.
    ///
    /// `fill` may set bits past the vocabulary; they are cleared afterwards.
    pub fn fill(&mut self, fill: impl FnOnce(&mut [u32])) {
        fill(&mut self.words);
        self.clear_padding();
    }

    /// Sets the score of every forbidden token to −∞.
    ///
    /// # Errors
    ///
    /// [`DecodeError::MaskLength`] if `scores` has another length than the vocabulary.
    pub fn apply(&self, scores: &mut [f32]) -> Result<(), DecodeError> {
        if scores.len() != self.vocab_size {
            return Err(DecodeError::MaskLength { found: self.vocab_size, expected: scores.len() });
        }
        for (chunk, &word) in scores.chunks_mut(BITS).zip(&self.words) {
            match word {
                u32::MAX => {}
                0 => chunk.fill(f32::NEG_INFINITY),
                _ => forbid_zeros(chunk, word),
            }
        }
        Ok(())
    }

    fn clear_padding(&mut self) {
        let used = self.vocab_size % BITS;
        if used != 0
            && let Some(last) = self.words.last_mut()
        {
            *last &= (1 << used) - 1;
        }
    }
}

fn forbid_zeros(scores: &mut [f32], word: u32) {
    for (bit, score) in scores.iter_mut().enumerate() {
        if word >> bit & 1 == 0 {
            *score = f32::NEG_INFINITY;
        }
    }
}

/// What a request demands of its text, token by token: a grammar, a stop string, a ban.
///
/// It is asked and told in the order of the text and only about tokens that are part of it, so it may keep one state
/// and never has to step back.
pub trait Constraint {
    /// The tokens that may come next; `None` allows all.
    fn allowed(&mut self) -> Option<&TokenMask> {
        None
    }

    /// Tokens that the text must go on with, whatever the model says: those of a grammar that leaves no choice. They are
    /// drafted as certain, at no cost; [`allowed`](Self::allowed) still decides, so a wrong answer costs time only.
    ///
    /// At most `most` are of use. None, unless a constraint knows better.
    fn forced(&mut self, _most: usize) -> Vec<TokenId> {
        Vec::new()
    }

    /// Takes note of the next token of the text and says whether the text ends with it.
    ///
    /// Nothing is drawn and no row is kept past an end, however much was drafted. A stop token, which ends the text by
    /// itself, is not told.
    fn push(&mut self, token: TokenId) -> Flow;
}

/// Whether a text goes on after a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// The text goes on.
    Continue,
    /// The text is complete: its stop string or its grammar has ended.
    Stop,
}

/// A constraint that allows every text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unconstrained;

impl Constraint for Unconstrained {
    fn push(&mut self, _token: TokenId) -> Flow {
        Flow::Continue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allows_and_forbids_single_tokens() {
        let mut mask = TokenMask::none(70);
        mask.allow(3);
        mask.allow(69);
        mask.allow(70);
        assert_eq!(mask.num_allowed(), 2);
        assert!(mask.is_allowed(3) && mask.is_allowed(69));
        assert!(!mask.is_allowed(4) && !mask.is_allowed(70) && !mask.is_allowed(u32::MAX));
        mask.forbid(3);
        assert!(!mask.is_allowed(3));
    }

    #[test]
    fn bits_past_the_vocabulary_stay_zero() {
        assert_eq!(TokenMask::all(33).num_allowed(), 33);
        let mut mask = TokenMask::none(33);
        mask.fill(|words| words.fill(u32::MAX));
        assert_eq!(mask, TokenMask::all(33));
    }

    #[test]
    fn forbidden_tokens_score_minus_infinity() {
        let mut mask = TokenMask::none(100);
        mask.allow(1);
        mask.allow(99);
        let mut scores = vec![1.0; 100];
        mask.apply(&mut scores).unwrap();
        for (token, score) in scores.iter().enumerate() {
            assert_eq!(*score, if mask.is_allowed(token as u32) { 1.0 } else { f32::NEG_INFINITY });
        }
    }

    #[test]
    fn another_vocabulary_is_refused() {
        let error = TokenMask::all(10).apply(&mut [0.0; 11]).unwrap_err();
        assert_eq!(error.to_string(), "the token mask covers 10 tokens, but the vocabulary has 11");
    }
}
