//! One output feature out of its tile: a row of a table that is an output head as well.
//!
//! It touches the memory lines of half a tile, and all of one of 16-bit floats, for each row of a pass, which is little
//! beside the products of the pass: on a Zen 3 core 10 µs for one row of Qwen3.5-0.8B Q4_0, most of it waiting for
//! memory, and 0.5 ms for 128 on two threads.

use super::codes::{InSet, Packed, WithFormat, with_format};
use super::scales::Scales;
use crate::WeightFormat;
use crate::blocks::{GROUP, Group};
use crate::cpu::instruction_set::InstructionSet;
use crate::cpu::simd::{CODE_BYTES, Kernel, LANES, Simd};
use crate::cpu::tiles::{TILE, Tiles};

/// Output feature `row` in floats: those of [`WeightRow::dequantize`](crate::WeightRow::dequantize), but for the sign of
/// zeros.
pub(in crate::cpu) fn look_up(set: InstructionSet, tiles: &Tiles, row: usize, out: &mut [f32]) {
    let (tile, lane) = (tiles.tile(row / TILE), row % TILE);
    if let WeightFormat::Float(float) = tiles.layout.format {
        out.iter_mut().enumerate().for_each(|(i, value)| *value = float.element(tile, i * TILE + lane));
        return;
    }
    set.run(LookUp { tiles, row, out });
}

struct LookUp<'a> {
    tiles: &'a Tiles,
    row: usize,
    out: &'a mut [f32],
}

impl Kernel for LookUp<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        with_format(self.tiles.layout.format, InSet { s, work: self });
    }
}

impl<S: Simd> WithFormat for InSet<S, LookUp<'_>> {
    #[inline(always)]
    fn run<F: Packed, P: Scales>(self, _: F, scales: P) {
        let Self { s, work: LookUp { tiles, row, out } } = self;
        let layout = &tiles.layout;
        let (half, lane) = (row % TILE / LANES, row % LANES);
        let blocks = tiles.tile(row / TILE).chunks_exact(layout.block_bytes());
        let groups = out.as_chunks_mut::<GROUP>().0.chunks_mut(layout.block_groups);
        for (block, groups) in blocks.zip(groups) {
            let (header, stored) = block.split_at(layout.header_bytes);
            let open = scales.open(s, header);
            let stored = stored.as_chunks::<CODE_BYTES>().0.chunks_exact(2 * F::VECTORS);
            for (g, (out, stored)) in groups.iter_mut().zip(stored).enumerate() {
                let mut group = Group { codes: codes::<F>(stored, half, lane), scales: [0.0; 2], biases: [0.0; 2] };
                for part in 0..2 {
                    // A group has two parts, which may share a scale.
                    let i = F::SCALES * g + part.min(F::SCALES - 1);
                    group.scales[part] = element(s, scales.scale(s, header, &open, half, i), lane);
                    if P::BIASED {
                        group.biases[part] = element(s, scales.bias(s, header, &open, half, i), lane);
                    }
                }
                group.dequantize(out);
            }
        }
    }
}

#[inline(always)]
fn element<S: Simd>(s: S, vector: S::F32, lane: usize) -> f32 {
    let mut elements = [0.0; LANES];
    s.store(vector, &mut elements);
    elements[lane]
}

/// The signed codes of one lane.
#[inline(always)]
fn codes<F: Packed>(stored: &[[u8; CODE_BYTES]], half: usize, lane: usize) -> [i8; GROUP] {
    let mut codes = [0; GROUP];
    for (p, codes) in codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *codes = F::quad(stored, half, p, lane).map(|code| (i32::from(code) - F::ADDED) as i8);
    }
    codes
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
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
                // Numbers, so that equal ones have equal bits but for the sign of zero.
                assert!(expected.iter().all(|value| value.is_finite()), "{format}, row {row}");
                for set in InstructionSet::ALL.into_iter().filter(|set| set.is_available()) {
                    look_up(set, &tiles, row, &mut found);
                    assert_eq!(found, expected, "{format}, {set}, row {row}");
                }
            }
        }
    }
}
