//! Which drafters guess ahead, and how many rows their guesses get.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::time::{Duration, Instant};

use pleach_decode::{Clock, Pace};

use crate::EngineError;

/// Which drafters guess how a text goes on. They change the speed, never the text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Speculation {
    /// Looks guesses up in the text itself, and asks the draft model if one is given, or else the model's own
    /// multi-token-prediction head if it has one.
    #[default]
    Auto,
    /// Plain decoding.
    Off,
    /// Looks guesses up in prompt and output: cheap, and good where a text repeats or copies.
    Ngram,
    /// The model's own multi-token-prediction head alone; refused at opening if the model has none.
    Mtp,
    /// Another, smaller model or a trained drafter alone:
    /// [`EngineOptions::draft_model`](crate::EngineOptions::draft_model).
    Draft,
    /// A trained drafter alone, without the Weaver that may lie beside it.
    DFlash,
    /// A trained drafter with the Weaver beside it; refused at opening if there is none.
    Weaver,
}

/// Rows of a pass: the last token and the guesses after it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SpecBudget {
    /// As many as give most tokens per second by the measured cost of passes; one if no guess pays. At most
    /// [`AUTOMATIC_SPEC_ROWS`].
    #[default]
    Automatic,
    /// Always this many where so many are guessed, at most [`MAX_SPEC_ROWS`]; 1 is plain decoding.
    Rows(NonZeroUsize),
}

/// Most rows that are chosen without being asked for: each keeps a row of logits, a megabyte for the largest
/// vocabularies.
pub const AUTOMATIC_SPEC_ROWS: usize = 32;

/// Most rows that can be asked for.
pub const MAX_SPEC_ROWS: usize = 64;

/// What guessing ahead brought to a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Drafting {
    /// The drafters that were at work; empty for plain decoding.
    pub drafters: Vec<&'static str>,
    /// Guesses that were verified, by their distance from the last token, from 1 on.
    pub drafted_by_depth: Vec<u64>,
    /// Of these, the guesses that the model would have written.
    pub accepted_by_depth: Vec<u64>,
    /// Time of drafting. It is part of the generation's.
    pub draft: Duration,
    /// How many times faster than plain decoding, going by what passes of one row took in between; `None` if none did.
    pub speedup: Option<f64>,
}

impl Speculation {
    /// Whether a draft model would be used.
    pub(crate) fn asks_draft_model(self) -> bool {
        matches!(self, Self::Auto | Self::Draft | Self::DFlash | Self::Weaver)
    }
}

impl SpecBudget {
    pub(crate) fn validate(self) -> Result<(), EngineError> {
        let found = match self {
            Self::Automatic => return Ok(()),
            Self::Rows(rows) => rows.get(),
        };
        if found <= MAX_SPEC_ROWS {
            return Ok(());
        }
        let (field, allowed) = ("spec_budget", format!("from 1 to {MAX_SPEC_ROWS}"));
        Err(EngineError::InvalidField { field, found: found.to_string(), allowed })
    }

    /// Rows of a pass at most.
    pub(crate) fn most_rows(self) -> usize {
        match self {
            Self::Automatic => AUTOMATIC_SPEC_ROWS,
            Self::Rows(rows) => rows.get(),
        }
    }

    pub(crate) fn pace(self) -> Pace {
        match self {
            Self::Automatic => Pace::Auto(AUTOMATIC_SPEC_ROWS),
            Self::Rows(rows) => Pace::Fixed(rows.get()),
        }
    }
}

impl FromStr for SpecBudget {
    type Err = EngineError;

    /// `auto`, or a whole number of rows.
    fn from_str(text: &str) -> Result<Self, EngineError> {
        let rows = || text.parse().ok().and_then(NonZeroUsize::new).filter(|rows| rows.get() <= MAX_SPEC_ROWS);
        match text {
            "auto" => Ok(Self::Automatic),
            _ => rows().map(Self::Rows).ok_or_else(|| EngineError::InvalidField {
                field: "spec_budget",
                found: format!("`{text}`"),
                allowed: format!("`auto` or a whole number from 1 to {MAX_SPEC_ROWS}"),
            }),
        }
    }
}

impl fmt::Display for SpecBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Automatic => f.write_str("auto"),
            Self::Rows(rows) => rows.fmt(f),
        }
    }
}

/// The system's clock.
#[derive(Debug)]
pub(crate) struct WallClock(Instant);

impl WallClock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }
}

impl Clock for WallClock {
    fn now(&mut self) -> Duration {
        self.0.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_read_from_text() {
        assert_eq!("auto".parse::<SpecBudget>().unwrap(), SpecBudget::Automatic);
        assert_eq!("8".parse::<SpecBudget>().unwrap().pace(), Pace::Fixed(8));
        assert_eq!(["auto", "8"].map(|text| text.parse::<SpecBudget>().unwrap().to_string()), ["auto", "8"]);
        for text in ["0", "65", "-1", "many", ""] {
            assert_eq!(
                text.parse::<SpecBudget>().unwrap_err().to_string(),
                format!("`spec_budget` is `{text}`, but must be `auto` or a whole number from 1 to 64")
            );
        }
    }

    #[test]
    fn budgets_have_bounds() {
        let rows = |rows| SpecBudget::Rows(NonZeroUsize::new(rows).unwrap());
        assert!(rows(64).validate().is_ok() && SpecBudget::Automatic.validate().is_ok());
        assert_eq!(rows(65).validate().unwrap_err().to_string(), "`spec_budget` is 65, but must be from 1 to 64");
    }
}
