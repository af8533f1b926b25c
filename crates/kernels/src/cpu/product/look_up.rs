//! One output feature out of its tile: a row of a table that is an output head as well.
//!
//! It reads half a tile, and all of one of 16-bit floats, for each row of a pass, which is little beside the products of the
//! pass: 16 µs for one row of Qwen3.5-0.8B Q4_0 on a Zen 3 core, 1.3 ms for 128 (from the mapped file 8 µs, and 8.6 ms with
//! its page faults).

use super::codes::{Packed, WithFormat, with_format};
use super::scales::Scales;
use crate::WeightFormat;
use crate::blocks::{GROUP, Group};
use crate::cpu::simd::{CODE_BYTES, LANES, Scalar};
use crate::cpu::tiles::{TILE, TileLayout, Tiles};

/// Output feature `row` in floats: those of [`WeightRow::dequantize`](crate::WeightRow::dequantize), but for the sign of
/// zeros.
pub(in crate::cpu) fn look_up(tiles: &Tiles, row: usize, out: &mut [f32]) {
    let (layout, tile, lane) = (&tiles.layout, tiles.tile(row / TILE), row % TILE);
    if let WeightFormat::Float(float) = layout.format {
        out.iter_mut().enumerate().for_each(|(i, value)| *value = float.element(tile, i * TILE + lane));
        return;
    }
    with_format(layout.format, LookUp { layout, tile, lane, out });
}

struct LookUp<'a> {
    layout: &'a TileLayout,
    tile: &'a [u8],
    lane: usize,
    out: &'a mut [f32],
}

impl WithFormat for LookUp<'_> {
    #[inline(always)]
    fn run<F: Packed, P: Scales>(self, _: F, scales: P) {
        let (half, lane) = (self.lane / LANES, self.lane % LANES);
        let blocks = self.tile.chunks_exact(self.layout.block_bytes());
        let groups = self.out.as_chunks_mut::<GROUP>().0.chunks_mut(self.layout.block_groups);
        for (block, groups) in blocks.zip(groups) {
            let (header, stored) = block.split_at(self.layout.header_bytes);
            let open = scales.open(Scalar, header);
            let stored = stored.as_chunks::<CODE_BYTES>().0.chunks_exact(2 * F::VECTORS);
            for (g, (out, stored)) in groups.iter_mut().zip(stored).enumerate() {
                // Scales of the two parts of a group, which may be one.
                let parts = [F::SCALES * g, F::SCALES * g + F::SCALES - 1];
                let bias = |i| if P::BIASED { scales.bias(Scalar, header, &open, half, i)[lane] } else { 0.0 };
                let group = Group {
                    codes: codes::<F>(stored, half, lane),
                    scales: parts.map(|i| scales.scale(Scalar, header, &open, half, i)[lane]),
                    biases: parts.map(bias),
                };
                group.dequantize(out);
            }
        }
    }
}

/// The signed codes of one lane.
#[inline(always)]
fn codes<F: Packed>(stored: &[[u8; CODE_BYTES]], half: usize, lane: usize) -> [i8; GROUP] {
    let mut codes = [0; GROUP];
    for (p, codes) in codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let vector = F::vector(Scalar, stored, half, p);
        *codes = vector.as_chunks::<4>().0[lane].map(|code| (i32::from(code) - F::ADDED) as i8);
    }
    codes
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::cpu::instruction_set::InstructionSet;
    use crate::cpu::memory::Arena;
    use crate::cpu::pool::Pool;
    use crate::{Activations, FloatFormat, WeightData, row_bytes};

    /// More than a tile, the last one cut.
    const ROWS: usize = 2 * TILE - 5;
    const COLUMNS: usize = 512;

    const FORMATS: [WeightFormat; 19] = {
        use FloatFormat::*;
        use WeightFormat::*;
        const fn affine(bits: u8, scales: FloatFormat) -> WeightFormat {
            Affine { bits, group_size: 64, scales }
        }
        [
            Float(F32),
            Float(F16),
            Float(BF16),
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
            IQ4_NL,
            IQ4_XS,
            affine(4, F32),
            affine(4, BF16),
            affine(8, F16),
            Int8PerRow,
        ]
    };

    /// Bytes of any value but that one bit of each is missing, without which no exponent is that of an infinity.
    fn bytes(len: usize) -> bytes::Bytes {
        (0..len).map(|i| ((i as u32).wrapping_mul(0x9E37_79B1) >> 13) as u8 & 0xBF).collect()
    }

    fn weight(format: WeightFormat) -> WeightData {
        let (scales, biases) = match format {
            WeightFormat::Affine { group_size, scales, .. } => {
                let len = ROWS * COLUMNS / group_size * scales.size_bytes();
                (len, len)
            }
            WeightFormat::Int8PerRow => (4 * ROWS, 0),
            _ => (0, 0),
        };
        WeightData {
            format,
            rows: ROWS,
            columns: COLUMNS,
            data: bytes(ROWS * row_bytes(format, COLUMNS)),
            scales: bytes(scales),
            biases: bytes(biases),
            activations: Activations::Int8PerGroup,
        }
    }

    /// What is looked up in a tile has the bits of the file's row.
    #[test]
    fn a_tile_gives_its_rows_back() {
        let (mut pool, mut arena) = (Pool::new(NonZeroUsize::MIN).unwrap(), Arena::default());
        for format in FORMATS {
            let data = weight(format);
            data.check().unwrap();
            let tiles = Tiles::new(InstructionSet::Scalar, &data, &mut pool, &mut arena);
            let (mut expected, mut found) = ([0.0; COLUMNS], [0.0; COLUMNS]);
            for row in 0..ROWS {
                data.row(row).dequantize(&mut expected);
                look_up(&tiles, row, &mut found);
                // Numbers, so that equal ones have equal bits but for the sign of zero.
                assert!(expected.iter().all(|value| value.is_finite()), "{format}, row {row}");
                assert_eq!(found, expected, "{format}, row {row}");
            }
        }
    }
}
