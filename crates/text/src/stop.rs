//! Ends a text before a stop string, holding back only what may become one.

use crate::error::TextError;

/// The most stop strings one request may give.
pub const MAX_STOP_STRINGS: usize = 64;
/// The most bytes one stop string may have.
pub const MAX_STOP_BYTES: usize = 1024;

/// A checked list of stop strings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopStrings(Vec<String>);

impl StopStrings {
    /// Checks the list: at most [`MAX_STOP_STRINGS`], none empty, none over [`MAX_STOP_BYTES`].
    ///
    /// # Errors
    /// [`TextError::TooManyStops`], [`TextError::EmptyStop`] or [`TextError::StopTooLong`], naming the one
    /// at fault.
    pub fn new(stops: Vec<String>) -> Result<Self, TextError> {
        if stops.len() > MAX_STOP_STRINGS {
            return Err(TextError::TooManyStops { found: stops.len() });
        }
        for (index, stop) in stops.iter().enumerate() {
            match stop.len() {
                0 => return Err(TextError::EmptyStop { index }),
                found if found > MAX_STOP_BYTES => return Err(TextError::StopTooLong { index, found }),
                _ => {}
            }
        }
        Ok(Self(stops))
    }

    /// The stop strings in the order they were given.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

/// What a pushed piece of text lets through.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopOutput {
    /// Text that can be shown now.
    pub text: String,
    /// The stop string that ended the text, if one did. Nothing comes after it.
    pub stopped: Option<String>,
}

/// Watches a stream of text for stop strings.
///
/// The text ends where the first stop string is complete; of two that are complete at the same
/// place the longer one counts. The stop string itself is never shown. Text is held back only
/// while it is a true prefix of a stop string, and every way to cut the stream gives the same result.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: StopStrings,
    /// The longest end of the text so far that is a proper prefix of a stop string.
    held: String,
    stopped: bool,
}

impl StopMatcher {
    /// A matcher at the start of a text.
    #[must_use]
    pub fn new(stops: StopStrings) -> Self {
        Self { stops, held: String::new(), stopped: false }
    }

    /// Takes the next piece of text. After a stop, later pieces give nothing.
    pub fn push(&mut self, text: &str) -> StopOutput {
        if self.stopped {
            return StopOutput::default();
        }
        self.held.push_str(text);
        if let Some((start, stop)) = first_complete(&self.stops, &self.held) {
            let stop = stop.to_owned();
            self.held.truncate(start);
            self.stopped = true;
            return StopOutput { text: std::mem::take(&mut self.held), stopped: Some(stop) };
        }
        let hold = self.stops.iter().map(|stop| held_prefix_bytes(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - hold);
        StopOutput { text: std::mem::replace(&mut self.held, rest), stopped: None }
    }

    /// Ends the text and gives what was held back: it did not become a stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// The stop string that is complete first in `text`, and where it starts.
fn first_complete<'a>(stops: &'a StopStrings, text: &str) -> Option<(usize, &'a str)> {
    stops
        .iter()
        .filter_map(|stop| text.find(stop).map(|start| (start, stop)))
        .min_by_key(|(start, stop)| (start + stop.len(), *start))
}

/// Bytes of the longest end of `text` that is a proper prefix of `marker`.
///
/// The result is a character boundary of `text`, since `marker` starts with a character.
pub(crate) fn held_prefix_bytes(text: &str, marker: &str) -> usize {
    let longest = text.len().min(marker.len().saturating_sub(1));
    (1..=longest).rev().find(|&bytes| text.as_bytes().ends_with(&marker.as_bytes()[..bytes])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stops(list: &[&str]) -> StopStrings {
        StopStrings::new(list.iter().map(|stop| (*stop).to_owned()).collect()).unwrap()
    }

    fn run<'a>(list: &[&str], pieces: impl IntoIterator<Item = &'a str>) -> (String, Option<String>) {
        let mut matcher = StopMatcher::new(stops(list));
        let mut shown = String::new();
        let mut stopped = None;
        for piece in pieces {
            let output = matcher.push(piece);
            assert!(stopped.is_none() || output == StopOutput::default());
            shown.push_str(&output.text);
            stopped = stopped.or(output.stopped);
        }
        shown.push_str(&matcher.finish());
        (shown, stopped)
    }

    #[test]
    fn st_01_a_stop_across_pieces_ends_exactly_before_it() {
        let expected = ("alpha ".to_owned(), Some("beta gamma".to_owned()));
        assert_eq!(run(&["beta gamma"], ["alpha ", "beta", " ", "gamma", " delta"]), expected);
        assert_eq!(run(&["beta gamma"], ["alpha beta gamma delta"]), expected);
    }

    #[test]
    fn st_03_only_a_true_prefix_is_held() {
        let mut matcher = StopMatcher::new(stops(&["b,c"]));
        assert_eq!(matcher.push("plan</think>").text, "plan</think>");
        assert_eq!(matcher.push("a b").text, "a ");
        assert_eq!(matcher.push("!").text, "b!");
        assert_eq!(matcher.push("b,").text, "");
        assert_eq!(matcher.finish(), "b,");
    }

    #[test]
    fn st_05_nothing_leaks_after_a_stop() {
        assert_eq!(run(&["DEFGHIJ"], ["ABCDE", "FG", "HIJ", "KLM"]), ("ABC".to_owned(), Some("DEFGHIJ".to_owned())));
    }

    #[test]
    fn the_stop_complete_first_counts_then_the_longer() {
        assert_eq!(run(&["abcd", "bc"], ["xabcd"]), ("xa".to_owned(), Some("bc".to_owned())));
        assert_eq!(run(&["bc", "abc"], ["xabc"]), ("x".to_owned(), Some("abc".to_owned())));
    }

    #[test]
    fn limits_are_typed_errors() {
        let message = |list: Vec<String>| StopStrings::new(list).unwrap_err().to_string();
        assert_eq!(message(vec!["a".into(), String::new()]), "stop string 1 is empty: leave it out");
        assert_eq!(message(vec!["x".repeat(1025)]), "stop string 0 has 1025 bytes: give at most 1024");
        assert_eq!(message(vec!["x".into(); 65]), "65 stop strings are too many: give at most 64");
    }

    /// The definition, word for word: character by character, the first place where one is complete.
    fn by_definition(list: &[String], text: &str) -> (String, Option<String>) {
        let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
        for end in ends {
            let complete = list.iter().filter(|stop| text[..end].ends_with(stop.as_str()));
            if let Some(stop) = complete.max_by_key(|stop| stop.len()) {
                return (text[..end - stop.len()].to_owned(), Some(stop.clone()));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #[test]
        fn every_cut_gives_the_same_text(
            list in prop::collection::vec("[abé]{1,4}", 0..4),
            pieces in prop::collection::vec("[abcé]{0,5}", 0..8),
        ) {
            let borrowed: Vec<&str> = list.iter().map(String::as_str).collect();
            let expected = by_definition(&list, &pieces.concat());
            prop_assert_eq!(run(&borrowed, pieces.iter().map(String::as_str)), expected);
        }
    }
}
