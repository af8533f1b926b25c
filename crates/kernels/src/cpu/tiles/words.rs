//! The codes of files as words of tiles.
//!
//! A block's codes are taken as words of four bytes. The words of 32 rows are put side by side, and what turns them into
//! the words of a tile is written for one lane, without branches, so that it vectorizes over lanes. A group becomes 8
//! *quads*, words of four unsigned codes, the first in the lowest byte; [`encode`] then lays them into the bit planes.

use bytemuck::{Pod, Zeroable};

use crate::blocks::{
    BlockIq4Nl, BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K,
    BlockQ6K, BlockQ8_0, GROUP,
};

/// 32 unsigned codes.
type Quads = [u32; GROUP / 4];

/// A block whose `RAW` words of codes hold groups of `NEED` words each, which become `V` words of a tile.
pub(super) trait Words<const RAW: usize, const NEED: usize, const V: usize>: Pod {
    /// Groups of a block.
    const GROUPS: usize;

    fn raw(&self) -> [u32; RAW];

    /// What holds group `g`, of anything there is for each raw word.
    fn pick<T>(raw: &[T; RAW], g: usize) -> [&T; NEED];

    /// The words of group `g`.
    fn words(picked: [u32; NEED], g: usize) -> [u32; V];
}

/// Blocks of one group.
macro_rules! one_group {
    ($block:ty, $words:literal, $v:literal, |$self:ident| $raw:expr, |$picked:ident| $encoded:expr) => {
        impl Words<$words, $words, $v> for $block {
            const GROUPS: usize = 1;

            #[inline(always)]
            fn raw(&self) -> [u32; $words] {
                let $self = self;
                $raw
            }

            #[inline(always)]
            fn pick<T>(raw: &[T; $words], _: usize) -> [&T; $words] {
                raw.each_ref()
            }

            #[inline(always)]
            fn words($picked: [u32; $words], _: usize) -> [u32; $v] {
                $encoded
            }
        }
    };
}

one_group!(BlockQ4_0, 4, 4, |block| words(&block.codes), |raw| encode::<4, 0, 4>(nibbles(raw)));
one_group!(BlockQ4_1, 4, 4, |block| words(&block.codes), |raw| encode::<4, 0, 4>(nibbles(raw)));
one_group!(BlockIq4Nl, 4, 4, |block| words(&block.indices), |raw| encode::<4, 0, 4>(nibbles(raw)));
one_group!(BlockQ5_0, 5, 5, |block| five(&block.codes, block.high), |raw| encode::<4, 1, 5>(five_bits(raw)));
one_group!(BlockQ5_1, 5, 5, |block| five(&block.codes, block.high), |raw| encode::<4, 1, 5>(five_bits(raw)));
one_group!(BlockQ8_0, 8, 8, |block| words(bytemuck::cast_slice(&block.codes)), |raw| unsigned(raw));
one_group!(Neighbors, 4, 4, |block| words(&block.0), |raw| encode::<4, 0, 4>(neighbors(raw)));
one_group!(Bytes, 8, 8, |block| words(&block.0), |raw| raw);
one_group!(SignedBytes, 8, 8, |block| words(&block.0), |raw| unsigned(raw));

/// A group of the affine formats with 4 bits: codes `2b` and `2b + 1` in byte `b`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
pub(super) struct Neighbors([u8; GROUP / 2]);

/// 32 unsigned codes of 8 bits.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
pub(super) struct Bytes([u8; GROUP]);

/// 32 signed codes of 8 bits.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
pub(super) struct SignedBytes([u8; GROUP]);

impl Words<16, 8, 2> for BlockQ2K {
    const GROUPS: usize = 8;

    #[inline(always)]
    fn raw(&self) -> [u32; 16] {
        words(&self.codes)
    }

    #[inline(always)]
    fn pick<T>(raw: &[T; 16], g: usize) -> [&T; 8] {
        part(raw, 8 * (g / 4))
    }

    #[inline(always)]
    fn words(picked: Quads, g: usize) -> [u32; 2] {
        encode::<2, 0, 2>(bit_field(picked, 2 * (g % 4), 3))
    }
}

