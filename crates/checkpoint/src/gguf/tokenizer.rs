//! The tokenizer and the generation defaults that metadata carries.

use super::{
    Value,
    metadata::{Metadata, float, whole},
};
use crate::{CheckpointError, GenerationConfig, GgufTokenizer};

/// Reads `tokenizer.ggml.*`. `vocab_size` is the number of embedding rows, which every id must have.
pub(super) fn read(metadata: &Metadata<'_>, vocab_size: usize) -> Result<GgufTokenizer, CheckpointError> {
    const TOKENS: &str = "tokenizer.ggml.tokens";
    let model = metadata.text("tokenizer.ggml.model")?.to_owned();
    let tokens = metadata.list(TOKENS, "strings", text)?.ok_or_else(|| metadata.missing(TOKENS))?;
    if tokens.is_empty() || tokens.len() > vocab_size {
        let found = metadata.get(TOKENS).copied().unwrap_or(Value::Unsigned(0));
        return Err(metadata.wrong(TOKENS, &found, format!("from 1 to the {vocab_size} rows of the embedding")));
    }
    let id = |name: &str| -> Result<Option<u32>, CheckpointError> {
        let id = metadata.optional_count(&format!("tokenizer.ggml.{name}_token_id"), 0..=tokens.len() - 1)?;
        Ok(id.and_then(|id| u32::try_from(id).ok()))
    };
    let token_type = |value: Value<'_>| match value {
        Value::Signed(number) => i32::try_from(number).ok(),
        other => whole(&other).and_then(|number| i32::try_from(number).ok()),
    };
    Ok(GgufTokenizer {
        pre: metadata.optional_text("tokenizer.ggml.pre")?.map(str::to_owned),
        token_types: per_token(metadata, "tokenizer.ggml.token_type", tokens.len(), "whole numbers", token_type)?
            .unwrap_or_default(),
        merges: metadata.list("tokenizer.ggml.merges", "strings", text)?.unwrap_or_default(),
        scores: per_token(metadata, "tokenizer.ggml.scores", tokens.len(), "numbers", |value| {
            float_or_negative(&value)
        })?,
        add_bos: metadata.optional_flag("tokenizer.ggml.add_bos_token")?,
        add_space_prefix: metadata.optional_flag("tokenizer.ggml.add_space_prefix")?,
        bos: id("bos")?,
        eos: id("eos")?,
        eot: id("eot")?,
        pad: id("padding")?,
        unknown: id("unknown")?,
        model,
        tokens,
    })
}

/// Reads `general.sampling.*` and the end tokens.
pub(super) fn generation(
    metadata: &Metadata<'_>,
    tokenizer: &GgufTokenizer,
) -> Result<GenerationConfig, CheckpointError> {
    let mut generation = GenerationConfig {
        eos_token: tokenizer.eos.and_then(|id| tokenizer.tokens.get(id as usize).cloned()),
        temperature: metadata.optional_number("general.sampling.temp", 0.0..=1e3)?,
        top_k: metadata.optional_count("general.sampling.top_k", 0..=1 << 30)?,
        top_p: metadata.optional_number("general.sampling.top_p", 0.0..=1.0)?,
        min_p: metadata.optional_number("general.sampling.min_p", 0.0..=1.0)?,
        repetition_penalty: metadata.optional_number("general.sampling.penalty_repeat", 1e-3..=1e3)?,
        ..GenerationConfig::default()
    };
    generation.add_eos(tokenizer.eos.into_iter().chain(tokenizer.eot));
    Ok(generation)
}

/// An array with one element per token.
fn per_token<'a, T>(
    metadata: &Metadata<'a>,
    key: &str,
    num_tokens: usize,
    expected: &str,
    decode: impl Fn(Value<'a>) -> Option<T>,
) -> Result<Option<Vec<T>>, CheckpointError> {
    let list = metadata.list(key, expected, decode)?;
    match (&list, metadata.get(key)) {
        (Some(list), Some(found)) if list.len() != num_tokens => {
            Err(metadata.wrong(key, found, format!("one entry for each of the {num_tokens} tokens")))
        }
        _ => Ok(list),
    }
}

fn text(value: Value<'_>) -> Option<String> {
    match value {
        Value::String(text) => Some(text.to_owned()),
        _ => None,
    }
}

fn float_or_negative(value: &Value<'_>) -> Option<f32> {
    match value {
        Value::Signed(number) => Some(*number as f32),
        other => float(other),
    }
}
