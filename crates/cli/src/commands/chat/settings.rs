//! `/set`: how answers are drawn, by the names of the flags.

use pleach_engine::{GenerationConfig, Sampling, Settings};

use crate::args::{Allowed, parse_count, parse_max_tokens, parse_number, parse_seed, parse_stop};
use crate::error::CliError;
use crate::names::closest;

/// The settings of a conversation, with what fills the gaps.
pub(super) struct SettingsView<'a> {
    pub(super) settings: &'a mut Settings,
    pub(super) makers: &'a GenerationConfig,
    pub(super) vocab_size: usize,
}

/// The names, as they are completed.
pub(super) const NAMES: [&str; 10] = [
    "temperature",
    "top-k",
    "top-p",
    "min-p",
    "repetition-penalty",
    "presence-penalty",
    "frequency-penalty",
    "seed",
    "max-tokens",
    "stop",
];

impl SettingsView<'_> {
    /// All settings, those that the model's makers chose included.
    pub(super) fn lines(&self) -> Vec<String> {
        NAMES.iter().map(|name| self.line(name)).collect()
    }

    /// One of them.
    pub(super) fn get(&self, name: &str) -> Result<String, CliError> {
        if NAMES.contains(&name) { Ok(self.line(name)) } else { Err(unknown(name)) }
    }

    /// Changes one, if it is in its range; returns what it is now. `default` leaves it to the model.
    pub(super) fn set(&mut self, name: &str, value: &str) -> Result<String, CliError> {
        let refuse =
            |Allowed(allowed)| CliError::BadSetting { name: name.to_owned(), found: format!("`{value}`"), allowed };
        let is_default = value == "default";
        let mut changed = self.settings.clone();
        let number = || if is_default { Ok(None) } else { parse_number(value).map(Some).map_err(refuse) };
        let sampling = &mut changed.sampling;
        match name {
            "temperature" => sampling.temperature = number()?,
            "top-p" => sampling.top_p = number()?,
            "min-p" => sampling.min_p = number()?,
            "repetition-penalty" => sampling.repetition_penalty = number()?,
            "presence-penalty" => sampling.presence_penalty = number()?,
            "frequency-penalty" => sampling.frequency_penalty = number()?,
            "top-k" => sampling.top_k = (!is_default).then(|| parse_count(value)).transpose().map_err(refuse)?,
            "seed" => sampling.seed = (!is_default).then(|| parse_seed(value)).transpose().map_err(refuse)?,
            "max-tokens" => {
                changed.max_tokens = (!is_default).then(|| parse_max_tokens(value)).transpose().map_err(refuse)?;
            }
            "stop" if is_default => changed.stop.clear(),
            "stop" => changed.stop.push(parse_stop(value.trim_matches('"')).map_err(refuse)?),
            _ => return Err(unknown(name)),
        }
        let resolved = changed.sampling.resolve(self.makers);
        resolved.validate(self.vocab_size).map_err(|error| match CliError::from_engine(error.into()) {
            CliError::BadValue { name, found, allowed } => {
                CliError::BadSetting { name: name.trim_start_matches('-').to_owned(), found, allowed }
            }
            other => other,
        })?;
        *self.settings = changed;
        Ok(self.line(name))
    }

    fn line(&self, name: &str) -> String {
        let resolved = self.settings.sampling.resolve(self.makers);
        let Sampling { temperature, top_k, top_p, min_p, repetition_penalty, .. } = &self.settings.sampling;
        let Sampling { presence_penalty, frequency_penalty, .. } = &self.settings.sampling;
        let (value, is_set) = match name {
            "temperature" => (resolved.temperature.to_string(), temperature.is_some()),
            "top-k" => (resolved.top_k.to_string(), top_k.is_some()),
            "top-p" => (resolved.top_p.to_string(), top_p.is_some()),
            "min-p" => (resolved.min_p.to_string(), min_p.is_some()),
            "repetition-penalty" => (resolved.repetition_penalty.to_string(), repetition_penalty.is_some()),
            "presence-penalty" => (resolved.presence_penalty.to_string(), presence_penalty.is_some()),
            "frequency-penalty" => (resolved.frequency_penalty.to_string(), frequency_penalty.is_some()),
            "seed" => (resolved.seed.to_string(), self.settings.sampling.seed.is_some()),
            "max-tokens" => match self.settings.max_tokens {
                Some(tokens) => (tokens.to_string(), true),
                None => ("as many as the context holds".to_owned(), true),
            },
            _ if self.settings.stop.is_empty() => ("none".to_owned(), true),
            _ => (self.settings.stop.iter().map(|stop| format!("{stop:?}")).collect::<Vec<_>>().join(" "), true),
        };
        let origin = if is_set { "" } else { " (the model's default)" };
        format!("{name:<20}{value}{origin}")
    }
}

fn unknown(name: &str) -> CliError {
    CliError::NoSetting { name: name.to_owned(), known: NAMES.join(", ") }.or_close(closest(name, NAMES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_changed_or_refused() {
        let makers = GenerationConfig { do_sample: Some(true), temperature: Some(0.6), ..GenerationConfig::default() };
        let mut settings = Settings::default();
        let mut view = SettingsView { settings: &mut settings, makers: &makers, vocab_size: 10 };
        assert_eq!(view.lines()[0], "temperature         0.6 (the model's default)");
        assert_eq!(view.set("temperature", "0.9").unwrap(), "temperature         0.9");
        assert_eq!(view.set("temperature", "default").unwrap(), "temperature         0.6 (the model's default)");
        assert_eq!(view.set("stop", "\"END\"").unwrap(), "stop                \"END\"");
        let refused = |view: &mut SettingsView<'_>, name, value| view.set(name, value).unwrap_err().to_string();
        assert_eq!(refused(&mut view, "top-p", "2"), "`top-p` is 2, but must be above 0 and at most 1");
        assert_eq!(refused(&mut view, "top-k", "x"), "`top-k` is `x`, but must be a whole number from 0 to 4294967295");
        assert!(
            refused(&mut view, "heat", "1").starts_with("there is no setting `heat`: there are temperature, top-k")
        );
        assert_eq!(view.get("top-k").unwrap(), view.lines()[1]);
        assert_eq!(view.get("tempature").unwrap_err().hint().unwrap(), "did you mean `temperature`?");
        assert_eq!(settings.sampling.top_p, None);
    }
}
