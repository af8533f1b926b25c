//! Ids to text as they come, never cutting a character.

use crate::tokenizer::{SpecialTokens, Tokenizer};

/// Turns a stream of ids into text that may be shown after each.
///
/// A character whose bytes are spread over several tokens is held until it is whole. Bytes that
/// can no longer become a character turn into U+FFFD exactly as [`Tokenizer::decode`] turns them, so
/// the pieces joined equal its result for every sequence of ids. At most three bytes are held.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    special: SpecialTokens,
    /// The start of a character: a valid but incomplete UTF-8 sequence, or nothing.
    pending: Vec<u8>,
}

impl Detokenizer {
    /// A detokenizer at the start of a text.
    #[must_use]
    pub fn new(tokenizer: Tokenizer, special: SpecialTokens) -> Self {
        Self { tokenizer, special, pending: Vec::new() }
    }

    /// Takes the next id and gives the text that it completes, which may be empty.
    ///
    /// An id outside the vocabulary adds nothing, as in [`Tokenizer::decode`].
    pub fn push(&mut self, id: u32) -> String {
        self.pending.extend_from_slice(self.tokenizer.shown_bytes(id, self.special));
        let (text, used) = decode_settled(&self.pending);
        self.pending.drain(..used);
        text
    }

    /// Ends the text: what is still held is shown as one U+FFFD. The detokenizer is then at the start of
    /// a new text.
    pub fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.pending);
        String::from_utf8_lossy(&rest).into_owned()
    }
}

/// Decodes the bytes whose reading cannot change any more; returns the text and their number.
fn decode_settled(bytes: &[u8]) -> (String, usize) {
    let mut text = String::with_capacity(bytes.len());
    let mut used = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        used += chunk.valid().len();
        let invalid = chunk.invalid();
        let at_end = used + invalid.len() == bytes.len();
        if invalid.is_empty() || (at_end && may_continue(invalid)) {
            break;
        }
        text.push(char::REPLACEMENT_CHARACTER);
        used += invalid.len();
    }
    (text, used)
}

/// Whether the bytes are the start of a character that later bytes could complete.
fn may_continue(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settle_in_pieces(pieces: &[&[u8]]) -> Vec<String> {
        let mut pending = Vec::new();
        let mut shown = Vec::new();
        for piece in pieces {
            pending.extend_from_slice(piece);
            let (text, used) = decode_settled(&pending);
            pending.drain(..used);
            shown.push(text);
        }
        shown.push(String::from_utf8_lossy(&pending).into_owned());
        shown
    }

    #[test]
    fn tk_01_four_bytes_of_an_emoji_are_held_until_whole() {
        let pieces: [&[u8]; 4] = [b"\xF0", b"\x9F", b"\x98", b"\x80"];
        assert_eq!(settle_in_pieces(&pieces), ["", "", "", "😀", ""]);
    }

    #[test]
    fn tk_05_bytes_that_never_become_a_character_are_replaced_at_once() {
        assert_eq!(settle_in_pieces(&[b"\xFF", b"\xFE", b"a"]), ["\u{FFFD}", "\u{FFFD}", "a", ""]);
        // An overlong form and a surrogate: each byte is its own replacement.
        assert_eq!(settle_in_pieces(&[b"\xC0\x80"]), ["\u{FFFD}\u{FFFD}", ""]);
        assert_eq!(settle_in_pieces(&[b"\xED\xA0\x80"]), ["\u{FFFD}\u{FFFD}\u{FFFD}", ""]);
    }

    #[test]
    fn a_cut_character_is_one_replacement() {
        assert_eq!(settle_in_pieces(&[b"\xE2\x82", b"a"]), ["", "\u{FFFD}a", ""]);
        assert_eq!(settle_in_pieces(&[b"\xE2\x82"]), ["", "\u{FFFD}"]);
    }

    proptest::proptest! {
        #[test]
        fn tk_03_every_cut_of_any_bytes_decodes_like_the_whole(pieces: Vec<Vec<u8>>) {
            let borrowed: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            let whole = pieces.concat();
            let joined = settle_in_pieces(&borrowed).concat();
            proptest::prop_assert_eq!(joined, String::from_utf8_lossy(&whole).into_owned());
        }
    }
}
