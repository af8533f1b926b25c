//! The one description both sources of a tokenizer are read into, and its checks.
//!
//! The tokenizer library trusts what it is given: it indexes with ids from the file and slices by
//! lengths of merges. So everything is checked here before it is handed over.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use tokenizers::{
    AddedToken, AddedVocabulary, Model, NormalizedString, Normalizer, PreTokenizerWrapper,
    models::bpe::{BPE, BpeBuilder, Vocab},
};

use super::{Inner, SpecialIds, TokenKind, TokenTable, Tokenizer, byte_level, least};
use crate::error::TextError;

/// Everything a tokenizer is made of, not yet checked.
pub(super) struct Pipeline {
    /// The file, as errors name it.
    pub(super) source_name: String,
    /// Names of the fields in that file.
    pub(super) fields: FieldNames,
    pub(super) normalizers: Normalizers,
    pub(super) pre_tokenizers: Vec<PreTokenizerWrapper>,
    /// Tokens that merges make, with their ids.
    pub(super) vocab: Vec<(String, u32)>,
    /// Pairs in order of rank.
    pub(super) merges: Vec<(String, String)>,
    /// Tokens that are found in the text before merging.
    pub(super) added: Vec<(u32, AddedToken)>,
    /// The token for characters that the vocabulary lacks.
    pub(super) unknown: Option<String>,
    /// Whether a whole piece is looked up before merges are tried.
    pub(super) ignore_merges: bool,
    pub(super) raw_text_prefix: Vec<u32>,
    pub(super) special_ids: SpecialIds,
    pub(super) warnings: Vec<String>,
}

/// How the source spells the fields that errors name.
#[derive(Clone, Copy)]
pub(super) struct FieldNames {
    pub(super) vocab: &'static str,
    pub(super) merges: &'static str,
    pub(super) added: &'static str,
}

/// Unicode normalizations, applied in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Normalizers(pub(super) Vec<Normalization>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Normalization {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
    Lowercase,
}

/// Longest text that is normalized only to see whether that changes it: it takes 20 times the memory of the text.
const MOST_COMPARED_BYTES: usize = 64 << 10;

impl Normalizers {
    /// Whether a text is known to stay as it is.
    pub(super) fn leaves_unchanged(&self, text: &str) -> bool {
        if self.0.is_empty() {
            return true;
        }
        if text.len() > MOST_COMPARED_BYTES {
            return false;
        }
        let mut normalized = NormalizedString::from(text);
        self.normalize(&mut normalized).is_ok() && normalized.get() == text
    }
}

impl Normalizer for Normalizers {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        for normalization in &self.0 {
            match normalization {
                Normalization::Nfc => text.nfc(),
                Normalization::Nfd => text.nfd(),
                Normalization::Nfkc => text.nfkc(),
                Normalization::Nfkd => text.nfkd(),
                Normalization::Lowercase => text.lowercase(),
            };
        }
        Ok(())
    }
}

impl Pipeline {
    /// Checks the parts against each other and makes the tokenizer.
    pub(super) fn build(mut self) -> Result<Tokenizer, TextError> {
        self.check_ids()?;
        self.settle_added_ids()?;
        let table = self.token_table();
        let spells_all = !self.lacks_bytes() && self.spells_all();
        let model = self.build_model()?;
        let added = self.build_added(&model)?;
        Ok(Tokenizer(std::sync::Arc::new(Inner {
            model,
            added,
            normalizers: self.normalizers,
            pre_tokenizers: self.pre_tokenizers,
            ignore_merges: self.ignore_merges,
            table,
            spells_all,
            spellings: OnceLock::new(),
            raw_text_prefix: self.raw_text_prefix,
            special_ids: self.special_ids,
            warnings: self.warnings,
        })))
    }

    fn field_error(&self, field: &str, found: String, expected: impl Into<String>) -> TextError {
        TextError::TokenizerField {
            source_name: self.source_name.clone(),
            field: field.to_owned(),
            found,
            expected: expected.into(),
        }
    }

    /// Ids index tables, so the highest may not exceed what the number of tokens makes plausible.
    fn check_ids(&self) -> Result<(), TextError> {
        let count = self.vocab.len() + self.added.len();
        let limit = 2 * count + 4096;
        let vocab = self.vocab.iter().map(|(token, id)| (self.fields.vocab, token, *id));
        let added = self.added.iter().map(|(id, token)| (self.fields.added, &token.content, *id));
        match vocab.chain(added).find(|(_, _, id)| *id as usize >= limit) {
            Some((field, token, id)) => Err(self.field_error(
                field,
                format!("id {id} for token `{}`", shortened(token)),
                format!("ids below {limit}, since there are {count} tokens"),
            )),
            None => Ok(()),
        }
    }

    /// Gives each added token the id it has in the vocabulary, or a place of its own there.
    ///
    /// The library numbers added tokens itself unless the model knows them, so they join the vocabulary.
    fn settle_added_ids(&mut self) -> Result<(), TextError> {
        let mut ids: HashMap<&str, u32> = HashMap::with_capacity(self.vocab.len());
        for (token, id) in &self.vocab {
            ids.entry(token).or_insert(*id);
        }
        let mut taken: HashMap<u32, &str> = self.vocab.iter().map(|(token, id)| (*id, token.as_str())).collect();
        let (mut joining, mut moved) = (Vec::new(), Vec::new());
        for (index, (id, token)) in self.added.iter().enumerate() {
            let content = token.content.as_str();
            match (ids.get(content), taken.get(id)) {
                (Some(known), _) if known == id => {}
                (Some(known), _) => moved.push((index, *known)),
                (None, Some(other)) => {
                    return Err(self.field_error(
                        self.fields.added,
                        format!("`{}` with id {id}, which is also `{}`", shortened(content), shortened(other)),
                        "one token for each id",
                    ));
                }
                (None, None) => {
                    ids.insert(content, *id);
                    taken.insert(*id, content);
                    joining.push((content.to_owned(), *id));
                }
            }
        }
        self.vocab.extend(joining);
        for (index, known) in moved {
            let (id, token) = &mut self.added[index];
            self.warnings.push(format!(
                "added token `{}` of `{}` asks for id {id} but has id {known} in the vocabulary: using {known}",
                shortened(&token.content),
                self.source_name
            ));
            *id = known;
        }
        Ok(())
    }

