//! Repacking: from the rows of a file to tiles.

#![allow(clippy::needless_range_loop, reason = "loops over lanes of several arrays")]

use super::words::{Bytes, Neighbors, SignedBytes, Words};
use super::{TILE, TileLayout};
use crate::blocks::{
    Block, BlockIq4Nl, BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K,
    BlockQ6K, BlockQ8_0, row_bytes, scales_and_minimums,
};
use crate::cpu::simd::{Kernel, Simd};
use crate::{FloatFormat, WeightData, WeightFormat};

/// Repacks the rows of one tile; what belongs to rows past the end of the weight becomes zero, or stays so.
pub(super) struct PackTile<'a> {
    pub(super) data: &'a WeightData,
    pub(super) layout: &'a TileLayout,
    pub(super) tile: usize,
    /// Zeros.
    pub(super) out: &'a mut [u8],
}

impl Kernel for PackTile<'_> {
    type Output = ();

    /// Plain loops, which vectorize.
    #[inline(always)]
    fn run<S: Simd>(mut self, _: S) {
        self.headers();
        match self.data.format {
            WeightFormat::Float(FloatFormat::F32) => {
                pack_floats::<4>(self.bytes_of_rows(), self.data.columns, self.out)
            }
            WeightFormat::Float(_) => pack_floats::<2>(self.bytes_of_rows(), self.data.columns, self.out),
            WeightFormat::Q4_0 => self.codes::<BlockQ4_0, 4, 4, 4>(),
            WeightFormat::Q4_1 => self.codes::<BlockQ4_1, 4, 4, 4>(),
            WeightFormat::Q5_0 => self.codes::<BlockQ5_0, 5, 5, 5>(),
            WeightFormat::Q5_1 => self.codes::<BlockQ5_1, 5, 5, 5>(),
            WeightFormat::Q8_0 => self.codes::<BlockQ8_0, 8, 8, 8>(),
            WeightFormat::Q2_K => self.codes::<BlockQ2K, 16, 8, 2>(),
            WeightFormat::Q3_K => self.codes::<BlockQ3K, 24, 16, 3>(),
            WeightFormat::Q4_K => self.codes::<BlockQ4K, 32, 8, 4>(),
            WeightFormat::Q5_K => self.codes::<BlockQ5K, 40, 16, 5>(),
            WeightFormat::Q6_K => self.codes::<BlockQ6K, 48, 16, 6>(),
            WeightFormat::IQ4_NL => self.codes::<BlockIq4Nl, 4, 4, 4>(),
            WeightFormat::IQ4_XS => self.codes::<BlockIq4Xs, 32, 4, 4>(),
            WeightFormat::Affine { bits: 4, .. } => self.codes::<Neighbors, 4, 4, 4>(),
            WeightFormat::Affine { .. } => self.codes::<Bytes, 8, 8, 8>(),
            WeightFormat::Int8PerRow => self.codes::<SignedBytes, 8, 8, 8>(),
        }
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

impl<'a> PackTile<'a> {
    fn rows(&self) -> std::ops::Range<usize> {
        self.tile * TILE..self.data.rows.min((self.tile + 1) * TILE)
    }

    fn bytes_of_rows(&self) -> &'a [u8] {
        let len = row_bytes(self.data.format, self.data.columns);
        &self.data.data[self.rows().start * len..self.rows().end * len]
    }

    fn headers(&mut self) {
        for (lane, row) in self.rows().enumerate() {
            Header { data: self.data, layout: self.layout, row, lane, out: &mut *self.out }.pack();
        }
    }

    /// Puts the words of all rows side by side as they are, some blocks at a time, then turns those of 32 lanes together
    /// into the words of a tile.
    #[inline(always)]
    fn codes<B: Words<RAW, NEED, V>, const RAW: usize, const NEED: usize, const V: usize>(&mut self) {
        /// Raw words at a time: as many as the largest block has, and enough of smaller ones that what is stored word by
        /// word has reached the cache when it is read vector by vector.
        const STAGED: usize = 64;
        let layout = *self.layout;
        let columns_per_block = B::GROUPS * crate::GROUP;
        let blocks = self.data.columns / columns_per_block;
        let mut staged = [[0u32; TILE]; STAGED];
        for first in (0..blocks).step_by(STAGED / RAW) {
            let count = (STAGED / RAW).min(blocks - first);
            let staged = &mut staged.as_chunks_mut::<RAW>().0[..count];
            let stored: &[B] = bytemuck::cast_slice(self.bytes_of_rows());
            for (lane, row) in stored.chunks_exact(blocks).enumerate() {
                for (staged, block) in staged.iter_mut().zip(&row[first..first + count]) {
                    let raw = block.raw();
                    for k in 0..RAW {
                        staged[k][lane] = raw[k];
                    }
                }
            }
            for (i, staged) in staged.iter().enumerate() {
                for g in 0..B::GROUPS {
                    let group = (first + i) * B::GROUPS + g;
                    let block = &mut self.out[group / layout.block_groups * layout.block_bytes()..];
                    let (vectors, _) = block[layout.header_bytes..].as_chunks_mut::<{ 4 * TILE }>();
                    let out = &mut vectors[group % layout.block_groups * V..][..V];
                    let encoded = encode_lanes::<B, RAW, NEED, V>(staged, g);
                    for v in 0..V {
                        out[v] = bytemuck::cast(encoded[v]);
                    }
                }
            }
        }
    }
}

