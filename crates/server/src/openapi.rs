//! The description of the routes that is served at `/openapi.json`.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use serde_json::Value;

/// OpenAPI 3.1.
pub(crate) const DOCUMENT: &str = include_str!("openapi.json");

/// Fields that the requests of each route may have, by its path without `/v1`.
static FIELDS: LazyLock<HashMap<String, HashSet<String>>> = LazyLock::new(|| {
    let document: Value = serde_json::from_str(DOCUMENT).unwrap_or_default();
    let fields = |route: &Value| {
        let body = route.pointer("/post/requestBody/content/application~1json/schema/$ref")?.as_str()?;
        let schema = document.pointer(body.trim_start_matches('#'))?;
        Some(schema["properties"].as_object()?.keys().cloned().collect())
    };
    let routes = document["paths"].as_object().into_iter().flatten();
    routes.filter_map(|(path, route)| Some((bare(path).to_owned(), fields(route)?))).collect()
});

fn bare(path: &str) -> &str {
    path.strip_prefix("/v1").unwrap_or(path)
}

/// Fields at the top of a request that its route does not know.
pub(crate) fn unknown_fields<'a>(route: &str, body: &'a Value) -> Vec<&'a str> {
    let Some(known) = FIELDS.get(bare(route)) else { return Vec::new() };
    body.as_object().into_iter().flatten().map(|(name, _)| &name[..]).filter(|name| !known.contains(*name)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::unknown_fields;

    #[test]
    fn fields_that_a_route_does_not_know_are_told() {
        let body = json!({ "messages": [], "max_tokens": 5, "num_predict": 4, "seed": null });
        for route in ["/v1/chat/completions", "/chat/completions"] {
            assert_eq!(unknown_fields(route, &body), ["num_predict"]);
        }
        assert_eq!(unknown_fields("/v1/embeddings", &json!({ "input": "a", "messages": [] })), ["messages"]);
        assert_eq!(unknown_fields("/health", &body), [""; 0]);
        assert_eq!(unknown_fields("/tokenize", &json!([1])), [""; 0]);
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document: Value = serde_json::from_str(super::DOCUMENT).unwrap();
        let mut open = vec![&document];
        while let Some(value) = open.pop() {
            match value {
                Value::Object(map) => {
                    if let Some(Value::String(target)) = map.get("$ref") {
                        assert!(document.pointer(target.trim_start_matches('#')).is_some(), "{target}");
                    }
                    open.extend(map.values());
                }
                Value::Array(items) => open.extend(items),
                _ => {}
            }
        }
    }
}
