//! The spelling of bytes as characters that byte-level vocabularies use.
//!
//! Printable bytes of Latin-1 stand for themselves; the other 68 bytes, in order, are the characters
//! from U+0100 on. Source: the GPT-2 encoder's `bytes_to_unicode`.

/// Each byte's character.
pub(super) fn alphabet() -> impl Iterator<Item = (u8, char)> {
    let mut shifted = 0x100..;
    (0..=u8::MAX).map(move |byte| {
        let code = if stands_for_itself(byte) { u32::from(byte) } else { shifted.next().unwrap_or(0) };
        (byte, char::from_u32(code).expect("codes below U+0144 are characters"))
    })
}

/// Reads a token's spelling back into bytes; a spelling with any other character stands for its own
/// UTF-8 bytes, as in the reference decoder.
pub(super) fn to_bytes(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

fn byte_of(character: char) -> Option<u8> {
    match u32::from(character) {
        code @ 0..0x100 => u8::try_from(code).ok().filter(|&byte| stands_for_itself(byte)),
        code @ 0x100..0x144 => SHIFTED.get((code - 0x100) as usize).copied(),
        _ => None,
    }
}

const fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The bytes that do not stand for themselves, in order.
const SHIFTED: [u8; 68] = {
    let mut shifted = [0; 68];
    let (mut byte, mut count) = (0, 0);
    while byte < 256 {
        if !stands_for_itself(byte as u8) {
            shifted[count] = byte as u8;
            count += 1;
        }
        byte += 1;
    }
    shifted
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_character_of_its_own() {
        for (byte, character) in alphabet() {
            assert_eq!(byte_of(character), Some(byte));
        }
        assert_eq!(alphabet().find(|&(byte, _)| byte == b' ').map(|(_, c)| c), Some('Ġ'));
        assert_eq!(alphabet().find(|&(byte, _)| byte == b'\n').map(|(_, c)| c), Some('Ċ'));
    }

    #[test]
    fn a_spelling_outside_the_alphabet_stands_for_its_own_bytes() {
        assert_eq!(to_bytes("Ġthe"), b" the");
        assert_eq!(to_bytes("ã"), [0xE3]);
        assert_eq!(to_bytes("▁the"), "▁the".as_bytes());
        assert_eq!(to_bytes("a b"), b"a b");
    }
}
