//! What a request gives while it runs.

use std::time::Duration;

use crate::Drafting;

/// Something that happened in a request, in the order in which it happened.
///
/// First the prompt's progress, then pieces of text, then exactly one [`Finished`], which is the last. A request that
/// fails ends with an error in its place.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// More of the prompt was read. The first says how much was known already.
    Prefill(Prefill),
    /// A token was drawn. The tokens of one pass come before the text that they complete.
    Token(TokenEvent),
    /// A piece of the model's thought, never empty; only if
    /// [`Settings::split_reasoning`](crate::Settings::split_reasoning) is set.
    Reasoning(String),
    /// A piece of the answer, never empty. No character is ever cut.
    Text(String),
    /// The request has ended.
    Finished(Finished),
}

/// How much of a prompt was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefill {
    /// Tokens read or known.
    pub done: usize,
    /// Tokens of the prompt.
    pub total: usize,
    /// Tokens that were known from an earlier request of the session.
    pub cached: usize,
}

/// One token of the output.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenEvent {
    /// Its number in the vocabulary.
    pub id: u32,
    /// The bytes that it stands for, which need not be whole characters.
    pub bytes: Vec<u8>,
    /// How likely it was; only if [`Settings::logprobs`](crate::Settings::logprobs) is set.
    pub log_probs: Option<TokenLogProbs>,
}

/// How likely a token was, and others in its place.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogProbs {
    /// Natural logarithm of the model's own probability, before penalties, temperature and filters.
    pub log_prob: f32,
    /// The likeliest tokens with theirs, likeliest first; as many as were asked for.
    pub top: Vec<(u32, f32)>,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// Why.
    pub reason: FinishReason,
    /// Tokens and passes.
    pub usage: Usage,
    /// Times.
    pub timings: Timings,
    /// What guessing ahead brought.
    pub drafting: Drafting,
    /// The seed that tokens were drawn with: the same request with it gives the same text.
    pub seed: u64,
}

/// Why a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model wrote a token that ends its text.
    Stop,
    /// The text came to this stop string, which is not part of it.
    StopString(String),
    /// The answer has as many tokens as the request or the context allows.
    Length,
    /// A [`CancelToken`](crate::CancelToken) was used.
    Cancelled,
}

/// Tokens and passes of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt, the cached ones included.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were known from an earlier request of the session.
    pub cached_tokens: usize,
    /// Tokens drawn, a token that ended the text included.
    pub output_tokens: usize,
    /// Passes after the prompt's. The first token comes from the prompt's last pass.
    pub passes: u64,
    /// Tokens guessed ahead and verified.
    pub drafted: u64,
    /// Of these, the tokens that the model would have written.
    pub accepted: u64,
}

impl Usage {
    /// Mean tokens that a pass gave, 1 without drafting; `None` if there was no pass after the prompt's.
    pub fn tokens_per_pass(&self) -> Option<f64> {
        (self.passes > 0).then(|| (self.passes + self.accepted) as f64 / self.passes as f64)
    }
}

/// Times of a request, from the call of [`Session::generate`](crate::Session::generate) on.
///
/// Work is done while events are asked for, so whatever the caller does between two of them counts as well.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timings {
    /// Until the first token was drawn; `None` if none was.
    pub time_to_first_token: Option<Duration>,
    /// Until the prompt was read. Encoding the text is included.
    pub prefill: Duration,
    /// From the first token to the end.
    pub generation: Duration,
    /// Until the end.
    pub total: Duration,
}

impl Timings {
    /// Tokens of the prompt per second, those from the cache left out; `None` if none was read.
    pub fn prefill_tokens_per_s(&self, usage: &Usage) -> Option<f64> {
        per_second(usage.prompt_tokens - usage.cached_tokens.min(usage.prompt_tokens), self.prefill)
    }

    /// Tokens of the answer per second, the first left out, which is the prompt's; `None` if there was no other.
    pub fn generation_tokens_per_s(&self, usage: &Usage) -> Option<f64> {
        per_second(usage.output_tokens.saturating_sub(1), self.generation)
    }
}

fn per_second(tokens: usize, time: Duration) -> Option<f64> {
    (tokens > 0 && !time.is_zero()).then(|| tokens as f64 / time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_leave_out_what_cost_no_time() {
        let usage =
            Usage { prompt_tokens: 110, cached_tokens: 10, output_tokens: 21, passes: 10, drafted: 30, accepted: 10 };
        let timings =
            Timings { prefill: Duration::from_secs(2), generation: Duration::from_secs(4), ..Timings::default() };
        assert_eq!(timings.prefill_tokens_per_s(&usage), Some(50.0));
        assert_eq!(timings.generation_tokens_per_s(&usage), Some(5.0));
        assert_eq!(usage.tokens_per_pass(), Some(2.0));
    }

    #[test]
    fn rates_of_nothing_are_none() {
        let usage = Usage { prompt_tokens: 5, cached_tokens: 5, output_tokens: 1, ..Usage::default() };
        let timings = Timings { prefill: Duration::from_secs(1), ..Timings::default() };
        assert_eq!(timings.prefill_tokens_per_s(&usage), None);
        assert_eq!(timings.generation_tokens_per_s(&usage), None);
        assert_eq!(usage.tokens_per_pass(), None);
    }
}
