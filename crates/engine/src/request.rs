//! What can be asked of a model.

use pleach_checkpoint::GenerationConfig;
use pleach_decode::SamplingParams;
use pleach_text::{ChatRequest, Message, Role, SpecialTokens, StopStrings};

use crate::{CancelToken, EngineError, SpecBudget};

/// One text to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// What it continues.
    pub prompt: Prompt,
    /// How it is written.
    pub settings: Settings,
}

/// What a text continues.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// A conversation, rendered with the model's chat template.
    Chat(ChatRequest),
    /// A text as it is, after the tokens that the model expects before raw texts. Control tokens that are spelled out in
    /// it count as such.
    Text(String),
    /// Tokens of the model's vocabulary, exactly.
    Tokens(Vec<u32>),
}

/// How a text is written. The default leaves everything to the model and its makers.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Most tokens of the output, at least 1; `None` (default) for as many as the context holds.
    pub max_tokens: Option<usize>,
    /// The text ends before the first of these; at most 64, each of 1 to 1024 bytes.
    pub stop: Vec<String>,
    /// Says in each [`TokenEvent`](crate::TokenEvent) how likely the token was, with this many of the likeliest beside it:
    /// 0 to [`MAX_LOGPROBS`]. `None` (default) leaves it out, and saves a pass over the vocabulary per token.
    pub logprobs: Option<usize>,
    /// Goes on after tokens that end a text, until another limit is met.
    pub ignore_eos: bool,
    /// Tells the model's thought from its answer, where it writes `<think>`; on by default. Otherwise all is text.
    pub split_reasoning: bool,
    /// Whether special tokens show in the text; they are left out by default.
    pub special_tokens: SpecialTokens,
    /// How many rows the guesses of a pass get, if the engine has drafters. It changes the speed, never the text.
    pub spec_budget: SpecBudget,
    /// Stops the request from another thread.
    pub cancel: CancelToken,
}

/// Most alternatives that are reported beside each token.
pub const MAX_LOGPROBS: usize = 20;

/// How tokens are drawn. A field that is `None` is taken from the model's `generation_config.json` or GGUF metadata, and
/// if that says nothing either, from the default given here, which changes nothing.
///
/// A model whose makers say `do_sample: false`, or nothing at all, is decoded greedily unless a temperature is given.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 or more. 0 takes the likeliest token, always.
    pub temperature: Option<f32>,
    /// Keeps this many of the likeliest tokens; 0 (default) keeps all.
    pub top_k: Option<usize>,
    /// Keeps the likeliest tokens up to this share of probability; above 0, up to 1 (default).
    pub top_p: Option<f32>,
    /// Keeps tokens with at least this share of the likeliest one's probability; 0 (default) to 1.
    pub min_p: Option<f32>,
    /// Divides positive and multiplies negative logits of tokens that occurred; above 0, 1 (default) is neutral.
    pub repetition_penalty: Option<f32>,
    /// Subtracted once from the logit of a token in the output; −2 to 2, default 0.
    pub presence_penalty: Option<f32>,
    /// Subtracted from a token's logit per occurrence in the output; −2 to 2, default 0.
    pub frequency_penalty: Option<f32>,
    /// Penalties look at this many last tokens; at least 1, default all.
    pub penalty_window: Option<usize>,
    /// Added to the logits of single tokens; each −100 to 100.
    pub logit_bias: Vec<(u32, f32)>,
    /// Decides the noise of drawing. The default is 0, so that a request repeated gives its text again; a seed alone
    /// never changes the temperature.
    pub seed: Option<u64>,
}

impl Request {
    /// Asks one question.
    pub fn user(question: impl Into<String>) -> Self {
        Self::chat(ChatRequest::new(vec![Message::text(Role::User, question)]))
    }

    /// Continues a conversation.
    pub fn chat(chat: ChatRequest) -> Self {
        Self::new(Prompt::Chat(chat))
    }

