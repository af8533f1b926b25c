//! A tokenizer out of GGUF metadata: `tokenizer.ggml.*`.

use tokenizers::{
    AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior,
    pre_tokenizers::{
        byte_level::ByteLevel,
        digits::Digits,
        split::{Split, SplitPattern},
    },
};

use super::pipeline::{FieldNames, Normalization, Normalizers, Pipeline, shortened};
use crate::error::TextError;

/// What a GGUF file says about its tokenizer; each field is the key `tokenizer.ggml.<field>` unless
/// noted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VocabularySpec {
    /// The file, as errors name it.
    pub source_name: String,
    /// Kind of tokenizer; only `gpt2` (byte-level BPE) is supported.
    pub model: String,
    /// Family whose pre-tokenizer cuts the text; empty if the file does not say.
    pub pre: String,
    /// Spelling of each id.
    pub tokens: Vec<String>,
    /// Kind of each token (`token_type`): 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte. Empty
    /// means that all are normal.
    pub token_types: Vec<u32>,
    /// Pairs in order of rank, each two tokens with a space between.
    pub merges: Vec<String>,
    /// Whether a raw text starts with the beginning-of-text token (`add_bos_token`).
    pub add_bos: Option<bool>,
    /// Whether a space goes before the text.
    pub add_space_prefix: Option<bool>,
    /// The ids that have a role.
    pub special_ids: SpecialIds,
}

/// Ids that have a role: the keys `tokenizer.ggml.<role>_token_id`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Beginning of text.
    pub bos: Option<u32>,
    /// End of text.
    pub eos: Option<u32>,
    /// End of turn.
    pub eot: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// Unknown characters.
    pub unknown: Option<u32>,
}

const SUPPORTED_MODEL: &str = "a byte-level BPE vocabulary (`gpt2`)";
const SUPPORTED_PRE: &str =
    "one of `gpt-2`, `smollm`, `starcoder`, `qwen2`, `deepseek-r1-qwen`, `qwen35`, `llama-bpe`, `llama3`, `llama-v3`";

const FIELDS: FieldNames =
    FieldNames { vocab: "tokenizer.ggml.tokens", merges: "tokenizer.ggml.merges", added: "tokenizer.ggml.tokens" };

/// Qwen2 and Qwen3: single digits, marks apart from letters.
const QWEN2_PATTERN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen3.5 and Qwen3.6: combining marks stay with their letters.
const QWEN35_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Llama 3: up to three digits together.
const LLAMA3_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The pipeline that a family's `tokenizer.json` has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    /// The GPT-2 pattern alone.
    Gpt2,
    /// Each digit alone, then the GPT-2 pattern.
    SingleDigits,
    Qwen2,
    Qwen35,
    Llama3,
}

/// Reads the metadata into a pipeline, checking list lengths and ids.
pub(super) fn read(spec: &VocabularySpec) -> Result<Pipeline, TextError> {
    if spec.model != "gpt2" {
        return Err(unsupported(spec, "tokenizer.ggml.model", &spec.model, SUPPORTED_MODEL));
    }
    let mut warnings = Vec::new();
    let family = family(spec, &mut warnings)?;
    check_lengths(spec)?;
    check_special_ids(spec)?;
    let (vocab, added) = tokens(spec)?;
    Ok(Pipeline {
        source_name: spec.source_name.clone(),
        fields: FIELDS,
        normalizers: family.normalizers(),
        pre_tokenizers: family.pre_tokenizers(spec)?,
        vocab,
        merges: merges(spec)?,
        added,
        unknown: None,
        ignore_merges: family == Family::Llama3,
        raw_text_prefix: raw_text_prefix(spec, family),
        special_ids: spec.special_ids,
        warnings,
    })
}

fn family(spec: &VocabularySpec, warnings: &mut Vec<String>) -> Result<Family, TextError> {
    Ok(match spec.pre.as_str() {
        "gpt-2" => Family::Gpt2,
        "smollm" | "starcoder" => Family::SingleDigits,
        "qwen2" | "deepseek-r1-qwen" => Family::Qwen2,
        "qwen35" => Family::Qwen35,
        "llama-bpe" | "llama3" | "llama-v3" => Family::Llama3,
        "" | "default" => {
            warnings.push(format!(
                "`{}` does not name its pre-tokenizer (`tokenizer.ggml.pre`): using GPT-2's, so the model may read \
                 text worse than it could; a newer conversion of the model names it",
                spec.source_name
            ));
            Family::Gpt2
        }
        other => return Err(unsupported(spec, "tokenizer.ggml.pre", other, SUPPORTED_PRE)),
    })
}

impl Family {
    fn normalizers(self) -> Normalizers {
        match self {
            Self::Qwen2 | Self::Qwen35 => Normalizers(vec![Normalization::Nfc]),
            Self::Gpt2 | Self::SingleDigits | Self::Llama3 => Normalizers::default(),
        }
    }

