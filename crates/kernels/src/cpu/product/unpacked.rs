//! Tiles with 8-bit activations of many rows, for AVX2, which has no product of bytes that sums exactly in 32 bits.
//!
//! `vpmaddubsw` adds neighboring products of unsigned and signed bytes in 16 bits, and can take the signed ones from
//! memory. So a tile's codes are unpacked once for all rows, to signed bytes, as many groups at a time as fill half of a
//! first-level cache, and a row is the unsigned factor: `x + 128`, of which `128 Σ code`, the same for all rows, is taken
//! back. Codes of 8 bits are two planes of 4, `16 high + low`. The integers are those of `dot_codes` and `dot_bytes`, and
//! the order of the floats is that of `sum_groups`, so the bits of a row are the same on both ways.
//!
//! What bounds it: instructions. For a row, a tile and a group of 4-bit codes, 8 broadcasts, 32 products and 28 additions;
//! then some 20 to widen and scale the sums. Unpacking again for every four rows takes 26 in place of the 20, and 80 more
//! for the four.
#![allow(clippy::undocumented_unsafe_blocks, reason = "a value of `Avx2` exists only where the instructions do")]

use std::arch::x86_64::*;
use std::ops::Range;

use super::Move;
use super::codes::{MultiplyTiles, Packed, WithFormat, with_format};
use super::scales::Scales;
use crate::blocks::GROUP;
use crate::cpu::activations::ActivationGroup;
use crate::cpu::scratch::grow;
use crate::cpu::simd::{Avx2, CODE_BYTES, Simd, narrow, taken, unrolled};
use crate::cpu::tiles::TileLayout;

/// Rows from which unpacking pays. Measured on Zen 3, two threads, weights of Qwen3-0.6B, against four rows at a time: `Q4_0`
/// 16 rows 105 and 103 GMAC/s, `Q8_0` 56 and 61; with 64 rows 115 to 139 and 67 to 82, where four rows at a time stay
/// what they are. Against eight rows of 8 bits at a time, as they are now: 32 rows 61 and 66, 64 rows 63 and 77.
/// Since rows are functions of their own, against four of `Q4_K`: 32 rows 111 and 125, 64 rows 116 and 134.
pub(super) const FROM_ROWS: usize = 24;

/// Rows at a time, at most.
pub(super) const ROWS: usize = 64;

/// Code vectors that are unpacked at a time, at most: half of a first-level cache of 32 KiB.
const VECTORS: usize = 256;

/// Vectors of unpacked codes of a half in a group and plane.
const QUADS: usize = GROUP / 4;

/// The products of at most [`ROWS`] rows with some tiles.
pub(super) struct MultiplyUnpacked<'a, 'o> {
    pub(super) s: Avx2,
    pub(super) work: MultiplyTiles<'a, 'o>,
    /// Memory for the activations of its moves.
    pub(super) shifted: &'a mut Vec<ActivationGroup>,
}

pub(super) fn multiply(products: MultiplyUnpacked<'_, '_>) {
    with_format(products.work.tiles.layout.format, products);
}

impl WithFormat for MultiplyUnpacked<'_, '_> {
    #[inline(always)]
    fn run<F: Packed, P: Scales>(self, _: F, scales: P) {
        // SAFETY: `self.s` exists only where the target features of the function do.
        unsafe { multiply_format::<F, P>(self, scales) }
    }
}

/// All that follows is inlined into this function, so it is compiled for the set; one function for each format, as
/// [`Simd::call`] says.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply_format<F: Packed, P: Scales>(products: MultiplyUnpacked<'_, '_>, scales: P) {
    let MultiplyUnpacked { s, work, shifted } = products;
    let MultiplyTiles { tiles, moves, groups, .. } = work;
    grow(shifted, moves.len() * groups);
    // A weight may have no columns, a chunk must have some.
    let width = groups.max(1);
    for (&Move { from, .. }, row) in moves.iter().zip(shifted.chunks_exact_mut(width)) {
        for (shifted, group) in row.iter_mut().zip(&work.x[from as usize * groups..][..groups]) {
            *shifted = *group;
            shifted.codes.iter_mut().for_each(|code| *code ^= i8::MIN);
        }
    }
    let layout = &tiles.layout;
    let at_a_time = VECTORS / (2 * QUADS * planes::<F>() * F::SCALES);
    let mut opened = Opened::new(s);
    let mut sums = [[s.splat(0.0); 2]; ROWS];
    for tile in work.range.clone() {
        let sums = &mut sums[..moves.len()];
        sums.fill([s.splat(0.0); 2]);
        for start in (0..groups).step_by(at_a_time) {
            let span = start..groups.min(start + at_a_time);
            opened.open::<F, P>(s, layout, tiles.tile(tile), span.clone(), scales);
            for (sums, x) in sums.iter_mut().zip(shifted.chunks_exact(width)) {
                *sums = add_groups::<F, P>(s, &opened, &x[span.clone()], *sums);
            }
        }
        for (sums, &Move { to, .. }) in sums.iter().zip(moves) {
            work.outputs.write(s, to, tile, *sums);
        }
    }
}

