//! The form in which quantized weights are multiplied: tiles of 16 output features.
//!
//! A *code vector* holds four consecutive codes of each of 16 features, so one 64-byte load meets four activations that
//! are broadcast to all lanes, a lane is a feature, and no sum ever crosses lanes. For each group of 32 input features a
//! tile has
//!
//! ```text
//! nibbles   4 vectors: vector b, feature f, byte j:  low half = code 8b + j, high half = code 8b + 4 + j
//! bytes     8 vectors: vector p, feature f, byte j:  code 4p + j
//! ```
//!
//! Repacking loses nothing: codes are moved, scales keep the type or the parts they came in.
//!
//! | format | codes | scales per feature |
//! |---|---|---|
//! | `Q4_0` | nibbles, 8 added | f16 per 32 |
//! | `Q4_1` | nibbles | f16 scale and bias per 32 |
//! | `Q4_K` | nibbles | f16 pair per 256, 6-bit pair (in 8) per 32 |
//! | `IQ4_NL` | nibbles into the table | f16 per 32 |
//! | `IQ4_XS` | nibbles into the table | f16 per 256, 6-bit (in 8) per 32 |
//! | affine, 4 bits | nibbles | scale and bias per group, in their type |
//! | `Q5_0`, `Q8_0` | bytes, 128 added | f16 per 32 |
//! | `Q5_1` | bytes, 128 added | f16 scale and bias per 32 |
//! | `Q5_K` | bytes, 128 added | f16 pair per 256, 6-bit pair (in 8) per 32 |
//! | `Q6_K` | bytes, 128 added | f16 per 256, 8-bit per 16 |
//! | affine, 8 bits | bytes, 128 added | f32 scale and bias per group |
//! | int8 per row | bytes, 128 added | f32 per row |
//! | `Q2_K`, `Q3_K` | stay as stored; unpacked to bytes once per pass, for all its rows | |
//!
//! Bytes for 5 and 6 bits cost memory (8.6 bits where the file has 5.5 or 6.6) and save the unpacking; two and three
//! bits would grow threefold, so those formats stay as they are.

use half::{bf16, f16};

use super::memory::{Arena, WeightMemory};
use super::simd::{CODE_BYTES, LANES};
use crate::blocks::{BlockIq4Xs, BlockQ4K, BlockQ5K, BlockQ6K, GROUP, Group, IQ4_VALUES, scale_and_minimum};
use crate::{FloatFormat, WeightData, WeightFormat, WeightRow};

/// Input features that share the outer scale of a K format.
pub(super) const SUPER: usize = 256;

/// How codes are packed, and what was added to make them unsigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodeLayout {
    /// Codes of 0..=15.
    Nibbles,
    /// Codes of −8..=7, stored with 8 added.
    SignedNibbles,
    /// Indices into the table of the IQ4 formats.
    TableNibbles,
    /// Signed codes, stored with 128 added; one scale per 32.
    Bytes,
    /// The same with one scale per 16.
    BytesPer16,
}

impl CodeLayout {
    /// Code vectors per group of 32 input features.
    pub(super) const fn vectors(self) -> usize {
        match self {
            Self::Nibbles | Self::SignedNibbles | Self::TableNibbles => 4,
            Self::Bytes | Self::BytesPer16 => 8,
        }
    }

    /// Scales per group of 32 input features.
    pub(super) const fn scales_per_group(self) -> usize {
        if matches!(self, Self::BytesPer16) { 2 } else { 1 }
    }
}

/// How the scales of a tile are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScaleLayout {
    /// For each `groups` groups: 16 scales, then, if `biased`, 16 biases.
    Floats { format: FloatFormat, groups: usize, biased: bool },
    /// For each 256 input features: 16 f16 scales; if `biased`, 16 f16 minimums; then per sub-block 16 one-byte scales
    /// and, if `biased`, 16 one-byte minimums. A sub-block has as many elements as the codes have per scale.
    Super { biased: bool },
}

/// Where the codes and scales of a weight go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TileLayout {
    pub(super) codes: CodeLayout,
    pub(super) scales: ScaleLayout,
    /// Groups of 32 in a row.
    pub(super) groups: usize,
}

