//! Bounds of JSON Schemas, and the part of one that is at fault.

use serde_json::{Map, Value};

use crate::error::ApiError;

/// Objects and lists inside each other. People write up to a dozen.
const MAX_DEPTH: usize = 64;
/// Values of a schema, of any kind.
pub(super) const MAX_NODES: usize = 20_000;
/// Values of one `enum`.
const MAX_ENUM: usize = 2_000;
/// Branches of one `anyOf`, `oneOf` or `allOf`.
const MAX_BRANCHES: usize = 200;
/// Properties of one object, those that are only `required` among them: the grammar engine takes twice as many four times as long.
pub(super) const MAX_PROPERTIES: usize = 1_000;
/// Properties of an object with `maxProperties`: each has a grammar of all that are required and itself.
const MAX_COUNTED_PROPERTIES: usize = 64;
/// `patternProperties` of a schema: each is compared with every other.
const MAX_PATTERN_PROPERTIES: usize = 64;
/// References of a schema. The grammar engine follows them by recursion.
pub(super) const MAX_REFERENCES: usize = 1_000;
/// Bytes of one `pattern`.
const MAX_PATTERN_BYTES: usize = 4 << 10;
/// Numbers up to here are exact, for the grammar engine and for most readers of JSON.
pub(super) const MAX_NUMBER: f64 = 9_007_199_254_740_992.0;
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
    if schema == &Value::Bool(false) {
        return Err(ApiError::bad("invalid_json_schema", format!("`{path}` is false, which no text meets")).at(path));
    }
    walk(schema, path, 0, &mut Size::default())
}

/// What a schema has of everything that there is a bound for all over it.
#[derive(Default)]
struct Size {
    nodes: usize,
    references: usize,
    pattern_properties: usize,
}

fn walk(value: &Value, path: &str, depth: usize, size: &mut Size) -> Result<(), ApiError> {
    size.nodes += 1;
    if size.nodes > MAX_NODES {
        return Err(too_large(path, &format!("the schema has more than {MAX_NODES} values")));
    }
    if depth > MAX_DEPTH {
        return Err(too_large(path, &format!("it lies more than {MAX_DEPTH} levels deep")));
    }
    match value {
        Value::Object(map) => {
            check_object(map, path, size)?;
            map.iter().try_for_each(|(key, inner)| {
                check_list(key, inner, path)?;
                check_pattern(key, inner, path)?;
                check_number(key, inner, path)?;
                walk(inner, path, depth + 1, size)
            })
        }
        Value::Array(items) => items.iter().try_for_each(|inner| walk(inner, path, depth + 1, size)),
        _ => Ok(()),
    }
}

fn check_object(map: &Map<String, Value>, path: &str, size: &mut Size) -> Result<(), ApiError> {
    let bounded = |what: &str, found: usize, most: usize| match found > most {
        true => Err(too_large(path, &format!("it has {found} {what}, but at most {most} are allowed"))),
        false => Ok(()),
    };
    let members = |key: &str| map.get(key).and_then(Value::as_object).map_or(0, Map::len);
    let properties = members("properties") + map.get("required").and_then(Value::as_array).map_or(0, Vec::len);
    // Those that are required are there twice.
    bounded("properties", properties.div_ceil(2).max(members("properties")), MAX_PROPERTIES)?;
    if map.contains_key("maxProperties") {
        bounded("properties beside `maxProperties`", members("properties"), MAX_COUNTED_PROPERTIES)?;
    }
    size.references += usize::from(map.get("$ref").is_some_and(Value::is_string));
    bounded("references", size.references, MAX_REFERENCES)?;
    size.pattern_properties += members("patternProperties");
    bounded("`patternProperties`", size.pattern_properties, MAX_PATTERN_PROPERTIES)
}

/// Refuses numbers that would not be told exactly. Bounds that are farther away than any such number are no matter.
fn check_number(key: &str, value: &Value, path: &str) -> Result<(), ApiError> {
    let refuse = |expected: &str| {
        let message = format!("`{path}` has a value of `{key}` that cannot be used: it must be {expected}");
        Err(ApiError::bad("invalid_value", message).at(path))
    };
    let is_exact = match (key, value.as_f64()) {
        ("const" | "enum", _) => is_exact(value),
        ("multipleOf", number) if number.is_none_or(|number| number <= 0.0) => return refuse("a number above 0"),
        ("maximum" | "exclusiveMaximum", Some(number)) => number >= -MAX_NUMBER,
        ("minimum" | "exclusiveMinimum", Some(number)) => number <= MAX_NUMBER,
        _ => true,
    };
    if is_exact { Ok(()) } else { refuse("at most 2^53 away from 0, where whole numbers are exact") }
}

fn is_exact(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_f64().is_some_and(|number| number.abs() <= MAX_NUMBER),
        Value::Array(items) => items.iter().all(is_exact),
        Value::Object(map) => map.values().all(is_exact),
        _ => true,
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
    if pattern.len() > MAX_PATTERN_BYTES {
        let found = pattern.len();
        let reason = format!("a `pattern` has {found} bytes, but at most {MAX_PATTERN_BYTES} are allowed");
        return Err(too_large(path, &reason));
    }
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

pub(super) fn too_large(path: &str, reason: &str) -> ApiError {
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
            // A property that is false is one that there must not be.
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(inner)) => inner
                .iter()
                .filter(|(_, schema)| schema.is_object())
                .map(|(name, schema)| (format!("{key}.{name}"), schema))
                .collect(),
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
        assert!(check(&json!([]), "s").is_err() && check(&json!(false), "s").is_err());
        assert!(check(&json!({ "type": "object" }), "s").is_ok());
    }

    /// What the grammar engine would follow by recursion, or compare each with each.
    #[test]
    fn members_and_references_are_bounded() {
        let many =
            |count: usize, schema: Value| -> Value { (0..count).map(|n| (format!("p{n}"), schema.clone())).collect() };
        let names: Vec<String> = (0..1001).map(|n| format!("p{n}")).collect();
        for (schema, reason) in [
            (json!({ "properties": many(1001, json!({})) }), "1001 properties"),
            (json!({ "properties": many(1000, json!({})), "required": names }), "1001 properties"),
            (json!({ "properties": many(65, json!({})), "maxProperties": 1 }), "65 properties beside `maxProperties`"),
            (json!({ "items": { "patternProperties": many(65, json!({})) } }), "65 `patternProperties`"),
            (json!({ "$defs": many(1001, json!({ "$ref": "#" })) }), "1001 references"),
            (json!({ "pattern": "a".repeat(5000) }), "5000 bytes"),
        ] {
            let message = check(&schema, "s").unwrap_err().message;
            assert!(message.contains(reason), "{message}");
        }
        check(&json!({ "properties": many(1000, json!({})), "required": names[..1000] }), "s").unwrap();
    }

    #[test]
    fn numbers_that_would_not_be_exact_are_refused() {
        let large = 9_007_199_254_740_993_i64;
        for schema in [
            json!({ "minimum": 1e300 }),
            json!({ "exclusiveMaximum": -1e300 }),
            json!({ "const": 1e30 }),
            json!({ "const": { "a": [large + 1] } }),
            json!({ "enum": [1, u64::MAX] }),
            json!({ "multipleOf": 0 }),
        ] {
            assert_eq!(check(&schema, "s").unwrap_err().code, Some("invalid_value"), "{schema}");
        }
        check(&json!({ "minimum": i64::MIN, "maximum": i64::MAX, "multipleOf": 0.5, "const": -5.5 }), "s").unwrap();
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
