//! Tiles of 32 output features in floats with f32 activations.
//!
//! An activation is broadcast to all lanes and meets 16 features at once, input features in ascending order.
//!
//! Products of bf16 pairs (`vdpbf16ps`) are not used: they would round the activations to bf16, and splitting these in
//! three parts to keep their bits costs more than the f32 products do.

use std::marker::PhantomData;
use std::ops::Range;

use super::{Move, Outputs};
use crate::FloatFormat;
use crate::cpu::simd::{CODE_BYTES, Kernel, Simd};

/// The products of `moves` with tiles.
pub(super) struct MultiplyFloats<'a, 't, 'o> {
    pub(super) format: FloatFormat,
    /// For each tile and input feature, the elements of 32 output features.
    pub(super) tiles: &'a dyn Fn(usize) -> &'t [u8],
    pub(super) range: Range<usize>,
    pub(super) moves: &'a [Move],
    /// Activations, `[rows, columns]`.
    pub(super) x: &'a [f32],
    pub(super) columns: usize,
    /// Whether one or two rows ask for memory by instruction; see `ahead.rs`.
    pub(super) asks_ahead: bool,
    pub(super) outputs: Outputs<'o>,
}

impl Kernel for MultiplyFloats<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.format {
            FloatFormat::F32 => self.tiles::<S, F32Bytes, 64>(s),
            FloatFormat::F16 => self.tiles::<S, F16Bytes, 32>(s),
            FloatFormat::BF16 => self.tiles::<S, Bf16Bytes, 32>(s),
        }
    }
}

impl MultiplyFloats<'_, '_, '_> {
    #[inline(always)]
    fn tiles<S: Simd, E: Floats<N>, const N: usize>(&self, s: S) {
        for tile in self.range.clone() {
            for moves in self.moves.chunks(S::FLOAT_ROWS) {
                match moves.len() {
                    1 => self.rows::<S, E, N, 1>(s, tile, moves),
                    2 => self.rows::<S, E, N, 2>(s, tile, moves),
                    3 => self.rows::<S, E, N, 3>(s, tile, moves),
                    4 => self.rows::<S, E, N, 4>(s, tile, moves),
                    5 => self.rows::<S, E, N, 5>(s, tile, moves),
                    6 => self.rows::<S, E, N, 6>(s, tile, moves),
                    7 => self.rows::<S, E, N, 7>(s, tile, moves),
                    _ => self.rows::<S, E, N, 8>(s, tile, moves),
                }
            }
        }
    }

    #[inline(always)]
    fn rows<S: Simd, E: Floats<N>, const N: usize, const R: usize>(&self, s: S, tile: usize, moves: &[Move]) {
        // No set calls for more rows than share its weights, and this leaves those kernels out.
        if const { R <= S::FLOAT_ROWS } {
            s.call(GroupOfRows::<E, N, R> { work: self, bytes: (self.tiles)(tile), tile, moves, format: PhantomData });
        }
    }
}

/// The products of a tile with `R` rows, whose sums stay in registers.
struct GroupOfRows<'a, 't, E, const N: usize, const R: usize> {
    work: &'a MultiplyFloats<'a, 't, 'a>,
    bytes: &'t [u8],
    tile: usize,
    moves: &'a [Move],
    format: PhantomData<E>,
}

impl<E: Floats<N>, const N: usize, const R: usize> Kernel for GroupOfRows<'_, '_, E, N, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let &MultiplyFloats { x, columns, asks_ahead, outputs, .. } = self.work;
        let mut of_rows: [&[f32]; R] = [&[]; R];
        for r in 0..R {
            of_rows[r] = &x[self.moves[r].from as usize * columns..][..columns];
        }
        let sums = dots::<S, E, N, R>(s, self.bytes, asks_ahead, of_rows);
        for (r, row) in self.moves.iter().enumerate() {
            outputs.write(s, row.to, self.tile, [sums[0][r], sums[1][r]]);
        }
    }
}

/// Products of both halves of a tile with each row.
#[inline(always)]
fn dots<S: Simd, E: Floats<N>, const N: usize, const R: usize>(
    s: S,
    tile: &[u8],
    asks_ahead: bool,
    x: [&[f32]; R],
) -> [[S::F32; R]; 2] {
    let (features, _) = tile.as_chunks::<N>().0.as_chunks::<2>();
    let mut of_rows = x;
    for r in 0..R {
        of_rows[r] = &x[r][..features.len()];
    }
    let mut sums = [[s.splat(0.0); R]; 2];
    for (i, halves) in features.iter().enumerate() {
        if asks_ahead || R > STREAMED_ROWS {
            for line in halves.as_flattened().chunks_exact(CODE_BYTES) {
                s.prefetch(line.as_ptr().wrapping_add(PREFETCH_BYTES));
            }
        }
        let w = [E::load(s, &halves[0]), E::load(s, &halves[1])];
        for r in 0..R {
            // SAFETY: each row was cut to as many values as the tile has features.
            let x = s.splat(unsafe { *of_rows[r].get_unchecked(i) });
            sums[0][r] = s.fma(w[0], x, sums[0][r]);
            sums[1][r] = s.fma(w[1], x, sums[1][r]);
        }
    }
    sums
}

/// Rows up to which the processor's own prefetching keeps ahead, and how far ahead it is done for more; as for codes.
const STREAMED_ROWS: usize = 2;
const PREFETCH_BYTES: usize = 8192;

/// A float type of weights; 16 of them have `N` bytes.
trait Floats<const N: usize> {
    fn load<S: Simd>(s: S, bytes: &[u8; N]) -> S::F32;
}

struct F32Bytes;
struct F16Bytes;
struct Bf16Bytes;

impl Floats<64> for F32Bytes {
    #[inline(always)]
    fn load<S: Simd>(s: S, bytes: &[u8; 64]) -> S::F32 {
        s.load_f32_bytes(bytes)
    }
}

impl Floats<32> for F16Bytes {
    #[inline(always)]
    fn load<S: Simd>(s: S, bytes: &[u8; 32]) -> S::F32 {
        s.load_f16(bytes)
    }
}

impl Floats<32> for Bf16Bytes {
    #[inline(always)]
    fn load<S: Simd>(s: S, bytes: &[u8; 32]) -> S::F32 {
        s.load_bf16(bytes)
    }
}
