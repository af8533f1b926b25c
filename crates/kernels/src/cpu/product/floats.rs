//! Float weights with f32 activations.

use std::ops::Range;

use super::Move;
use crate::FloatFormat;
use crate::cpu::instruction_set::Kernel;
use crate::cpu::math::load_part;
use crate::cpu::simd::{LANES, Simd};

/// Output features computed together, so that their sums do not wait for each other.
pub(in crate::cpu) const FEATURES: usize = 4;

/// The products of `moves` with some rows of a weight; `write(to, feature, value)` gets each element.
pub(super) struct MultiplyFloats<'a, 'w> {
    pub(super) format: FloatFormat,
    pub(super) features: Range<usize>,
    pub(super) moves: &'a [Move],
    /// Little-endian floats of an output feature.
    pub(super) weight_row: &'a dyn Fn(usize) -> &'w [u8],
    pub(super) row: &'a dyn Fn(u32) -> &'a [f32],
    pub(super) write: &'a dyn Fn(u32, usize, f32),
}

impl Kernel for MultiplyFloats<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.format {
            FloatFormat::F32 => self.features::<S, F32Bytes, 64>(s),
            FloatFormat::F16 => self.features::<S, F16Bytes, 32>(s),
            FloatFormat::BF16 => self.features::<S, Bf16Bytes, 32>(s),
        }
    }
}

impl MultiplyFloats<'_, '_> {
    #[inline(always)]
    fn features<S: Simd, E: Floats<N>, const N: usize>(&self, s: S) {
        let mut features = self.features.clone();
        while features.len() >= FEATURES {
            self.rows::<S, E, N, FEATURES>(s, features.start);
            features.start += FEATURES;
        }
        for feature in features {
            self.rows::<S, E, N, 1>(s, feature);
        }
    }

    #[inline(always)]
    fn rows<S: Simd, E: Floats<N>, const N: usize, const F: usize>(&self, s: S, feature: usize) {
        let w: [&[u8]; F] = std::array::from_fn(|f| (self.weight_row)(feature + f));
        let (quads, rest) = self.moves.as_chunks::<4>();
        for moves in quads {
            self.block::<S, E, N, F, 4>(s, feature, w, moves);
        }
        for moves in rest {
            self.block::<S, E, N, F, 1>(s, feature, w, std::array::from_ref(moves));
        }
    }

    #[inline(always)]
    fn block<S: Simd, E: Floats<N>, const N: usize, const F: usize, const R: usize>(
        &self,
        s: S,
        feature: usize,
        w: [&[u8]; F],
        moves: &[Move; R],
    ) {
        let x = moves.map(|row| (self.row)(row.from));
        let sums = dots::<S, E, N, F, R>(s, w, x);
        for (f, sums) in sums.into_iter().enumerate() {
            for (row, sum) in moves.iter().zip(sums) {
                (self.write)(row.to, feature + f, s.sum(sum));
            }
        }
    }
}

/// Products of each weight row with each activation row, lane by lane in ascending order.
#[inline(always)]
fn dots<S: Simd, E: Floats<N>, const N: usize, const F: usize, const R: usize>(
    s: S,
    w: [&[u8]; F],
    x: [&[f32]; R],
) -> [[S::F32; R]; F] {
    let columns = x[0].len();
    let vectors = columns / LANES;
    let mut sums = [[s.splat(0.0); R]; F];
    let w_vectors = w.map(|w| &w.as_chunks::<N>().0[..vectors]);
    let x_vectors = x.map(|x| &x.as_chunks::<LANES>().0[..vectors]);
    for i in 0..vectors {
        let mut x = [s.splat(0.0); R];
        for r in 0..R {
            x[r] = s.load(&x_vectors[r][i]);
        }
        for f in 0..F {
            let w = E::load(s, &w_vectors[f][i]);
            for r in 0..R {
                sums[f][r] = s.fma(w, x[r], sums[f][r]);
            }
        }
    }
    if !columns.is_multiple_of(LANES) {
        let tails = x;
        let mut x = [s.splat(0.0); R];
        for r in 0..R {
            x[r] = load_part(s, &tails[r][vectors * LANES..]);
        }
        for f in 0..F {
            let mut bytes = [0; N];
            let tail = &w[f][vectors * N..];
            bytes[..tail.len()].copy_from_slice(tail);
            let w = E::load(s, &bytes);
            for r in 0..R {
                sums[f][r] = s.fma(w, x[r], sums[f][r]);
            }
        }
    }
    sums
}

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
