//! Repacking: from the rows of a file to tiles, a word of four codes at a time.
//!
//! Each format decodes a group of 32 elements to 8 *quads*, words of four unsigned codes, the first in the lowest byte;
//! [`encode`] then lays them into the bit planes of a tile.

use super::{SUPER_GROUPS, TILE, TileLayout};
use crate::blocks::{
    Block, BlockIq4Nl, BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K,
    BlockQ6K, BlockQ8_0, GROUP, row_bytes, scale_and_minimum,
};
use crate::cpu::simd::{CODE_BYTES, LANES};
use crate::{FloatFormat, WeightData, WeightFormat};

/// 32 unsigned codes.
type Quads = [u32; GROUP / 4];

/// Repacks the rows of one tile; rows past the end of the weight stay as they are.
pub(super) fn pack_tile(data: &WeightData, layout: &TileLayout, tile: usize, out: &mut [u8]) {
    let rows = tile * TILE..data.rows.min((tile + 1) * TILE);
    if let WeightFormat::Float(float) = data.format {
        let row_bytes = data.columns * float.size_bytes();
        let stored = &data.data[rows.start * row_bytes..rows.end * row_bytes];
        return match float {
            FloatFormat::F32 => pack_floats::<4>(stored, data.columns, out),
            FloatFormat::F16 | FloatFormat::BF16 => pack_floats::<2>(stored, data.columns, out),
        };
    }
    for (lane, row) in rows.enumerate() {
        Lane { data, layout, row, lane, out: &mut *out }.pack();
    }
}

/// Puts elements of `N` bytes of up to 32 rows of `columns` side by side, for each input feature.
pub(in crate::cpu) fn pack_floats<const N: usize>(rows: &[u8], columns: usize, out: &mut [u8]) {
    /// Columns of all rows that are moved before the next, so that their places stay in the first-level cache.
    const COLUMNS: usize = 64;
    let (elements, _) = rows.as_chunks::<N>();
    let (out, _) = out.as_chunks_mut::<N>();
    for start in (0..columns).step_by(COLUMNS) {
        let end = columns.min(start + COLUMNS);
        for (lane, row) in elements.chunks_exact(columns).enumerate() {
            let places = out[start * TILE + lane..].iter_mut().step_by(TILE);
            places.zip(&row[start..end]).for_each(|(place, element)| *place = *element);
        }
    }
}

/// One row of a weight on its way into one lane of a tile.
struct Lane<'a> {
    data: &'a WeightData,
    layout: &'a TileLayout,
    row: usize,
    lane: usize,
    out: &'a mut [u8],
}

impl<'a> Lane<'a> {
    fn pack(&mut self) {
        match self.data.format {
            WeightFormat::Float(_) => unreachable!("floats have no codes"),
            WeightFormat::Q4_0 => {
                let blocks = self.blocks::<BlockQ4_0>();
                self.header(0, |b| blocks[b].d);
                self.codes(|g| encode::<4, 0, 4>(nibbles(&blocks[g].codes)));
            }
            WeightFormat::Q4_1 => {
                let blocks = self.blocks::<BlockQ4_1>();
                self.header(0, |b| blocks[b].d);
                self.header(2 * TILE, |b| blocks[b].m);
                self.codes(|g| encode::<4, 0, 4>(nibbles(&blocks[g].codes)));
            }
            WeightFormat::Q5_0 => {
                let blocks = self.blocks::<BlockQ5_0>();
                self.header(0, |b| blocks[b].d);
                self.codes(|g| encode::<4, 1, 5>(five_bits(&blocks[g].codes, blocks[g].high)));
            }
            WeightFormat::Q5_1 => {
                let blocks = self.blocks::<BlockQ5_1>();
                self.header(0, |b| blocks[b].d);
                self.header(2 * TILE, |b| blocks[b].m);
                self.codes(|g| encode::<4, 1, 5>(five_bits(&blocks[g].codes, blocks[g].high)));
            }
            WeightFormat::Q8_0 => {
                let blocks = self.blocks::<BlockQ8_0>();
                self.header(0, |b| blocks[b].d);
                self.codes(|g| signed_bytes(bytemuck::cast_slice(&blocks[g].codes)));
            }
            WeightFormat::IQ4_NL => {
                let blocks = self.blocks::<BlockIq4Nl>();
                self.header(0, |b| blocks[b].d);
                self.codes(|g| encode::<4, 0, 4>(nibbles(&blocks[g].indices)));
            }
            WeightFormat::Affine { bits, group_size, scales } => self.pack_affine(bits, group_size, scales),
            WeightFormat::Int8PerRow => {
                let codes = self.row_bytes();
                let scale = part::<4>(&self.data.scales, self.row);
                self.header(0, |_| scale);
                self.codes(|g| signed_bytes(&codes[GROUP * g..]));
            }
            _ => self.pack_super(),
        }
    }