/// Planes of signed codes.
const fn planes<F: Packed>() -> usize {
    if F::MAX == 255 { 2 } else { 1 }
}

/// What is taken from the codes of a plane to make them signed.
const fn center<F: Packed>() -> i32 {
    if F::MAX == 255 { 8 } else { (F::MAX + 1) / 2 }
}

/// `k` of the `k Σ x` by which sums of signed codes differ from those of the format.
const fn added_back<F: Packed>() -> i32 {
    // 16 (high − 8) + (low − 8) = code − 136.
    if F::MAX == 255 { 136 - F::ADDED } else { center::<F>() - F::ADDED }
}

/// Vectors per part of a group that has a scale.
const fn per_part<F: Packed>() -> usize {
    QUADS / F::SCALES
}

type I32 = <Avx2 as Simd>::I32;
type F32 = <Avx2 as Simd>::F32;
type Codes = <Avx2 as Simd>::Codes;

/// Some groups of a tile, ready for any row.
struct Opened {
    /// Signed codes: for each group, plane and four input features, the two halves.
    codes: [Codes; VECTORS],
    /// For each scale of each group.
    parts: [Part; VECTORS / (2 * QUADS)],
}

/// What belongs to a scale, for both halves.
#[derive(Clone, Copy)]
struct Part {
    /// `−128 Σ code`.
    minus_128_sums: [I32; 2],
    scales: [F32; 2],
    /// If the format has them.
    biases: [F32; 2],
}

impl Opened {
    #[inline(always)]
    fn new(s: Avx2) -> Self {
        let (integers, floats) = (unsafe { [_mm256_setzero_si256(); 2] }, s.splat(0.0));
        let part = Part { minus_128_sums: [integers; 2], scales: [floats; 2], biases: [floats; 2] };
        Self { codes: [integers; VECTORS], parts: [part; VECTORS / (2 * QUADS)] }
    }

    #[inline(always)]
    fn open<F: Packed, P: Scales>(
        &mut self,
        s: Avx2,
        layout: &TileLayout,
        tile: &[u8],
        groups: Range<usize>,
        scales: P,
    ) {
        let of_groups = self.codes.chunks_exact_mut(2 * QUADS * planes::<F>());
        for ((g, codes), parts) in groups.zip(of_groups).zip(self.parts.chunks_exact_mut(F::SCALES)) {
            let block = &tile[g / layout.block_groups * layout.block_bytes()..][..layout.block_bytes()];
            let (header, stored) = block.split_at(layout.header_bytes);
            let open = scales.open(s, header);
            let i = g % layout.block_groups;
            let stored = &stored.as_chunks().0[2 * F::VECTORS * i..][..2 * F::VECTORS];
            for (index, part) in parts.iter_mut().enumerate() {
                for half in 0..2 {
                    let first = index * per_part::<F>();
                    part.minus_128_sums[half] = unpack_part::<F>(s, stored, half, first, codes);
                    let i = F::SCALES * i + index;
                    part.scales[half] = scales.scale(s, header, &open, half, i);
                    if P::BIASED {
                        part.biases[half] = scales.bias(s, header, &open, half, i);
                    }
                }
            }
        }
    }
}

