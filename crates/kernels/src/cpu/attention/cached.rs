//! The element types of key-value caches, as attention reads them.

use bytemuck::Pod;
use half::{bf16, f16};

use crate::cpu::math::{load_part, store_part};
use crate::cpu::simd::{LANES, Simd};
use crate::quantize::int8_head;

/// A type whose elements become floats 16 at a time.
pub(super) trait Load: Pod + Sync {
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F32;
}

impl Load for f32 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F32 {
        s.load(x)
    }
}

impl Load for f16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F32 {
        s.load_f16(bytemuck::cast_ref(x))
    }
}

impl Load for bf16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F32 {
        s.load_bf16(bytemuck::cast_ref(x))
    }
}

impl Load for i8 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F32 {
        s.load_i8(x)
    }
}

/// A type that caches store.
pub(super) trait Cached: Load {
    /// Type of the keys and values of a pass's rows.
    type Candidate: Pod + Sync;
    /// Whether each vector has a scale besides its elements.
    const SCALED: bool;

    /// One head of a row as the cache will hold it, without its scale, which is returned; 1 for floats.
    fn candidate<S: Simd>(s: S, x: &[Self::Candidate], out: &mut [f32], codes: &mut [i8]) -> f32;
}

impl Cached for f32 {
    type Candidate = Self;
    const SCALED: bool = false;

    #[inline(always)]
    fn candidate<S: Simd>(_: S, x: &[f32], out: &mut [f32], _: &mut [i8]) -> f32 {
        out[..x.len()].copy_from_slice(x);
        1.0
    }
}

impl Cached for f16 {
    type Candidate = Self;
    const SCALED: bool = false;

    #[inline(always)]
    fn candidate<S: Simd>(s: S, x: &[f16], out: &mut [f32], _: &mut [i8]) -> f32 {
        widen(s, x, out);
        1.0
    }
}

impl Cached for bf16 {
    type Candidate = Self;
    const SCALED: bool = false;

    #[inline(always)]
    fn candidate<S: Simd>(s: S, x: &[bf16], out: &mut [f32], _: &mut [i8]) -> f32 {
        widen(s, x, out);
        1.0
    }
}

impl Cached for i8 {
    type Candidate = f32;
    const SCALED: bool = true;

    #[inline(always)]
    fn candidate<S: Simd>(s: S, x: &[f32], out: &mut [f32], codes: &mut [i8]) -> f32 {
        let scale = int8_head(x, codes);
        widen(s, codes, out);
        scale.to_f32()
    }
}

/// `out = x`.
#[inline(always)]
pub(super) fn widen<S: Simd, T: Load>(s: S, x: &[T], out: &mut [f32]) {
    let (x, tail) = x.as_chunks();
    for (x, out) in x.iter().zip(out.chunks_mut(LANES)) {
        store_part(s, T::load(s, x), out);
    }
    if !tail.is_empty() {
        let mut lanes = [T::zeroed(); LANES];
        lanes[..tail.len()].copy_from_slice(tail);
        store_part(s, T::load(s, &lanes), &mut out[x.len() * LANES..][..tail.len()]);
    }
}

/// `out = out · scale`.
#[inline(always)]
pub(super) fn scale_by<S: Simd>(s: S, scale: &[f32], out: &mut [f32]) {
    for (scale, out) in scale.chunks(LANES).zip(out.chunks_mut(LANES)) {
        let product = s.mul(load_part(s, out), load_part(s, &scale[..out.len()]));
        store_part(s, product, out);
    }
}