    /// The formats with super-blocks.
    fn pack_super(&mut self) {
        match self.data.format {
            WeightFormat::Q2_K => {
                let blocks = self.blocks::<BlockQ2K>();
                self.header(0, |b| blocks[b].d);
                self.header(2 * TILE, |b| blocks[b].dmin);
                self.sub_scales(4 * TILE, TILE, 2 * SUPER_GROUPS, |b, i| blocks[b].scales[i]);
                self.codes(|g| {
                    let (block, g) = (&blocks[g / SUPER_GROUPS], g % SUPER_GROUPS);
                    encode::<2, 0, 2>(bit_field(&block.codes[32 * (g / 4)..], 2 * (g % 4), 3))
                });
            }
            WeightFormat::Q3_K => {
                let blocks = self.blocks::<BlockQ3K>();
                self.header(0, |b| blocks[b].d);
                let scale = |b: usize, i| blocks[b].scale(i).wrapping_sub(32);
                self.sub_scales(2 * TILE, TILE, 2 * SUPER_GROUPS, scale);
                self.codes(|g| {
                    let (block, g) = (&blocks[g / SUPER_GROUPS], g % SUPER_GROUPS);
                    let low = bit_field(&block.codes[32 * (g / 4)..], 2 * (g % 4), 3);
                    encode::<2, 1, 3>(above::<2>(low, bit_field(&block.high, g, 1)))
                });
            }
            WeightFormat::Q4_K => {
                let blocks = self.blocks::<BlockQ4K>();
                self.header(0, |b| blocks[b].d);
                self.header(2 * TILE, |b| blocks[b].dmin);
                self.pairs(|b| &blocks[b].scales);
                self.codes(|g| {
                    let (block, g) = (&blocks[g / SUPER_GROUPS], g % SUPER_GROUPS);
                    encode::<4, 0, 4>(bit_field(&block.codes[32 * (g / 2)..], 4 * (g % 2), 15))
                });
            }
            WeightFormat::Q5_K => {
                let blocks = self.blocks::<BlockQ5K>();
                self.header(0, |b| blocks[b].d);
                self.header(2 * TILE, |b| blocks[b].dmin);
                self.pairs(|b| &blocks[b].scales);
                self.codes(|g| {
                    let (block, g) = (&blocks[g / SUPER_GROUPS], g % SUPER_GROUPS);
                    let low = bit_field(&block.codes[32 * (g / 2)..], 4 * (g % 2), 15);
                    encode::<4, 1, 5>(above::<4>(low, bit_field(&block.high, g, 1)))
                });
            }
            WeightFormat::Q6_K => {
                let blocks = self.blocks::<BlockQ6K>();
                self.header(0, |b| blocks[b].d);
                self.sub_scales(2 * TILE, TILE, 2 * SUPER_GROUPS, |b, i| blocks[b].scales[i].cast_unsigned());
                self.codes(|g| {
                    let (block, half, part) = (&blocks[g / SUPER_GROUPS], g % SUPER_GROUPS / 4, g % 4);
                    let low = bit_field(&block.low[64 * half + 32 * (part % 2)..], 4 * (part / 2), 15);
                    encode::<4, 2, 6>(above::<4>(low, bit_field(&block.high[32 * half..], 2 * part, 3)))
                });
            }
            WeightFormat::IQ4_XS => {
                let blocks = self.blocks::<BlockIq4Xs>();
                self.header(0, |b| blocks[b].d);
                self.sub_scales(2 * TILE, TILE, SUPER_GROUPS, |b, i| blocks[b].scale(i).wrapping_sub(32));
                self.codes(|g| {
                    let (block, g) = (&blocks[g / SUPER_GROUPS], g % SUPER_GROUPS);
                    encode::<4, 0, 4>(nibbles(&block.indices[16 * g..]))
                });
            }
            other => unreachable!("{other} has no super-blocks"),
        }
    }

    fn pack_affine(&mut self, bits: u8, group_size: usize, scales: FloatFormat) {
        let codes = self.row_bytes();
        let per_row = self.data.columns / group_size;
        let first = self.row * per_row;
        let (stored_scales, stored_biases) = (&self.data.scales, &self.data.biases);
        match (bits, scales) {
            (4, FloatFormat::F32) => {
                self.header(0, |b| part::<4>(stored_scales, first + b));
                self.header(4 * TILE, |b| part::<4>(stored_biases, first + b));
            }
            (4, _) => {
                self.header(0, |b| part::<2>(stored_scales, first + b));
                self.header(2 * TILE, |b| part::<2>(stored_biases, first + b));
            }
            _ => {
                let scale = |b| scales.element(stored_scales, first + b);
                self.header(0, |b| scale(b).to_le_bytes());
                let bias = |b| scales.element(stored_biases, first + b) + 128.0 * scale(b);
                self.header(4 * TILE, |b| bias(b).to_le_bytes());
            }
        }
        match bits {
            4 => self.codes(|g| encode::<4, 0, 4>(neighbors(&codes[GROUP / 2 * g..]))),
            _ => self.codes(|g| words::<8>(&codes[GROUP * g..])),
        }
    }