/// Unpacks a half of the part that begins with vector `first`; gives `−128 Σ code` for its features.
#[inline(always)]
fn unpack_part<F: Packed>(s: Avx2, stored: &[[u8; CODE_BYTES]], half: usize, first: usize, out: &mut [Codes]) -> I32 {
    let n = per_part::<F>();
    let mut sums = [unsafe { _mm256_setzero_si256() }; 2];
    unrolled!(P in 0..n {
        let p = first + P;
        let codes = F::vector(s, stored, half, p);
        for plane in 0..planes::<F>() {
            let codes = if planes::<F>() == 1 { codes } else { s.bits(codes, 4 * plane as i32, 15) };
            for part in 0..2 {
                unsafe {
                    let signed = _mm256_sub_epi8(codes[part], _mm256_set1_epi8(center::<F>() as i8));
                    let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1 << (4 * plane)), signed);
                    sums[part] = _mm256_add_epi16(sums[part], pairs);
                    out[2 * (plane * QUADS + p) + half][part] = signed;
                }
            }
        }
    });
    unsafe {
        let minus_128 = _mm256_set1_epi16(-128);
        [_mm256_madd_epi16(sums[0], minus_128), _mm256_madd_epi16(sums[1], minus_128)]
    }
}

/// Adds the products of opened groups with one row, in the order of `sum_groups` in `codes.rs`.
#[inline(always)]
fn add_groups<F: Packed, P: Scales>(s: Avx2, opened: &Opened, x: &[ActivationGroup], sums: [F32; 2]) -> [F32; 2] {
    let mut sums = sums;
    let codes = opened.codes.chunks_exact(2 * QUADS * planes::<F>());
    for ((x, codes), parts) in x.iter().zip(codes).zip(opened.parts.chunks_exact(F::SCALES)) {
        for (index, part) in parts.iter().enumerate() {
            let dots = dot::<F>(s, codes, x, index, part);
            for half in 0..2 {
                let dot = s.mul(s.to_f32(dots[half]), s.splat(x.scale));
                sums[half] = s.fma(dot, part.scales[half], sums[half]);
                if P::BIASED {
                    let xsum = if F::SCALES == 1 { x.scaled_sum } else { x.scaled_half_sums[index] };
                    sums[half] = s.fma(s.splat(xsum), part.biases[half], sums[half]);
                }
            }
        }
    }
    sums
}

/// The exact sums of both halves of the tile over part `index` of a group.
#[inline(always)]
fn dot<F: Packed>(s: Avx2, codes: &[Codes], x: &ActivationGroup, index: usize, part: &Part) -> [I32; 2] {
    let n = per_part::<F>();
    const { assert!(per_part::<F>().is_multiple_of(narrow(per_part::<F>(), 255 * center::<F>())), "no vector is left out") };
    let narrow = narrow(n, 255 * center::<F>());
    unsafe {
        let zero = _mm256_setzero_si256();
        let row_term = _mm256_set1_epi32(added_back::<F>() * x_sum::<F>(x, index));
        let mut sums = part.minus_128_sums;
        if added_back::<F>() != 0 {
            for sum in sums.as_flattened_mut() {
                *sum = _mm256_add_epi32(*sum, row_term);
            }
        }
        let mut pairs = [[[zero; 2]; 2]; 2];
        unrolled!(P in 0..n {
            let quad = index * n + P;
            let x = _mm256_set1_epi32(bytemuck::cast::<[i8; 4], i32>(x.quads()[quad]));
            for plane in 0..planes::<F>() {
                for half in 0..2 {
                    let codes = codes[2 * (plane * QUADS + quad) + half];
                    for part in 0..2 {
                        let products = _mm256_maddubs_epi16(x, codes[part]);
                        pairs[plane][half][part] = _mm256_add_epi16(pairs[plane][half][part], products);
                    }
                }
            }
            if (P + 1).is_multiple_of(narrow) {
                let pairs = taken(&mut pairs, [[[zero; 2]; 2]; 2]);
                for half in 0..2 {
                    for part in 0..2 {
                        sums[half][part] = s.widened(sums[half][part], pairs[0][half][part]);
                        if planes::<F>() == 2 {
                            let high = _mm256_madd_epi16(pairs[1][half][part], _mm256_set1_epi16(16));
                            sums[half][part] = _mm256_add_epi32(sums[half][part], high);
                        }
                    }
                }
            }
        });
        sums
    }
}

/// `Σ x` over part `index` of a group.
#[inline(always)]
fn x_sum<F: Packed>(x: &ActivationGroup, index: usize) -> i32 {
    if F::SCALES == 1 { -(x.minus_8_sum >> 3) } else { -(x.minus_128_half_sums[index] >> 7) }
}
