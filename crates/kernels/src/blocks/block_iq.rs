//! GGUF blocks of 4-bit indices into a table of values.

use bytemuck::{Pod, Zeroable};

use super::block32::{half_float, nibble};
use super::{Block, GROUP, Group};

/// The 16 values that a 4-bit index of IQ4_NL and IQ4_XS stands for: denser around zero, as weights are.
pub(crate) const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// 32 indices of 4 bits, one scale: `d · IQ4_VALUES[index]`.
///
/// ```text
/// byte  0      2                      18
///       ┌──────┬───────────────────────┐
///       │ d f16│ indices [u8; 16]      │   byte b: bits 0..4 = index b, bits 4..8 = index b + 16
///       └──────┴───────────────────────┘
/// ```
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockIq4Nl {
    pub(crate) d: [u8; 2],
    pub(crate) indices: [u8; 16],
}

/// 256 indices of 4 bits: `d · (scale − 32) · IQ4_VALUES[index]`, scale of 6 bits per group `g` of 32.
///
/// ```text
/// byte  0      2                4                   8                    136
///       ┌──────┬────────────────┬───────────────────┬─────────────────────┐
///       │ d f16│ scales_high u16│ scales_low [u8; 4]│ indices [u8; 128]   │
///       └──────┴────────────────┴───────────────────┴─────────────────────┘
/// scale: bits 0..4 = nibble g of scales_low, bits 4..6 = bits 2g .. 2g + 2 of scales_high
/// indices[16 g ..]: nibbles as in IQ4_NL
/// ```
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockIq4Xs {
    pub(crate) d: [u8; 2],
    pub(crate) scales_high: [u8; 2],
    pub(crate) scales_low: [u8; 4],
    pub(crate) indices: [u8; 128],
}

const _: () = assert!(size_of::<BlockIq4Nl>() == 18);
const _: () = assert!(size_of::<BlockIq4Xs>() == 136);

/// The values of 32 indices.
fn values(indices: &[u8]) -> [i8; GROUP] {
    std::array::from_fn(|i| IQ4_VALUES[usize::from(nibble(indices, i))])
}

impl Block for BlockIq4Nl {
    const ELEMENTS: usize = GROUP;

    fn group(&self, _: usize) -> Group {
        Group::uniform(values(&self.indices), half_float(self.d), 0.0)
    }
}

impl BlockIq4Xs {
    /// Scale of group `g`, still offset by 32.
    pub(crate) fn scale(&self, g: usize) -> u8 {
        let low = self.scales_low[g / 2] >> (4 * (g % 2)) & 15;
        let high = u16::from_le_bytes(self.scales_high) >> (2 * g) & 3;
        low | (high as u8) << 4
    }
}

impl Block for BlockIq4Xs {
    const ELEMENTS: usize = 256;

    fn group(&self, g: usize) -> Group {
        let scale = half_float(self.d) * (f32::from(self.scale(g)) - 32.0);
        Group::uniform(values(&self.indices[16 * g..][..16]), scale, 0.0)
    }
}
