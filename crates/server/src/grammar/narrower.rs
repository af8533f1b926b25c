//! Schemas that the grammar engine does not know, told by ones that it does and that allow less.
//!
//! Whatever a text inside such a schema is, the schema as it was written allows it.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::schema::MAX_NUMBER;

/// Of so many values all choices are spelled out.
const MOST_VALUES: usize = 6;
/// Of so many properties one is demanded: the grammar has all properties for each of them.
const MOST_ALTERNATIVES: usize = 16;

/// A schema without `uniqueItems`, without `minProperties` beside optional properties, and without bounds of numbers that are not
/// exact, as far as there are schemas in their place. What has none stays as it is: the grammar engine says that it cannot be enforced.
pub(super) fn spell(schema: Map<String, Value>) -> Map<String, Value> {
    with_a_property(without_repeats(with_exact_bounds(schema)))
}

/// Bounds farther away than exact numbers reach are drawn in to where they do.
fn with_exact_bounds(mut schema: Map<String, Value>) -> Map<String, Value> {
    for (key, farthest) in [
        ("minimum", -MAX_NUMBER),
        ("exclusiveMinimum", -MAX_NUMBER),
        ("maximum", MAX_NUMBER),
        ("exclusiveMaximum", MAX_NUMBER),
    ] {
        let Some(bound) = schema.get_mut(key) else { continue };
        if bound.as_f64().is_some_and(|number| number.abs() > MAX_NUMBER && number.signum() == farthest.signum()) {
            *bound = Value::from(farthest as i64);
        }
    }
    schema
}

/// An object that needs a property, told by the first properties of which it may have one at least.
fn with_a_property(mut schema: Map<String, Value>) -> Map<String, Value> {
    let least = bound(&schema, "minProperties", 0);
    let required = schema.get("required").and_then(Value::as_array);
    let required = required.map_or(0, |names| names.iter().collect::<HashSet<_>>().len());
    let properties = schema.get("properties").and_then(Value::as_object).filter(|properties| !properties.is_empty());
    let Some(properties) = properties.filter(|_| least > 0 && !schema.contains_key("maxProperties")) else {
        return schema;
    };
    if required as u64 >= least {
        schema.shift_remove("minProperties");
    } else if least == 1 && !schema.contains_key("anyOf") {
        let any: Vec<Value> =
            properties.keys().take(MOST_ALTERNATIVES).map(|name| json!({ "required": [name] })).collect();
        schema.insert("anyOf".to_owned(), Value::Array(any));
        schema.shift_remove("minProperties");
    }
    schema
}

/// A schema without `uniqueItems`, if there is one that allows nothing but lists without repeated items: of a few values, their
/// choices in the order of the schema; of anything else, one item at most.
fn without_repeats(mut schema: Map<String, Value>) -> Map<String, Value> {
    match schema.get("uniqueItems") {
        None => return schema,
        Some(Value::Bool(false)) => {
            schema.shift_remove("uniqueItems");
            return schema;
        }
        Some(Value::Bool(true)) => {}
        // Told of by the grammar engine.
        Some(_) => return schema,
    }
    if let Some(lists) = choices(&schema) {
        for key in ["uniqueItems", "type", "items", "minItems", "maxItems"] {
            schema.shift_remove(key);
        }
        schema.insert("enum".to_owned(), Value::Array(lists));
        return schema;
    }
    if bound(&schema, "minItems", 0) <= 1 {
        schema.shift_remove("uniqueItems");
        let most = bound(&schema, "maxItems", 1).min(1);
        schema.insert("maxItems".to_owned(), Value::from(most));
    }
    schema
}

/// A count, which may be written as `1.0`. Whatever else stands there is told of by the grammar engine.
fn bound(schema: &Map<String, Value>, key: &str, absent: u64) -> u64 {
    let whole = |bound: &Value| bound.as_f64().filter(|count| count.fract() == 0.0).map(|count| count as u64);
    schema.get(key).map_or(absent, |bound| bound.as_u64().or_else(|| whole(bound)).unwrap_or(u64::MAX))
}