impl TileLayout {
    /// The tiles of a format, if its weights are repacked; rows of K formats are whole super-blocks.
    pub(super) fn of(format: WeightFormat, columns: usize) -> Option<Self> {
        use CodeLayout::{Bytes, BytesPer16, Nibbles, SignedNibbles, TableNibbles};
        let groups = columns / GROUP;
        let floats = |format, groups, biased| ScaleLayout::Floats { format, groups, biased };
        let half = |biased| floats(FloatFormat::F16, 1, biased);
        let (codes, scales) = match format {
            WeightFormat::Float(_) | WeightFormat::Q2_K | WeightFormat::Q3_K => return None,
            WeightFormat::Q4_0 => (SignedNibbles, half(false)),
            WeightFormat::Q4_1 => (Nibbles, half(true)),
            WeightFormat::Q5_0 | WeightFormat::Q8_0 => (Bytes, half(false)),
            WeightFormat::Q5_1 => (Bytes, half(true)),
            WeightFormat::Q4_K => (Nibbles, ScaleLayout::Super { biased: true }),
            WeightFormat::Q5_K => (Bytes, ScaleLayout::Super { biased: true }),
            WeightFormat::Q6_K => (BytesPer16, ScaleLayout::Super { biased: false }),
            WeightFormat::IQ4_NL => (TableNibbles, half(false)),
            WeightFormat::IQ4_XS => (TableNibbles, ScaleLayout::Super { biased: false }),
            WeightFormat::Affine { bits: 4, group_size, scales } => (Nibbles, floats(scales, group_size / GROUP, true)),
            // The bias takes up the 128, which the stored type might round.
            WeightFormat::Affine { group_size, .. } => (Bytes, floats(FloatFormat::F32, group_size / GROUP, true)),
            WeightFormat::Int8PerRow => (Bytes, floats(FloatFormat::F32, groups, false)),
        };
        Some(Self { codes, scales, groups })
    }

    /// Bytes of the codes of one tile.
    pub(super) fn code_bytes(&self) -> usize {
        self.groups * self.codes.vectors() * CODE_BYTES
    }

    /// Bytes of the scales of one tile.
    pub(super) fn scale_bytes(&self) -> usize {
        match self.scales {
            ScaleLayout::Floats { format, groups, biased } => {
                self.groups / groups.max(1) * LANES * format.size_bytes() * (1 + usize::from(biased))
            }
            ScaleLayout::Super { biased } => self.groups * GROUP / SUPER * self.super_bytes(biased),
        }
    }

    /// Bytes of one tile, whole cache lines.
    pub(super) fn tile_bytes(&self) -> usize {
        (self.code_bytes() + self.scale_bytes()).next_multiple_of(CODE_BYTES)
    }

    /// Bytes of the scales of 256 input features of one tile.
    pub(super) fn super_bytes(&self, biased: bool) -> usize {
        let sub_blocks = SUPER / GROUP * self.codes.scales_per_group();
        (2 + sub_blocks) * LANES * (1 + usize::from(biased))
    }
}

/// A repacked weight: tile after tile, the scales of each before its codes, so that a product reads one stream and finds
/// the scales on their way when a tile begins.
pub(super) struct Tiles {
    pub(super) layout: TileLayout,
    memory: WeightMemory,
}

impl Tiles {
    /// Memory for `tiles` tiles.
    pub(super) fn new(layout: TileLayout, tiles: usize, arena: &mut Arena) -> Self {
        Self { layout, memory: arena.take(tiles * layout.tile_bytes()) }
    }

    /// All tiles, to be filled.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }

    /// Code vectors of a tile, and its scales in the layout's form.
    pub(super) fn tile(&self, tile: usize) -> (&[[u8; CODE_BYTES]], &[u8]) {
        let len = self.layout.tile_bytes();
        let (scales, codes) = self.memory.bytes()[tile * len..][..len].split_at(len - self.layout.code_bytes());
        (codes.as_chunks().0, &scales[..self.layout.scale_bytes()])
    }
}

/// Repacks the 16 rows of one tile; rows past the end of the weight stay zero.
pub(super) fn pack_tile(data: &WeightData, layout: &TileLayout, tile: usize, bytes: &mut [u8]) {
    let (scales, codes) = bytes.split_at_mut(layout.tile_bytes() - layout.code_bytes());
    let scales = &mut scales[..layout.scale_bytes()];
    let vectors = layout.codes.vectors();
    let (codes, _) = codes.as_chunks_mut::<CODE_BYTES>();
    for lane in 0..LANES.min(data.rows - tile * LANES) {
        let row = data.row(tile * LANES + lane);
        for (g, codes) in codes.chunks_exact_mut(vectors).enumerate() {
            let group = row.group(g);
            pack_codes(layout.codes, &group, lane, codes);
            if let ScaleLayout::Floats { format, groups, biased } = layout.scales
                && g % groups == 0
            {
                let place = g / groups * (1 + usize::from(biased)) * LANES + lane;
                put(format, scales, place, group.scales[0]);
                if biased {
                    put(format, scales, place + LANES, group.biases[0]);
                }
            }
        }
        if let ScaleLayout::Super { biased } = layout.scales {
            let blocks = scales.chunks_exact_mut(layout.super_bytes(biased));
            for (b, scales) in blocks.enumerate() {
                SuperScales::of(&row, data.format, b).pack(biased, lane, scales);
            }
        }
    }
}

/// Unpacks the 16 rows of one tile into [`CodeLayout::BytesPer16`], with scales and biases per 16 as floats.
pub(super) fn unpack_tile(
    data: &WeightData,
    tile: usize,
    codes: &mut [[u8; CODE_BYTES]],
    scales: &mut [[f32; LANES]],
    biases: &mut [[f32; LANES]],
) {
    codes.fill([0; CODE_BYTES]);
    for lane in 0..LANES.min(data.rows - tile * LANES) {
        let row = data.row(tile * LANES + lane);
        for (g, codes) in codes.chunks_exact_mut(CodeLayout::BytesPer16.vectors()).enumerate() {
            let group = row.group(g);
            pack_codes(CodeLayout::BytesPer16, &group, lane, codes);
            for half in 0..2 {
                scales[2 * g + half][lane] = group.scales[half];
                biases[2 * g + half][lane] = group.biases[half];
            }
        }
    }
}