    fn token_table(&self) -> TokenTable {
        let highest = self.vocab.iter().map(|(_, id)| *id as usize + 1).max().unwrap_or(0);
        let mut spellings: Vec<(TokenKind, &str)> = vec![(TokenKind::Absent, ""); highest];
        for (token, id) in &self.vocab {
            spellings[*id as usize] = (TokenKind::Ordinary, token);
        }
        for (id, token) in &self.added {
            let kind = if token.special { TokenKind::Special } else { TokenKind::Added };
            spellings[*id as usize] = (kind, &token.content);
        }
        let mut table = TokenTable { bytes: Vec::new(), spans: Vec::with_capacity(highest), kinds: Vec::new() };
        for (kind, spelling) in spellings {
            let start = table.bytes.len();
            match kind {
                TokenKind::Ordinary => table.bytes.extend(byte_level::to_bytes(spelling)),
                _ => table.bytes.extend(spelling.as_bytes()),
            }
            table.spans.push(start..table.bytes.len());
            table.kinds.push(kind);
        }
        table
    }

    /// Whether nothing in the pipeline drops characters or adds them, and added tokens are looked for as they are spelled.
    fn spells_all(&self) -> bool {
        let is_plain =
            |token: &AddedToken| !token.lstrip && !token.rstrip && self.normalizers.leaves_unchanged(&token.content);
        self.pre_tokenizers.iter().all(least::keeps_all) && self.added.iter().all(|(_, token)| is_plain(token))
    }

    /// Whether bytes of a text may be lost, with a warning: without its character, the library drops a byte silently.
    fn lacks_bytes(&mut self) -> bool {
        let known: HashSet<&str> = self.vocab.iter().map(|(token, _)| token.as_str()).collect();
        let is_missing = |character: char| !known.contains(character.encode_utf8(&mut [0; 4]) as &str);
        let missing =
            byte_level::alphabet().filter(|&(byte, character)| in_utf8(byte) && is_missing(character)).count();
        let lacks = missing > 0 && self.unknown.is_none();
        if lacks {
            self.warnings.push(format!(
                "the vocabulary of `{}` has no token for {missing} of the 243 bytes that text is made of: \
                 characters with such a byte are lost when encoding",
                self.source_name
            ));
        }
        lacks
    }

    fn build_model(&mut self) -> Result<BPE, TextError> {
        let mut vocab = Vocab::default();
        for (token, id) in std::mem::take(&mut self.vocab) {
            vocab.entry(token).or_insert(id);
        }
        self.check_merges(&vocab)?;
        if let Some(unknown) = &self.unknown
            && !vocab.contains_key(unknown.as_str())
        {
            return Err(self.field_error(
                "unk_token",
                format!("`{}`", shortened(unknown)),
                "a token of the vocabulary",
            ));
        }
        let mut builder = BpeBuilder::new()
            .vocab_and_merges(vocab, std::mem::take(&mut self.merges))
            .ignore_merges(self.ignore_merges);
        if let Some(unknown) = self.unknown.take() {
            builder = builder.unk_token(unknown);
        }
        builder.build().map_err(|source| self.part_error(self.fields.merges, source))
    }

    /// The library copies both halves of a merge into a buffer as long as the longest token.
    fn check_merges(&self, vocab: &Vocab) -> Result<(), TextError> {
        for (rank, (left, right)) in self.merges.iter().enumerate() {
            let whole = format!("{left}{right}");
            if let Some(absent) = [left, right, &whole].into_iter().find(|token| !vocab.contains_key(token.as_str())) {
                return Err(self.field_error(
                    &format!("{}[{rank}]", self.fields.merges),
                    format!(
                        "`{} {}` with the unknown token `{}`",
                        shortened(left),
                        shortened(right),
                        shortened(absent)
                    ),
                    "two tokens of the vocabulary that together spell a third",
                ));
            }
        }
        Ok(())
    }

    fn build_added(&self, model: &BPE) -> Result<AddedVocabulary, TextError> {
        let mut added = AddedVocabulary::new();
        let tokens = self.added.iter().map(|(_, token)| token.clone());
        added
            .add_tokens(tokens, model, Some(&self.normalizers))
            .map_err(|source| self.part_error(self.fields.added, source))?;
        debug_assert!(self.added.iter().all(|(id, token)| model.token_to_id(&token.content) == Some(*id)));
        Ok(added)
    }

    fn part_error(&self, field: &str, source: tokenizers::Error) -> TextError {
        TextError::TokenizerPart { source_name: self.source_name.clone(), field: field.to_owned(), source }
    }
}

/// Whether a byte can occur in UTF-8 at all.
fn in_utf8(byte: u8) -> bool {
    !matches!(byte, 0xC0 | 0xC1 | 0xF5..=0xFF)
}

/// A token as errors quote it: hostile ones can be megabytes long.
pub(super) fn shortened(token: &str) -> String {
    const SHOWN: usize = 40;
    match token.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}...", &token[..at]),
        None => token.to_owned(),
    }
}
