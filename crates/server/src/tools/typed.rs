//! Arguments that a model wrote as plain text, typed by their schema.

use serde_json::Value;

/// Deepest chain of references that is followed.
const MAX_HOPS: usize = 16;

/// The types that a schema allows, by their names; empty if it does not say.
fn types<'a>(schema: &'a Value, root: &'a Value, hops: usize, found: &mut Vec<&'a str>) {
    if hops > MAX_HOPS {
        return;
    }
    match schema.get("type") {
        Some(Value::String(name)) => found.push(name),
        Some(Value::Array(names)) => found.extend(names.iter().filter_map(Value::as_str)),
        _ => {}
    }
    if let Some(target) = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix('#')) {
        root.pointer(target).into_iter().for_each(|target| types(target, root, hops + 1, found));
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        let branches = schema.get(key).and_then(Value::as_array);
        branches.into_iter().flatten().for_each(|branch| types(branch, root, hops + 1, found));
    }
}

/// Whether every value of a parameter is a string that may be anything, so that it can be passed on as it is written.
pub(super) fn is_free_text(schema: Option<&Value>, root: &Value) -> bool {
    let Some(schema) = schema else { return true };
    let mut found = Vec::new();
    types(schema, root, 0, &mut found);
    schema.get("enum").is_none() && schema.get("const").is_none() && found.iter().all(|&name| name == "string")
}

/// The JSON value that `text` stands for. What fits no allowed type stays a string.
pub(super) fn value(text: &str, schema: &Value, root: &Value) -> Value {
    let choices = schema.get("enum").and_then(Value::as_array).into_iter().flatten().chain(schema.get("const"));
    for choice in choices {
        let spelled = choice.as_str().map_or_else(|| choice.to_string(), str::to_owned);
        if spelled == text || (!choice.is_string() && spelled == text.trim()) {
            return choice.clone();
        }
    }
    let mut names = Vec::new();
    types(schema, root, 0, &mut names);
    let trimmed = text.trim();
    names.iter().find_map(|name| of_type(trimmed, name)).unwrap_or_else(|| Value::from(text))
}

fn of_type(text: &str, name: &str) -> Option<Value> {
    let parsed = || serde_json::from_str::<Value>(text).ok();
    match name {
        "null" => matches!(text, "null" | "None").then_some(Value::Null),
        "boolean" => match text {
            "true" | "True" => Some(Value::Bool(true)),
            "false" | "False" => Some(Value::Bool(false)),
            _ => None,
        },
        "integer" => parsed().filter(Value::is_number).and_then(|number| whole(&number)),
        "number" => parsed().filter(Value::is_number),
        "array" => parsed().filter(Value::is_array),
        "object" => parsed().filter(Value::is_object),
        _ => None,
    }
}

/// `5` and `5.0` are whole, `5.5` is not.
fn whole(number: &Value) -> Option<Value> {
    if number.is_i64() || number.is_u64() {
        return Some(number.clone());
    }
    let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 9e15)?;
    Some(Value::from(float as i64))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn typed(text: &str, schema: Value) -> Value {
        value(text, &schema, &json!({}))
    }

    #[test]
    fn values_take_the_types_of_their_schema() {
        let kind = |name: &str| json!({ "type": name });
        assert_eq!(typed("02134", kind("string")), json!("02134"));
        assert_eq!(typed("02134", kind("integer")), json!("02134"));
        assert_eq!(typed("5", kind("integer")), json!(5));
        assert_eq!(typed("5.0", kind("integer")), json!(5));
        assert_eq!(typed("1e5", kind("number")), json!(1e5));
        assert_eq!(typed("1e5", kind("string")), json!("1e5"));
        assert_eq!(typed("true", kind("boolean")), json!(true));
        assert_eq!(typed("true", kind("string")), json!("true"));
        assert_eq!(typed("maybe", kind("boolean")), json!("maybe"));
        assert_eq!(typed("[1, 2]", kind("array")), json!([1, 2]));
        assert_eq!(typed("{\"a\": 1}", kind("object")), json!({ "a": 1 }));
        assert_eq!(typed("[1, 2", kind("array")), json!("[1, 2"));
        assert_eq!(typed("5.0", json!({})), json!("5.0"));
    }

    #[test]
    fn choices_and_unions_are_honored() {
        assert_eq!(typed("2", json!({ "enum": ["1", 2] })), json!(2));
        assert_eq!(typed("1", json!({ "enum": ["1", 2] })), json!("1"));
        assert_eq!(typed("null", json!({ "type": ["string", "null"] })), Value::Null);
        assert_eq!(typed("x", json!({ "anyOf": [{ "type": "integer" }, { "type": "string" }] })), json!("x"));
        let root = json!({ "$defs": { "n": { "type": "integer" } } });
        assert_eq!(value("7", &json!({ "$ref": "#/$defs/n" }), &root), json!(7));
    }

    #[test]
    fn a_reference_to_itself_ends() {
        let root = json!({ "$defs": { "n": { "$ref": "#/$defs/n" } } });
        assert_eq!(value("7", &json!({ "$ref": "#/$defs/n" }), &root), json!("7"));
        assert!(is_free_text(Some(&json!({ "type": "string" })), &root));
        assert!(!is_free_text(Some(&json!({ "type": ["string", "null"] })), &root));
    }
}
