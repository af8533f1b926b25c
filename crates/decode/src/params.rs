//! What a request may ask of sampling.

use crate::{DecodeError, TokenId};

/// How the next token is drawn from the logits.
///
/// The default is greedy and changes nothing: temperature 0, every filter off, every penalty neutral, no bias.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 or more. At 0 (default) the likeliest token is taken, without noise.
    pub temperature: f32,
    /// Keeps this many of the likeliest tokens; 0 (default) keeps all.
    pub top_k: usize,
    /// Keeps the likeliest tokens up to and including the one that lifts their probability to this share; above 0, up
    /// to 1 (default), which keeps all.
    pub top_p: f32,
    /// Keeps the tokens with at least this share of the likeliest token's probability; 0 (default) to 1.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt or output; above 0, 1 (default) is neutral.
    /// Source: CTRL (arXiv:1909.05858), section 4.1, extended to negative logits as in Hugging Face Transformers.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of a token in the output; −2 to 2, default 0. Source: the OpenAI API.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit once per occurrence in the output; −2 to 2, default 0. Source: the OpenAI API.
    pub frequency_penalty: f32,
    /// Penalties look at this many last tokens only; at least 1. `None` (default) looks at all.
    pub penalty_window: Option<usize>,
    /// Added to the logits of single tokens, after penalties; each −100 to 100. A token listed twice gets both.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Seed of the noise; used above temperature 0 only. Default 0.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: None,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// Checks every field against what it may be.
    ///
    /// # Errors
    ///
    /// [`DecodeError::InvalidOption`] names the first field at fault, the value met and the values allowed.
    pub fn validate(&self, vocab_size: usize) -> Result<(), DecodeError> {
        let finite = f32::is_finite;
        let finite_positive = |x: f32| finite(x) && x > 0.0;
        check(
            "temperature",
            self.temperature,
            finite(self.temperature) && self.temperature >= 0.0,
            "a finite number of 0 or more",
        )?;
        check("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1")?;
        check("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "from 0 to 1")?;
        check(
            "repetition_penalty",
            self.repetition_penalty,
            finite_positive(self.repetition_penalty),
            "a finite number above 0",
        )?;
        check(
            "presence_penalty",
            self.presence_penalty,
            (-2.0..=2.0).contains(&self.presence_penalty),
            "from -2 to 2",
        )?;
        check(
            "frequency_penalty",
            self.frequency_penalty,
            (-2.0..=2.0).contains(&self.frequency_penalty),
            "from -2 to 2",
        )?;
        check(
            "penalty_window",
            self.penalty_window.unwrap_or_default(),
            self.penalty_window != Some(0),
            "1 or more, or absent",
        )?;
        self.logit_bias.iter().try_for_each(|&(token, bias)| {
            check(
                "logit_bias token",
                token,
                (token as usize) < vocab_size,
                &format!("below the vocabulary's {vocab_size}"),
            )?;
            check("logit_bias", bias, (-100.0..=100.0).contains(&bias), "from -100 to 100")
        })
    }

    /// Whether the likeliest token is taken as it is, without noise.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether any penalty would change a logit.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// Refuses `found` unless it is `allowed`.
pub(crate) fn check(
    field: &'static str,
    found: impl ToString,
    is_allowed: bool,
    allowed: &str,
) -> Result<(), DecodeError> {
    if is_allowed {
        return Ok(());
    }
    Err(DecodeError::InvalidOption { field, found: found.to_string(), allowed: allowed.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(edit: impl FnOnce(&mut SamplingParams)) -> String {
        let mut params = SamplingParams::default();
        edit(&mut params);
        params.validate(10).unwrap_err().to_string()
    }

    #[test]
    fn defaults_are_valid_and_greedy() {
        assert_eq!(SamplingParams::default().validate(1), Ok(()));
        assert!(SamplingParams::default().is_greedy());
        assert!(!SamplingParams::default().has_penalties());
    }

    #[test]
    fn a_seed_leaves_the_temperature_alone() {
        let params = SamplingParams { seed: 7, temperature: 0.7, ..SamplingParams::default() };
        assert_eq!(params.temperature, 0.7);
        assert!(SamplingParams { seed: 7, ..SamplingParams::default() }.is_greedy());
    }

    #[test]
    fn refusals_name_field_value_and_range() {
        assert_eq!(
            message(|p| p.temperature = f32::NAN),
            "`temperature` is NaN, but must be a finite number of 0 or more"
        );
        assert_eq!(
            message(|p| p.temperature = -0.5),
            "`temperature` is -0.5, but must be a finite number of 0 or more"
        );
        assert_eq!(message(|p| p.top_p = 0.0), "`top_p` is 0, but must be above 0 and at most 1");
        assert_eq!(message(|p| p.min_p = 1.5), "`min_p` is 1.5, but must be from 0 to 1");
        assert_eq!(
            message(|p| p.repetition_penalty = f32::INFINITY),
            "`repetition_penalty` is inf, but must be a finite number above 0"
        );
        assert_eq!(message(|p| p.presence_penalty = 3.0), "`presence_penalty` is 3, but must be from -2 to 2");
        assert_eq!(message(|p| p.frequency_penalty = -3.0), "`frequency_penalty` is -3, but must be from -2 to 2");
        assert_eq!(message(|p| p.penalty_window = Some(0)), "`penalty_window` is 0, but must be 1 or more, or absent");
        assert_eq!(
            message(|p| p.logit_bias = vec![(10, 0.0)]),
            "`logit_bias token` is 10, but must be below the vocabulary's 10"
        );
        assert_eq!(message(|p| p.logit_bias = vec![(1, 101.0)]), "`logit_bias` is 101, but must be from -100 to 100");
    }

    #[test]
    fn no_field_takes_nan_or_infinity() {
        let fields: [fn(&mut SamplingParams) -> &mut f32; 6] = [
            |p| &mut p.temperature,
            |p| &mut p.top_p,
            |p| &mut p.min_p,
            |p| &mut p.repetition_penalty,
            |p| &mut p.presence_penalty,
            |p| &mut p.frequency_penalty,
        ];
        for field in fields {
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut params = SamplingParams::default();
                *field(&mut params) = value;
                assert!(params.validate(10).is_err());
            }
        }
        let biased = SamplingParams { logit_bias: vec![(0, f32::NAN)], ..SamplingParams::default() };
        assert!(biased.validate(10).is_err());
    }
}
