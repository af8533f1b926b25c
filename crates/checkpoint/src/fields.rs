//! Typed access to the fields of a JSON object, with errors that name the file, the field and the value.

use std::{fmt::Display, ops::RangeInclusive, path::Path};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::CheckpointError;

/// One JSON object of a file.
#[derive(Clone)]
pub(crate) struct Fields<'a> {
    file: &'a Path,
    /// Where the object sits in the file: empty, or a path that ends in a dot.
    prefix: String,
    map: &'a Map<String, Value>,
}

/// Parses a whole JSON text.
pub(crate) fn parse_json<T: DeserializeOwned>(bytes: &[u8], file: &Path) -> Result<T, CheckpointError> {
    serde_json::from_slice(bytes).map_err(|source| CheckpointError::Json { file: file.to_owned(), source })
}

impl<'a> Fields<'a> {
    /// The fields of `value`, which stands for the whole of `file`.
    pub(crate) fn of(value: &'a Value, file: &'a Path) -> Result<Self, CheckpointError> {
        match value {
            Value::Object(map) => Ok(Self { file, prefix: String::new(), map }),
            other => Err(CheckpointError::Malformed {
                file: file.to_owned(),
                what: "its JSON value".to_owned(),
                found: describe(other),
                expected: "an object".to_owned(),
            }),
        }
    }

    /// The file that the fields come from.
    pub(crate) fn file(&self) -> &'a Path {
        self.file
    }

    /// A field's value; `null` counts as absent.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The names of all fields.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'a str> {
        self.map.keys().map(String::as_str)
    }

    /// A field's place in the file, dots between levels.
    pub(crate) fn spell(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// A nested object.
    pub(crate) fn object(&self, name: &str) -> Result<Option<Self>, CheckpointError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(map)) => {
                Ok(Some(Self { file: self.file, prefix: format!("{}{name}.", self.prefix), map }))
            }
            Some(other) => Err(self.wrong(name, describe(other), "an object")),
        }
    }

    /// An entry of the list `name`, which must be an object.
    pub(crate) fn inside(&self, name: &str, entry: &'a Value) -> Result<Self, CheckpointError> {
        match entry {
            Value::Object(map) => Ok(Self { file: self.file, prefix: format!("{}{name}.", self.prefix), map }),
            other => Err(self.wrong(name, describe(other), "a list of objects")),
        }
    }

    /// A whole number inside `allowed`.
    pub(crate) fn count(&self, name: &str, allowed: RangeInclusive<usize>) -> Result<usize, CheckpointError> {
        self.optional_count(name, allowed)?.ok_or_else(|| self.missing(name))
    }

    /// As [`count`](Self::count), where the field may be absent.
    pub(crate) fn optional_count(
        &self,
        name: &str,
        allowed: RangeInclusive<usize>,
    ) -> Result<Option<usize>, CheckpointError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let count =
            value.as_u64().and_then(|count| usize::try_from(count).ok()).filter(|count| allowed.contains(count));
        match count {
            Some(count) => Ok(Some(count)),
            None => Err(self.wrong(name, describe(value), count_range(&allowed))),
        }
    }

    /// A number inside `allowed`.
    pub(crate) fn number(&self, name: &str, allowed: RangeInclusive<f32>) -> Result<f32, CheckpointError> {
        self.optional_number(name, allowed)?.ok_or_else(|| self.missing(name))
    }

    /// As [`number`](Self::number), where the field may be absent.
    pub(crate) fn optional_number(
        &self,
        name: &str,
        allowed: RangeInclusive<f32>,
    ) -> Result<Option<f32>, CheckpointError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_f64().map(|number| number as f32).filter(|number| allowed.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(name, describe(value), number_range(&allowed))),
        }
    }

    /// `true` or `false`, where the field may be absent.
    pub(crate) fn optional_flag(&self, name: &str) -> Result<Option<bool>, CheckpointError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.wrong(name, describe(other), "true or false")),
        }
    }

    /// A string, where the field may be absent.
    pub(crate) fn optional_text(&self, name: &str) -> Result<Option<&'a str>, CheckpointError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(name, describe(other), "a string")),
        }
    }

    /// One token id or a list of them; empty where the field is absent.
    pub(crate) fn token_ids(&self, name: &str) -> Result<Vec<u32>, CheckpointError> {
        let ids = match self.get(name) {
            None => return Ok(Vec::new()),
            Some(Value::Array(ids)) => ids.as_slice(),
            Some(one) => std::slice::from_ref(one),
        };
        ids.iter()
            .map(|id| {
                let id_value = id.as_u64().and_then(|id| u32::try_from(id).ok());
                id_value.ok_or_else(|| self.wrong(name, describe(id), "a token id or a list of token ids"))
            })
            .collect()
    }

    /// The error for an absent field.
    pub(crate) fn missing(&self, name: &str) -> CheckpointError {
        CheckpointError::MissingField { file: self.file.to_owned(), field: self.spell(name) }
    }

    /// The error for a value that cannot be.
    pub(crate) fn wrong(&self, name: &str, found: impl Display, expected: impl Into<String>) -> CheckpointError {
        CheckpointError::Field {
            file: self.file.to_owned(),
            field: self.spell(name),
            found: found.to_string(),
            expected: expected.into(),
        }
    }
}

/// A range of whole numbers as an error names it.
pub(crate) fn count_range(allowed: &RangeInclusive<usize>) -> String {
    format!("a whole number from {} to {}", allowed.start(), allowed.end())
}

/// A range of numbers as an error names it.
pub(crate) fn number_range(allowed: &RangeInclusive<f32>) -> String {
    format!("a number from {:?} to {:?}", allowed.start(), allowed.end())
}

/// A JSON value as an error shows it: its kind for containers, else its text, cut to a line's worth.
pub(crate) fn describe(value: &Value) -> String {
    match value {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(items) => format!("a list of {}", items.len()),
        other => shorten(&other.to_string()),
    }
}

/// A text from a file as an error shows it: cut to a line's worth, so that hostile input cannot flood a log.
pub(crate) fn shorten(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_name_file_field_value_and_range() {
        let value = json!({"text_config": {"num_hidden_layers": 0, "hidden_size": "many"}});
        let root = Fields::of(&value, Path::new("config.json")).unwrap();
        let text = root.object("text_config").unwrap().unwrap();
        assert_eq!(
            text.count("num_hidden_layers", 1..=512).unwrap_err().to_string(),
            "`text_config.num_hidden_layers` in `config.json` is 0, expected a whole number from 1 to 512"
        );
        assert_eq!(
            text.count("hidden_size", 1..=9).unwrap_err().to_string(),
            "`text_config.hidden_size` in `config.json` is \"many\", expected a whole number from 1 to 9"
        );
        assert_eq!(
            text.count("vocab_size", 1..=9).unwrap_err().to_string(),
            "`config.json` has no `text_config.vocab_size`, and guessing it would give a different model: take the file from the model's own repository"
        );
    }

    #[test]
    fn long_values_are_cut() {
        let cut = describe(&json!("é".repeat(500)));
        assert!(cut.len() < 200 && cut.ends_with("..."));
    }
}