/// All lists that a list of a few values allows, but for the order of their items.
fn choices(schema: &Map<String, Value>) -> Option<Vec<Value>> {
    const KNOWN: [&str; 7] = ["type", "items", "minItems", "maxItems", "uniqueItems", "description", "title"];
    if schema.get("type")? != "array" || !schema.keys().all(|key| KNOWN.contains(&key.as_str())) {
        return None;
    }
    let items = schema.get("items")?.as_object()?;
    let is_plain = items.keys().all(|key| ["enum", "type", "description", "title"].contains(&key.as_str()));
    let values = match (items.get("enum"), items.get("type")) {
        (Some(Value::Array(values)), kind) => {
            let fits = |value: &&Value| kind.is_none_or(|kind| value.is_string() && kind == "string");
            values
                .iter()
                .all(|value| fits(&value) && (value.is_string() || value.is_boolean() || value.is_null()))
                .then(|| values.clone())?
        }
        (None, Some(kind)) if kind == "boolean" => vec![Value::Bool(true), Value::Bool(false)],
        _ => return None,
    };
    let is_distinct = values.iter().enumerate().all(|(index, value)| !values[..index].contains(value));
    if !is_plain || !is_distinct || values.len() > MOST_VALUES {
        return None;
    }
    let chosen = |choice: u32| {
        let chosen = values.iter().enumerate().filter(|(index, _)| choice >> index & 1 == 1);
        chosen.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    let allowed = bound(schema, "minItems", 0)..=bound(schema, "maxItems", u64::MAX);
    let lists: Vec<Value> = (0..1_u32 << values.len())
        .map(chosen)
        .filter(|list| allowed.contains(&(list.len() as u64)))
        .map(Value::from)
        .collect();
    (!lists.is_empty()).then_some(lists)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(schema: Value) -> Value {
        let Value::Object(map) = schema else { panic!("an object") };
        Value::Object(spell(map))
    }

    #[test]
    fn choices_of_a_few_values_are_spelled_out() {
        let items = json!({ "enum": ["a", "b", "c"] });
        let schema = json!({ "type": "array", "items": items, "uniqueItems": true, "minItems": 2, "title": "x" });
        assert_eq!(
            spelled(schema),
            json!({ "title": "x", "enum": [["a", "b"], ["a", "c"], ["b", "c"], ["a", "b", "c"]] })
        );
        let schema = json!({ "type": "array", "items": { "type": "boolean" }, "uniqueItems": true, "maxItems": 1 });
        assert_eq!(spelled(schema), json!({ "enum": [[], [true], [false]] }));
        let schema = json!({ "type": "array", "items": { "enum": ["a", "b"] }, "uniqueItems": true, "maxItems": 1.0, "minItems": 1 });
        assert_eq!(spelled(schema), json!({ "enum": [["a"], ["b"]] }));
    }

    /// A list that must have more items than it may have stays, to be told of.
    #[test]
    fn a_list_of_no_length_stays() {
        let schema =
            json!({ "type": "array", "items": { "enum": ["a"] }, "uniqueItems": true, "maxItems": 1.0, "minItems": 3 });
        assert_eq!(spelled(schema.clone()), schema);
    }

    #[test]
    fn far_bounds_are_drawn_in() {
        let schema = json!({ "minimum": i64::MIN, "maximum": 1e300, "exclusiveMaximum": 7 });
        let exact = 9_007_199_254_740_992_i64;
        assert_eq!(spelled(schema), json!({ "minimum": -exact, "maximum": exact, "exclusiveMaximum": 7 }));
    }

    #[test]
    fn other_lists_get_one_item_at_most_or_stay() {
        let items = json!({ "type": "string", "minLength": 1 });
        assert_eq!(
            spelled(json!({ "type": "array", "minItems": 1, "items": items, "uniqueItems": true })),
            json!({ "type": "array", "minItems": 1, "items": items, "maxItems": 1 })
        );
        assert_eq!(spelled(json!({ "uniqueItems": true, "maxItems": 0 })), json!({ "maxItems": 0 }));
        let needs_two = json!({ "type": "array", "minItems": 2, "items": items, "uniqueItems": true });
        assert_eq!(spelled(needs_two.clone()), needs_two);
        assert_eq!(spelled(json!({ "type": "array", "uniqueItems": false })), json!({ "type": "array" }));
    }

    #[test]
    fn objects_that_need_a_property_have_one_of_the_known() {
        let properties = json!({ "a": {}, "b": {} });
        assert_eq!(
            spelled(json!({ "properties": properties, "minProperties": 1 })),
            json!({ "properties": properties, "anyOf": [{ "required": ["a"] }, { "required": ["b"] }] })
        );
        assert_eq!(
            spelled(json!({ "properties": properties, "required": ["b"], "minProperties": 1 })),
            json!({ "properties": properties, "required": ["b"] })
        );
        let many: Map<String, Value> = (0..500).map(|n| (format!("p{n}"), json!({}))).collect();
        assert_eq!(spelled(json!({ "properties": many, "minProperties": 1 }))["anyOf"].as_array().unwrap().len(), 16);
        for schema in [
            json!({ "minProperties": 1 }),
            json!({ "properties": properties, "minProperties": 2 }),
            json!({ "properties": properties, "required": ["a", "a"], "minProperties": 2 }),
        ] {
            assert_eq!(spelled(schema.clone()), schema);
        }
    }
}
