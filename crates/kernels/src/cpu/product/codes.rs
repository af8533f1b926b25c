//! Tiles of 32 output features with the 8-bit activations of all rows.
//!
//! What bounds it: for one or two rows the bytes of the tiles. For more, the two units that multiply: a row and half a
//! tile cost them, per group of 32 input features, 8 integer products, one product of the two scales' kind and one
//! fused multiplication and addition, so at most 8/10 of the peak of integer products (8/11 with biases).

use std::marker::PhantomData;
use std::ops::Range;

use super::scales::{Floats, Halves, Scales, Super, SuperNibbles};
use super::{Move, Outputs};
use crate::blocks::IQ4_VALUES;
use crate::cpu::activations::ActivationGroup;
use crate::cpu::simd::{CODE_BYTES, Codes, Kernel, Simd};
use crate::cpu::tiles::Tiles;
use crate::{FloatFormat, WeightFormat};

/// The products of `moves` with some tiles.
pub(super) struct MultiplyTiles<'a, 'o> {
    pub(super) tiles: &'a Tiles,
    pub(super) range: Range<usize>,
    pub(super) moves: &'a [Move],
    /// Activations, `[rows, groups]`.
    pub(super) x: &'a [ActivationGroup],
    /// Groups of a row.
    pub(super) groups: usize,
    /// Whether one or two rows ask for memory by instruction; see `ahead.rs`.
    pub(super) asks_ahead: bool,
    pub(super) outputs: Outputs<'o>,
}

impl Kernel for MultiplyTiles<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        with_format(self.tiles.layout.format, InSet { s, work: self });
    }
}

/// Rows that share an unpacked code vector.
const fn rows_together<S: Simd, F: Packed>() -> usize {
    if F::MAX == 255 { S::ROWS_OF_BYTES } else { S::ROWS }
}

/// Work with tiles in one instruction set.
pub(super) struct InSet<S, W> {
    pub(super) s: S,
    pub(super) work: W,
}

/// What is done with tiles once it is known how they are packed.
pub(super) trait WithFormat {
    fn run<F: Packed, P: Scales>(self, codes: F, scales: P);
}

#[inline(always)]
pub(super) fn with_format(format: WeightFormat, work: impl WithFormat) {
    match format {
        WeightFormat::Q4_0 => work.run(Planes::<4, 0, 8, 1>, Halves::<false>),
        WeightFormat::Q4_1 => work.run(Planes::<4, 0, 0, 1>, Halves::<true>),
        WeightFormat::Q5_0 => work.run(Planes::<4, 1, 16, 1>, Halves::<false>),
        WeightFormat::Q5_1 => work.run(Planes::<4, 1, 0, 1>, Halves::<true>),
        WeightFormat::Q8_0 => work.run(Planes::<8, 0, 128, 1>, Halves::<false>),
        WeightFormat::Q2_K => work.run(Planes::<2, 0, 0, 2>, SuperNibbles),
        WeightFormat::Q3_K => work.run(Planes::<2, 1, 4, 2>, Super::<false, 2>),
        WeightFormat::Q4_K => work.run(Planes::<4, 0, 0, 1>, Super::<true, 1>),
        WeightFormat::Q5_K => work.run(Planes::<4, 1, 0, 1>, Super::<true, 1>),
        WeightFormat::Q6_K => work.run(Planes::<4, 2, 32, 2>, Super::<false, 2>),
        WeightFormat::IQ4_NL => work.run(Table, Halves::<false>),
        WeightFormat::IQ4_XS => work.run(Table, Super::<false, 1>),
        WeightFormat::Affine { bits: 4, scales, .. } => work.run(Planes::<4, 0, 0, 1>, Floats::<true>(scales)),
        WeightFormat::Affine { .. } => work.run(Planes::<8, 0, 128, 1>, Floats::<true>(FloatFormat::F32)),
        WeightFormat::Int8PerRow => work.run(Planes::<8, 0, 128, 1>, Floats::<false>(FloatFormat::F32)),
        WeightFormat::Float(_) => unreachable!("float tiles have no codes"),
    }
}

