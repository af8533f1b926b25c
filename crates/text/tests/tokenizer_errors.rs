//! Broken and hostile tokenizer files: a typed error that names the field, never a panic.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

use pleach_text::{AddedTokens, SpecialIds, SpecialTokens, TextError, Tokenizer, VocabularySpec};
use proptest::prelude::*;
use serde_json::{Value, json};

mod common;

/// A small file with all that a tokenizer needs.
fn small() -> Value {
    json!({
        "added_tokens": [{"id": 4, "content": "<|end|>", "special": true}],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
        "post_processor": {"type": "Sequence", "processors": [
            {"type": "ByteLevel"},
            {"type": "TemplateProcessing", "single": [
                {"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
            ]}
        ]},
        "decoder": {"type": "ByteLevel"},
        "model": {
            "type": "BPE", "unk_token": null, "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3}, "merges": ["a b"],
        }
    })
}

/// The error, with its causes, of the small file after a change.
fn error_after(change: impl FnOnce(&mut Value)) -> String {
    let mut file = small();
    change(&mut file);
    let error = Tokenizer::from_json(file.to_string().as_bytes(), "t.json").unwrap_err();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Each piece of the template was once searched for among all added tokens.
#[test]
fn many_template_pieces_and_many_added_tokens_take_no_product_of_time() {
    let count = 20_000;
    let mut file = small();
    let added = (0..count).map(|id| json!({"id": 4 + id, "content": format!("<|{id}|>"), "special": true}));
    file["added_tokens"] = added.collect();
    let piece = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
    let pieces = (0..count).map(|_| piece("<|unknown|>")).chain([piece("<|7|>"), piece("b")]);
    file["post_processor"] = json!({"type": "TemplateProcessing", "single": pieces.collect::<Vec<_>>()});
    let bytes = file.to_string();
    let started = Instant::now();
    let tokenizer = Tokenizer::from_json(bytes.as_bytes(), "t.json").unwrap();
    assert_eq!(tokenizer.raw_text_prefix(), [11, 1]);
    assert!(started.elapsed() < Duration::from_secs(2), "took {:?}", started.elapsed());
}

#[test]
fn the_small_file_works() {
    let tokenizer = Tokenizer::from_json(small().to_string().as_bytes(), "t.json").unwrap();
    assert_eq!(tokenizer.encode("ab a<|end|>", AddedTokens::Parse).unwrap(), [2, 3, 0, 4]);
    assert_eq!(tokenizer.decode(&[2, 3, 0, 4, 99, u32::MAX], SpecialTokens::Keep), "ab a<|end|>");
    assert_eq!(tokenizer.raw_text_prefix(), [4]);
    assert_eq!((tokenizer.token_bytes(5), tokenizer.token_text(5)), (None, None));
    assert_eq!(
        tokenizer.warnings(),
        [
            "the vocabulary of `t.json` has no token for 240 of the 243 bytes that text is made of: characters with such \
             a byte are lost when encoding"
        ]
    );
}

#[test]
fn other_kinds_of_tokenizer_are_named() {
    let supported = "use a model with a byte-level BPE tokenizer (model `BPE`, decoder `ByteLevel`)";
    let unsupported =
        |field: &str, found: &str| format!("`{field}` of `t.json` is `{found}`, which is not supported: {supported}");
    assert_eq!(
        error_after(|file| file["model"] = json!({"type": "Unigram", "vocab": [["a", 0.0]]})),
        unsupported("model.type", "Unigram")
    );
    assert_eq!(
        error_after(|file| file["model"]["byte_fallback"] = json!(true)),
        unsupported("model.byte_fallback", "true")
    );
    assert_eq!(
        error_after(|file| file["model"]["end_of_word_suffix"] = json!("</w>")),
        unsupported("model.end_of_word_suffix", "</w>")
    );
    assert_eq!(
        error_after(|file| file["decoder"] = json!({"type": "WordPiece"})),
        unsupported("decoder.type", "WordPiece")
    );
    assert_eq!(error_after(|file| file["pre_tokenizer"] = Value::Null), unsupported("pre_tokenizer", "null"));
    assert_eq!(
        error_after(|file| file["pre_tokenizer"]["type"] = json!("Metaspace")),
        "`pre_tokenizer` of `t.json` cannot be used: unknown variant `Metaspace`, expected one of `Sequence`, `Split`, \
         `Digits`, `ByteLevel`"
    );
}

#[test]
fn inconsistent_parts_are_named() {
    assert_eq!(
        error_after(|file| file["model"]["merges"] = json!(["a b", ["b", "a"]])),
        "cannot read `t.json` as a tokenizer: `model.merges` is not a list of `\"a b\"` or of `[\"a\", \"b\"]` at line 1 \
         column 488"
    );
    assert_eq!(
        error_after(|file| file["model"]["merges"] = json!(["a b", "b a"])),
        "`model.merges[1]` of `t.json` is `b a` with the unknown token `ba`, expected two tokens of the vocabulary that \
         together spell a third"
    );
    assert_eq!(
        error_after(|file| file["model"]["merges"] = json!(["ab"])),
        "`model.merges[0]` of `t.json` is `ab`, expected two tokens with a space between"
    );
    assert_eq!(
        error_after(|file| file["model"]["vocab"]["b"] = json!(0)),
        "`model.vocab` of `t.json` is `a` and `b` with the same id 0, expected one token for each id"
    );
    assert_eq!(
        error_after(|file| file["model"]["vocab"]["b"] = json!(4_000_000_000u32)),
        "`model.vocab` of `t.json` is id 4000000000 for token `b`, expected ids below 4106, since there are 5 tokens"
    );
    assert_eq!(
        error_after(|file| file["added_tokens"][0]["id"] = json!(1)),
        "`added_tokens` of `t.json` is `<|end|>` with id 1, which is also `b`, expected one token for each id"
    );
    assert_eq!(
        error_after(|file| file["model"]["unk_token"] = json!("<unk>")),
        "`unk_token` of `t.json` is `<unk>`, expected a token of the vocabulary"
    );
    let split = |pattern: Value| {
        json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": pattern, "behavior": "Isolated"}, {"type": "ByteLevel", "use_regex": false}
        ]})
    };
    assert!(
        error_after(|file| file["pre_tokenizer"] = split(json!({"Regex": "(a"})))
            .starts_with("`pre_tokenizer.pattern` of `t.json` cannot be used: Parsing error")
    );
    assert_eq!(
        error_after(|file| file["pre_tokenizer"] = split(json!({"Regex": r"(?=ab\K)"}))),
        r"`pre_tokenizer.pattern` of `t.json` is `(?=ab\K)` of 8 bytes, expected at most 16384 bytes and no `\K`"
    );
    assert_eq!(
        error_after(|file| {
            file["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [{"type": "Digits"}]});
        }),
        "`pre_tokenizer` of `t.json` is a list with 0 `ByteLevel` among 1, expected a list that ends in its one `ByteLevel`"
    );
}

