//! The `tojson` filter as Python's `json.dumps` writes, which is what models were trained on.

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Kwargs, ValueKind},
};

use super::functions::{float_of, python_float};

/// Deeper values than any request carries; bounds the recursion.
const MAX_DEPTH: usize = 128;
const MAX_INDENT: usize = 16;

/// `tojson(indent=none, ensure_ascii=false, sort_keys=false)`: not HTML-escaped, non-ASCII characters kept, `, ` and `: `
/// between items.
pub(super) fn tojson(state: &State, value: &Value, indent: Option<usize>, options: Kwargs) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get::<Option<usize>>("indent")?,
    };
    let mut writer = Writer {
        text: String::new(),
        indent: indent.map(|indent| indent.min(MAX_INDENT)),
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        state,
    };
    options.assert_all_used()?;
    writer.value(value, 0)?;
    Ok(Value::from_safe_string(writer.text))
}

struct Writer<'a, 'vm, 'env> {
    text: String,
    indent: Option<usize>,
    ensure_ascii: bool,
    sort_keys: bool,
    state: &'a State<'vm, 'env>,
}

impl Writer<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        // A value may hold the same list many times over, so its text is paid for while it grows.
        self.state.consume_fuel(1)?;
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "value is nested too deeply for `tojson`"));
        }
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self.text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            kind => {
                let detail = format!("`tojson` cannot write a value of type {kind}");
                return Err(Error::new(ErrorKind::InvalidOperation, detail));
            }
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) {
        match float_of(value) {
            Some(number) if number.is_nan() => self.text.push_str("NaN"),
            Some(number) if number.is_infinite() => {
                self.text.push_str(if number > 0.0 { "Infinity" } else { "-Infinity" });
            }
            Some(number) => self.text.push_str(&python_float(number)),
            None => self.text.push_str(&value.to_string()),
        }
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        self.state.consume_fuel(text.len() as u64 / 64)?;
        self.text.push('"');
        for character in text.chars() {
            match character {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{c}' => self.text.push_str("\\f"),
                control @ ..'\u{20}' => self.escape(control),
                other if self.ensure_ascii && !(' '..='~').contains(&other) => {
                    self.escape(other);
                }
                other => self.text.push(other),
            }
        }
        self.text.push('"');
        Ok(())
    }

    fn escape(&mut self, character: char) {
        for unit in character.encode_utf16(&mut [0; 2]) {
            self.text.push_str(&format!("\\u{unit:04x}"));
        }
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.text.push('[');
        let mut empty = true;
        for item in value.try_iter()? {
            self.separate(empty, depth + 1);
            empty = false;
            self.value(&item, depth + 1)?;
        }
        self.close(']', empty, depth);
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort_keys {
            keys.sort();
        }
        self.text.push('{');
        let empty = keys.is_empty();
        for (index, key) in keys.iter().enumerate() {
            self.separate(index == 0, depth + 1);
            self.key(key)?;
            self.text.push_str(": ");
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        self.close('}', empty, depth);
        Ok(())
    }

    fn key(&mut self, key: &Value) -> Result<(), Error> {
        let text = match key.kind() {
            ValueKind::None => "null".to_owned(),
            ValueKind::Bool => key.is_true().to_string(),
            _ => float_of(key).map_or_else(|| key.to_string(), python_float),
        };
        self.string(&text)
    }

    fn separate(&mut self, first: bool, depth: usize) {
        match self.indent {
            Some(indent) => {
                self.text.push_str(if first { "\n" } else { ",\n" });
                self.text.extend(std::iter::repeat_n(' ', indent * depth));
            }
            None if !first => self.text.push_str(", "),
            None => {}
        }
    }

    fn close(&mut self, bracket: char, empty: bool, depth: usize) {
        if let Some(indent) = self.indent.filter(|_| !empty) {
            self.text.push('\n');
            self.text.extend(std::iter::repeat_n(' ', indent * depth));
        }
        self.text.push(bracket);
    }
}