/// The words of group `g` for all lanes.
#[inline(always)]
fn encode_lanes<B: Words<RAW, NEED, V>, const RAW: usize, const NEED: usize, const V: usize>(
    staged: &[[u32; TILE]; RAW],
    g: usize,
) -> [[u32; TILE]; V] {
    let picked = B::pick(staged, g);
    let mut encoded = [[0; TILE]; V];
    for lane in 0..TILE {
        let mut raw = [0; NEED];
        for k in 0..NEED {
            raw[k] = picked[k][lane];
        }
        let words = B::words(raw, g);
        for v in 0..V {
            encoded[v][lane] = words[v].to_le();
        }
    }
    encoded
}

/// The scales of one row of a weight on their way into one lane of a tile.
struct Header<'a> {
    data: &'a WeightData,
    layout: &'a TileLayout,
    row: usize,
    lane: usize,
    out: &'a mut [u8],
}

impl<'a> Header<'a> {
    fn pack(&mut self) {
        match self.data.format {
            WeightFormat::Float(_) => {}
            WeightFormat::Q4_0 => self.halves::<BlockQ4_0>(|block| block.d),
            WeightFormat::Q4_1 => {
                self.halves::<BlockQ4_1>(|block| block.d);
                self.second_halves::<BlockQ4_1>(|block| block.m);
            }
            WeightFormat::Q5_0 => self.halves::<BlockQ5_0>(|block| block.d),
            WeightFormat::Q5_1 => {
                self.halves::<BlockQ5_1>(|block| block.d);
                self.second_halves::<BlockQ5_1>(|block| block.m);
            }
            WeightFormat::Q8_0 => self.halves::<BlockQ8_0>(|block| block.d),
            WeightFormat::IQ4_NL => self.halves::<BlockIq4Nl>(|block| block.d),
            WeightFormat::Affine { bits, group_size, scales } => self.pack_affine(bits, group_size, scales),
            WeightFormat::Int8PerRow => {
                let scale = part::<4>(&self.data.scales, self.row);
                self.header(0, |_| scale);
            }
            _ => self.pack_super(),
        }
    }

    /// The formats with super-blocks.
    fn pack_super(&mut self) {
        match self.data.format {
            WeightFormat::Q2_K => {
                self.halves::<BlockQ2K>(|block| block.d);
                self.second_halves::<BlockQ2K>(|block| block.dmin);
                self.sub_scales::<BlockQ2K, 16>(4 * TILE, |block| block.scales);
            }
            WeightFormat::Q3_K => {
                self.halves::<BlockQ3K>(|block| block.d);
                self.sub_scales::<BlockQ3K, 16>(2 * TILE, |block| {
                    std::array::from_fn(|i| block.scale(i).wrapping_sub(32))
                });
            }
            WeightFormat::Q4_K => {
                self.halves::<BlockQ4K>(|block| block.d);
                self.second_halves::<BlockQ4K>(|block| block.dmin);
                self.sub_scales::<BlockQ4K, 16>(4 * TILE, |block| scales_and_minimums(&block.scales));
            }
            WeightFormat::Q5_K => {
                self.halves::<BlockQ5K>(|block| block.d);
                self.second_halves::<BlockQ5K>(|block| block.dmin);
                self.sub_scales::<BlockQ5K, 16>(4 * TILE, |block| scales_and_minimums(&block.scales));
            }
            WeightFormat::Q6_K => {
                self.halves::<BlockQ6K>(|block| block.d);
                self.sub_scales::<BlockQ6K, 16>(2 * TILE, |block| bytemuck::cast(block.scales));
            }
            WeightFormat::IQ4_XS => {
                self.halves::<BlockIq4Xs>(|block| block.d);
                self.sub_scales::<BlockIq4Xs, 8>(2 * TILE, |block| {
                    std::array::from_fn(|g| block.scale(g).wrapping_sub(32))
                });
            }
            other => unreachable!("{other} has no super-blocks"),
        }
    }

    fn pack_affine(&mut self, bits: u8, group_size: usize, scales: FloatFormat) {
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
    }

    fn blocks<B: Block>(&self) -> &'a [B] {
        let len = row_bytes(self.data.format, self.data.columns);
        bytemuck::cast_slice(&self.data.data[self.row * len..][..len])
    }

    fn halves<B: Block>(&mut self, value: impl Fn(&B) -> [u8; 2]) {
        let blocks = self.blocks::<B>();
        self.header(0, |b| value(&blocks[b]));
    }

    fn second_halves<B: Block>(&mut self, value: impl Fn(&B) -> [u8; 2]) {
        let blocks = self.blocks::<B>();
        self.header(2 * TILE, |b| value(&blocks[b]));
    }

    /// Puts the value of each block, `N` bytes, behind those of the lanes before, `place` bytes into the header.
    fn header<const N: usize>(&mut self, place: usize, value: impl Fn(usize) -> [u8; N]) {
        let at = place + N * self.lane;
        for (b, block) in self.out.chunks_exact_mut(self.layout.block_bytes()).enumerate() {
            block[at..][..N].copy_from_slice(&value(b));
        }
    }

    /// Puts `N` one-byte scales per block, those of 32 lanes side by side, `place` bytes into the header.
    fn sub_scales<B: Block, const N: usize>(&mut self, place: usize, scales: impl Fn(&B) -> [u8; N]) {
        let blocks = self.blocks::<B>();
        for (out, block) in self.out.chunks_exact_mut(self.layout.block_bytes()).zip(blocks) {
            let out = &mut out[place..][..N * TILE];
            for (i, scale) in scales(block).into_iter().enumerate() {
                out[i * TILE + self.lane] = scale;
            }
        }
    }
}

/// The `i`-th `N` bytes.
fn part<const N: usize>(bytes: &[u8], i: usize) -> [u8; N] {
    bytes.as_chunks().0[i]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::blocks::{GROUP, Group};
    use crate::cpu::simd::{CODE_BYTES, LANES, Scalar};

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
                PackTile { data: &data, layout: &layout, tile, out: &mut out }.run(Scalar);
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
