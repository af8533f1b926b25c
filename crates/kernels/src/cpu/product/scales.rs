//! The scales of a tile: how each format's header gives one vector of scales per half, and of biases.

use crate::FloatFormat;
use crate::cpu::simd::{LANES, Simd};
use crate::cpu::tiles::{SUPER_GROUPS, TILE};

/// Where a product finds its scales.
pub(super) trait Scales: Copy {
    /// Whether the format has biases.
    const BIASED: bool;
    /// Groups of a block, where the format fixes them.
    const BLOCK_GROUPS: Option<usize>;
    /// Bytes of a header, where the format fixes them.
    const HEADER_BYTES: Option<usize>;
    /// What stays in registers for the groups of a block.
    type Open<S: Simd>: Copy;

    fn open<S: Simd>(self, s: S, header: &[u8]) -> Self::Open<S>;

    /// Scale `i` of the block, for each feature of a half.
    fn scale<S: Simd>(self, s: S, header: &[u8], open: &Self::Open<S>, half: usize, i: usize) -> S::F32;

    /// Bias `i` of the block, if there are biases.
    fn bias<S: Simd>(self, s: S, header: &[u8], open: &Self::Open<S>, half: usize, i: usize) -> S::F32;
}

/// Scales, then biases, of both halves.
type Vectors<S> = [[<S as Simd>::F32; 2]; 2];

/// Part `i` of a header, one entry of `N / 16` bytes per feature of a half.
#[inline(always)]
fn vector<const N: usize>(header: &[u8], i: usize) -> &[u8; N] {
    &header.as_chunks().0[i]
}

/// A half float, and with `BIASED` another as bias, for each group.
#[derive(Clone, Copy)]
pub(super) struct Halves<const BIASED: bool>;

impl<const BIASED: bool> Scales for Halves<BIASED> {
    const BIASED: bool = BIASED;
    const BLOCK_GROUPS: Option<usize> = Some(1);
    const HEADER_BYTES: Option<usize> = Some(if BIASED { 4 * TILE } else { 2 * TILE });
    type Open<S: Simd> = Vectors<S>;

    #[inline(always)]
    fn open<S: Simd>(self, s: S, header: &[u8]) -> Vectors<S> {
        let scales = [s.load_f16(vector(header, 0)), s.load_f16(vector(header, 1))];
        if !BIASED {
            return [scales, [s.splat(0.0); 2]];
        }
        [scales, [s.load_f16(vector(header, 2)), s.load_f16(vector(header, 3))]]
    }

    #[inline(always)]
    fn scale<S: Simd>(self, _: S, _: &[u8], open: &Vectors<S>, half: usize, _: usize) -> S::F32 {
        open[0][half]
    }

    #[inline(always)]
    fn bias<S: Simd>(self, _: S, _: &[u8], open: &Vectors<S>, half: usize, _: usize) -> S::F32 {
        open[1][half]
    }
}

/// A float of any type, and with `BIASED` another as bias, for each block of any length.
#[derive(Clone, Copy)]
pub(super) struct Floats<const BIASED: bool>(pub(super) FloatFormat);

impl<const BIASED: bool> Floats<BIASED> {
    #[inline(always)]
    fn load<S: Simd>(self, s: S, header: &[u8], i: usize) -> S::F32 {
        match self.0 {
            FloatFormat::F32 => s.load_f32_bytes(vector(header, i)),
            FloatFormat::F16 => s.load_f16(vector(header, i)),
            FloatFormat::BF16 => s.load_bf16(vector(header, i)),
        }
    }
}

impl<const BIASED: bool> Scales for Floats<BIASED> {
    const BIASED: bool = BIASED;
    const BLOCK_GROUPS: Option<usize> = None;
    const HEADER_BYTES: Option<usize> = None;
    type Open<S: Simd> = Vectors<S>;

    #[inline(always)]
    fn open<S: Simd>(self, s: S, header: &[u8]) -> Vectors<S> {
        let scales = [self.load(s, header, 0), self.load(s, header, 1)];
        if !BIASED {
            return [scales, [s.splat(0.0); 2]];
        }
        [scales, [self.load(s, header, 2), self.load(s, header, 3)]]
    }

