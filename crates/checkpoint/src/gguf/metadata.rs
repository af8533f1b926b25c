//! Typed access to metadata, with errors that name the file, the key and the value.

use std::{ops::RangeInclusive, path::Path};

use super::{Header, Value};
use crate::{
    CheckpointError,
    fields::{count_range, number_range},
};

/// The metadata of one file.
pub(super) struct Metadata<'a> {
    header: &'a Header<'a>,
    file: &'a Path,
}

impl<'a> Metadata<'a> {
    /// The metadata of `header`, read from `file`.
    pub(super) fn new(header: &'a Header<'a>, file: &'a Path) -> Self {
        Self { header, file }
    }

    /// The file.
    pub(super) fn file(&self) -> &'a Path {
        self.file
    }

    /// A value.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value<'a>> {
        self.header.metadata.get(key)
    }

    /// A string.
    pub(super) fn text(&self, key: &str) -> Result<&'a str, CheckpointError> {
        self.optional_text(key)?.ok_or_else(|| self.missing(key))
    }

    /// A string, where the key may be absent.
    pub(super) fn optional_text(&self, key: &str) -> Result<Option<&'a str>, CheckpointError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, other, "a string")),
        }
    }

    /// `true` or `false`, where the key may be absent.
    pub(super) fn optional_flag(&self, key: &str) -> Result<Option<bool>, CheckpointError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.wrong(key, other, "true or false")),
        }
    }

    /// A whole number inside `allowed`, or an array that has the same one for every layer.
    pub(super) fn count(&self, key: &str, allowed: RangeInclusive<usize>) -> Result<usize, CheckpointError> {
        self.optional_count(key, allowed)?.ok_or_else(|| self.missing(key))
    }

    /// As [`count`](Self::count), where the key may be absent.
    pub(super) fn optional_count(
        &self,
        key: &str,
        allowed: RangeInclusive<usize>,
    ) -> Result<Option<usize>, CheckpointError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match uniform(value).and_then(|value| whole(&value)).filter(|count| allowed.contains(count)) {
            Some(count) => Ok(Some(count)),
            None => Err(self.wrong(key, value, count_range(&allowed))),
        }
    }

    /// A number inside `allowed`.
    pub(super) fn number(&self, key: &str, allowed: RangeInclusive<f32>) -> Result<f32, CheckpointError> {
        self.optional_number(key, allowed)?.ok_or_else(|| self.missing(key))
    }

    /// As [`number`](Self::number), where the key may be absent.
    pub(super) fn optional_number(
        &self,
        key: &str,
        allowed: RangeInclusive<f32>,
    ) -> Result<Option<f32>, CheckpointError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match float(value).filter(|number| allowed.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(key, value, number_range(&allowed))),
        }
    }

    /// Every element of an array, decoded by `decode`; `None` where the key is absent.
    pub(super) fn list<T>(
        &self,
        key: &str,
        expected: &str,
        decode: impl Fn(Value<'a>) -> Option<T>,
    ) -> Result<Option<Vec<T>>, CheckpointError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) => {
                let elements = array.iter().map(|element| element.and_then(&decode)).collect::<Option<Vec<T>>>();
                let wrong = || self.wrong(key, &Value::Array(*array), format!("an array of {expected}"));
                elements.map(Some).ok_or_else(wrong)
            }
            Some(other) => Err(self.wrong(key, other, format!("an array of {expected}"))),
        }
    }

    /// The error for an absent key.
    pub(super) fn missing(&self, key: &str) -> CheckpointError {
        CheckpointError::MissingField { file: self.file.to_owned(), field: key.to_owned() }
    }

    /// The error for a value that cannot be.
    pub(super) fn wrong(&self, key: &str, found: &Value<'_>, expected: impl Into<String>) -> CheckpointError {
        CheckpointError::Field {
            file: self.file.to_owned(),
            field: key.to_owned(),
            found: found.to_string(),
            expected: expected.into(),
        }
    }
}

/// A number itself, or the one that all elements of an array are.
fn uniform<'a>(value: &Value<'a>) -> Option<Value<'a>> {
    let Value::Array(array) = value else { return Some(*value) };
    let mut elements = array.iter();
    let first = elements.next()??;
    elements.all(|element| element == Some(first)).then_some(first)
}

/// A value as a whole number from 0 on.
pub(super) fn whole(value: &Value<'_>) -> Option<usize> {
    match value {
        Value::Unsigned(number) => usize::try_from(*number).ok(),
        Value::Signed(number) => usize::try_from(*number).ok(),
        _ => None,
    }
}

/// A value as a number.
pub(super) fn float(value: &Value<'_>) -> Option<f32> {
    match value {
        Value::Float(number) => Some(*number as f32),
        other => whole(other).map(|number| number as f32),
    }
}
