//! Text to ids and back with byte-level BPE, from a `tokenizer.json` or from GGUF metadata.

mod byte_level;
mod file;
mod least;
mod pipeline;
mod vocabulary;

use std::{
    ops::Range,
    sync::{Arc, OnceLock},
};

use tokenizers::{
    AddedVocabulary, Model, NormalizedString, Normalizer, OffsetType, PreTokenizedString, PreTokenizer,
    PreTokenizerWrapper, Token, models::bpe::BPE,
};

use self::least::Spellings;
use self::pipeline::Normalizers;
pub use self::vocabulary::{SpecialIds, VocabularySpec};
use crate::error::TextError;

/// How [`Tokenizer::encode`] reads the spelling of an added token, such as `<|im_end|>`, in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddedTokens {
    /// As that token: for rendered prompts.
    Parse,
    /// As plain characters: for untrusted text, which can then not end a turn or open a tool call.
    AsText,
}

/// What decoding does with special tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialTokens {
    /// Shows their spelling.
    Keep,
    /// Leaves them out. Added tokens that are not special, such as `<think>`, stay.
    Skip,
}

/// A byte-level BPE tokenizer. Cheap to clone and shared freely between threads.
///
/// Encoding is the reference tokenizer library's own; decoding is a table of each token's bytes. No
/// token is added by itself: see [`Tokenizer::raw_text_prefix`] for what some models expect first.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    model: BPE,
    added: AddedVocabulary,
    normalizers: Normalizers,
    pre_tokenizers: Vec<PreTokenizerWrapper>,
    ignore_merges: bool,
    table: TokenTable,
    /// Whether the tokens of a text spell all of it, once it was normalized, and nothing else.
    spells_all: bool,
    /// Made when it is first asked for.
    spellings: OnceLock<Spellings>,
    raw_text_prefix: Vec<u32>,
    special_ids: SpecialIds,
    warnings: Vec<String>,
}

/// The bytes and the kind of each id, in one allocation each.
struct TokenTable {
    bytes: Vec<u8>,
    spans: Vec<Range<usize>>,
    kinds: Vec<TokenKind>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenKind {
    /// No token has this id: a gap, or a padding row of the model.
    Absent,
    Ordinary,
    Added,
    Special,
}

impl Tokenizer {
    /// Reads the bytes of a `tokenizer.json`; `source_name` names the file in errors.
    ///
    /// Supported are byte-level BPE models with the normalizers NFC, NFD, NFKC, NFKD and Lowercase and the
    /// pre-tokenizers Split, Digits and ByteLevel. Truncation and padding settings are ignored.
    ///
    /// # Errors
    /// [`TextError::TokenizerJson`] if it is not such a file, [`TextError::UnsupportedTokenizer`] if it is of
    /// another kind, [`TextError::TokenizerField`] or [`TextError::TokenizerPart`] if a part is inconsistent.
    pub fn from_json(bytes: &[u8], source_name: &str) -> Result<Self, TextError> {
        file::read(bytes, source_name)?.build()
    }

    /// Builds the tokenizer that a GGUF file's `tokenizer.ggml.*` metadata describes.
    ///
    /// # Errors
    /// [`TextError::UnsupportedTokenizer`] for another model than `gpt2` or an unknown `pre`,
    /// [`TextError::TokenizerField`] if the lists contradict each other.
    pub fn from_vocabulary(spec: &VocabularySpec) -> Result<Self, TextError> {
        vocabulary::read(spec)?.build()
    }

    /// The ids of `text`.
    ///
    /// # Errors
    /// [`TextError::Encode`] if the vocabulary cannot express the text.
    pub fn encode(&self, text: &str, added_tokens: AddedTokens) -> Result<Vec<u32>, TextError> {
        self.0.encode(text, added_tokens).map_err(|source| TextError::Encode { source })
    }

    /// A number of tokens that `text` has at least, found in a small part of the time and the memory that encoding takes.
    /// Counting ends at `enough`.
    ///
    /// It is the fewest spellings that cover the text, which for prose is 10 to 20 % less than its tokens. What a normalizer
    /// would change, such as letters apart from their accents, counts nothing; nor does anything for the rare tokenizer that
    /// drops or adds characters.
    #[must_use]
    pub fn least_tokens(&self, text: &str, enough: usize) -> usize {
        let Inner { table, spellings, normalizers, .. } = &*self.0;
        if !self.0.spells_all {
            return 0;
        }
        spellings.get_or_init(|| Spellings::of(table)).least(table, normalizers, text, enough)
    }

