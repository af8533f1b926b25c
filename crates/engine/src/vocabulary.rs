//! The text side of a checkpoint: tokenizer, chat template, and the tokens that end a text.

use std::path::Path;

use pleach_checkpoint::{Checkpoint, GgufTokenizer, SourceKind, TokenizerSource};
use pleach_text::{ChatTemplate, SpecialIds, SpecialTokenStrings, Tokenizer, VocabularySpec};
use serde_json::Value;

use crate::EngineError;

/// Tokens that GGUF files often define without naming them as ends: end of turn and message, of text, and what
/// separates files in code models. Other engines for GGUF end there too.
const GGUF_ENDS: [&str; 8] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
];

/// The tokenizer, checked against the model's rows.
pub(crate) fn tokenizer(checkpoint: &Checkpoint, path: &Path) -> Result<Tokenizer, EngineError> {
    let tokenizer = match &checkpoint.tokenizer {
        TokenizerSource::Json { bytes, path, .. } => Tokenizer::from_json(bytes, &path.display().to_string()),
        TokenizerSource::Gguf(gguf) => Tokenizer::from_vocabulary(&spec(gguf, path)),
    };
    let tokenizer = tokenizer.map_err(|source| EngineError::Tokenizer { path: path.to_owned(), source })?;
    let (found, most) = (tokenizer.vocab_size(), checkpoint.config.vocab_size);
    if found > most {
        return Err(EngineError::Vocabulary { tokenizer: found, model: most });
    }
    Ok(tokenizer)
}

/// The chat template; ChatML for a model that has its tokens but no template, `None` for a model without either.
pub(crate) fn chat_template(
    checkpoint: &Checkpoint,
    tokenizer: &Tokenizer,
    path: &Path,
) -> Result<Option<ChatTemplate>, EngineError> {
    let special = special_strings(checkpoint, tokenizer);
    let is_chatml = || tokenizer.id("<|im_start|>").is_some() && tokenizer.id("<|im_end|>").is_some();
    let template = match &checkpoint.chat_template {
        Some(source) => ChatTemplate::new(source, &special),
        None if is_chatml() => ChatTemplate::chatml(&special),
        None => return Ok(None),
    };
    template.map(Some).map_err(|source| EngineError::ChatTemplate { path: path.to_owned(), source })
}

/// Tokens that end a text: those of the configs, the tokenizer's own, and in GGUF files those known by name.
pub(crate) fn stop_tokens(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Vec<u32> {
    let mut stops = checkpoint.generation.eos_token_ids.clone();
    stops.extend(checkpoint.generation.eos_token.as_deref().and_then(|token| tokenizer.id(token)));
    let roles = tokenizer.special_ids();
    stops.extend([roles.eos, roles.eot].into_iter().flatten());
    if checkpoint.source == SourceKind::Gguf {
        let is_control = |&id: &u32| tokenizer.is_special(id);
        stops.extend(GGUF_ENDS.iter().filter_map(|token| tokenizer.id(token)).filter(is_control));
    }
    stops.sort_unstable();
    stops.dedup();
    stops
}

fn spec(gguf: &GgufTokenizer, path: &Path) -> VocabularySpec {
    VocabularySpec {
        source_name: path.display().to_string(),
        model: gguf.model.clone(),
        pre: gguf.pre.clone().unwrap_or_default(),
        tokens: gguf.tokens.clone(),
        // A negative kind becomes one that no table knows.
        token_types: gguf.token_types.iter().map(|kind| kind.cast_unsigned()).collect(),
        merges: gguf.merges.clone(),
        add_bos: gguf.add_bos,
        add_space_prefix: gguf.add_space_prefix,
        special_ids: SpecialIds { bos: gguf.bos, eos: gguf.eos, eot: gguf.eot, pad: gguf.pad, unknown: gguf.unknown },
    }
}

/// What a template knows as `bos_token` and so on.
fn special_strings(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> SpecialTokenStrings {
    match &checkpoint.tokenizer {
        TokenizerSource::Json { tokenizer_config, .. } => {
            let text = |name: &str| spelling(tokenizer_config.as_ref()?.get(name)?);
            SpecialTokenStrings {
                bos: text("bos_token"),
                eos: text("eos_token"),
                pad: text("pad_token"),
                unknown: text("unk_token"),
            }
        }
        TokenizerSource::Gguf(gguf) => {
            let text = |id: Option<u32>| tokenizer.token_text(id?);
            SpecialTokenStrings {
                bos: text(gguf.bos),
                eos: text(gguf.eos),
                pad: text(gguf.pad),
                unknown: text(gguf.unknown),
            }
        }
    }
}

/// A token of `tokenizer_config.json`: a string, or an added token with its text in `content`.
fn spelling(token: &Value) -> Option<String> {
    token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_owned)
}

/// What is doubtful about tokenizer and template.
pub(crate) fn warnings(tokenizer: &Tokenizer, template: Option<&ChatTemplate>) -> Vec<String> {
    let of_template = template.map(ChatTemplate::warnings).unwrap_or_default();
    tokenizer.warnings().iter().chain(of_template).cloned().collect()
}
