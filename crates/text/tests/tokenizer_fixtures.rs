//! Every recorded tokenizer case, from `tokenizer.json` and from the same vocabulary as GGUF metadata.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use std::collections::HashMap;

use pleach_text::{AddedTokens, Detokenizer, SpecialTokens, Tokenizer, VocabularySpec};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Family {
    vocab_size: usize,
    added_tokens: HashMap<String, Added>,
    cases: Vec<Case>,
    streams: Vec<Stream>,
    without_added_tokens: Vec<PlainCase>,
}

#[derive(Deserialize)]
struct Added {
    content: String,
    special: bool,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    tokens: Vec<String>,
    decoded: String,
    decoded_skip_special: String,
}

#[derive(Deserialize)]
struct Stream {
    ids: Vec<u32>,
    skip_special: bool,
    pieces: Vec<String>,
    tail: String,
}

#[derive(Deserialize)]
struct PlainCase {
    text: String,
    ids: Vec<u32>,
}

const PRE: [(&str, &str); 3] = [("qwen35", "qwen35"), ("qwen3", "qwen2"), ("smollm2", "smollm")];

fn families() -> HashMap<String, Family> {
    common::json("tokenizer/cases.json")
}

/// Both constructions of each family's tokenizer, with a name for messages.
fn tokenizers() -> Vec<(String, &'static str, Tokenizer)> {
    let mut all = Vec::new();
    for (family, pre) in PRE {
        let path = format!("tokenizer/{family}.json");
        let file = Tokenizer::from_json(&common::bytes(&path), &path).unwrap();
        let metadata = Tokenizer::from_vocabulary(&as_metadata(&path, pre)).unwrap();
        all.push((format!("{family}, file"), family, file));
        all.push((format!("{family}, metadata"), family, metadata));
    }
    all
}

/// The metadata a converter writes for a `tokenizer.json`, with two padding rows at the end.
fn as_metadata(path: &str, pre: &str) -> VocabularySpec {
    let file: Value = common::json(path);
    let mut rows: HashMap<u32, (String, u32)> = HashMap::new();
    let id_of = |value: &Value| u32::try_from(value.as_u64().unwrap()).unwrap();
    for (token, id) in file["model"]["vocab"].as_object().unwrap() {
        rows.insert(id_of(id), (token.clone(), 1));
    }
    for added in file["added_tokens"].as_array().unwrap() {
        let token_type = if added["special"].as_bool().unwrap() { 3 } else { 4 };
        rows.insert(id_of(&added["id"]), (added["content"].as_str().unwrap().to_owned(), token_type));
    }
    let count = u32::try_from(rows.len()).unwrap();
    rows.extend((count..count + 2).map(|id| (id, (format!("[PAD{id}]"), 5))));
    let (tokens, token_types) = (0..count + 2).map(|id| rows[&id].clone()).unzip();
    let merge = |pair: &Value| match pair.as_array() {
        Some(pair) => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
        None => pair.as_str().unwrap().to_owned(),
    };
    VocabularySpec {
        source_name: path.to_owned(),
        model: "gpt2".to_owned(),
        pre: pre.to_owned(),
        tokens,
        token_types,
        merges: file["model"]["merges"].as_array().unwrap().iter().map(merge).collect(),
        ..VocabularySpec::default()
    }
}

#[test]
fn tk_09_ids_equal_the_reference_on_every_case() {
    let families = families();
    for (name, family, tokenizer) in tokenizers() {
        for case in &families[family].cases {
            let ids = tokenizer.encode(&case.text, AddedTokens::Parse).unwrap();
            assert_eq!(ids, case.ids, "{name}: {:?}", case.text);
            let tokens: Vec<String> = ids.iter().map(|&id| tokenizer.token_text(id).unwrap()).collect();
            assert_eq!(tokens, case.tokens, "{name}: {:?}", case.text);
        }
    }
}

#[test]
fn decoded_text_equals_the_reference() {
    let families = families();
    for (name, family, tokenizer) in tokenizers() {
        for case in &families[family].cases {
            assert_eq!(tokenizer.decode(&case.ids, SpecialTokens::Keep), case.decoded, "{name}");
            assert_eq!(tokenizer.decode(&case.ids, SpecialTokens::Skip), case.decoded_skip_special, "{name}");
        }
    }
}

