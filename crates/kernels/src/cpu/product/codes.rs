//! One tile of 16 output features with the 8-bit activations of all rows.

use super::Move;
use super::scales::{Scales, TileScales};
use crate::blocks::IQ4_VALUES;
use crate::cpu::activations::ActivationGroup;
use crate::cpu::instruction_set::Kernel;
use crate::cpu::simd::{CODE_BYTES, LANES, Simd};
use crate::cpu::tiles::CodeLayout;

/// Codes and scales of 16 output features.
pub(super) struct Tile<'a> {
    pub(super) layout: CodeLayout,
    pub(super) codes: &'a [[u8; CODE_BYTES]],
    pub(super) scales: TileScales<'a>,
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
            CodeLayout::Nibbles => self.scales(s, Nibbles::<false>),
            CodeLayout::SignedNibbles => self.scales(s, Nibbles::<true>),
            CodeLayout::TableNibbles => self.scales(s, TableNibbles),
            CodeLayout::Bytes => self.scales(s, Bytes),
            CodeLayout::BytesPer16 => self.scales(s, BytesPer16),
        }
    }
}

impl MultiplyTile<'_> {
    #[inline(always)]
    fn scales<S: Simd, C: Codes>(&self, s: S, codes: C) {
        match self.tile.scales {
            TileScales::Floats(scales) => self.rows(s, codes, scales),
            TileScales::Halves(scales) => self.rows(s, codes, scales),
        }
    }

    /// Up to eight rows share each unpacked group; their sums stay in registers.
    #[inline(always)]
    fn rows<S: Simd, C: Codes, P: Scales>(&self, s: S, codes: C, scales: P) {
        for moves in self.moves.chunks(8) {
            match moves.len() {
                1 => self.group_of_rows::<S, C, P, 1>(s, codes, scales, moves),
                2 => self.group_of_rows::<S, C, P, 2>(s, codes, scales, moves),
                3 => self.group_of_rows::<S, C, P, 3>(s, codes, scales, moves),
                4 => self.group_of_rows::<S, C, P, 4>(s, codes, scales, moves),
                5 => self.group_of_rows::<S, C, P, 5>(s, codes, scales, moves),
                6 => self.group_of_rows::<S, C, P, 6>(s, codes, scales, moves),
                7 => self.group_of_rows::<S, C, P, 7>(s, codes, scales, moves),
                _ => self.group_of_rows::<S, C, P, 8>(s, codes, scales, moves),
            }
        }
    }

    #[inline(always)]
    fn group_of_rows<S: Simd, C: Codes, P: Scales, const R: usize>(&self, s: S, codes: C, scales: P, moves: &[Move]) {
        let x: [&[ActivationGroup]; R] = std::array::from_fn(|r| (self.row)(moves[r].from));
        let sums = sum_groups::<S, C, P, R>(s, codes, self.tile.codes, scales, x);
        for r in 0..R {
            let mut values = [0.0; LANES];
            s.store(sums[r], &mut values);
            (self.write)(moves[r].to, &values);
        }
    }
}

/// `Σ_g xscale · (scale · Σ code · xcode + bias · Σ xcode)`, groups in ascending order.
#[inline(always)]
fn sum_groups<S: Simd, C: Codes, P: Scales, const R: usize>(
    s: S,
    codes: C,
    stored: &[[u8; CODE_BYTES]],
    scales: P,
    x: [&[ActivationGroup]; R],
) -> [S::F32; R] {
    let groups = stored.len() / C::VECTORS;
    let x = x.map(|x| &x[..groups]);
    let mut sums = [s.splat(0.0); R];
    for (g, stored) in stored.chunks_exact(C::VECTORS).enumerate() {
        for vector in stored {
            s.prefetch(vector.as_ptr().wrapping_add(PREFETCH_BYTES));
        }
        let vectors = codes.unpack(s, stored);
        let mut group = [&NO_ACTIVATIONS; R];
        for r in 0..R {
            // SAFETY: each row was cut to `groups` groups above; checked, the eight bounds would take a tenth of the loop.
            group[r] = unsafe { x[r].get_unchecked(g) };
        }
        for part in 0..C::SCALES {
            let scale = scales.scale(s, C::SCALES * g + part);
            let dots = codes.dot(s, &vectors, group, part);
            for r in 0..R {
                let dot = s.mul(s.to_f32(dots[r]), s.splat(group[r].scale));
                sums[r] = s.fma(dot, scale, sums[r]);
            }
            if let Some(bias) = scales.bias(s, C::SCALES * g + part) {
                for r in 0..R {
                    let xsum = if C::SCALES == 1 { group[r].scaled_sum } else { group[r].scaled_half_sums[part] };
                    sums[r] = s.fma(s.splat(xsum), bias, sums[r]);
                }
            }
        }
    }
    sums
}