/// Puts the 32 codes of one feature into its lane.
fn pack_codes(layout: CodeLayout, group: &Group, lane: usize, vectors: &mut [[u8; CODE_BYTES]]) {
    let quads = group.codes.as_chunks::<4>().0;
    let word = |quad: [i8; 4], code: &dyn Fn(i8) -> u8| u32::from_le_bytes(quad.map(code));
    let pairs = |code: &dyn Fn(i8) -> u8, vectors: &mut [[u8; CODE_BYTES]]| {
        for (b, vector) in vectors.iter_mut().enumerate() {
            let word = word(quads[2 * b], code) | word(quads[2 * b + 1], code) << 4;
            vector[4 * lane..][..4].copy_from_slice(&word.to_le_bytes());
        }
    };
    match layout {
        CodeLayout::Nibbles => pairs(&|code| code as u8, vectors),
        CodeLayout::SignedNibbles => pairs(&|code| (code + 8) as u8, vectors),
        CodeLayout::TableNibbles => pairs(&|code| TABLE_INDEX[usize::from(code as u8)], vectors),
        CodeLayout::Bytes | CodeLayout::BytesPer16 => {
            for (vector, &quad) in vectors.iter_mut().zip(quads) {
                let word = word(quad, &|code| code as u8 ^ 0x80);
                vector[4 * lane..][..4].copy_from_slice(&word.to_le_bytes());
            }
        }
    }
}

/// Index of each value of the IQ4 table, by the value's byte.
const TABLE_INDEX: [u8; 256] = {
    let mut index = [0; 256];
    let mut i = 0;
    while i < IQ4_VALUES.len() {
        index[IQ4_VALUES[i] as u8 as usize] = i as u8;
        i += 1;
    }
    index
};

/// Stores a float that its format can hold.
fn put(format: FloatFormat, bytes: &mut [u8], place: usize, value: f32) {
    let bytes = &mut bytes[place * format.size_bytes()..][..format.size_bytes()];
    match format {
        FloatFormat::F32 => bytes.copy_from_slice(&value.to_le_bytes()),
        FloatFormat::F16 => bytes.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        FloatFormat::BF16 => bytes.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
    }
}

/// The two levels of scales of one super-block of one row.
struct SuperScales {
    d: [u8; 2],
    dmin: [u8; 2],
    scales: [i8; 16],
    minimums: [i8; 16],
    sub_blocks: usize,
}

impl SuperScales {
    fn of(row: &WeightRow<'_>, format: WeightFormat, b: usize) -> Self {
        let mut all = Self { d: [0; 2], dmin: [0; 2], scales: [0; 16], minimums: [0; 16], sub_blocks: 8 };
        match format {
            WeightFormat::Q4_K => {
                let block = row.blocks::<BlockQ4K>()[b];
                (all.d, all.dmin) = (block.d, block.dmin);
                all.unpack_pairs(&block.scales);
            }
            WeightFormat::Q5_K => {
                let block = row.blocks::<BlockQ5K>()[b];
                (all.d, all.dmin) = (block.d, block.dmin);
                all.unpack_pairs(&block.scales);
            }
            WeightFormat::Q6_K => {
                let block = row.blocks::<BlockQ6K>()[b];
                (all.d, all.scales, all.sub_blocks) = (block.d, block.scales, 16);
            }
            WeightFormat::IQ4_XS => {
                let block = row.blocks::<BlockIq4Xs>()[b];
                all.d = block.d;
                for g in 0..8 {
                    all.scales[g] = block.scale(g) as i8 - 32;
                }
            }
            other => unreachable!("{other} has one level of scales"),
        }
        all
    }

    fn unpack_pairs(&mut self, packed: &[u8; 12]) {
        for g in 0..8 {
            let (scale, minimum) = scale_and_minimum(packed, g);
            (self.scales[g], self.minimums[g]) = (scale as i8, minimum as i8);
        }
    }

    fn pack(&self, biased: bool, lane: usize, out: &mut [u8]) {
        let (vectors, _) = out.as_chunks_mut::<LANES>();
        // The 16 halves of a level take two vectors of 16 bytes.
        let mut put_half = |level: usize, half: [u8; 2]| {
            vectors[2 * level + 2 * lane / LANES][2 * lane % LANES..][..2].copy_from_slice(&half);
        };
        put_half(0, self.d);
        if biased {
            put_half(1, self.dmin);
        }
        let (levels, first) = if biased { (2, 4) } else { (1, 2) };
        for sub in 0..self.sub_blocks {
            vectors[first + levels * sub][lane] = self.scales[sub] as u8;
            if biased {
                vectors[first + levels * sub + 1][lane] = self.minimums[sub] as u8;
            }
        }
    }
}
