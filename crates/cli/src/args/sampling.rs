//! The flags that say how tokens are drawn, and when to stop.

use clap::Args;
use pleach_engine::Sampling;

use super::{HELP_HEADING_SAMPLING, refusal, values};
use crate::error::CliError;

/// How tokens are drawn, and when to stop.
#[derive(Debug, Args)]
#[command(next_help_heading = HELP_HEADING_SAMPLING)]
pub(crate) struct SamplingFlags {
    /// How freely to draw; 0 always takes the likeliest token.
    #[arg(long, value_name = "X", env = "PLEACH_TEMPERATURE", hide_env_values = true, value_parser = values::number, allow_hyphen_values = true)]
    temperature: Option<f32>,
    /// Draw among this many of the likeliest tokens; 0 for all.
    #[arg(long, value_name = "N", env = "PLEACH_TOP_K", hide_env_values = true, value_parser = values::count, allow_hyphen_values = true)]
    top_k: Option<usize>,
    /// Draw among the likeliest tokens that have this share of the probability together.
    #[arg(long, value_name = "P", env = "PLEACH_TOP_P", hide_env_values = true, value_parser = values::number, allow_hyphen_values = true)]
    top_p: Option<f32>,
    /// Draw among tokens at least this likely, as a share of the likeliest.
    #[arg(long, value_name = "P", env = "PLEACH_MIN_P", hide_env_values = true, value_parser = values::number, allow_hyphen_values = true)]
    min_p: Option<f32>,
    /// Make tokens of prompt and answer less likely; 1 is neutral.
    #[arg(long, value_name = "X", value_parser = values::number, allow_hyphen_values = true)]
    repetition_penalty: Option<f32>,
    /// Subtract this from the logit of every token already in the answer; -2 to 2.
    #[arg(long, value_name = "X", value_parser = values::number, allow_hyphen_values = true)]
    presence_penalty: Option<f32>,
    /// Subtract this for every time that a token is in the answer; -2 to 2.
    #[arg(long, value_name = "X", value_parser = values::number, allow_hyphen_values = true)]
    frequency_penalty: Option<f32>,
    /// Add VALUE, -100 to 100, to the logit of token ID. May be repeated.
    #[arg(long, value_name = "ID=VALUE", value_parser = values::logit_bias, allow_hyphen_values = true)]
    logit_bias: Vec<(u32, f32)>,
    /// Decides every draw: the same seed gives the same answer [default: 0].
    #[arg(long, value_name = "N", env = "PLEACH_SEED", hide_env_values = true, value_parser = values::seed, allow_hyphen_values = true)]
    seed: Option<u64>,
    /// Most tokens of the answer, thoughts included [default: as many as the context holds].
    #[arg(long, value_name = "N", env = "PLEACH_MAX_TOKENS", hide_env_values = true, value_parser = values::max_tokens, allow_hyphen_values = true)]
    pub(crate) max_tokens: Option<usize>,
    /// End the answer before this text. May be repeated.
    #[arg(long, value_name = "TEXT", value_parser = values::stop, allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
    /// Go on after tokens that end an answer, until another limit is met.
    #[arg(long)]
    pub(crate) ignore_eos: bool,
}

impl SamplingFlags {
    /// How tokens are to be drawn.
    pub(crate) fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            penalty_window: None,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
        }
    }
}

/// Refuses values out of their range before a model is loaded for them.
pub(super) fn check(sampling: &Sampling) -> Result<(), CliError> {
    // The vocabulary is not known yet: ids beyond it are refused when the request starts.
    let resolved = sampling.resolve(&Default::default());
    resolved.validate(usize::MAX).map_err(|error| refusal::name_variable(CliError::from_engine(error.into())))
}
