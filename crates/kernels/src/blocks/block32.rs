//! GGUF blocks of 32 elements.

use bytemuck::{Pod, Zeroable};
use half::f16;

use super::{Block, GROUP, Group};

/// 32 elements of 4 bits, one scale: `d · (code − 8)`.
///
/// ```text
/// byte  0      2                    18
///       ┌──────┬─────────────────────┐
///       │ d f16│ codes [u8; 16]      │   byte b: bits 0..4 = code b, bits 4..8 = code b + 16
///       └──────┴─────────────────────┘
/// ```
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockQ4_0 {
    pub(crate) d: [u8; 2],
    pub(crate) codes: [u8; 16],
}

/// 32 elements of 4 bits, scale and minimum: `d · code + m`.
///
/// ```text
/// byte  0      2      4                    20
///       ┌──────┬──────┬─────────────────────┐
///       │ d f16│ m f16│ codes [u8; 16]      │   nibbles as in Q4_0
///       └──────┴──────┴─────────────────────┘
/// ```
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockQ4_1 {
    pub(crate) d: [u8; 2],
    pub(crate) m: [u8; 2],
    pub(crate) codes: [u8; 16],
}

/// 32 elements of 5 bits, one scale: `d · (code − 16)`.
///
/// ```text
/// byte  0      2             6                    22
///       ┌──────┬─────────────┬─────────────────────┐
///       │ d f16│ high [u8; 4]│ codes [u8; 16]      │   bit i of `high` (u32) = bit 4 of code i; nibbles as in Q4_0
///       └──────┴─────────────┴─────────────────────┘
/// ```
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockQ5_0 {
    pub(crate) d: [u8; 2],
    pub(crate) high: [u8; 4],
    pub(crate) codes: [u8; 16],
}

/// 32 elements of 5 bits, scale and minimum: `d · code + m`.
///
/// ```text
/// byte  0      2      4             8                    24
///       ┌──────┬──────┬─────────────┬─────────────────────┐
///       │ d f16│ m f16│ high [u8; 4]│ codes [u8; 16]      │   bits as in Q5_0
///       └──────┴──────┴─────────────┴─────────────────────┘
/// ```
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockQ5_1 {
    pub(crate) d: [u8; 2],
    pub(crate) m: [u8; 2],
    pub(crate) high: [u8; 4],
    pub(crate) codes: [u8; 16],
}

/// 32 elements of 8 bits, one scale: `d · code`.
///
/// ```text
/// byte  0      2                    34
///       ┌──────┬─────────────────────┐
///       │ d f16│ codes [i8; 32]      │
///       └──────┴─────────────────────┘
/// ```
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockQ8_0 {
    pub(crate) d: [u8; 2],
    pub(crate) codes: [i8; 32],
}

const _: () = assert!(size_of::<BlockQ4_0>() == 18);
const _: () = assert!(size_of::<BlockQ4_1>() == 20);
const _: () = assert!(size_of::<BlockQ5_0>() == 22);
const _: () = assert!(size_of::<BlockQ5_1>() == 24);
const _: () = assert!(size_of::<BlockQ8_0>() == 34);

/// A half float stored in two bytes.
pub(super) fn half_float(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}

/// Nibble `i` of 16 bytes that hold codes 0..16 in their low halves and 16..32 in their high halves.
pub(super) fn nibble(codes: &[u8], i: usize) -> u8 {
    codes[i % 16] >> (4 * (i / 16)) & 15
}

/// 32 codes of 5 bits out of nibbles and a word of high bits.
fn five_bits(codes: &[u8; 16], high: [u8; 4], i: usize) -> u8 {
    let high = u32::from_le_bytes(high) >> i & 1;
    nibble(codes, i) | (high as u8) << 4
}

impl Block for BlockQ4_0 {
    const ELEMENTS: usize = GROUP;

    fn group(&self, _: usize) -> Group {
        let codes = std::array::from_fn(|i| nibble(&self.codes, i) as i8 - 8);
        Group::uniform(codes, half_float(self.d), 0.0)
    }
}

impl Block for BlockQ4_1 {
    const ELEMENTS: usize = GROUP;

    fn group(&self, _: usize) -> Group {
        let codes = std::array::from_fn(|i| nibble(&self.codes, i) as i8);
        Group::uniform(codes, half_float(self.d), half_float(self.m))
    }
}

impl Block for BlockQ5_0 {
    const ELEMENTS: usize = GROUP;

    fn group(&self, _: usize) -> Group {
        let codes = std::array::from_fn(|i| five_bits(&self.codes, self.high, i) as i8 - 16);
        Group::uniform(codes, half_float(self.d), 0.0)
    }
}

impl Block for BlockQ5_1 {
    const ELEMENTS: usize = GROUP;

    fn group(&self, _: usize) -> Group {
        let codes = std::array::from_fn(|i| five_bits(&self.codes, self.high, i) as i8);
        Group::uniform(codes, half_float(self.d), half_float(self.m))
    }
}

impl Block for BlockQ8_0 {
    const ELEMENTS: usize = GROUP;

    fn group(&self, _: usize) -> Group {
        Group::uniform(self.codes, half_float(self.d), 0.0)
    }
}