impl<S: Simd> WithFormat for InSet<S, MultiplyTiles<'_, '_>> {
    #[inline(always)]
    fn run<F: Packed, P: Scales>(self, _: F, scales: P) {
        let Self { s, work } = self;
        for tile in work.range.clone() {
            for (nth, moves) in work.moves.chunks(rows_together::<S, F>()).enumerate() {
                // Later groups of rows find the tile in a cache.
                work.rows::<S, F, P>(s, scales, tile, moves, nth == 0);
            }
        }
    }
}

impl MultiplyTiles<'_, '_> {
    /// Multiplies rows that share a code vector, in the function compiled for their number.
    #[inline(always)]
    fn rows<S: Simd, F: Packed, P: Scales>(&self, s: S, scales: P, tile: usize, moves: &[Move], is_cold: bool) {
        match moves.len() {
            1 => self.group_of_rows::<S, F, P, 1>(s, scales, tile, moves, is_cold),
            2 => self.group_of_rows::<S, F, P, 2>(s, scales, tile, moves, is_cold),
            3 => self.group_of_rows::<S, F, P, 3>(s, scales, tile, moves, is_cold),
            4 => self.group_of_rows::<S, F, P, 4>(s, scales, tile, moves, is_cold),
            5 => self.group_of_rows::<S, F, P, 5>(s, scales, tile, moves, is_cold),
            6 => self.group_of_rows::<S, F, P, 6>(s, scales, tile, moves, is_cold),
            7 => self.group_of_rows::<S, F, P, 7>(s, scales, tile, moves, is_cold),
            _ => self.group_of_rows::<S, F, P, 8>(s, scales, tile, moves, is_cold),
        }
    }

    #[inline(always)]
    fn group_of_rows<S: Simd, F: Packed, P: Scales, const R: usize>(
        &self,
        s: S,
        scales: P,
        tile: usize,
        moves: &[Move],
        is_cold: bool,
    ) {
        // No set calls for more rows than it shares a vector between, and this leaves those kernels out.
        if const { R <= rows_together::<S, F>() } {
            s.call(GroupOfRows::<F, P, R> { work: self, scales, tile, moves, is_cold, format: PhantomData });
        }
    }
}

/// The products of a tile with `R` rows, which share each unpacked code vector; their sums stay in registers.
struct GroupOfRows<'a, F, P, const R: usize> {
    work: &'a MultiplyTiles<'a, 'a>,
    scales: P,
    tile: usize,
    moves: &'a [Move],
    /// Whether the tile has yet to be read from memory.
    is_cold: bool,
    format: PhantomData<F>,
}

impl<F: Packed, P: Scales, const R: usize> Kernel for GroupOfRows<'_, F, P, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let MultiplyTiles { x, groups, outputs, .. } = *self.work;
        let mut of_rows: [&[ActivationGroup]; R] = [&[]; R];
        for r in 0..R {
            of_rows[r] = &x[self.moves[r].from as usize * groups..][..groups];
        }
        let sums = self.sum_groups(s, of_rows);
        for (r, row) in self.moves.iter().enumerate() {
            outputs.write(s, row.to, self.tile, [sums[0][r], sums[1][r]]);
        }
    }
}