impl Words<24, 16, 3> for BlockQ3K {
    const GROUPS: usize = 8;

    #[inline(always)]
    fn raw(&self) -> [u32; 24] {
        joined::<16, 8, 24>(&self.codes, &self.high)
    }

    #[inline(always)]
    fn pick<T>(raw: &[T; 24], g: usize) -> [&T; 16] {
        two_parts(raw, 8 * (g / 4), 16)
    }

    #[inline(always)]
    fn words(picked: [u32; 16], g: usize) -> [u32; 3] {
        let [low, high] = halves(picked);
        encode::<2, 1, 3>(above::<2>(bit_field(low, 2 * (g % 4), 3), bit_field(high, g, 1)))
    }
}

impl Words<32, 8, 4> for BlockQ4K {
    const GROUPS: usize = 8;

    #[inline(always)]
    fn raw(&self) -> [u32; 32] {
        words(&self.codes)
    }

    #[inline(always)]
    fn pick<T>(raw: &[T; 32], g: usize) -> [&T; 8] {
        part(raw, 8 * (g / 2))
    }

    #[inline(always)]
    fn words(picked: Quads, g: usize) -> [u32; 4] {
        encode::<4, 0, 4>(bit_field(picked, 4 * (g % 2), 15))
    }
}

impl Words<40, 16, 5> for BlockQ5K {
    const GROUPS: usize = 8;

    #[inline(always)]
    fn raw(&self) -> [u32; 40] {
        joined::<32, 8, 40>(&self.codes, &self.high)
    }

    #[inline(always)]
    fn pick<T>(raw: &[T; 40], g: usize) -> [&T; 16] {
        two_parts(raw, 8 * (g / 2), 32)
    }

    #[inline(always)]
    fn words(picked: [u32; 16], g: usize) -> [u32; 5] {
        let [low, high] = halves(picked);
        encode::<4, 1, 5>(above::<4>(bit_field(low, 4 * (g % 2), 15), bit_field(high, g, 1)))
    }
}

impl Words<48, 16, 6> for BlockQ6K {
    const GROUPS: usize = 8;

    #[inline(always)]
    fn raw(&self) -> [u32; 48] {
        joined::<32, 16, 48>(&self.low, &self.high)
    }

    #[inline(always)]
    fn pick<T>(raw: &[T; 48], g: usize) -> [&T; 16] {
        two_parts(raw, 16 * (g / 4) + 8 * (g % 2), 32 + 8 * (g / 4))
    }

    #[inline(always)]
    fn words(picked: [u32; 16], g: usize) -> [u32; 6] {
        let ([low, high], part) = (halves(picked), g % 4);
        encode::<4, 2, 6>(above::<4>(bit_field(low, 4 * (part / 2), 15), bit_field(high, 2 * part, 3)))
    }
}

impl Words<32, 4, 4> for BlockIq4Xs {
    const GROUPS: usize = 8;

    #[inline(always)]
    fn raw(&self) -> [u32; 32] {
        words(&self.indices)
    }

    #[inline(always)]
    fn pick<T>(raw: &[T; 32], g: usize) -> [&T; 4] {
        part(raw, 4 * g)
    }

    #[inline(always)]
    fn words(picked: [u32; 4], _: usize) -> [u32; 4] {
        encode::<4, 0, 4>(nibbles(picked))
    }
}

/// `N` neighbors from the `first` on.
#[inline(always)]
fn part<T, const N: usize>(raw: &[T], first: usize) -> [&T; N] {
    raw[first..].first_chunk::<N>().expect("a group lies within its block").each_ref()
}

/// Eight from `low` on, then eight from `high` on.
#[inline(always)]
fn two_parts<T>(raw: &[T], low: usize, high: usize) -> [&T; 16] {
    let (low, high) = (part::<T, 8>(raw, low), part::<T, 8>(raw, high));
    let mut all = [low[0]; 16];
    for i in 0..8 {
        (all[i], all[8 + i]) = (low[i], high[i]);
    }
    all
}

#[inline(always)]
fn halves(words: [u32; 16]) -> [Quads; 2] {
    let mut halves = [[0; 8]; 2];
    for i in 0..8 {
        (halves[0][i], halves[1][i]) = (words[i], words[8 + i]);
    }
    halves
}

