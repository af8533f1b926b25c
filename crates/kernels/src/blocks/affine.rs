//! Affine codes: packed from the low bits of little-endian words, scales and biases kept apart.
//!
//! ```text
//! 4 bits   byte b of a row:   bits 0..4 = code 2b,  bits 4..8 = code 2b + 1
//! 8 bits   byte b of a row:   code b
//! ```
//!
//! Words are little-endian, so a row of `u32` words and a row of bytes are the same thing.

use super::{GROUP, Group};

/// 32 codes of 4 bits: `value = scale · code + bias`.
pub(super) fn group4(bytes: &[u8], scale: f32, bias: f32) -> Group {
    let codes = std::array::from_fn(|i| (bytes[i / 2] >> (4 * (i % 2)) & 15) as i8);
    Group::uniform(codes, scale, bias)
}

/// 32 codes of 8 bits, made signed: `scale · (code − 128) + (bias + 128 scale)`.
///
/// The new bias is exact wherever `bias` lies between −256 and −64 scales, which is where weights around zero put it.
pub(super) fn group8(bytes: &[u8], scale: f32, bias: f32) -> Group {
    let codes: [i8; GROUP] = std::array::from_fn(|i| (bytes[i] ^ 0x80) as i8);
    Group::uniform(codes, scale, bias + 128.0 * scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_even_column_is_the_low_nibble() {
        let mut bytes = [0; 16];
        bytes[0] = 0xA3;
        let group = group4(&bytes, 1.0, 0.0);
        assert_eq!(group.codes[..3], [3, 10, 0]);
    }

    #[test]
    fn unsigned_codes_become_signed() {
        let mut bytes = [0; 32];
        bytes[1] = 255;
        let group = group8(&bytes, 0.5, -64.0);
        assert_eq!((group.codes[0], group.codes[1], group.biases), (-128, 127, [0.0; 2]));
    }
}