    fn row_bytes(&self) -> &'a [u8] {
        let len = row_bytes(self.data.format, self.data.columns);
        &self.data.data[self.row * len..][..len]
    }

    fn blocks<B: Block>(&self) -> &'a [B] {
        bytemuck::cast_slice(self.row_bytes())
    }

    /// Puts the value of each block, `N` bytes, behind those of the lanes before, `place` bytes into the header.
    #[inline(always)]
    fn header<const N: usize>(&mut self, place: usize, value: impl Fn(usize) -> [u8; N]) {
        let at = place + N * self.lane;
        for (b, block) in self.out.chunks_exact_mut(self.layout.block_bytes()).enumerate() {
            block[at..][..N].copy_from_slice(&value(b));
        }
    }

    /// Puts `count` one-byte scales per block, `stride` bytes apart.
    #[inline(always)]
    fn sub_scales(&mut self, place: usize, stride: usize, count: usize, value: impl Fn(usize, usize) -> u8) {
        for (b, block) in self.out.chunks_exact_mut(self.layout.block_bytes()).enumerate() {
            for i in 0..count {
                block[place + stride * i + self.lane] = value(b, i);
            }
        }
    }

    /// Puts the scales and minimums of a format with pairs of 6 bits, each minimum behind its scale.
    #[inline(always)]
    fn pairs<'b>(&mut self, packed: impl Fn(usize) -> &'b [u8; 12]) {
        self.sub_scales(4 * TILE, 2 * TILE, SUPER_GROUPS, |b, g| scale_and_minimum(packed(b), g).0);
        self.sub_scales(5 * TILE, 2 * TILE, SUPER_GROUPS, |b, g| scale_and_minimum(packed(b), g).1);
    }

    /// Puts the words of each group into the lane's place of its vectors.
    #[inline(always)]
    fn codes<const V: usize>(&mut self, group_words: impl Fn(usize) -> [u32; V]) {
        let TileLayout { header_bytes, block_groups, .. } = *self.layout;
        let at = self.lane / LANES * CODE_BYTES + self.lane % LANES * 4;
        for (b, block) in self.out.chunks_exact_mut(self.layout.block_bytes()).enumerate() {
            let (vectors, _) = block[header_bytes..].as_chunks_mut::<{ 2 * CODE_BYTES }>();
            for (i, vectors) in vectors.as_chunks_mut::<V>().0.iter_mut().enumerate() {
                let words = group_words(b * block_groups + i);
                for v in 0..V {
                    vectors[v][at..at + 4].copy_from_slice(&words[v].to_le_bytes());
                }
            }
        }
    }
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

/// Four bytes at a time.
#[inline(always)]
fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let (bytes, _) = bytes.as_chunks::<4>();
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

/// Signed codes with 128 added.
#[inline(always)]
fn signed_bytes(bytes: &[u8]) -> Quads {
    words(bytes).map(|word| word ^ every_byte(0x80))
}