/// Four bytes at a time.
#[inline(always)]
fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

/// Words of two arrays, one behind the other.
#[inline(always)]
fn joined<const A: usize, const B: usize, const N: usize>(first: &[u8], second: &[u8]) -> [u32; N] {
    const { assert!(A + B == N) };
    let (first, second) = (words::<A>(first), words::<B>(second));
    let mut all = [0; N];
    all[..A].copy_from_slice(&first);
    all[A..].copy_from_slice(&second);
    all
}

/// Words of nibbles, then a word of high bits.
#[inline(always)]
fn five(codes: &[u8; 16], high: [u8; 4]) -> [u32; 5] {
    let [a, b, c, d] = words(codes);
    [a, b, c, d, u32::from_le_bytes(high)]
}

/// The words of a lane's stored vectors: bits `0..LOW` of the codes in one plane, the `HIGH` bits above them in another
/// behind it.
///
/// A plane of `n` bits holds `8 / n` code vectors in each stored vector, the first in the lowest bits.
#[inline(always)]
pub(super) fn encode<const LOW: usize, const HIGH: usize, const BITS: usize>(quads: Quads) -> [u32; BITS] {
    const { assert!(LOW + HIGH == BITS) };
    let mut words = [0; BITS];
    for (p, quad) in quads.into_iter().enumerate() {
        let per_word = 8 / LOW;
        words[p / per_word] |= (quad & every_byte((1 << LOW) - 1)) << (LOW * (p % per_word));
        if let Some(per_word) = 8_usize.checked_div(HIGH) {
            words[LOW + p / per_word] |= (quad >> LOW & every_byte((1 << HIGH) - 1)) << (HIGH * (p % per_word));
        }
    }
    words
}

const fn every_byte(byte: u32) -> u32 {
    byte * 0x0101_0101
}

/// Signed codes with 128 added.
#[inline(always)]
fn unsigned(mut quads: Quads) -> Quads {
    for quad in &mut quads {
        *quad ^= every_byte(0x80);
    }
    quads
}

/// `quads >> shift & mask`, for each of 32 bytes.
#[inline(always)]
fn bit_field(mut quads: Quads, shift: usize, mask: u32) -> Quads {
    for quad in &mut quads {
        *quad = *quad >> shift & every_byte(mask);
    }
    quads
}

/// `low | high << LOW`, code by code.
#[inline(always)]
fn above<const LOW: usize>(mut low: Quads, high: Quads) -> Quads {
    for (low, high) in low.iter_mut().zip(high) {
        *low |= high << LOW;
    }
    low
}

/// 16 bytes with codes 0..16 in their low halves and 16..32 in their high halves.
#[inline(always)]
fn nibbles([a, b, c, d]: [u32; 4]) -> Quads {
    const MASK: u32 = every_byte(15);
    [a & MASK, b & MASK, c & MASK, d & MASK, a >> 4 & MASK, b >> 4 & MASK, c >> 4 & MASK, d >> 4 & MASK]
}

/// The same with bit 4 of code `i` in bit `i` of a fifth word.
#[inline(always)]
fn five_bits([a, b, c, d, high]: [u32; 5]) -> Quads {
    let mut quads = nibbles([a, b, c, d]);
    for (p, quad) in quads.iter_mut().enumerate() {
        // The product has bit `k` of the four at `8k`, among others.
        let four = high >> (4 * p) & 15;
        *quad |= (four.wrapping_mul(0x0020_4081) & every_byte(1)) << 4;
    }
    quads
}

/// 16 bytes with codes `2b` and `2b + 1` in byte `b`.
#[inline(always)]
fn neighbors(words: [u32; 4]) -> Quads {
    let mut quads = [0; 8];
    for (p, quad) in quads.iter_mut().enumerate() {
        let pair = words[p / 2] >> (16 * (p % 2)) & 0xFFFF;
        let apart = (pair | pair << 8) & 0x00FF_00FF;
        *quad = (apart | apart << 4) & every_byte(15);
    }
    quads
}
