//! The description of the routes that is served at `/openapi.json`.

/// OpenAPI 3.1.
pub(crate) const DOCUMENT: &str = include_str!("openapi.json");

#[cfg(test)]
mod tests {
    use serde_json::Value;

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
