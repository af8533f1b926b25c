//! Hugging Face and MLX tensor names, brought to one spelling.

/// What a stored name stands for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Meaning<'a> {
    /// A tensor of the text model, under its canonical name.
    Canonical(&'a str),
    /// A tensor that no text model reads, and why.
    Skip(&'static str),
}

/// Prefixes of the parts of a wrapper that do not read text.
const VISION: [&str; 5] =
    ["model.visual.", "visual.", "model.vision_tower.", "vision_tower.", "language_model.visual."];

/// Prefixes that wrappers put before the text model's own names, longest first.
const WRAPPERS: [&str; 4] = ["model.language_model.", "language_model.model.", "language_model.", "model."];

/// Reads a name as Hugging Face or MLX spells it.
pub(crate) fn meaning(source_name: &str) -> Meaning<'_> {
    if VISION.iter().any(|prefix| source_name.starts_with(prefix)) {
        return Meaning::Skip("part of the vision tower, which text does not pass");
    }
    if source_name.ends_with("rotary_emb.inv_freq") {
        return Meaning::Skip("a buffer of rotary frequencies, which the config defines");
    }
    Meaning::Canonical(without_wrapper(source_name))
}

/// A tensor's or module's name without the wrapper's prefix.
pub(crate) fn without_wrapper(name: &str) -> &str {
    WRAPPERS.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrappers_come_off() {
        for name in [
            "layers.3.mlp.up_proj.weight",
            "model.layers.3.mlp.up_proj.weight",
            "model.language_model.layers.3.mlp.up_proj.weight",
            "language_model.model.layers.3.mlp.up_proj.weight",
        ] {
            assert_eq!(meaning(name), Meaning::Canonical("layers.3.mlp.up_proj.weight"));
        }
        assert_eq!(meaning("language_model.lm_head.weight"), Meaning::Canonical("lm_head.weight"));
        assert_eq!(meaning("model.mtp.fc.weight"), Meaning::Canonical("mtp.fc.weight"));
        assert_eq!(meaning("mtp.fc.weight"), Meaning::Canonical("mtp.fc.weight"));
    }

    #[test]
    fn vision_and_buffers_are_skipped() {
        assert!(matches!(meaning("model.visual.pos_embed.weight"), Meaning::Skip(_)));
        assert!(matches!(meaning("model.layers.0.self_attn.rotary_emb.inv_freq"), Meaning::Skip(_)));
    }
}
