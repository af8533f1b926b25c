//! GGUF super-blocks of 256 elements with their own small scales.
//!
//! Element `32 g + i` of a super-block belongs to group `g` (0..8). Groups 0..4 make up the first half of 128 elements,
//! groups 4..8 the second; several formats lay the bits of one half over the same bytes.

use bytemuck::{Pod, Zeroable};

use super::block32::half_float;
use super::{Block, Group};

/// 2 bits: `d · scale · code − dmin · minimum`, scale and minimum of 4 bits per 16 elements.
///
/// ```text
/// byte  0                 16                 80     82        84
///       ┌─────────────────┬──────────────────┬──────┬─────────┐
///       │ scales [u8; 16] │ codes [u8; 64]   │ d f16│ dmin f16│
///       └─────────────────┴──────────────────┴──────┴─────────┘
/// scales[2g + i/16]: bits 0..4 = scale, bits 4..8 = minimum
/// codes[32 (g/4) + i]: bits 2(g%4) .. 2(g%4) + 2 = code
/// ```
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockQ2K {
    pub(crate) scales: [u8; 16],
    pub(crate) codes: [u8; 64],
    pub(crate) d: [u8; 2],
    pub(crate) dmin: [u8; 2],
}

/// 3 bits: `d · (scale − 32) · (code − 4)`, scale of 6 bits per 16 elements.
///
/// ```text
/// byte  0                32                96                 108    110
///       ┌────────────────┬─────────────────┬──────────────────┬──────┐
///       │ high [u8; 32]  │ codes [u8; 64]  │ scales [u8; 12]  │ d f16│
///       └────────────────┴─────────────────┴──────────────────┴──────┘
/// high[i]: bit g = bit 2 of the code        codes: low two bits, as in Q2_K
/// scale s = 2g + i/16:  bits 0..4 = scales[s % 8], low nibble for s < 8, high nibble from there
///                       bits 4..6 = scales[8 + s % 4], bits 2(s/4) ..
/// ```
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockQ3K {
    pub(crate) high: [u8; 32],
    pub(crate) codes: [u8; 64],
    pub(crate) scales: [u8; 12],
    pub(crate) d: [u8; 2],
}

/// 4 bits: `d · scale · code − dmin · minimum`, scale and minimum of 6 bits per 32 elements.
///
/// ```text
/// byte  0      2         4                  16                 144
///       ┌──────┬─────────┬──────────────────┬───────────────────┐
///       │ d f16│ dmin f16│ scales [u8; 12]  │ codes [u8; 128]   │
///       └──────┴─────────┴──────────────────┴───────────────────┘
/// codes[32 (g/2) + i]: low nibble for even g, high nibble for odd g
/// scales, g < 4:   scale = bits 0..6 of byte g,        minimum = bits 0..6 of byte g + 4
/// scales, g ≥ 4:   scale = bits 0..4 of byte g + 4,    minimum = bits 4..8 of byte g + 4,
///                  with bits 4..6 = bits 6..8 of byte g − 4 (scale) and of byte g (minimum)
/// ```
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockQ4K {
    pub(crate) d: [u8; 2],
    pub(crate) dmin: [u8; 2],
    pub(crate) scales: [u8; 12],
    pub(crate) codes: [u8; 128],
}

/// 5 bits: `d · scale · code − dmin · minimum`, scale and minimum of 6 bits per 32 elements.
///
/// ```text
/// byte  0      2         4                  16               48                 176
///       ┌──────┬─────────┬──────────────────┬────────────────┬───────────────────┐
///       │ d f16│ dmin f16│ scales [u8; 12]  │ high [u8; 32]  │ codes [u8; 128]   │
///       └──────┴─────────┴──────────────────┴────────────────┴───────────────────┘
/// high[i]: bit g = bit 4 of the code        scales and codes as in Q4_K
/// ```
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockQ5K {
    pub(crate) d: [u8; 2],
    pub(crate) dmin: [u8; 2],
    pub(crate) scales: [u8; 12],
    pub(crate) high: [u8; 32],
    pub(crate) codes: [u8; 128],
}

/// 6 bits: `d · scale · (code − 32)`, scale of 8 signed bits per 16 elements.
///
/// ```text
/// byte  0                128             192                208    210
///       ┌────────────────┬───────────────┬──────────────────┬──────┐
///       │ low [u8; 128]  │ high [u8; 64] │ scales [i8; 16]  │ d f16│
///       └────────────────┴───────────────┴──────────────────┴──────┘
/// with h = g/4 and p = g%4:
/// low[64 h + 32 (p%2) + i]: low nibble for p < 2, high nibble from there = bits 0..4 of the code
/// high[32 h + i]: bits 2p .. 2p + 2 = bits 4..6 of the code        scales[2g + i/16]
/// ```
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockQ6K {
    pub(crate) low: [u8; 128],
    pub(crate) high: [u8; 64],
    pub(crate) scales: [i8; 16],
    pub(crate) d: [u8; 2],
}

