//! Names that may have been meant.

/// The name that a slip of the keys may have turned into `wanted`.
///
/// Digits tell one model from the next, so they must be the same: nobody who asks for the 1.7B means the 0.6B.
pub(crate) fn closest<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let most = 1 + wanted.chars().count() / 8;
    let candidates = names.into_iter().filter(|name| digits(name) == digits(wanted));
    let slips = |name: &str| strsim::osa_distance(&wanted.to_lowercase(), &name.to_lowercase());
    let (distance, name) = candidates.map(|name| (slips(name), name)).min()?;
    (distance <= most).then(|| name.to_owned())
}

fn digits(text: &str) -> String {
    text.chars().filter(char::is_ascii_digit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_forgiven_and_another_name_is_not() {
        let names = ["Qwen/Qwen3-0.6B", "pleach-mini", "temperature", "top-k"];
        let found = |wanted| closest(wanted, names);
        assert_eq!(found("qwen/qwen3-0.6b").as_deref(), Some("Qwen/Qwen3-0.6B"));
        assert_eq!(found("Qwen/Qwen30.6B").as_deref(), Some("Qwen/Qwen3-0.6B"));
        assert_eq!(found("Qwen/Qwen3-1.7B"), None);
        assert_eq!(found("pleach_mini").as_deref(), Some("pleach-mini"));
        assert_eq!(found("temprature").as_deref(), Some("temperature"));
        assert_eq!(found("meta-llama/Llama-3.2-1B"), None);
        assert_eq!(found("heat"), None);
        assert_eq!(closest("x", []), None);
    }
}