impl<F: Packed, P: Scales, const R: usize> GroupOfRows<'_, F, P, R> {
    /// `Σ_g xscale · (scale · Σ code · xcode + bias · Σ xcode)`, groups in ascending order, of both halves.
    #[inline(always)]
    fn sum_groups<S: Simd>(&self, s: S, x: [&[ActivationGroup]; R]) -> [[S::F32; R]; 2] {
        let &Self { work: &MultiplyTiles { tiles, asks_ahead, .. }, scales, tile, is_cold, .. } = self;
        let layout = &tiles.layout;
        let header_bytes = P::HEADER_BYTES.unwrap_or(layout.header_bytes);
        let block_groups = P::BLOCK_GROUPS.unwrap_or(layout.block_groups);
        let block_bytes = header_bytes + block_groups * 2 * F::VECTORS * CODE_BYTES;
        let groups = layout.blocks * block_groups;
        let mut of_rows = x;
        for r in 0..R {
            of_rows[r] = &x[r][..groups];
        }
        let mut sums = [[s.splat(0.0); R]; 2];
        for (b, block) in tiles.tile(tile).chunks_exact(block_bytes).enumerate() {
            let (header, stored) = block.split_at(header_bytes);
            let open = scales.open(s, header);
            let header_lines: &[[u8; CODE_BYTES]] = header.as_chunks().0;
            let ahead = is_cold && (asks_ahead || R > streamed_rows::<F, P>());
            if ahead {
                prefetch::<S, F>(s, header_lines);
            } else if P::BLOCK_GROUPS != Some(1) {
                // What the groups will ask for one by one is met in passing: without this, one row of `Q4_K` read 10 GB/s,
                // not 27.
                header_lines.iter().for_each(|line| s.prefetch_near(line.as_ptr()));
            }
            for (i, stored) in stored.as_chunks::<CODE_BYTES>().0.chunks_exact(2 * F::VECTORS).enumerate() {
                if ahead {
                    prefetch::<S, F>(s, stored);
                }
                let mut group = [&ActivationGroup::ZERO; R];
                for r in 0..R {
                    // SAFETY: each row was cut to `groups` groups above, and a tile has `blocks` blocks of `block_groups`;
                    // checked, the eight bounds would take a tenth of the loop.
                    group[r] = unsafe { of_rows[r].get_unchecked(b * block_groups + i) };
                }
                for part in 0..F::SCALES {
                    let which = F::SCALES * i + part;
                    let [of_low, of_high] = &mut sums;
                    // No loop over the halves here: the compiler would keep it, and the sums in memory.
                    if R <= S::ROWS_OF_BOTH_HALVES {
                        let [low, high] = dots::<S, F, R, 2>(s, stored, 0, group, part);
                        add_scaled(s, low, group, scales.scale(s, header, &open, 0, which), of_low);
                        add_scaled(s, high, group, scales.scale(s, header, &open, 1, which), of_high);
                    } else {
                        let [low] = dots::<S, F, R, 1>(s, stored, 0, group, part);
                        add_scaled(s, low, group, scales.scale(s, header, &open, 0, which), of_low);
                        let [high] = dots::<S, F, R, 1>(s, stored, 1, group, part);
                        add_scaled(s, high, group, scales.scale(s, header, &open, 1, which), of_high);
                    }
                    if P::BIASED {
                        for (half, sums) in sums.iter_mut().enumerate() {
                            let bias = scales.bias(s, header, &open, half, which);
                            for r in 0..R {
                                let xsum =
                                    if F::SCALES == 1 { group[r].scaled_sum } else { group[r].scaled_half_sums[part] };
                                sums[r] = s.fma(s.splat(xsum), bias, sums[r]);
                            }
                        }
                    }
                }
            }
        }
        sums
    }
}

/// Rows up to which the processor's own prefetching keeps ahead of the products, where it does at all: see `ahead.rs`.
/// Header and codes read by turns are two places to it, and scales for half a group are more of them.
///
/// Measured on Zen 4 cores with and without prefetching by instruction, which the others get. One thread, `Q4_0`: one row
/// 20 and 30 GB/s, two rows 25 and 26, four rows 24 and 15, eight rows 12.5 and 6.5. Two threads, time of a pass: `Q4_K`
/// two rows 2.8 and 4.3 ms; `Q6_K` one row 2.9 and 3.5 to 5.0 ms, two rows 2.5 and 5.7 to 7.9 ms. One thread, `Q4_K`, one
/// row: 5.5 and 4.0 ms.
const fn streamed_rows<F: Packed, P: Scales>() -> usize {
    if matches!(P::BLOCK_GROUPS, Some(1)) { 2 } else { 2 - F::SCALES }
}

