//! A tokenizer out of a `tokenizer.json`.

use std::collections::HashMap;

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use tokenizers::{
    AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior,
    pre_tokenizers::{
        byte_level::ByteLevel,
        digits::Digits,
        split::{Split, SplitPattern},
    },
};

use super::pipeline::{FieldNames, Normalization, Normalizers, Pipeline, shortened};
use super::vocabulary::SpecialIds;
use crate::error::TextError;

const FIELDS: FieldNames = FieldNames { vocab: "model.vocab", merges: "model.merges", added: "added_tokens" };
const SUPPORTED_MODEL: &str = "a byte-level BPE tokenizer (model `BPE`, decoder `ByteLevel`)";
/// Longer than any published pattern; bounds the work of compiling one.
const MAX_PATTERN_BYTES: usize = 16 * 1024;

/// The part that decides whether the rest can be read: other models have other fields.
#[derive(Deserialize)]
struct Probe {
    model: ProbeModel,
}

#[derive(Deserialize)]
struct ProbeModel {
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Deserialize)]
struct TokenizerFile {
    added_tokens: Option<Vec<AddedEntry>>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
    model: BpeModel,
}

#[derive(Deserialize)]
struct AddedEntry {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    special: bool,
    normalized: Option<bool>,
}

#[derive(Deserialize)]
struct BpeModel {
    vocab: HashMap<String, u32>,
    merges: Merges,
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "`model.merges` is not a list of `\"a b\"` or of `[\"a\", \"b\"]`")]
enum Merges {
    Pairs(Vec<(String, String)>),
    Lines(Vec<String>),
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum NormalizerPart {
    #[serde(rename = "NFC")]
    Nfc,
    #[serde(rename = "NFD")]
    Nfd,
    #[serde(rename = "NFKC")]
    Nfkc,
    #[serde(rename = "NFKD")]
    Nfkd,
    Lowercase,
    Sequence {
        normalizers: Vec<NormalizerPart>,
    },
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum PreTokenizerPart {
    Sequence {
        pretokenizers: Vec<PreTokenizerPart>,
    },
    Split {
        pattern: Pattern,
        behavior: Behavior,
        #[serde(default)]
        invert: bool,
    },
    Digits {
        #[serde(default)]
        individual_digits: bool,
    },
    ByteLevel {
        #[serde(default)]
        add_prefix_space: bool,
        #[serde(default = "yes")]
        use_regex: bool,
    },
}

#[derive(Deserialize)]
enum Pattern {
    Regex(String),
    String(String),
}

#[derive(Deserialize)]
enum Behavior {
    Removed,
    Isolated,
    MergedWithPrevious,
    MergedWithNext,
    Contiguous,
}

#[derive(Deserialize)]
struct Typed {
    #[serde(rename = "type")]
    kind: String,
}

fn yes() -> bool {
    true
}

/// Reads the file into a pipeline.
pub(super) fn read(bytes: &[u8], source_name: &str) -> Result<Pipeline, TextError> {
    let reader = Reader { source_name };
    let probe: Probe = reader.json(bytes)?;
    if let Some(kind) = probe.model.kind.filter(|kind| kind != "BPE") {
        return Err(reader.unsupported("model.type", &kind));
    }
    let file: TokenizerFile = reader.json(bytes)?;
    reader.check_byte_level(&file)?;
    let pre_tokenizers = reader.pre_tokenizers(file.pre_tokenizer)?;
    let mut warnings = Vec::new();
    if file.model.dropout.is_some_and(|dropout| dropout != 0.0) {
        warnings.push(format!("`model.dropout` of `{source_name}` is for training: ignored"));
    }
    let added: Vec<_> = file.added_tokens.unwrap_or_default().into_iter().map(AddedEntry::into_token).collect();
    let raw_text_prefix = reader.raw_text_prefix(file.post_processor.as_ref(), &file.model.vocab, &added);
    let mut vocab: Vec<(String, u32)> = file.model.vocab.into_iter().collect();
    vocab.sort_unstable_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
    reader.check_distinct(&vocab)?;
    Ok(Pipeline {
        source_name: source_name.to_owned(),
        fields: FIELDS,
        normalizers: reader.normalizers(file.normalizer)?,
        pre_tokenizers,
        vocab,
        merges: reader.merges(file.model.merges)?,
        added,
        unknown: file.model.unk_token,
        ignore_merges: file.model.ignore_merges.unwrap_or(false),
        raw_text_prefix,
        special_ids: SpecialIds::default(),
        warnings,
    })
}

/// Carries the file's name into every error.
struct Reader<'a> {
    source_name: &'a str,
}

impl Reader<'_> {
    fn json<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, TextError> {
        serde_json::from_slice(bytes)
            .map_err(|source| TextError::TokenizerJson { source_name: self.source_name.to_owned(), source })
    }

