//! A grammar as the loop of generation asks it.

use llguidance::Matcher;
use pleach_engine::{Flow, TokenMask};

/// A grammar and how far the text has come in it.
pub(crate) struct Rule {
    matcher: Matcher,
    stop_tokens: Vec<u32>,
    mask: TokenMask,
}

impl Rule {
    pub(super) fn new(matcher: Matcher, vocab_size: usize, stop_tokens: Vec<u32>) -> Self {
        Self { matcher, stop_tokens, mask: TokenMask::none(vocab_size) }
    }

    /// The same grammar for another text, from where this one stands.
    pub(crate) fn fork(&self) -> Self {
        Self { matcher: self.matcher.deep_clone(), stop_tokens: self.stop_tokens.clone(), mask: self.mask.clone() }
    }

    /// Tokens that may come next. Where the text may end, those that end it are among them. Where the grammar engine has
    /// failed there are none, which ends the request with an error: half a text must not look whole.
    pub(crate) fn allowed(&mut self) -> &mut TokenMask {
        let computed = self.matcher.compute_mask().ok();
        let may_end = computed.is_some() && self.matcher.is_accepting().unwrap_or(false);
        self.mask.fill(|words| {
            words.fill(0);
            if let Some(computed) = &computed {
                words.iter_mut().zip(computed.as_slice()).for_each(|(word, &bits)| *word = bits);
            }
        });
        for &token in &self.stop_tokens {
            if may_end { self.mask.allow(token) } else { self.mask.forbid(token) }
        }
        &mut self.mask
    }

    /// Tokens that the grammar leaves no choice about.
    pub(crate) fn forced(&mut self, most: usize) -> Vec<u32> {
        let mut tokens = self.matcher.compute_ff_tokens();
        tokens.truncate(most);
        tokens
    }

    /// Notes a token and says whether the text is complete.
    pub(crate) fn push(&mut self, token: u32) -> Flow {
        let is_taken = self.matcher.consume_token(token).is_ok() && !self.matcher.is_error();
        if is_taken && self.matcher.is_stopped() { Flow::Stop } else { Flow::Continue }
    }
}
