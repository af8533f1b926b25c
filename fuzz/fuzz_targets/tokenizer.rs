//! Any bytes as a `tokenizer.json`: an error, or a tokenizer whose ids are its own and whose decoding knows them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pleach_text::{AddedTokens, SpecialTokens, Tokenizer};

/// What splits, normalizers and merges disagree about: case, digits, spaces of several kinds, combining marks, a ligature,
/// characters of two to four bytes, control characters and the spelling of added tokens.
const ODD: &str = "Ab 12\u{a0}\u{3000} \r\n\te\u{301}\u{e9}\u{fb01}\u{130}\u{df} 文字 \u{1f469}\u{200d}\u{1f4bb}\0\u{7f}\u{feff}\u{fffd}'S don't <|im_start|><|im_end|>  Ġ▁";

fuzz_target!(|bytes: &[u8]| {
    let Ok(tokenizer) = Tokenizer::from_json(bytes, "tokenizer.json") else { return };
    for added_tokens in [AddedTokens::Parse, AddedTokens::AsText] {
        let Ok(ids) = tokenizer.encode(ODD, added_tokens) else { continue };
        for &id in &ids {
            assert!((id as usize) < tokenizer.vocab_size());
            assert!(tokenizer.token_bytes(id).is_some() && tokenizer.token_text(id).is_some());
        }
        let kept = tokenizer.decode(&ids, SpecialTokens::Keep);
        assert!(tokenizer.decode(&ids, SpecialTokens::Skip).len() <= kept.len());
    }
    assert_eq!(tokenizer.decode(&[u32::MAX], SpecialTokens::Keep), "");
});
