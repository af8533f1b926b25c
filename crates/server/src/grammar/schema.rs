//! Bounds of JSON Schemas, and the part of one that is at fault.

use serde_json::{Map, Value};

use crate::error::ApiError;

/// Objects and lists inside each other. People write up to a dozen.
const MAX_DEPTH: usize = 64;
/// Values of a schema, of any kind.
const MAX_NODES: usize = 20_000;
/// Values of one `enum`.
const MAX_ENUM: usize = 2_000;
/// Branches of one `anyOf`, `oneOf` or `allOf`.
const MAX_BRANCHES: usize = 200;
/// Largest bound of a repetition in a `pattern`. The grammar engine gives up on some that are twenty times as large, in the
/// middle of an answer and after seconds.
const MAX_REPETITIONS: u64 = 10_000;
/// Parts that are tried one by one to find the one at fault.
const MAX_TRIALS: usize = 64;

/// Refuses schemas that would take the grammar engine long.
pub(super) fn check(schema: &Value, path: &str) -> Result<(), ApiError> {
    if !schema.is_object() && !schema.is_boolean() {
        return Err(ApiError::field(path, schema, "a JSON Schema: an object, true or false"));
    }
    let mut nodes = 0;
    walk(schema, path, 0, &mut nodes)
}

fn walk(value: &Value, path: &str, depth: usize, nodes: &mut usize) -> Result<(), ApiError> {
    *nodes += 1;
    if *nodes > MAX_NODES {
        return Err(too_large(path, &format!("the schema has more than {MAX_NODES} values")));
    }
    if depth > MAX_DEPTH {
        return Err(too_large(path, &format!("it lies more than {MAX_DEPTH} levels deep")));
    }
    match value {
        Value::Object(map) => map.iter().try_for_each(|(key, inner)| {
            check_list(key, inner, path)?;
            check_pattern(key, inner, path)?;
            walk(inner, path, depth + 1, nodes)
        }),
        Value::Array(items) => items.iter().try_for_each(|inner| walk(inner, path, depth + 1, nodes)),
        _ => Ok(()),
    }
}

fn check_list(key: &str, value: &Value, path: &str) -> Result<(), ApiError> {
    let most = match key {
        "enum" => MAX_ENUM,
        "anyOf" | "oneOf" | "allOf" => MAX_BRANCHES,
        _ => return Ok(()),
    };
    match value.as_array().map(Vec::len) {
        Some(found) if found > most => {
            Err(too_large(path, &format!("an `{key}` has {found} values, but at most {most} are allowed")))
        }
        _ => Ok(()),
    }
}

fn check_pattern(key: &str, value: &Value, path: &str) -> Result<(), ApiError> {
    let Some(pattern) = value.as_str().filter(|_| key == "pattern") else { return Ok(()) };
    let bounds = pattern.split('{').skip(1).flat_map(|rest| rest.split('}').next().unwrap_or_default().split(','));
    // A number that u64 cannot hold is too large as well.
    let is_number = |bound: &&str| !bound.is_empty() && bound.bytes().all(|byte| byte.is_ascii_digit());
    let most = bounds.filter(is_number).map(|bound| bound.parse().unwrap_or(u64::MAX)).max().unwrap_or(0);
    if most > MAX_REPETITIONS {
        return Err(too_large(
            path,
            &format!("a `pattern` repeats {most} times, but at most {MAX_REPETITIONS} are allowed"),
        ));
    }
    Ok(())
}

fn too_large(path: &str, reason: &str) -> ApiError {
    ApiError::bad("schema_too_complex", format!("`{path}` is too large a schema: {reason}")).at(path)
}

/// The path of the deepest part of a schema that cannot be used by itself either.
pub(super) fn blame(schema: &Value, path: &str, is_usable: impl Fn(&Value) -> bool) -> String {
    let definitions = definitions(schema);
    let mut trials = 0;
    let (mut part, mut place) = (schema, path.to_owned());
    while let Some((name, inner)) = parts(part).into_iter().find(|(_, inner)| {
        trials += 1;
        trials <= MAX_TRIALS && !is_usable(&with_definitions(inner, &definitions))
    }) {
        place = format!("{place}.{name}");
        part = inner;
    }
    place
}

/// What references of a part may lead to.
fn definitions(schema: &Value) -> Map<String, Value> {
    let keep = |name: &str| Some((name.to_owned(), schema.get(name)?.clone()));
    ["$defs", "definitions"].into_iter().filter_map(keep).collect()
}

fn with_definitions(part: &Value, definitions: &Map<String, Value>) -> Value {
    let Value::Object(map) = part else { return part.clone() };
    let mut map = map.clone();
    for (name, value) in definitions {
        map.entry(name.clone()).or_insert_with(|| value.clone());
    }
    Value::Object(map)
}

/// The schemas directly inside a schema, with their paths.
fn parts(schema: &Value) -> Vec<(String, &Value)> {
    let Some(map) = schema.as_object() else { return Vec::new() };
    map.iter()
        .flat_map(|(key, value)| match (key.as_str(), value) {
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(inner)) => {
                inner.iter().map(|(name, schema)| (format!("{key}.{name}"), schema)).collect()
            }
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(items)) => {
                items.iter().enumerate().map(|(index, schema)| (format!("{key}[{index}]"), schema)).collect()
            }
            ("items" | "additionalProperties" | "not", schema @ Value::Object(_)) => vec![(key.clone(), schema)],
            _ => Vec::new(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bombs_are_refused() {
        let deep = (0..100).fold(json!({ "type": "null" }), |inner, _| json!({ "items": inner }));
        assert!(check(&deep, "schema").unwrap_err().message.contains("levels deep"));
        let wide = json!({ "enum": (0..50_000).collect::<Vec<_>>() });
        assert_eq!(
            check(&wide, "s").unwrap_err().message,
            "`s` is too large a schema: an `enum` has 50000 values, but at most 2000 are allowed"
        );
        for pattern in ["^c{1000000}$", "a{1,10001}", "[{]x{99999999999999999999,}"] {
            let error = check(&json!({ "items": { "pattern": pattern } }), "s").unwrap_err();
            assert_eq!(error.code, Some("schema_too_complex"), "{pattern}");
        }
        for pattern in ["^\\d{4}-\\d{2}$", "a{0,10000}", "{{}{1a}", "{"] {
            check(&json!({ "pattern": pattern }), "s").unwrap();
        }
        assert!(check(&json!([]), "s").is_err());
        assert!(check(&json!({ "type": "object" }), "s").is_ok());
    }

    #[test]
    fn the_deepest_part_at_fault_is_named() {
        let schema = json!({
            "properties": {
                "good": { "type": "string" },
                "list": { "items": { "anyOf": [{ "type": "null" }, { "pattern": "(" }] } },
            },
        });
        let usable = |part: &Value| !part.to_string().contains('(');
        assert_eq!(blame(&schema, "schema", usable), "schema.properties.list.items.anyOf[1]");
        assert_eq!(blame(&json!({ "type": "x" }), "schema", |_| false), "schema");
    }
}
