//! The scales of a tile.

use super::TileScratch;
use crate::FloatFormat;
use crate::cpu::instruction_set::{InstructionSet, Kernel};
use crate::cpu::simd::{LANES, Simd};
use crate::cpu::tiles::{ScaleLayout, TileLayout};

/// The scales of a tile, one vector per scale of a feature.
#[derive(Clone, Copy)]
pub(super) enum TileScales<'a> {
    Floats(FloatScales<'a>),
    Halves(HalfScales<'a>),
}

/// As floats.
#[derive(Clone, Copy)]
pub(super) struct FloatScales<'a> {
    pub(super) scales: &'a [[f32; LANES]],
    pub(super) biases: Option<&'a [[f32; LANES]]>,
}

/// As stored, in half floats; with biases, each scale is followed by its bias.
#[derive(Clone, Copy)]
pub(super) struct HalfScales<'a> {
    vectors: &'a [[u8; 2 * LANES]],
    biased: bool,
}

/// Where a product finds its scales.
pub(super) trait Scales: Copy {
    /// Scale `i` of each feature.
    fn scale<S: Simd>(self, s: S, i: usize) -> S::F32;

    /// Bias `i` of each feature, if the format has biases.
    fn bias<S: Simd>(self, s: S, i: usize) -> Option<S::F32>;
}

impl Scales for FloatScales<'_> {
    #[inline(always)]
    fn scale<S: Simd>(self, s: S, i: usize) -> S::F32 {
        s.load(&self.scales[i])
    }

    #[inline(always)]
    fn bias<S: Simd>(self, s: S, i: usize) -> Option<S::F32> {
        let biases = self.biases?;
        Some(s.load(&biases[i]))
    }
}

impl Scales for HalfScales<'_> {
    #[inline(always)]
    fn scale<S: Simd>(self, s: S, i: usize) -> S::F32 {
        s.load_f16(&self.vectors[if self.biased { 2 * i } else { i }])
    }

    #[inline(always)]
    fn bias<S: Simd>(self, s: S, i: usize) -> Option<S::F32> {
        if self.biased { Some(s.load_f16(&self.vectors[2 * i + 1])) } else { None }
    }
}

/// The scales of a tile as products read them: half floats per group as they are, all others as floats in `scratch`.
pub(super) fn of_tile<'a>(
    set: InstructionSet,
    layout: &TileLayout,
    bytes: &'a [u8],
    scratch: &'a mut TileScratch,
) -> TileScales<'a> {
    let entries = layout.groups * layout.codes.scales_per_group();
    let (scales, biases) = (&mut scratch.scales[..entries], &mut scratch.biases[..entries]);
    let biased = match layout.scales {
        ScaleLayout::Floats { format: FloatFormat::F16, groups: 1, biased } => {
            return TileScales::Halves(HalfScales { vectors: bytes.as_chunks().0, biased });
        }
        ScaleLayout::Floats { format, groups, biased } => {
            set.run(ExpandFloats { format, groups, biased, bytes, scales, biases });
            biased
        }
        ScaleLayout::Super { biased } => {
            set.run(ExpandSuper { block_bytes: layout.super_bytes(biased), biased, bytes, scales, biases });
            biased
        }
    };
    TileScales::Floats(FloatScales { scales, biases: biased.then_some(biases) })
}

struct ExpandFloats<'a> {
    format: FloatFormat,
    groups: usize,
    biased: bool,
    bytes: &'a [u8],
    scales: &'a mut [[f32; LANES]],
    biases: &'a mut [[f32; LANES]],
}

impl Kernel for ExpandFloats<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.format {
            FloatFormat::F32 => self.each(s, |x| s.load_f32_bytes(x)),
            FloatFormat::F16 => self.each(s, |x| s.load_f16(x)),
            FloatFormat::BF16 => self.each(s, |x| s.load_bf16(x)),
        }
    }
}

impl ExpandFloats<'_> {
    #[inline(always)]
    fn each<S: Simd, const N: usize>(self, s: S, load: impl Fn(&[u8; N]) -> S::F32) {
        let (vectors, _) = self.bytes.as_chunks::<N>();
        let per_scale = 1 + usize::from(self.biased);
        for (i, scales) in self.scales.chunks_mut(self.groups).enumerate() {
            let scale = load(&vectors[per_scale * i]);
            scales.iter_mut().for_each(|out| s.store(scale, out));
        }
        if !self.biased {
            return;
        }
        for (i, biases) in self.biases.chunks_mut(self.groups).enumerate() {
            let bias = load(&vectors[2 * i + 1]);
            biases.iter_mut().for_each(|out| s.store(bias, out));
        }
    }
}

struct ExpandSuper<'a> {
    block_bytes: usize,
    biased: bool,
    bytes: &'a [u8],
    scales: &'a mut [[f32; LANES]],
    biases: &'a mut [[f32; LANES]],
}

impl Kernel for ExpandSuper<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let levels = 1 + usize::from(self.biased);
        let sub_blocks = self.block_bytes / LANES / levels - 2;
        let blocks = self.bytes.chunks_exact(self.block_bytes);
        let scales = self.scales.chunks_exact_mut(sub_blocks).zip(self.biases.chunks_exact_mut(sub_blocks));
        for (block, (scales, biases)) in blocks.zip(scales) {
            let (halves, subs) = block.split_at(2 * levels * LANES);
            let (halves, _) = halves.as_chunks::<{ 2 * LANES }>();
            let (subs, _) = subs.as_chunks::<LANES>();
            let d = s.load_f16(&halves[0]);
            for (sub, out) in scales.iter_mut().enumerate() {
                s.store(s.mul(d, s.load_i8(bytemuck::cast_ref(&subs[levels * sub]))), out);
            }
            if self.biased {
                let minus_dmin = s.sub(s.splat(0.0), s.load_f16(&halves[1]));
                for (sub, out) in biases.iter_mut().enumerate() {
                    s.store(s.mul(minus_dmin, s.load_u8(&subs[2 * sub + 1])), out);
                }
            }
        }
    }
}
