//! Names that may have been meant.

/// The name most like `wanted`, if one is like enough.
pub(crate) fn closest<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let likeness = |name: &str| strsim::jaro_winkler(&wanted.to_lowercase(), &name.to_lowercase());
    let best = names.into_iter().map(|name| (likeness(name), name)).max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 >= LEAST).then(|| best.1.to_owned())
}

/// As much as a letter or two that are wrong, missing or swapped leave of a name of usual length.
const LEAST: f64 = 0.85;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_forgiven_and_another_name_is_not() {
        let names = ["Qwen/Qwen3-0.6B", "pleach-mini", "temperature", "top-k"];
        let found = |wanted| closest(wanted, names);
        assert_eq!(found("qwen/qwen3-0.6b").as_deref(), Some("Qwen/Qwen3-0.6B"));
        assert_eq!(found("Qwen/Qwen-0.6B").as_deref(), Some("Qwen/Qwen3-0.6B"));
        assert_eq!(found("pleach_mini").as_deref(), Some("pleach-mini"));
        assert_eq!(found("temprature").as_deref(), Some("temperature"));
        assert_eq!(found("meta-llama/Llama-3.2-1B"), None);
        assert_eq!(found("heat"), None);
        assert_eq!(closest("x", []), None);
    }
}
