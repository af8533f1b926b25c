//! Reading the fields of a request: null is absent, and what does not fit is named.

use serde_json::{Map, Value};

use crate::error::ApiError;

/// An object of a request and where it stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// Path of the object, empty at the top.
    path: &'a str,
}

impl<'a> Fields<'a> {
    /// The whole request.
    pub(crate) fn top(body: &'a Value) -> Result<Self, ApiError> {
        let map = body.as_object().ok_or_else(|| {
            ApiError::bad("invalid_json", "the body is JSON, but must be an object such as {\"messages\": [...]}")
        })?;
        Ok(Self { map, path: "" })
    }

    /// An object inside a request.
    pub(crate) fn inside(value: &'a Value, path: &'a str) -> Result<Self, ApiError> {
        let map = value.as_object().ok_or_else(|| ApiError::field(path, value, "an object"))?;
        Ok(Self { map, path })
    }

    /// The path of a field.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// A field that is there and not null.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn wrong(&self, name: &str, found: &Value, expected: &str) -> ApiError {
        ApiError::field(self.path(name), found, expected)
    }

    fn read<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.wrong(name, value, expected))
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.read(name, "a string", Value::as_str)
    }

    pub(crate) fn required_text(&self, name: &str) -> Result<&'a str, ApiError> {
        self.text(name)?.ok_or_else(|| ApiError::missing(self.path(name), "a string"))
    }

    pub(crate) fn boolean(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.read(name, "true or false", Value::as_bool)
    }

    pub(crate) fn list(&self, name: &str) -> Result<Option<&'a Vec<Value>>, ApiError> {
        self.read(name, "a list", Value::as_array)
    }

    pub(crate) fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>, ApiError> {
        self.read(name, "an object", Value::as_object)
    }

    /// A number that f32 can hold.
    pub(crate) fn number(&self, name: &str) -> Result<Option<f32>, ApiError> {
        let read = |value: &Value| value.as_f64().map(|number| number as f32).filter(|number| number.is_finite());
        let is_number = self.get(name).is_some_and(Value::is_number);
        self.read(name, if is_number { "a number within the range of 32-bit floats" } else { "a number" }, read)
    }

    /// A whole number in a range. `5.0` is one, `"5"` is none.
    pub(crate) fn whole(&self, name: &str, least: i64, most: i64) -> Result<Option<i64>, ApiError> {
        let expected = format!("a whole number from {least} to {most}");
        self.read(name, &expected, |value| whole(value).filter(|number| (least..=most).contains(number)))
    }

    /// How many of something: whoever reads it knows the most.
    pub(crate) fn count(&self, name: &str) -> Result<Option<usize>, ApiError> {
        let read = |value: &Value| whole(value).filter(|&number| number > 0).and_then(|number| number.try_into().ok());
        self.read(name, "a whole number from 1 on", read)
    }

    /// A limit: absent, or -1 and whatever is too large to matter, for none.
    pub(crate) fn limit(&self, name: &str) -> Result<Option<usize>, ApiError> {
        let expected = "a whole number from 1 on, or -1 for no limit";
        let read = |value: &Value| match value.as_f64()? {
            -1.0 => Some(None),
            number if number >= 4_294_967_296.0 => Some(None),
            number if number >= 1.0 && number.fract() == 0.0 => Some(Some(number as usize)),
            _ => None,
        };
        Ok(self.read(name, expected, read)?.flatten())
    }

    /// A seed: any whole number of 64 bits.
    pub(crate) fn seed(&self, name: &str) -> Result<Option<u64>, ApiError> {
        let read = |value: &Value| value.as_u64().or_else(|| whole(value).map(i64::cast_unsigned));
        self.read(name, "a whole number of 64 bits", read)
    }
}

/// A name that a client chose, as a log or a header can have it: short, in visible ASCII characters.
pub(crate) fn nameable(name: &str) -> String {
    name.chars().take(40).map(|character| if character.is_ascii_graphic() { character } else { '?' }).collect()
}

fn whole(value: &Value) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let from_float = || value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() <= EXACT);
    value.as_i64().or_else(|| from_float().map(|number| number as i64))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_kind_of_number_is_taken_or_named() {
        let limit = |value: Value| {
            let body = json!({ "max_tokens": value });
            Fields::top(&body).unwrap().limit("max_tokens").map_err(|error| error.message)
        };
        for none in [json!(-1), json!(null), json!(1e30), json!(9_223_372_036_854_775_808_u64), json!(-1.0)] {
            assert_eq!(limit(none), Ok(None));
        }
        assert_eq!(limit(json!(2_147_483_648_i64)), Ok(Some(2_147_483_648)));
        assert_eq!(limit(json!(5.0)), Ok(Some(5)));
        for wrong in [json!(0), json!(-2), json!(1.5), json!("5"), json!([]), json!(true)] {
            let message = limit(wrong).unwrap_err();
            assert!(message.ends_with("but must be a whole number from 1 on, or -1 for no limit"), "{message}");
        }
    }

    #[test]
    fn seeds_have_64_bits() {
        let seed = |value: Value| Fields::top(&json!({ "seed": value })).unwrap().seed("seed").ok().flatten();
        assert_eq!(seed(json!(u64::MAX)), Some(u64::MAX));
        assert_eq!(seed(json!(-1)), Some(u64::MAX));
        assert_eq!(seed(json!(7.0)), Some(7));
        assert_eq!(seed(json!(1e30)), None);
        assert_eq!(seed(json!("7")), None);
    }

    #[test]
    fn paths_lead_to_the_field() {
        let body = json!({ "stream_options": { "include_usage": 1 } });
        let top = Fields::top(&body).unwrap();
        let path = top.path("stream_options");
        let inner = Fields::inside(top.get("stream_options").unwrap(), &path).unwrap();
        assert_eq!(
            inner.boolean("include_usage").unwrap_err().message,
            "`stream_options.include_usage` is 1, but must be true or false"
        );
        assert_eq!(top.number("temperature").unwrap(), None);
    }
}
