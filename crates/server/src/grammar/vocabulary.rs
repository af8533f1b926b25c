//! The model's vocabulary as the grammar engine reads it.

use std::sync::Arc;

use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use pleach_engine::{AddedTokens, Engine, Tokenizer};

struct Vocabulary {
    tokenizer: Tokenizer,
    trie: TokTrie,
}

/// A table of all tokens. Special tokens stand apart: no text of a grammar can be one.
pub(super) fn environment(engine: &Engine) -> TokEnv {
    let tokenizer = engine.tokenizer().clone();
    let num_tokens = tokenizer.vocab_size() as u32;
    let words: Vec<Vec<u8>> = (0..num_tokens).map(|id| word(&tokenizer, id)).collect();
    let end = engine.stop_tokens().iter().copied().find(|&id| id < num_tokens).unwrap_or(0);
    let trie = TokTrie::from(&TokRxInfo::new(num_tokens, end), &words);
    Arc::new(Vocabulary { tokenizer, trie })
}

fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    if !tokenizer.is_special(id) {
        return bytes;
    }
    [&[TokTrie::SPECIAL_TOKEN_MARKER], &bytes[..]].concat()
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            // Added tokens that are no special ones, such as `<tool_call>`, are how models write these texts.
            self.tokenizer
                .encode(text, AddedTokens::Parse)
                .unwrap_or_else(|_| self.trie.greedy_tokenize(text.as_bytes()))
        })
    }
}