#[test]
fn files_that_are_no_tokenizer_are_refused() {
    for bytes in [&b""[..], b"null", b"[]", b"{}", b"{\"model\":3}", b"\xFF\xFE", b"{\"model\":{\"type\":\"BPE\"}}"] {
        let error = Tokenizer::from_json(bytes, "t.json").unwrap_err();
        assert!(matches!(error, TextError::TokenizerJson { .. }), "{error}");
    }
    let deep = format!("{{\"model\":{}", "[".repeat(100_000));
    assert!(Tokenizer::from_json(deep.as_bytes(), "t.json").is_err());
}

#[test]
fn an_added_token_that_the_vocabulary_places_elsewhere_is_reported() {
    let mut file = small();
    file["added_tokens"] = json!([{"id": 7, "content": "ab", "special": false}]);
    let tokenizer = Tokenizer::from_json(file.to_string().as_bytes(), "t.json").unwrap();
    assert_eq!(
        tokenizer.warnings()[0],
        "added token `ab` of `t.json` asks for id 7 but has id 2 in the vocabulary: using 2"
    );
    assert_eq!(tokenizer.encode("xab", AddedTokens::Parse).unwrap(), [2]);
}

/// Looking whole pieces up first could otherwise find the control token.
#[test]
fn untrusted_text_is_safe_when_whole_pieces_are_looked_up() {
    let mut file = small();
    file["model"]["ignore_merges"] = json!(true);
    file["model"]["vocab"]["<"] = json!(5);
    file["model"]["vocab"]["|"] = json!(6);
    file["added_tokens"] = json!([{"id": 4, "content": "<|", "special": true}]);
    let tokenizer = Tokenizer::from_json(file.to_string().as_bytes(), "t.json").unwrap();
    assert_eq!(tokenizer.encode("<|", AddedTokens::Parse).unwrap(), [4]);
    assert_eq!(tokenizer.encode("<|", AddedTokens::AsText).unwrap(), [5, 6]);
}

fn spec() -> VocabularySpec {
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    VocabularySpec {
        source_name: "m.gguf".to_owned(),
        model: "gpt2".to_owned(),
        pre: "llama-bpe".to_owned(),
        tokens: texts(&["a", "b", "ab", "<|begin|>", "<think>", "[PAD5]"]),
        token_types: vec![1, 1, 1, 3, 4, 5],
        merges: texts(&["a b"]),
        special_ids: SpecialIds { bos: Some(3), ..SpecialIds::default() },
        ..VocabularySpec::default()
    }
}