    fn unsupported(&self, field: &str, found: &str) -> TextError {
        TextError::UnsupportedTokenizer {
            source_name: self.source_name.to_owned(),
            field: field.to_owned(),
            found: format!("`{}`", shortened(found)),
            supported: SUPPORTED_MODEL.to_owned(),
        }
    }

    fn field_error(&self, field: &str, found: impl Into<String>, expected: impl Into<String>) -> TextError {
        TextError::TokenizerField {
            source_name: self.source_name.to_owned(),
            field: field.to_owned(),
            found: found.into(),
            expected: expected.into(),
        }
    }

    fn part<T: DeserializeOwned>(&self, field: &str, value: Value) -> Result<T, TextError> {
        serde_json::from_value(value).map_err(|source| TextError::TokenizerPart {
            source_name: self.source_name.to_owned(),
            field: field.to_owned(),
            source: source.into(),
        })
    }

    /// Refuses BPE models of the other kind, which work on characters and mark words.
    fn check_byte_level(&self, file: &TokenizerFile) -> Result<(), TextError> {
        if file.model.byte_fallback == Some(true) {
            return Err(self.unsupported("model.byte_fallback", "true"));
        }
        let affixes = [
            ("model.continuing_subword_prefix", &file.model.continuing_subword_prefix),
            ("model.end_of_word_suffix", &file.model.end_of_word_suffix),
        ];
        for (field, affix) in affixes {
            if let Some(affix) = affix.as_deref().filter(|affix| !affix.is_empty()) {
                return Err(self.unsupported(field, affix));
            }
        }
        match &file.decoder {
            None => Err(self.unsupported("decoder", "null")),
            Some(decoder) => match self.part::<Typed>("decoder", decoder.clone())?.kind.as_str() {
                "ByteLevel" => Ok(()),
                other => Err(self.unsupported("decoder.type", other)),
            },
        }
    }

    fn check_distinct(&self, by_id: &[(String, u32)]) -> Result<(), TextError> {
        match by_id.windows(2).find(|pair| pair[0].1 == pair[1].1) {
            Some(pair) => {
                let (one, other) = (shortened(&pair[0].0), shortened(&pair[1].0));
                let found = format!("`{one}` and `{other}` with the same id {}", pair[0].1);
                Err(self.field_error(FIELDS.vocab, found, "one token for each id"))
            }
            None => Ok(()),
        }
    }

    fn normalizers(&self, value: Option<Value>) -> Result<Normalizers, TextError> {
        let mut list = Vec::new();
        if let Some(value) = value {
            flatten_normalizers(self.part("normalizer", value)?, &mut list);
        }
        Ok(Normalizers(list))
    }

    fn pre_tokenizers(&self, value: Option<Value>) -> Result<Vec<PreTokenizerWrapper>, TextError> {
        let Some(value) = value else {
            return Err(self.unsupported("pre_tokenizer", "null"));
        };
        let mut parts = Vec::new();
        flatten_pre_tokenizers(self.part("pre_tokenizer", value)?, &mut parts);
        let byte_levels = parts.iter().filter(|part| matches!(part, PreTokenizerPart::ByteLevel { .. })).count();
        if byte_levels != 1 || !matches!(parts.last(), Some(PreTokenizerPart::ByteLevel { .. })) {
            let found = format!("a list with {byte_levels} `ByteLevel` among {}", parts.len());
            return Err(self.field_error("pre_tokenizer", found, "a list that ends in its one `ByteLevel`"));
        }
        parts.into_iter().map(|part| self.pre_tokenizer(part)).collect()
    }

    fn pre_tokenizer(&self, part: PreTokenizerPart) -> Result<PreTokenizerWrapper, TextError> {
        Ok(match part {
            PreTokenizerPart::Split { pattern, behavior, invert } => self.split(pattern, behavior, invert)?.into(),
            PreTokenizerPart::Digits { individual_digits } => Digits::new(individual_digits).into(),
            PreTokenizerPart::ByteLevel { add_prefix_space, use_regex } => {
                ByteLevel::new(add_prefix_space, false, use_regex).into()
            }
            PreTokenizerPart::Sequence { .. } => unreachable!("sequences are flattened before"),
        })
    }