    fn pre_tokenizers(self, spec: &VocabularySpec) -> Result<Vec<PreTokenizerWrapper>, TextError> {
        let add_prefix_space = spec.add_space_prefix.unwrap_or(false);
        let bytes = |use_regex| PreTokenizerWrapper::from(ByteLevel::new(add_prefix_space, false, use_regex));
        let split = |pattern: &str| {
            let pattern = SplitPattern::Regex(pattern.to_owned());
            Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map(PreTokenizerWrapper::from).map_err(
                |source| TextError::TokenizerPart {
                    source_name: spec.source_name.clone(),
                    field: "tokenizer.ggml.pre".to_owned(),
                    source,
                },
            )
        };
        Ok(match self {
            Self::Gpt2 => vec![bytes(true)],
            Self::SingleDigits => vec![Digits::new(true).into(), bytes(true)],
            Self::Qwen2 => vec![split(QWEN2_PATTERN)?, bytes(false)],
            Self::Qwen35 => vec![split(QWEN35_PATTERN)?, bytes(false)],
            Self::Llama3 => vec![split(LLAMA3_PATTERN)?, bytes(false)],
        })
    }
}

fn check_lengths(spec: &VocabularySpec) -> Result<(), TextError> {
    let (tokens, types) = (spec.tokens.len(), spec.token_types.len());
    if tokens == 0 || u32::try_from(tokens).is_err() {
        return Err(field_error(spec, FIELDS.vocab, format!("a list of {tokens}"), "at least one token"));
    }
    if types != 0 && types != tokens {
        let expected = format!("one entry for each of the {tokens} tokens");
        return Err(field_error(spec, "tokenizer.ggml.token_type", format!("a list of {types}"), &expected));
    }
    Ok(())
}

fn check_special_ids(spec: &VocabularySpec) -> Result<(), TextError> {
    let SpecialIds { bos, eos, eot, pad, unknown } = spec.special_ids;
    let roles = [("bos", bos), ("eos", eos), ("eot", eot), ("padding", pad), ("unknown", unknown)];
    for (role, id) in roles {
        if let Some(id) = id.filter(|&id| id as usize >= spec.tokens.len()) {
            let expected = format!("an id below {}, the number of tokens", spec.tokens.len());
            return Err(field_error(spec, &format!("tokenizer.ggml.{role}_token_id"), id.to_string(), &expected));
        }
    }
    Ok(())
}

type Tokens = (Vec<(String, u32)>, Vec<(u32, AddedToken)>);

/// Sorts tokens by their type: into the vocabulary, found before merging, or nowhere.
fn tokens(spec: &VocabularySpec) -> Result<Tokens, TextError> {
    let (mut vocab, mut added) = (Vec::with_capacity(spec.tokens.len()), Vec::new());
    let types = spec.token_types.iter().copied().chain(std::iter::repeat(1));
    for ((id, token), token_type) in (0u32..).zip(&spec.tokens).zip(types) {
        match token_type {
            0 | 1 | 2 | 6 => vocab.push((token.clone(), id)),
            3 => added.push((id, AddedToken::from(token.as_str(), true).normalized(false))),
            4 => added.push((id, AddedToken::from(token.as_str(), false).normalized(false))),
            // A padding row of the model: never produced, and nothing when decoded.
            5 => {}
            other => {
                let field = format!("tokenizer.ggml.token_type[{id}]");
                return Err(field_error(spec, &field, other.to_string(), "a token type from 1 to 6"));
            }
        }
    }
    Ok((vocab, added))
}

fn merges(spec: &VocabularySpec) -> Result<Vec<(String, String)>, TextError> {
    let split = |(rank, merge): (usize, &String)| {
        let halves = merge.split_once(' ').filter(|(left, right)| !left.is_empty() && !right.contains(' '));
        halves.map(|(left, right)| (left.to_owned(), right.to_owned())).ok_or_else(|| {
            let field = format!("{}[{rank}]", FIELDS.merges);
            field_error(spec, &field, format!("`{}`", shortened(merge)), "two tokens with a space between")
        })
    };
    spec.merges.iter().enumerate().map(split).collect()
}

/// Llama 3 files that do not say otherwise start a text with its beginning.
fn raw_text_prefix(spec: &VocabularySpec, family: Family) -> Vec<u32> {
    let wanted = spec.add_bos.unwrap_or(family == Family::Llama3);
    spec.special_ids.bos.filter(|_| wanted).into_iter().collect()
}

fn field_error(spec: &VocabularySpec, field: &str, found: String, expected: &str) -> TextError {
    TextError::TokenizerField {
        source_name: spec.source_name.clone(),
        field: field.to_owned(),
        found,
        expected: expected.to_owned(),
    }
}

fn unsupported(spec: &VocabularySpec, field: &str, found: &str, supported: &str) -> TextError {
    TextError::UnsupportedTokenizer {
        source_name: spec.source_name.clone(),
        field: field.to_owned(),
        found: format!("`{}`", shortened(found)),
        supported: supported.to_owned(),
    }
}