/// `bytes >> shift & mask`, for each of 32.
#[inline(always)]
fn bit_field(bytes: &[u8], shift: usize, mask: u32) -> Quads {
    words(bytes).map(|word| word >> shift & every_byte(mask))
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
fn nibbles(bytes: &[u8]) -> Quads {
    let [a, b, c, d] = words(bytes);
    let (low, high) = (|word: u32| word & every_byte(15), |word: u32| word >> 4 & every_byte(15));
    [low(a), low(b), low(c), low(d), high(a), high(b), high(c), high(d)]
}

/// The same with bit 4 of code `i` in bit `i` of a word.
#[inline(always)]
fn five_bits(bytes: &[u8; 16], high: [u8; 4]) -> Quads {
    let high = u32::from_le_bytes(high);
    let mut quads = nibbles(bytes);
    for (p, quad) in quads.iter_mut().enumerate() {
        // The product has bit `k` of the four at `8k`, among others.
        let four = high >> (4 * p) & 15;
        *quad |= (four.wrapping_mul(0x0020_4081) & every_byte(1)) << 4;
    }
    quads
}

/// 16 bytes with codes `2b` and `2b + 1` in byte `b`.
#[inline(always)]
fn neighbors(bytes: &[u8]) -> Quads {
    let words: [u32; 4] = words(bytes);
    let mut quads = [0; 8];
    for (p, quad) in quads.iter_mut().enumerate() {
        let pair = words[p / 2] >> (16 * (p % 2)) & 0xFFFF;
        let apart = (pair | pair << 8) & 0x00FF_00FF;
        *quad = (apart | apart << 4) & every_byte(15);
    }
    quads
}

/// The `i`-th `N` bytes.
fn part<const N: usize>(bytes: &[u8], i: usize) -> [u8; N] {
    bytes.as_chunks().0[i]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::blocks::Group;

    /// Codes of a group from its words, by the definition of the planes.
    fn decode(words: &[u32], low: usize, high: usize) -> [u8; GROUP] {
        std::array::from_fn(|i| {
            let (p, byte) = (i / 4, i % 4);
            let field = |first: usize, bits: usize| {
                let word = words[first + p / (8 / bits)].to_le_bytes()[byte];
                word >> (bits * (p % (8 / bits))) & ((1u16 << bits) - 1) as u8
            };
            field(0, low) | if high > 0 { field(low, high) << low } else { 0 }
        })
    }

    /// Bits in the two planes of a format, and what was added to its codes.
    fn planes(format: WeightFormat) -> (usize, usize, i8) {
        match format {
            WeightFormat::Q2_K => (2, 0, 0),
            WeightFormat::Q3_K => (2, 1, 4),
            WeightFormat::Q4_0 => (4, 0, 8),
            WeightFormat::Q4_1 | WeightFormat::Q4_K | WeightFormat::Affine { bits: 4, .. } => (4, 0, 0),
            WeightFormat::Q5_0 => (4, 1, 16),
            WeightFormat::Q5_1 | WeightFormat::Q5_K => (4, 1, 0),
            WeightFormat::Q6_K => (4, 2, 32),
            _ => (8, 0, -128),
        }
    }

    const FORMATS: [WeightFormat; 13] = {
        use WeightFormat::*;
        [
            Q4_0,
            Q4_1,
            Q5_0,
            Q5_1,
            Q8_0,
            Q2_K,
            Q3_K,
            Q4_K,
            Q5_K,
            Q6_K,
            Affine { bits: 4, group_size: 64, scales: FloatFormat::BF16 },
            Affine { bits: 8, group_size: 64, scales: FloatFormat::BF16 },
            Int8PerRow,
        ]
    };

    proptest! {
        /// Every code of every row is found again at its place.
        #[test]
        fn no_code_is_lost(format in prop::sample::select(FORMATS.to_vec()), rows in 1usize..40, seed: u8) {
            const COLUMNS: usize = 512;
            let bytes = |len: usize| (0..len).map(|i| (i as u8).wrapping_mul(151) ^ seed ^ (i >> 8) as u8).collect::<Vec<_>>();
            let scales = match format {
                WeightFormat::Affine { .. } => rows * COLUMNS / 64 * 2,
                WeightFormat::Int8PerRow => rows * 4,
                _ => 0,
            };
            let biases = if matches!(format, WeightFormat::Affine { .. }) { scales } else { 0 };
            let data = WeightData {
                format,
                rows,
                columns: COLUMNS,
                data: bytes(rows * row_bytes(format, COLUMNS)).into(),
                scales: bytes(scales).into(),
                biases: bytes(biases).into(),
                activations: crate::Activations::Int8PerGroup,
            };
            data.check().unwrap();
            let layout = TileLayout::of(format, COLUMNS);
            let (low, high, added) = planes(format);
            for tile in 0..rows.div_ceil(TILE) {
                let mut out = vec![0; layout.tile_bytes()];
                pack_tile(&data, &layout, tile, &mut out);
                for row in tile * TILE..rows.min((tile + 1) * TILE) {
                    let lane = row % TILE;
                    for g in 0..COLUMNS / GROUP {
                        let group: Group = data.row(row).group(g);
                        let block = &out[g / layout.block_groups * layout.block_bytes()..][layout.header_bytes..];
                        let vectors = &block[g % layout.block_groups * layout.vectors * 2 * CODE_BYTES..];
                        let at = lane / LANES * CODE_BYTES + lane % LANES * 4;
                        let words: Vec<u32> = (0..layout.vectors)
                            .map(|v| u32::from_le_bytes(part(&vectors[v * 2 * CODE_BYTES + at..], 0)))
                            .collect();
                        let expected = group.codes.map(|code| code.wrapping_add(added).cast_unsigned());
                        prop_assert_eq!(decode(&words, low, high), expected, "{}, row {}, group {}", format, row, g);
                    }
                }
            }
        }
    }
}