/// How far ahead codes are asked for. Measured on a Zen 4 core beside other work, one row of `Q4_0`: 11 GB/s without, 17
/// with 4096, 20 with 8192; into the first-level cache instead, whose misses are fewer at a time, 13.
const PREFETCH_BYTES: usize = 8192;

/// Stands in an array until its rows are known.
static NO_ACTIVATIONS: ActivationGroup = ActivationGroup::ZERO;

/// How a group of 32 input features is unpacked into 8 code vectors and multiplied.
trait Codes: Copy {
    /// Vectors per group as stored.
    const VECTORS: usize;
    /// Scales per group.
    const SCALES: usize;

    fn unpack<S: Simd>(self, s: S, stored: &[[u8; CODE_BYTES]]) -> [S::Codes; 8];

    /// Exact sums of each row over the part of the group that scale `part` covers.
    fn dot<S: Simd, const R: usize>(
        self,
        s: S,
        codes: &[S::Codes; 8],
        x: [&ActivationGroup; R],
        part: usize,
    ) -> [S::I32; R];
}

// The arrays below are written out: closures and loops over them are not always inlined, and what is not inlined is not
// compiled with the instructions of its set.

#[inline(always)]
fn unpack_nibbles<S: Simd>(s: S, stored: &[[u8; CODE_BYTES]]) -> [S::Codes; 8] {
    let (a, b) = s.nibbles(s.load_codes(&stored[0]));
    let (c, d) = s.nibbles(s.load_codes(&stored[1]));
    let (e, f) = s.nibbles(s.load_codes(&stored[2]));
    let (g, h) = s.nibbles(s.load_codes(&stored[3]));
    [a, b, c, d, e, f, g, h]
}

#[inline(always)]
fn load_bytes<S: Simd>(s: S, stored: &[[u8; CODE_BYTES]]) -> [S::Codes; 8] {
    [
        s.load_codes(&stored[0]),
        s.load_codes(&stored[1]),
        s.load_codes(&stored[2]),
        s.load_codes(&stored[3]),
        s.load_codes(&stored[4]),
        s.load_codes(&stored[5]),
        s.load_codes(&stored[6]),
        s.load_codes(&stored[7]),
    ]
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
    fn dot<S: Simd, const R: usize>(
        self,
        s: S,
        codes: &[S::Codes; 8],
        x: [&ActivationGroup; R],
        _: usize,
    ) -> [S::I32; R] {
        let mut quads = [&[[0; 4]; 8]; R];
        let mut start = [0; R];
        for r in 0..R {
            quads[r] = x[r].quads();
            start[r] = if SIGNED { x[r].minus_8_sum } else { 0 };
        }
        s.dot_nibbles(codes, quads, start)
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
        let mut codes = unpack_nibbles(s, stored);
        for codes in &mut codes {
            *codes = s.lookup(&TABLE, *codes);
        }
        codes
    }

    #[inline(always)]
    fn dot<S: Simd, const R: usize>(
        self,
        s: S,
        codes: &[S::Codes; 8],
        x: [&ActivationGroup; R],
        _: usize,
    ) -> [S::I32; R] {
        dot_bytes(s, codes, x)
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
    fn dot<S: Simd, const R: usize>(
        self,
        s: S,
        codes: &[S::Codes; 8],
        x: [&ActivationGroup; R],
        _: usize,
    ) -> [S::I32; R] {
        dot_bytes(s, codes, x)
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
    fn dot<S: Simd, const R: usize>(
        self,
        s: S,
        codes: &[S::Codes; 8],
        x: [&ActivationGroup; R],
        part: usize,
    ) -> [S::I32; R] {
        let codes: &[S::Codes; 4] = &codes.as_chunks().0[part];
        let mut quads = [&[[0; 4]; 4]; R];
        let mut start = [0; R];
        for r in 0..R {
            quads[r] = &x[r].quads().as_chunks().0[part];
            start[r] = x[r].minus_128_half_sums[part];
        }
        s.dot_bytes(codes, quads, start)
    }
}

/// Products of byte codes with whole groups.
#[inline(always)]
fn dot_bytes<S: Simd, const R: usize>(s: S, codes: &[S::Codes; 8], x: [&ActivationGroup; R]) -> [S::I32; R] {
    let mut quads = [&[[0; 4]; 8]; R];
    let mut start = [0; R];
    for r in 0..R {
        quads[r] = x[r].quads();
        start[r] = x[r].minus_128_sum;
    }
    s.dot_bytes(codes, quads, start)
}
