//! One tile of 16 output features with the 8-bit activations of all rows.

use super::Move;
use crate::blocks::{GROUP, IQ4_VALUES};
use crate::cpu::activations::ActivationGroup;
use crate::cpu::instruction_set::Kernel;
use crate::cpu::simd::{CODE_BYTES, LANES, Simd};
use crate::cpu::tiles::CodeLayout;

/// Codes and scales of 16 output features.
pub(super) struct Tile<'a> {
    pub(super) layout: CodeLayout,
    pub(super) codes: &'a [[u8; CODE_BYTES]],
    /// One vector per scale of a feature.
    pub(super) scales: &'a [[f32; LANES]],
    pub(super) biases: Option<&'a [[f32; LANES]]>,
}

/// The products of `moves` with a tile; `write(to, values)` gets those of each row.
pub(super) struct MultiplyTile<'a> {
    pub(super) tile: &'a Tile<'a>,
    pub(super) moves: &'a [Move],
    pub(super) row: &'a dyn Fn(u32) -> &'a [ActivationGroup],
    pub(super) write: &'a dyn Fn(u32, &[f32; LANES]),
}

impl Kernel for MultiplyTile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.tile.layout {
            CodeLayout::Nibbles => self.rows(s, Nibbles::<false>),
            CodeLayout::SignedNibbles => self.rows(s, Nibbles::<true>),
            CodeLayout::TableNibbles => self.rows(s, TableNibbles),
            CodeLayout::Bytes => self.rows(s, Bytes),
            CodeLayout::BytesPer16 => self.rows(s, BytesPer16),
        }
    }
}

impl MultiplyTile<'_> {
    /// Up to eight rows share each unpacked group; their sums stay in registers.
    #[inline(always)]
    fn rows<S: Simd, C: Codes>(&self, s: S, codes: C) {
        for moves in self.moves.chunks(8) {
            match moves.len() {
                1 => self.group_of_rows::<S, C, 1>(s, codes, moves),
                2 => self.group_of_rows::<S, C, 2>(s, codes, moves),
                3 => self.group_of_rows::<S, C, 3>(s, codes, moves),
                4 => self.group_of_rows::<S, C, 4>(s, codes, moves),
                5 => self.group_of_rows::<S, C, 5>(s, codes, moves),
                6 => self.group_of_rows::<S, C, 6>(s, codes, moves),
                7 => self.group_of_rows::<S, C, 7>(s, codes, moves),
                _ => self.group_of_rows::<S, C, 8>(s, codes, moves),
            }
        }
    }

    #[inline(always)]
    fn group_of_rows<S: Simd, C: Codes, const R: usize>(&self, s: S, codes: C, moves: &[Move]) {
        let x: [&[ActivationGroup]; R] = std::array::from_fn(|r| (self.row)(moves[r].from));
        let sums = match self.tile.biases {
            Some(biases) => sum_groups::<S, C, R, true>(s, codes, self.tile, biases, x),
            None => sum_groups::<S, C, R, false>(s, codes, self.tile, self.tile.scales, x),
        };
        for r in 0..R {
            let mut values = [0.0; LANES];
            s.store(sums[r], &mut values);
            (self.write)(moves[r].to, &values);
        }
    }
}

/// `Σ_g xscale · (scale · Σ code · xcode + bias · Σ xcode)`, groups in ascending order.
#[inline(always)]
fn sum_groups<S: Simd, C: Codes, const R: usize, const BIASED: bool>(
    s: S,
    codes: C,
    tile: &Tile<'_>,
    biases: &[[f32; LANES]],
    x: [&[ActivationGroup]; R],
) -> [S::F32; R] {
    let groups = tile.codes.len() / C::VECTORS;
    let x = x.map(|x| &x[..groups]);
    let (scales, biases) = (&tile.scales[..groups * C::SCALES], &biases[..groups * C::SCALES]);
    let mut sums = [s.splat(0.0); R];
    for g in 0..groups {
        let vectors = codes.unpack(s, &tile.codes[g * C::VECTORS..][..C::VECTORS]);
        for half in 0..C::SCALES {
            let scale = s.load(&scales[C::SCALES * g + half]);
            for r in 0..R {
                let x = &x[r][g];
                let dot = s.to_f32(codes.dot(s, &vectors, x, half));
                sums[r] = s.fma(s.mul(dot, s.splat(x.scale)), scale, sums[r]);
            }
            if BIASED {
                let bias = s.load(&biases[C::SCALES * g + half]);
                for r in 0..R {
                    let xsum = if C::SCALES == 1 { x[r][g].scaled_sum } else { x[r][g].scaled_half_sums[half] };
                    sums[r] = s.fma(s.splat(xsum), bias, sums[r]);
                }
            }
        }
    }
    sums
}