const _: () = assert!(size_of::<BlockQ2K>() == 84);
const _: () = assert!(size_of::<BlockQ3K>() == 110);
const _: () = assert!(size_of::<BlockQ4K>() == 144);
const _: () = assert!(size_of::<BlockQ5K>() == 176);
const _: () = assert!(size_of::<BlockQ6K>() == 210);

/// Two bits of group `g`, element `i`, out of the 64 bytes of Q2_K and Q3_K.
fn two_bits(codes: &[u8; 64], g: usize, i: usize) -> u8 {
    codes[32 * (g / 4) + i] >> (2 * (g % 4)) & 3
}

/// The nibble of group `g`, element `i`, out of the 128 bytes of Q4_K and Q5_K.
fn four_bits(codes: &[u8; 128], g: usize, i: usize) -> u8 {
    codes[32 * (g / 2) + i] >> (4 * (g % 2)) & 15
}

/// Scale and minimum of group `g` out of the 12 bytes of Q4_K and Q5_K.
fn scale_and_minimum(scales: &[u8; 12], g: usize) -> (u8, u8) {
    if g < 4 {
        (scales[g] & 63, scales[g + 4] & 63)
    } else {
        (scales[g + 4] & 15 | scales[g - 4] >> 6 << 4, scales[g + 4] >> 4 | scales[g] >> 6 << 4)
    }
}

/// Scales and minimums of all groups, each minimum behind its scale.
pub(crate) fn scales_and_minimums(scales: &[u8; 12]) -> [u8; 16] {
    let mut all = [0; 16];
    for (g, pair) in all.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        (pair[0], pair[1]) = scale_and_minimum(scales, g);
    }
    all
}

impl Block for BlockQ2K {
    const ELEMENTS: usize = 256;

    fn group(&self, g: usize) -> Group {
        let (d, dmin) = (half_float(self.d), half_float(self.dmin));
        let packed = [self.scales[2 * g], self.scales[2 * g + 1]];
        Group {
            codes: std::array::from_fn(|i| two_bits(&self.codes, g, i) as i8),
            scales: packed.map(|packed| d * f32::from(packed & 15)),
            biases: packed.map(|packed| -(dmin * f32::from(packed >> 4))),
        }
    }
}

impl BlockQ3K {
    /// Scale `s` (0..16), still offset by 32.
    pub(crate) fn scale(&self, s: usize) -> u8 {
        let low = self.scales[s % 8] >> (4 * (s / 8)) & 15;
        let high = self.scales[8 + s % 4] >> (2 * (s / 4)) & 3;
        low | high << 4
    }
}

impl Block for BlockQ3K {
    const ELEMENTS: usize = 256;

    fn group(&self, g: usize) -> Group {
        let d = half_float(self.d);
        let code = |i: usize| (two_bits(&self.codes, g, i) | (self.high[i] >> g & 1) << 2) as i8 - 4;
        Group {
            codes: std::array::from_fn(code),
            scales: [2 * g, 2 * g + 1].map(|s| d * (f32::from(self.scale(s)) - 32.0)),
            biases: [0.0; 2],
        }
    }
}

impl Block for BlockQ4K {
    const ELEMENTS: usize = 256;

    fn group(&self, g: usize) -> Group {
        let (scale, minimum) = scale_and_minimum(&self.scales, g);
        let codes = std::array::from_fn(|i| four_bits(&self.codes, g, i) as i8);
        Group::uniform(codes, half_float(self.d) * f32::from(scale), -(half_float(self.dmin) * f32::from(minimum)))
    }
}

impl Block for BlockQ5K {
    const ELEMENTS: usize = 256;

    fn group(&self, g: usize) -> Group {
        let (scale, minimum) = scale_and_minimum(&self.scales, g);
        let code = |i: usize| (four_bits(&self.codes, g, i) | (self.high[i] >> g & 1) << 4) as i8;
        let codes = std::array::from_fn(code);
        Group::uniform(codes, half_float(self.d) * f32::from(scale), -(half_float(self.dmin) * f32::from(minimum)))
    }
}

impl Block for BlockQ6K {
    const ELEMENTS: usize = 256;

    fn group(&self, g: usize) -> Group {
        let d = half_float(self.d);
        let (half, part) = (g / 4, g % 4);
        let code = |i: usize| {
            let low = self.low[64 * half + 32 * (part % 2) + i] >> (4 * (part / 2)) & 15;
            let high = self.high[32 * half + i] >> (2 * part) & 3;
            (low | high << 4) as i8 - 32
        };
        Group {
            codes: std::array::from_fn(code),
            scales: [2 * g, 2 * g + 1].map(|s| d * f32::from(self.scales[s])),
            biases: [0.0; 2],
        }
    }
}