    /// The text of `ids`. Bytes that are no UTF-8 become U+FFFD; ids without a token add nothing.
    #[must_use]
    pub fn decode(&self, ids: &[u32], special: SpecialTokens) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.shown_bytes(id, special)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The raw bytes that `id` stands for, which need not be whole characters; none if there is no
    /// such token.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        (self.0.table.kind(id) != TokenKind::Absent).then(|| self.0.table.bytes(id).to_vec())
    }

    /// The spelling of `id` in the vocabulary, where ordinary tokens show each byte as one character
    /// (`Ġthe` for ` the`).
    #[must_use]
    pub fn token_text(&self, id: u32) -> Option<String> {
        let added = self.0.added.get_added_tokens_decoder().get(&id);
        added.map(|token| token.content.clone()).or_else(|| self.0.model.id_to_token(id))
    }

    /// The id of a token by its spelling in the vocabulary.
    #[must_use]
    pub fn id(&self, token: &str) -> Option<u32> {
        self.0.added.token_to_id(token, &self.0.model)
    }

    /// One more than the highest id that has a token. A model may have more rows than this.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.0.table.kinds.len()
    }

    /// Whether `id` is a special token, which [`SpecialTokens::Skip`] leaves out.
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        self.0.table.kind(id) == TokenKind::Special
    }

    /// Ids that the model expects before a raw text, such as a beginning-of-text token; often none.
    ///
    /// A rendered chat prompt spells such a token itself and must not be given a second one.
    #[must_use]
    pub fn raw_text_prefix(&self) -> &[u32] {
        &self.0.raw_text_prefix
    }

    /// The ids that GGUF metadata gives a role. All none for a `tokenizer.json`, which names no roles.
    #[must_use]
    pub fn special_ids(&self) -> &SpecialIds {
        &self.0.special_ids
    }

    /// What is doubtful about the file, to be shown to the user once; often nothing.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.0.warnings
    }

    /// The bytes of `id` as they count in a decoded text.
    pub(crate) fn shown_bytes(&self, id: u32, special: SpecialTokens) -> &[u8] {
        if special == SpecialTokens::Skip && self.is_special(id) {
            return &[];
        }
        self.0.table.bytes(id)
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size()).finish_non_exhaustive()
    }
}

impl Inner {
    fn encode(&self, text: &str, added_tokens: AddedTokens) -> tokenizers::Result<Vec<u32>> {
        let mut pieces = match added_tokens {
            AddedTokens::Parse => self.added.extract_and_normalize(Some(&self.normalizers), text),
            AddedTokens::AsText => {
                let mut pieces = PreTokenizedString::from(text);
                pieces.normalize(|piece| self.normalizers.normalize(piece))?;
                pieces
            }
        };
        for pre_tokenizer in &self.pre_tokenizers {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        pieces.tokenize(|piece| match added_tokens {
            AddedTokens::Parse => self.model.tokenize(piece.get()),
            AddedTokens::AsText => self.tokenize_as_text(piece),
        })?;
        Ok(pieces.into_encoding(None, 0, OffsetType::None)?.get_ids().to_vec())
    }

    /// Tokenizes a piece so that it cannot become an added token.
    ///
    /// Only a model that looks whole pieces up before merging could do so; taking the first character
    /// apart from the rest prevents it.
    fn tokenize_as_text(&self, piece: &NormalizedString) -> tokenizers::Result<Vec<Token>> {
        let mut rest = piece.get();
        let mut tokens = Vec::new();
        while self.ignore_merges && self.added.get_vocab().contains_key(rest) {
            let (first, after) = rest.split_at(rest.chars().next().map_or(0, char::len_utf8));
            if after.is_empty() {
                break;
            }
            tokens.extend(self.model.tokenize(first)?);
            rest = after;
        }
        tokens.extend(self.model.tokenize(rest)?);
        Ok(tokens)
    }
}

impl TokenTable {
    fn kind(&self, id: u32) -> TokenKind {
        self.kinds.get(id as usize).copied().unwrap_or(TokenKind::Absent)
    }

    fn bytes(&self, id: u32) -> &[u8] {
        self.spans.get(id as usize).map_or(&[], |span| &self.bytes[span.clone()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tokenizer_is_shared_between_threads() {
        fn check<T: Send + Sync + Clone>() {}
        check::<Tokenizer>();
    }
}