    /// Continues a text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new(Prompt::Text(text.into()))
    }

    /// Continues tokens.
    pub fn tokens(tokens: Vec<u32>) -> Self {
        Self::new(Prompt::Tokens(tokens))
    }

    /// The same with other settings.
    #[must_use]
    pub fn with(self, settings: Settings) -> Self {
        Self { settings, ..self }
    }

    fn new(prompt: Prompt) -> Self {
        Self { prompt, settings: Settings::default() }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            sampling: Sampling::default(),
            max_tokens: None,
            stop: Vec::new(),
            logprobs: None,
            ignore_eos: false,
            split_reasoning: true,
            special_tokens: SpecialTokens::Skip,
            spec_budget: SpecBudget::default(),
            cancel: CancelToken::new(),
        }
    }
}

impl Settings {
    /// Checks what concerns neither sampling nor the prompt.
    pub(crate) fn stop_strings(&self) -> Result<StopStrings, EngineError> {
        if let Some(found) = self.logprobs.filter(|&found| found > MAX_LOGPROBS) {
            let allowed = format!("from 0 to {MAX_LOGPROBS}");
            return Err(EngineError::InvalidField { field: "logprobs", found: found.to_string(), allowed });
        }
        Ok(StopStrings::new(self.stop.clone())?)
    }
}

impl Sampling {
    /// Always takes the likeliest token, whatever the model's makers suggest.
    pub fn greedy() -> Self {
        Self { temperature: Some(0.0), repetition_penalty: Some(1.0), ..Self::default() }
    }

    /// Fills what is not set from the defaults of a model's makers. Values are checked when a request starts.
    pub fn resolve(&self, makers: &GenerationConfig) -> SamplingParams {
        let neutral = SamplingParams::default();
        SamplingParams {
            temperature: self.temperature.unwrap_or_else(|| makers_temperature(makers)),
            top_k: self.top_k.or(makers.top_k).unwrap_or(neutral.top_k),
            top_p: self.top_p.or(makers.top_p).unwrap_or(neutral.top_p),
            min_p: self.min_p.or(makers.min_p).unwrap_or(neutral.min_p),
            repetition_penalty: self
                .repetition_penalty
                .or(makers.repetition_penalty)
                .unwrap_or(neutral.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(neutral.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(neutral.frequency_penalty),
            penalty_window: self.penalty_window,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or(neutral.seed),
        }
    }
}

/// `do_sample` decides; a temperature without it counts as a wish to sample, and sampling without a temperature is at 1.
fn makers_temperature(makers: &GenerationConfig) -> f32 {
    match (makers.do_sample, makers.temperature) {
        (Some(false), _) | (None, None) => 0.0,
        (_, Some(temperature)) => temperature,
        (Some(true), None) => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn makers(do_sample: Option<bool>, temperature: Option<f32>) -> GenerationConfig {
        GenerationConfig { do_sample, temperature, top_k: Some(20), top_p: Some(0.95), ..GenerationConfig::default() }
    }

    #[test]
    fn the_makers_defaults_fill_what_is_not_set() {
        let params = Sampling { top_k: Some(5), ..Sampling::default() }.resolve(&makers(Some(true), Some(0.6)));
        assert_eq!((params.temperature, params.top_k, params.top_p), (0.6, 5, 0.95));
        assert_eq!(Sampling::greedy().resolve(&makers(Some(true), Some(0.6))).temperature, 0.0);
    }

    #[test]
    fn do_sample_decides_whether_the_makers_want_sampling() {
        let temperature =
            |do_sample, temperature| Sampling::default().resolve(&makers(do_sample, temperature)).temperature;
        assert_eq!(temperature(Some(false), Some(0.6)), 0.0);
        assert_eq!(temperature(Some(true), None), 1.0);
        assert_eq!(temperature(None, Some(0.7)), 0.7);
        assert_eq!(temperature(None, None), 0.0);
    }

    #[test]
    fn a_seed_leaves_the_temperature_alone() {
        let params = Sampling { seed: Some(7), ..Sampling::default() }.resolve(&makers(Some(true), Some(0.6)));
        assert_eq!((params.seed, params.temperature), (7, 0.6));
        assert_eq!(Sampling::default().resolve(&GenerationConfig::default()), SamplingParams::default());
    }

    #[test]
    fn too_many_alternatives_are_refused_by_name() {
        let settings = Settings { logprobs: Some(21), ..Settings::default() };
        assert_eq!(settings.stop_strings().unwrap_err().to_string(), "`logprobs` is 21, but must be from 0 to 20");
    }
}