/// How a group of 32 input features is unpacked into 8 code vectors and multiplied.
trait Codes: Copy {
    /// Vectors per group as stored.
    const VECTORS: usize;
    /// Scales per group.
    const SCALES: usize;

    fn unpack<S: Simd>(self, s: S, stored: &[[u8; CODE_BYTES]]) -> [S::Codes; 8];

    /// Exact sums over the part of the group that scale `part` covers.
    fn dot<S: Simd>(self, s: S, codes: &[S::Codes; 8], x: &ActivationGroup, part: usize) -> S::I32;
}

#[inline(always)]
fn unpack_nibbles<S: Simd>(s: S, stored: &[[u8; CODE_BYTES]]) -> [S::Codes; 8] {
    let pairs = [0, 1, 2, 3].map(|b| s.nibbles(s.load_codes(&stored[b])));
    let [(a, b), (c, d), (e, f), (g, h)] = pairs;
    [a, b, c, d, e, f, g, h]
}

#[inline(always)]
fn load_bytes<S: Simd>(s: S, stored: &[[u8; CODE_BYTES]]) -> [S::Codes; 8] {
    [0, 1, 2, 3, 4, 5, 6, 7].map(|p| s.load_codes(&stored[p]))
}

/// Codes of 0..=15, or −8..=7 with 8 added.
#[derive(Clone, Copy)]
struct Nibbles<const SIGNED: bool>;

impl<const SIGNED: bool> Codes for Nibbles<SIGNED> {
    const VECTORS: usize = 4;
    const SCALES: usize = 1;

    #[inline(always)]
    fn unpack<S: Simd>(self, s: S, stored: &[[u8; CODE_BYTES]]) -> [S::Codes; 8] {
        unpack_nibbles(s, stored)
    }

    #[inline(always)]
    fn dot<S: Simd>(self, s: S, codes: &[S::Codes; 8], x: &ActivationGroup, _: usize) -> S::I32 {
        s.dot_nibbles(codes, &x.codes, if SIGNED { x.minus_8_sum } else { 0 })
    }
}

/// Indices into the table of the IQ4 formats.
#[derive(Clone, Copy)]
struct TableNibbles;

/// The table with 128 added, as byte products want it.
const TABLE: [u8; 16] = {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i] = IQ4_VALUES[i] as u8 ^ 0x80;
        i += 1;
    }
    table
};

impl Codes for TableNibbles {
    const VECTORS: usize = 4;
    const SCALES: usize = 1;

    #[inline(always)]
    fn unpack<S: Simd>(self, s: S, stored: &[[u8; CODE_BYTES]]) -> [S::Codes; 8] {
        unpack_nibbles(s, stored).map(|indices| s.lookup(&TABLE, indices))
    }

    #[inline(always)]
    fn dot<S: Simd>(self, s: S, codes: &[S::Codes; 8], x: &ActivationGroup, _: usize) -> S::I32 {
        s.dot_bytes(codes, &x.codes, x.minus_128_sum)
    }
}

/// Signed codes with 128 added.
#[derive(Clone, Copy)]
struct Bytes;

impl Codes for Bytes {
    const VECTORS: usize = 8;
    const SCALES: usize = 1;

    #[inline(always)]
    fn unpack<S: Simd>(self, s: S, stored: &[[u8; CODE_BYTES]]) -> [S::Codes; 8] {
        load_bytes(s, stored)
    }

    #[inline(always)]
    fn dot<S: Simd>(self, s: S, codes: &[S::Codes; 8], x: &ActivationGroup, _: usize) -> S::I32 {
        s.dot_bytes(codes, &x.codes, x.minus_128_sum)
    }
}

/// Signed codes with 128 added, and a scale for each half of the group.
#[derive(Clone, Copy)]
struct BytesPer16;

impl Codes for BytesPer16 {
    const VECTORS: usize = 8;
    const SCALES: usize = 2;

    #[inline(always)]
    fn unpack<S: Simd>(self, s: S, stored: &[[u8; CODE_BYTES]]) -> [S::Codes; 8] {
        load_bytes(s, stored)
    }

    #[inline(always)]
    fn dot<S: Simd>(self, s: S, codes: &[S::Codes; 8], x: &ActivationGroup, part: usize) -> S::I32 {
        let codes: &[S::Codes; 4] = &codes.as_chunks().0[part];
        s.dot_bytes(codes, &x.codes[part * GROUP / 2..], x.minus_128_half_sums[part])
    }
}