    #[inline(always)]
    fn scale<S: Simd>(self, _: S, _: &[u8], open: &Vectors<S>, half: usize, _: usize) -> S::F32 {
        open[0][half]
    }

    #[inline(always)]
    fn bias<S: Simd>(self, _: S, _: &[u8], open: &Vectors<S>, half: usize, _: usize) -> S::F32 {
        open[1][half]
    }
}

/// `d · scale`, and with `BIASED` `−dmin · minimum`: half floats per 256 elements, signed bytes `SCALES` per group, each
/// minimum behind its scale.
#[derive(Clone, Copy)]
pub(super) struct Super<const BIASED: bool, const SCALES: usize>;

impl<const BIASED: bool, const SCALES: usize> Super<BIASED, SCALES> {
    const LEVELS: usize = if BIASED { 2 } else { 1 };

    /// One-byte entry `i` of a header.
    #[inline(always)]
    fn sub(header: &[u8], half: usize, i: usize) -> &[u8; LANES] {
        vector(header, 4 * Self::LEVELS + 2 * i + half)
    }
}

impl<const BIASED: bool, const SCALES: usize> Scales for Super<BIASED, SCALES> {
    const BIASED: bool = BIASED;
    const BLOCK_GROUPS: Option<usize> = Some(SUPER_GROUPS);
    const HEADER_BYTES: Option<usize> = Some(Self::LEVELS * (2 * TILE + SCALES * SUPER_GROUPS * TILE));
    type Open<S: Simd> = Vectors<S>;

    #[inline(always)]
    fn open<S: Simd>(self, s: S, header: &[u8]) -> Vectors<S> {
        open_super::<S, BIASED>(s, header)
    }

    #[inline(always)]
    fn scale<S: Simd>(self, s: S, header: &[u8], open: &Vectors<S>, half: usize, i: usize) -> S::F32 {
        let sub = Self::sub(header, half, Self::LEVELS * i);
        s.mul(open[0][half], s.load_i8(bytemuck::cast_ref(sub)))
    }

    #[inline(always)]
    fn bias<S: Simd>(self, s: S, header: &[u8], open: &Vectors<S>, half: usize, i: usize) -> S::F32 {
        s.mul(open[1][half], s.load_u8(Self::sub(header, half, Self::LEVELS * i + 1)))
    }
}

/// `d`, and `−dmin` if there are minimums.
#[inline(always)]
fn open_super<S: Simd, const BIASED: bool>(s: S, header: &[u8]) -> Vectors<S> {
    let d = [s.load_f16(vector(header, 0)), s.load_f16(vector(header, 1))];
    let zero = s.splat(0.0);
    if !BIASED {
        return [d, [zero; 2]];
    }
    [d, [s.sub(zero, s.load_f16(vector(header, 2))), s.sub(zero, s.load_f16(vector(header, 3)))]]
}

/// The same with scale and minimum of 4 bits in one byte, two per group.
#[derive(Clone, Copy)]
pub(super) struct SuperNibbles;

impl Scales for SuperNibbles {
    const BIASED: bool = true;
    const BLOCK_GROUPS: Option<usize> = Some(SUPER_GROUPS);
    const HEADER_BYTES: Option<usize> = Some(4 * TILE + 2 * SUPER_GROUPS * TILE);
    type Open<S: Simd> = Vectors<S>;

    #[inline(always)]
    fn open<S: Simd>(self, s: S, header: &[u8]) -> Vectors<S> {
        open_super::<S, true>(s, header)
    }

    #[inline(always)]
    fn scale<S: Simd>(self, s: S, header: &[u8], open: &Vectors<S>, half: usize, i: usize) -> S::F32 {
        let mut nibbles = *vector::<LANES>(header, 8 + 2 * i + half);
        for nibble in &mut nibbles {
            *nibble &= 15;
        }
        s.mul(open[0][half], s.load_u8(&nibbles))
    }

    #[inline(always)]
    fn bias<S: Simd>(self, s: S, header: &[u8], open: &Vectors<S>, half: usize, i: usize) -> S::F32 {
        let mut nibbles = *vector::<LANES>(header, 8 + 2 * i + half);
        for nibble in &mut nibbles {
            *nibble >>= 4;
        }
        s.mul(open[1][half], s.load_u8(&nibbles))
    }
}
