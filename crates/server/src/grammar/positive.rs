//! Schemas that say which values are not allowed, told by those that are.

use serde_json::{Map, Value};

use super::narrower;

/// The types of JSON values. Every integer is a number, and there is no name for the other numbers.
const TYPES: [&str; 6] = ["null", "boolean", "object", "array", "number", "string"];

/// The same schema without `not: {type: …}`, as far as the types that remain have names, which the grammar engine does not know,
/// and as far as need be [`narrower`].
pub(super) fn spell(schema: &Value) -> Value {
    let Value::Object(map) = schema else { return schema.clone() };
    let mut spelled: Map<String, Value> = map.iter().map(|(key, value)| (key.clone(), inside(key, value))).collect();
    if let Some(remaining) = spelled.get("not").and_then(excluded).and_then(|types| remaining(&spelled, &types)) {
        spelled.shift_remove("not");
        spelled.insert("type".to_owned(), remaining.into());
    }
    Value::Object(narrower::spell(spelled))
}

/// The value of a keyword, with the schemas in it spelled.
fn inside(key: &str, value: &Value) -> Value {
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