    fn split(&self, pattern: Pattern, behavior: Behavior, invert: bool) -> Result<Split, TextError> {
        let (Pattern::Regex(text) | Pattern::String(text)) = &pattern;
        // `\K` lets a match start after its end, which the library's slicing does not survive.
        if text.len() > MAX_PATTERN_BYTES || (matches!(pattern, Pattern::Regex(_)) && text.contains(r"\K")) {
            let found = format!("`{}` of {} bytes", shortened(text), text.len());
            let expected = format!(r"at most {MAX_PATTERN_BYTES} bytes and no `\K`");
            return Err(self.field_error("pre_tokenizer.pattern", found, expected));
        }
        let pattern = match pattern {
            Pattern::Regex(text) => SplitPattern::Regex(text),
            Pattern::String(text) => SplitPattern::String(text),
        };
        Split::new(pattern, behavior.into(), invert).map_err(|source| TextError::TokenizerPart {
            source_name: self.source_name.to_owned(),
            field: "pre_tokenizer.pattern".to_owned(),
            source,
        })
    }

    fn merges(&self, merges: Merges) -> Result<Vec<(String, String)>, TextError> {
        let lines = match merges {
            Merges::Pairs(pairs) => return Ok(pairs),
            Merges::Lines(lines) => lines,
        };
        let split = |(rank, line): (usize, String)| {
            let halves = line.split_once(' ').filter(|(_, right)| !right.contains(' '));
            halves.map(|(left, right)| (left.to_owned(), right.to_owned())).ok_or_else(|| {
                let found = format!("`{}`", shortened(&line));
                self.field_error(&format!("model.merges[{rank}]"), found, "two tokens with a space between")
            })
        };
        lines.into_iter().filter(|line| !line.starts_with("#version")).enumerate().map(split).collect()
    }

    /// The tokens that a `TemplateProcessing` puts before a single text, as far as they have ids.
    fn raw_text_prefix(
        &self,
        processor: Option<&Value>,
        vocab: &HashMap<String, u32>,
        added: &[(u32, AddedToken)],
    ) -> Vec<u32> {
        // Of added tokens with one content the first counts, so it goes in last. A list to search would make the time a
        // product of two lengths of the file.
        let added: HashMap<&str, u32> = added.iter().rev().map(|(id, token)| (token.content.as_str(), *id)).collect();
        let id_of = |content: &str| added.get(content).or_else(|| vocab.get(content)).copied();
        let single = processor.and_then(single_template).map_or(&[][..], Vec::as_slice);
        single.iter().map_while(|piece| piece.get("SpecialToken")?.get("id")?.as_str()).filter_map(id_of).collect()
    }
}

/// The `single` list of a template processor, which may be one of a sequence.
fn single_template(processor: &Value) -> Option<&Vec<Value>> {
    match processor.get("type")?.as_str()? {
        "TemplateProcessing" => processor.get("single")?.as_array(),
        "Sequence" => processor.get("processors")?.as_array()?.iter().find_map(single_template),
        _ => None,
    }
}

fn flatten_normalizers(part: NormalizerPart, list: &mut Vec<Normalization>) {
    match part {
        NormalizerPart::Nfc => list.push(Normalization::Nfc),
        NormalizerPart::Nfd => list.push(Normalization::Nfd),
        NormalizerPart::Nfkc => list.push(Normalization::Nfkc),
        NormalizerPart::Nfkd => list.push(Normalization::Nfkd),
        NormalizerPart::Lowercase => list.push(Normalization::Lowercase),
        NormalizerPart::Sequence { normalizers } => {
            normalizers.into_iter().for_each(|part| flatten_normalizers(part, list));
        }
    }
}

fn flatten_pre_tokenizers(part: PreTokenizerPart, list: &mut Vec<PreTokenizerPart>) {
    match part {
        PreTokenizerPart::Sequence { pretokenizers } => {
            pretokenizers.into_iter().for_each(|part| flatten_pre_tokenizers(part, list));
        }
        part => list.push(part),
    }
}

impl AddedEntry {
    fn into_token(self) -> (u32, AddedToken) {
        let token = AddedToken::from(self.content, self.special)
            .single_word(self.single_word)
            .lstrip(self.lstrip)
            .rstrip(self.rstrip)
            .normalized(self.normalized.unwrap_or(!self.special));
        (self.id, token)
    }
}

impl From<Behavior> for SplitDelimiterBehavior {
    fn from(behavior: Behavior) -> Self {
        match behavior {
            Behavior::Removed => Self::Removed,
            Behavior::Isolated => Self::Isolated,
            Behavior::MergedWithPrevious => Self::MergedWithPrevious,
            Behavior::MergedWithNext => Self::MergedWithNext,
            Behavior::Contiguous => Self::Contiguous,
        }
    }
}