#[test]
fn untrusted_text_never_becomes_an_added_token() {
    let families = families();
    for (name, family, tokenizer) in tokenizers() {
        for case in &families[family].without_added_tokens {
            let ids = tokenizer.encode(&case.text, AddedTokens::AsText).unwrap();
            assert_eq!(ids, case.ids, "{name}: {:?}", case.text);
        }
        for added in families[family].added_tokens.values() {
            let ids = tokenizer.encode(&added.content, AddedTokens::AsText).unwrap();
            assert!(!ids.contains(&tokenizer.id(&added.content).unwrap()), "{name}: {}", added.content);
        }
    }
}

#[test]
fn tk_11_each_added_token_is_one_id() {
    let families = families();
    for (name, family, tokenizer) in tokenizers() {
        assert_eq!(tokenizer.vocab_size(), families[family].vocab_size, "{name}");
        assert!(tokenizer.warnings().is_empty(), "{name}: {:?}", tokenizer.warnings());
        assert!(tokenizer.raw_text_prefix().is_empty(), "{name}");
        for (id, added) in &families[family].added_tokens {
            let id: u32 = id.parse().unwrap();
            assert_eq!(tokenizer.encode(&added.content, AddedTokens::Parse).unwrap(), [id], "{name}");
            assert_eq!(tokenizer.id(&added.content), Some(id), "{name}");
            assert_eq!(tokenizer.is_special(id), added.special, "{name}: {}", added.content);
            assert_eq!(tokenizer.token_bytes(id).as_deref(), Some(added.content.as_bytes()), "{name}");
        }
    }
}

#[test]
fn tk_01_streams_show_each_piece_as_soon_as_it_is_whole() {
    let families = families();
    for (name, family, tokenizer) in tokenizers() {
        for stream in &families[family].streams {
            let special = if stream.skip_special { SpecialTokens::Skip } else { SpecialTokens::Keep };
            let mut detokenizer = Detokenizer::new(tokenizer.clone(), special);
            let pieces: Vec<String> = stream.ids.iter().map(|&id| detokenizer.push(id)).collect();
            assert_eq!(pieces, stream.pieces, "{name}");
            assert_eq!(detokenizer.finish(), stream.tail, "{name}");
        }
    }
}

#[test]
fn tiny_models_encode_their_prompt_and_decode_their_text() {
    for model in ["tiny-qwen35", "tiny-qwen35-moe", "tiny-qwen3", "tiny-llama"] {
        let path = format!("{model}/tokenizer.json");
        let pre = match model {
            "tiny-qwen3" => "qwen2",
            "tiny-llama" => "smollm",
            _ => "qwen35",
        };
        let expected: Value = common::json(&format!("{model}/expected.json"));
        let ids = |field: &str| serde_json::from_value::<Vec<u32>>(expected[field].clone()).unwrap();
        let file = Tokenizer::from_json(&common::bytes(&path), &path).unwrap();
        let metadata = Tokenizer::from_vocabulary(&as_metadata(&path, pre)).unwrap();
        for tokenizer in [file, metadata] {
            let prompt = expected["prompt_text"].as_str().unwrap();
            assert_eq!(tokenizer.encode(prompt, AddedTokens::Parse).unwrap(), ids("input_ids"), "{model}");
            let greedy = ids("greedy_ids");
            assert_eq!(tokenizer.decode(&greedy, SpecialTokens::Keep), expected["greedy_text"], "{model}");
            let skipped = tokenizer.decode(&greedy, SpecialTokens::Skip);
            assert_eq!(skipped, expected["greedy_text_skip_special"], "{model}");
        }
    }
}

#[test]
fn tk_03_two_thousand_syllables_survive_token_by_token() {
    let text: String = (0xAC00..0xAC00 + 2000).filter_map(char::from_u32).collect();
    for (name, _, tokenizer) in tokenizers() {
        let ids = tokenizer.encode(&text, AddedTokens::AsText).unwrap();
        let mut detokenizer = Detokenizer::new(tokenizer, SpecialTokens::Keep);
        let mut shown: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
        shown.push_str(&detokenizer.finish());
        assert_eq!(shown, text, "{name}");
    }
}

mod properties {
    use proptest::prelude::*;