/// Asks for lines some groups ahead into the second-level cache, and for those that are soon due into the first.
///
/// Every line of a tile must be passed, headers too: one line of nine left out cost 40 % of the speed of four rows.
#[inline(always)]
fn prefetch<S: Simd, F: Packed>(s: S, stored: &[[u8; CODE_BYTES]]) {
    // 16 groups ahead, and somewhat more than two: measured for 4 bits, with distances of 1 to 12 KiB, as above. Groups take
    // the same time whatever their bits, so memory is given the same time to answer.
    let (far, near) = (2048 * F::VECTORS, 288 * F::VECTORS);
    for vector in stored {
        s.prefetch(vector.as_ptr().wrapping_add(far));
        s.prefetch_near(vector.as_ptr().wrapping_add(near));
    }
}

/// `sums += xscale · dot · scale` for each row.
#[inline(always)]
fn add_scaled<S: Simd, const R: usize>(
    s: S,
    dots: [S::I32; R],
    group: [&ActivationGroup; R],
    scale: S::F32,
    sums: &mut [S::F32; R],
) {
    for r in 0..R {
        let dot = s.mul(s.to_f32(dots[r]), s.splat(group[r].scale));
        sums[r] = s.fma(dot, scale, sums[r]);
    }
}

/// Exact sums of `H` halves from `first_half` on, of each row over the part of the group that scale `part` covers.
#[inline(always)]
fn dots<S: Simd, F: Packed, const R: usize, const H: usize>(
    s: S,
    stored: &[[u8; CODE_BYTES]],
    first_half: usize,
    x: [&ActivationGroup; R],
    part: usize,
) -> [[S::I32; R]; H] {
    let mut start = [0; R];
    for r in 0..R {
        start[r] = F::start(x[r], part);
    }
    if F::SCALES == 1 {
        let mut quads = [&[[0; 4]; 8]; R];
        for r in 0..R {
            quads[r] = x[r].quads();
        }
        return dot::<S, F, 8, R, H>(s, Part::new(stored, first_half, 0), quads, start);
    }
    let mut quads = [&[[0; 4]; 4]; R];
    for r in 0..R {
        quads[r] = &x[r].quads().as_chunks().0[part];
    }
    dot::<S, F, 4, R, H>(s, Part::new(stored, first_half, 4 * part), quads, start)
}

#[inline(always)]
fn dot<S: Simd, F: Packed, const N: usize, const R: usize, const H: usize>(
    s: S,
    codes: Part<'_, F>,
    x: [&[[i8; 4]; N]; R],
    start: [i32; R],
) -> [[S::I32; R]; H] {
    if F::MAX == 255 { s.dot_bytes(codes, x, start) } else { s.dot_codes(codes, x, start) }
}

/// The code vectors of a group from the `first`-th on, of the halves from `first_half` on.
#[derive(Clone, Copy)]
struct Part<'a, F> {
    stored: &'a [[u8; CODE_BYTES]],
    first_half: usize,
    first: usize,
    format: PhantomData<F>,
}

impl<'a, F> Part<'a, F> {
    #[inline(always)]
    fn new(stored: &'a [[u8; CODE_BYTES]], first_half: usize, first: usize) -> Self {
        Self { stored, first_half, first, format: PhantomData }
    }
}

impl<F: Packed> Codes for Part<'_, F> {
    const MAX: i32 = F::MAX;

    #[inline(always)]
    fn vector<S: Simd>(self, s: S, half: usize, p: usize) -> S::Codes {
        F::vector(s, self.stored, self.first_half + half, self.first + p)
    }
}

/// How the codes of a group are packed.
pub(super) trait Packed: Copy {
    /// Stored vectors per half.
    const VECTORS: usize;
    /// Scales per group.
    const SCALES: usize;
    /// The largest code.
    const MAX: i32;
    /// What was added to the codes to make them unsigned.
    const ADDED: i32;

    /// Code vector `p` of a half.
    fn vector<S: Simd>(s: S, stored: &[[u8; CODE_BYTES]], half: usize, p: usize) -> S::Codes;

    /// What [`vector`](Self::vector) has in one lane.
    fn quad(stored: &[[u8; CODE_BYTES]], half: usize, p: usize, lane: usize) -> [u8; 4];

