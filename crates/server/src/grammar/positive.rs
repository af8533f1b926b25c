//! Schemas that say which values are not allowed, told by those that are.

use serde_json::{Map, Value};

use super::narrower;

/// The types of JSON values. Every integer is a number, and there is no name for the other numbers.
const TYPES: [&str; 6] = ["null", "boolean", "object", "array", "number", "string"];

/// The same schema without `not: {type: …}`, as far as the types that remain have names, which the grammar engine does not know,
/// and as far as need be [`narrower`]. A schema with a `oneOf` is not: there, what one branch allows less the whole may allow more,
/// and a reference can lead from it to any part.
pub(super) fn spell(schema: &Value) -> Value {
    let narrow = if has_one_of(schema) { |same| same } else { narrower::spell };
    spell_by(schema, narrow)
}

fn has_one_of(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.contains_key("oneOf") || map.values().any(has_one_of),
        Value::Array(items) => items.iter().any(has_one_of),
        _ => false,
    }
}

type Narrow = fn(Map<String, Value>) -> Map<String, Value>;

fn spell_by(schema: &Value, narrow: Narrow) -> Value {
    let Value::Object(map) = schema else { return schema.clone() };
    let mut spelled: Map<String, Value> =
        map.iter().map(|(key, value)| (key.clone(), inside(key, value, narrow))).collect();
    if let Some(remaining) = spelled.get("not").and_then(excluded).and_then(|types| remaining(&spelled, &types)) {
        spelled.shift_remove("not");
        spelled.insert("type".to_owned(), remaining.into());
    }
    Value::Object(narrow(spelled))
}

/// The value of a keyword, with the schemas in it spelled.
fn inside(key: &str, value: &Value, narrow: Narrow) -> Value {
    let spell = |schema: &Value| spell_by(schema, narrow);
    match (key, value) {
        ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(schemas)) => {
            schemas.iter().map(|(name, schema)| (name.clone(), spell(schema))).collect()
        }
        ("anyOf" | "oneOf" | "allOf" | "prefixItems" | "items", Value::Array(schemas)) => {
            schemas.iter().map(spell).collect()
        }
        (
            "items" | "additionalItems" | "additionalProperties" | "contains" | "not" | "if" | "then" | "else",
            schema,
        ) => spell(schema),
        _ => value.clone(),
    }
}

/// The types that a schema allows, if it says nothing else.
fn excluded(not: &Value) -> Option<Vec<&str>> {
    let map = not.as_object().filter(|map| map.len() == 1)?;
    let types = types(map.get("type")?)?;
    // What is no integer may still be a number.
    types.iter().all(|name| TYPES.contains(name)).then_some(types)
}

fn remaining(schema: &Map<String, Value>, excluded: &[&str]) -> Option<Vec<String>> {
    let allowed = match schema.get("type") {
        Some(found) => types(found)?,
        None => TYPES.to_vec(),
    };
    let is_excluded = |name: &str| excluded.contains(&name) || name == "integer" && excluded.contains(&"number");
    let remaining: Vec<String> = allowed.into_iter().filter(|name| !is_excluded(name)).map(str::to_owned).collect();
    // Nothing left is a schema that nothing meets, which is better told of as it was written.
    (!remaining.is_empty()).then_some(remaining)
}

fn types(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(name) => Some(vec![name]),
        Value::Array(names) => names.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn forbidden_types_are_told_by_the_others() {
        assert_eq!(
            spell(&json!({ "additionalProperties": { "not": { "type": "null" } } })),
            json!({ "additionalProperties": { "type": ["boolean", "object", "array", "number", "string"] } })
        );
        assert_eq!(
            spell(&json!({ "type": ["integer", "string", "null"], "not": { "type": ["number", "null"] } })),
            json!({ "type": ["string"] })
        );
    }

    /// Two branches that exclude each other only after they were narrowed would both be met by `{"c": 1}`.
    #[test]
    fn beside_one_of_nothing_is_narrowed() {
        let needs_one = |kind: &str| {
            let kind = json!({ "type": kind });
            json!({ "type": "object", "properties": { "a": kind, "b": kind }, "minProperties": 1 })
        };
        let schema = json!({ "oneOf": [needs_one("string"), needs_one("integer")] });
        assert_eq!(spell(&schema), schema);
        assert_ne!(spell(&json!({ "anyOf": [needs_one("string")] })), json!({ "anyOf": [needs_one("string")] }));
    }

    #[test]
    fn what_has_no_such_spelling_stays() {
        for schema in [
            json!({ "not": { "type": "integer" } }),
            json!({ "not": { "type": "null", "minimum": 1 } }),
            json!({ "not": { "enum": [1] } }),
            json!({ "type": "null", "not": { "type": "null" } }),
            json!({ "properties": { "not": { "type": "null" } } }),
            json!({ "enum": [{ "not": { "type": "null" } }] }),
            json!(true),
        ] {
            assert_eq!(spell(&schema), schema);
        }
    }
}