    use super::*;

    fn shared() -> &'static [(String, &'static str, Tokenizer)] {
        static TOKENIZERS: std::sync::OnceLock<Vec<(String, &'static str, Tokenizer)>> = std::sync::OnceLock::new();
        TOKENIZERS.get_or_init(tokenizers)
    }

    proptest! {
        /// The pieces of a stream join to the one-shot decode, for ids the model would never write in a row too.
        #[test]
        fn tk_01_streamed_equals_one_shot(ids in prop::collection::vec(0u32..940, 0..40), skip: bool) {
            let special = if skip { SpecialTokens::Skip } else { SpecialTokens::Keep };
            for (_, _, tokenizer) in shared() {
                let mut detokenizer = Detokenizer::new(tokenizer.clone(), special);
                let mut joined: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
                joined.push_str(&detokenizer.finish());
                prop_assert_eq!(joined, tokenizer.decode(&ids, special));
            }
        }

        /// The library's own tokenizer is the oracle, on text and on ids.
        #[test]
        fn tk_09_any_text_encodes_as_in_the_library(text in "(\\PC|[ \\n\\t0-9'a-z]|<think>|<\\|im_end\\|>|\\p{M}){0,24}") {
            for (family, _) in PRE {
                let path = format!("tokenizer/{family}.json");
                let library = tokenizers::Tokenizer::from_bytes(common::bytes(&path)).unwrap();
                let expected = library.encode_fast(text.as_str(), false).unwrap().get_ids().to_vec();
                for (_, _, tokenizer) in shared().iter().filter(|(_, name, _)| *name == family) {
                    let ids = tokenizer.encode(&text, AddedTokens::Parse).unwrap();
                    prop_assert_eq!(&ids, &expected);
                    prop_assert_eq!(tokenizer.decode(&ids, SpecialTokens::Skip), library.decode(&ids, true).unwrap());
                }
            }
        }
    }
}

/// Texts of words, spellings of tokens, blanks, marks and letters that normalizing joins.
fn any_text(tokenizer: &Tokenizer) -> impl Strategy<Value = String> + use<> {
    let spellings: Vec<String> = (0..tokenizer.vocab_size() as u32)
        .step_by(7)
        .map(|id| tokenizer.decode(&[id], SpecialTokens::Keep))
        .chain(
            ["<|im_end|>", "\u{338}", "e", "\u{301}", "\u{212b}", "漢字", "    ", "\n", "the", "ㅏ", "가", "각", "ᆨ"]
                .map(String::from),
        )
        .collect();
    prop::collection::vec(prop::sample::select(spellings), 0..200).prop_map(|parts| parts.concat())
}

#[test]
fn no_text_has_fewer_tokens_than_the_least() {
    for (name, _, tokenizer) in tokenizers() {
        let mut runner = TestRunner::new(Config { cases: 20, failure_persistence: None, ..Config::default() });
        let outcome = runner.run(&any_text(&tokenizer), |text| {
            let found = tokenizer.encode(&text, AddedTokens::Parse).unwrap().len();
            let long = text.repeat(1 + 70_000 / text.len().max(1));
            let found_of_long = tokenizer.encode(&long, AddedTokens::Parse).unwrap().len();
            prop_assert!(tokenizer.least_tokens(&text, usize::MAX) <= found);
            prop_assert!(tokenizer.least_tokens(&long, usize::MAX) <= found_of_long);
            Ok(())
        });
        outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// A bound that is far too low would refuse nothing.
#[test]
fn the_least_of_long_texts_is_close_and_counting_ends() {
    for (name, _, tokenizer) in tokenizers() {
        for part in [
            "The hedge grows, and its branches meet. ",
            "let x = 5;\n    y += x;\n",
            "生け垣の枝は互いに絡み合う。",
            "Живая изгородь растёт, ветви сплетаются. ",
        ] {
            let text = part.repeat(500);
            let found = tokenizer.encode(&text, AddedTokens::Parse).unwrap().len();
            let least = tokenizer.least_tokens(&text, usize::MAX);
            assert!(least * 10 >= found * 6, "{name}: {least} of {found} for {part:?}");
            assert_eq!(tokenizer.least_tokens(&text, 100), 100, "{name}");
        }
    }
}