    /// What a sum over the part of scale `part` starts from, to take back what was added to the codes.
    #[inline(always)]
    fn start(x: &ActivationGroup, part: usize) -> i32 {
        match (Self::ADDED, Self::SCALES) {
            (0, _) => 0,
            (128, _) => x.minus_128_sum,
            (added, 1) => x.minus_8_sum * (added / 8),
            // A multiple of 128 all the same.
            (added, _) => x.minus_128_half_sums[part] / (128 / added),
        }
    }
}

/// Codes in planes of `LOW` and `HIGH` bits, `ADDED` to make them unsigned, with `SCALES` scales per group; see
/// `tiles.rs`.
#[derive(Clone, Copy)]
struct Planes<const LOW: usize, const HIGH: usize, const ADDED: i32, const SCALES: usize>;

impl<const LOW: usize, const HIGH: usize, const ADDED: i32, const SCALES: usize> Packed
    for Planes<LOW, HIGH, ADDED, SCALES>
{
    const VECTORS: usize = LOW + HIGH;
    const SCALES: usize = SCALES;
    const MAX: i32 = (1 << (LOW + HIGH)) - 1;
    const ADDED: i32 = ADDED;

    #[inline(always)]
    fn vector<S: Simd>(s: S, stored: &[[u8; CODE_BYTES]], half: usize, p: usize) -> S::Codes {
        let per_vector = 8 / LOW;
        let low = s.load_codes(&stored[2 * (p / per_vector) + half]);
        if LOW == 8 {
            return low;
        }
        let low = s.bits(low, (LOW * (p % per_vector)) as i32, ((1u16 << LOW) - 1) as u8);
        if HIGH == 0 {
            return low;
        }
        let per_vector = 8 / HIGH;
        let high = s.load_codes(&stored[2 * (LOW + p / per_vector) + half]);
        let shift = (HIGH * (p % per_vector)) as i32 - LOW as i32;
        s.or(low, s.bits(high, shift, (((1u16 << HIGH) - 1) << LOW) as u8))
    }

    #[inline(always)]
    fn quad(stored: &[[u8; CODE_BYTES]], half: usize, p: usize, lane: usize) -> [u8; 4] {
        let quad = |vector: usize| &stored[vector].as_chunks::<4>().0[lane];
        let per_vector = 8 / LOW;
        let mask = ((1u16 << LOW) - 1) as u8;
        let low = quad(2 * (p / per_vector) + half).map(|byte| byte >> (LOW * (p % per_vector)) & mask);
        if HIGH == 0 {
            return low;
        }
        let per_vector = 8 / HIGH;
        let mask = ((1u16 << HIGH) - 1) as u8;
        let high = quad(2 * (LOW + p / per_vector) + half).map(|byte| byte >> (HIGH * (p % per_vector)) & mask);
        std::array::from_fn(|i| low[i] | high[i] << LOW)
    }
}

/// Indices of 4 bits into the table of the IQ4 formats.
#[derive(Clone, Copy)]
struct Table;

impl Table {
    /// The values with 128 added, as byte products want them.
    const VALUES: [u8; 16] = {
        let mut values = [0; 16];
        let mut i = 0;
        while i < 16 {
            values[i] = IQ4_VALUES[i] as u8 ^ 0x80;
            i += 1;
        }
        values
    };
}

impl Packed for Table {
    const VECTORS: usize = 4;
    const SCALES: usize = 1;
    const MAX: i32 = 255;
    const ADDED: i32 = 128;

    #[inline(always)]
    fn vector<S: Simd>(s: S, stored: &[[u8; CODE_BYTES]], half: usize, p: usize) -> S::Codes {
        s.lookup(&Self::VALUES, Planes::<4, 0, 0, 1>::vector(s, stored, half, p))
    }

    #[inline(always)]
    fn quad(stored: &[[u8; CODE_BYTES]], half: usize, p: usize, lane: usize) -> [u8; 4] {
        Planes::<4, 0, 0, 1>::quad(stored, half, p, lane).map(|code| Self::VALUES[code as usize])
    }
}
