//! What the text side needs: the tokenizer's definition, the chat template, the generation defaults.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde_json::Value;

use crate::{
    CheckpointError,
    fields::{Fields, parse_json},
};

/// Where a tokenizer is defined.
#[derive(Debug, Clone)]
pub enum TokenizerSource {
    /// A `tokenizer.json`.
    Json {
        /// The file's text, not parsed yet.
        bytes: Bytes,
        /// The file's path, for errors.
        path: PathBuf,
        /// `tokenizer_config.json`, where there is one.
        tokenizer_config: Option<Value>,
    },
    /// The metadata of a GGUF file.
    Gguf(GgufTokenizer),
}

/// `tokenizer.ggml.*`, as the file has it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GgufTokenizer {
    /// The algorithm: `gpt2` is byte-level BPE, `llama` is SentencePiece.
    pub model: String,
    /// The name of the pre-tokenizer, such as `qwen35`, `qwen2`, `smollm` or `llama-bpe`.
    pub pre: Option<String>,
    /// The tokens, by id.
    pub tokens: Vec<String>,
    /// The kind of each token: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte. Empty where the file has
    /// none, else one entry per token.
    pub token_types: Vec<i32>,
    /// Merge rules, best first, the two parts separated by a space.
    pub merges: Vec<String>,
    /// Scores of SentencePiece tokens, one per token.
    pub scores: Option<Vec<f32>>,
    /// Whether a beginning-of-sequence token is put first.
    pub add_bos: Option<bool>,
    /// Whether a space is put before the text.
    pub add_space_prefix: Option<bool>,
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// End of turn.
    pub eot: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// Unknown text.
    pub unknown: Option<u32>,
}

/// Defaults of generation, as the model's makers ship them. `None` where they say nothing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GenerationConfig {
    /// Ids that end generation: those of the model's config and those of its generation config, each once.
    pub eos_token_ids: Vec<u32>,
    /// The tokenizer's own end-of-sequence token, whose id the tokenizer knows; generation ends there as well.
    pub eos_token: Option<String>,
    /// Whether to sample at all.
    pub do_sample: Option<bool>,
    /// Divisor of the logits; 0 means greedy.
    pub temperature: Option<f32>,
    /// Most likely tokens kept; 0 keeps all.
    pub top_k: Option<usize>,
    /// Probability mass kept.
    pub top_p: Option<f32>,
    /// Least probability kept, as a share of the best token's.
    pub min_p: Option<f32>,
    /// Divisor of the logits of tokens that occurred.
    pub repetition_penalty: Option<f32>,
}

impl GenerationConfig {
    /// Reads the text of a `generation_config.json`, whose end tokens are added to `model_eos`.
    pub(crate) fn from_json(json: &[u8], file: &Path, model_eos: &[u32]) -> Result<Self, CheckpointError> {
        let value: Value = parse_json(json, file)?;
        let fields = Fields::of(&value, file)?;
        let mut generation = Self {
            do_sample: fields.optional_flag("do_sample")?,
            temperature: fields.optional_number("temperature", 0.0..=1e3)?,
            top_k: fields.optional_count("top_k", 0..=1 << 30)?,
            top_p: fields.optional_number("top_p", 0.0..=1.0)?,
            min_p: fields.optional_number("min_p", 0.0..=1.0)?,
            repetition_penalty: fields.optional_number("repetition_penalty", 1e-3..=1e3)?,
            ..Self::default()
        };
        generation.add_eos(model_eos.iter().copied().chain(fields.token_ids("eos_token_id")?));
        Ok(generation)
    }

    /// Adds end tokens, each once.
    pub(crate) fn add_eos(&mut self, ids: impl IntoIterator<Item = u32>) {
        for id in ids {
            if !self.eos_token_ids.contains(&id) {
                self.eos_token_ids.push(id);
            }
        }
    }
}

/// The end-of-sequence token of a `tokenizer_config.json`: a string, or an added token with its text in `content`.
pub(crate) fn eos_token(tokenizer_config: &Value) -> Option<String> {
    let token = tokenizer_config.get("eos_token")?;
    token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_owned)
}

/// The chat template of a `tokenizer_config.json`: a string, or a list of named ones of which `default` is taken.
pub(crate) fn chat_template(tokenizer_config: &Value) -> Option<String> {
    let template = match tokenizer_config.get("chat_template")? {
        Value::Array(named) => {
            let default = named.iter().find(|entry| entry.get("name").and_then(Value::as_str) == Some("default"));
            default.or_else(|| named.first())?.get("template")?
        }
        other => other,
    };
    template.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_default_of_named_templates_is_taken() {
        let named = json!({"chat_template": [
            {"name": "tool_use", "template": "tools"},
            {"name": "default", "template": "plain"},
        ]});
        assert_eq!(chat_template(&named).as_deref(), Some("plain"));
        assert_eq!(chat_template(&json!({"chat_template": "one"})).as_deref(), Some("one"));
        assert_eq!(chat_template(&json!({})), None);
    }

    #[test]
    fn the_end_token_is_read_in_both_forms() {
        assert_eq!(eos_token(&json!({"eos_token": "</s>"})).as_deref(), Some("</s>"));
        assert_eq!(eos_token(&json!({"eos_token": {"content": "</s>", "special": true}})).as_deref(), Some("</s>"));
    }

    #[test]
    fn end_tokens_are_joined_once_each() {
        let json = br#"{"eos_token_id": [2, 3], "temperature": 0.7, "top_k": 20}"#;
        let generation = GenerationConfig::from_json(json, Path::new("generation_config.json"), &[1, 2]).unwrap();
        assert_eq!(generation.eos_token_ids, [1, 2, 3]);
        assert_eq!(generation.temperature, Some(0.7));
    }
}