#[test]
fn metadata_makes_a_tokenizer_with_its_roles() {
    let tokenizer = Tokenizer::from_vocabulary(&spec()).unwrap();
    assert_eq!(tokenizer.encode("<think>ab[PAD5]", AddedTokens::Parse).unwrap()[..2], [4, 2]);
    assert_eq!(tokenizer.raw_text_prefix(), [3]);
    assert_eq!(tokenizer.special_ids().bos, Some(3));
    assert!(tokenizer.is_special(3) && !tokenizer.is_special(4));
    assert_eq!(tokenizer.decode(&[3, 4, 5, 2], SpecialTokens::Skip), "<think>ab");
    assert_eq!(tokenizer.vocab_size(), 5);
    let quiet = Tokenizer::from_vocabulary(&VocabularySpec { add_bos: Some(false), ..spec() }).unwrap();
    assert!(quiet.raw_text_prefix().is_empty());
}

#[test]
fn tk_09_a_missing_pre_tokenizer_warns_and_an_unknown_one_is_refused() {
    for pre in ["", "default"] {
        let tokenizer = Tokenizer::from_vocabulary(&VocabularySpec { pre: pre.to_owned(), ..spec() }).unwrap();
        assert!(tokenizer.warnings()[0].starts_with(
            "`m.gguf` does not name its pre-tokenizer (`tokenizer.ggml.pre`): using GPT-2's, so the model may read"
        ));
    }
    let message = |spec: VocabularySpec| Tokenizer::from_vocabulary(&spec).unwrap_err().to_string();
    assert_eq!(
        message(VocabularySpec { pre: "bogus".to_owned(), ..spec() }),
        "`tokenizer.ggml.pre` of `m.gguf` is `bogus`, which is not supported: use a model with one of `gpt-2`, `smollm`, \
         `starcoder`, `qwen2`, `deepseek-r1-qwen`, `qwen35`, `llama-bpe`, `llama3`, `llama-v3`"
    );
    assert_eq!(
        message(VocabularySpec { model: "llama".to_owned(), ..spec() }),
        "`tokenizer.ggml.model` of `m.gguf` is `llama`, which is not supported: use a model with a byte-level BPE \
         vocabulary (`gpt2`)"
    );
}

#[test]
fn contradicting_metadata_is_refused() {
    let message = |spec: VocabularySpec| Tokenizer::from_vocabulary(&spec).unwrap_err().to_string();
    assert_eq!(
        message(VocabularySpec { token_types: vec![1; 5], ..spec() }),
        "`tokenizer.ggml.token_type` of `m.gguf` is a list of 5, expected one entry for each of the 6 tokens"
    );
    assert_eq!(
        message(VocabularySpec { token_types: vec![1, 1, 1, 3, 4, 9], ..spec() }),
        "`tokenizer.ggml.token_type[5]` of `m.gguf` is 9, expected a token type from 1 to 6"
    );
    assert_eq!(
        message(VocabularySpec { special_ids: SpecialIds { eos: Some(6), ..SpecialIds::default() }, ..spec() }),
        "`tokenizer.ggml.eos_token_id` of `m.gguf` is 6, expected an id below 6, the number of tokens"
    );
    assert_eq!(
        message(VocabularySpec { merges: vec!["a b c".to_owned()], ..spec() }),
        "`tokenizer.ggml.merges[0]` of `m.gguf` is `a b c`, expected two tokens with a space between"
    );
    assert_eq!(
        message(VocabularySpec { tokens: Vec::new(), token_types: Vec::new(), ..spec() }),
        "`tokenizer.ggml.tokens` of `m.gguf` is a list of 0, expected at least one token"
    );
}

static FILE: LazyLock<Vec<u8>> = LazyLock::new(|| common::bytes("tiny-qwen35/tokenizer.json"));

proptest! {
    /// Damaged files give an error or a tokenizer that works, never a panic.
    #[test]
    fn damaged_files_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut: prop::sample::Index,
        keep_whole: bool,
    ) {
        let mut bytes = FILE.clone();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if !keep_whole {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(tokenizer) = Tokenizer::from_json(&bytes, "t.json") {
            let ids = tokenizer.encode("a é 😀 12 <think>\n x", AddedTokens::Parse).unwrap_or_default();
            let _ = tokenizer.decode(&ids, SpecialTokens::Keep);
        }
    }

    /// Strange patterns and behaviors give an error or a working tokenizer.
    #[test]
    fn strange_patterns_never_panic(
        pattern in r"[ab()\[\]|*+?.^$\\(?=!<:){}0-9pLN]{0,12}",
        behavior in prop::sample::select(vec!["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]),
        invert: bool,
        text in "[ab é1\n]{0,12}",
    ) {
        let mut file = small();
        file["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert},
            {"type": "ByteLevel", "use_regex": false}
        ]});
        if let Ok(tokenizer) = Tokenizer::from_json(file.to_string().as_bytes(), "t.json") {
            let _ = tokenizer.encode(&text, AddedTokens::Parse);
        }
    }
}
