//! Activations in 8 bits, once per op for all products with them.

use super::instruction_set::InstructionSet;
use super::pool::Pool;
use super::share::for_each_part;
use super::simd::{Kernel, Simd};
use crate::Activations;
use crate::blocks::GROUP;
use crate::quantize::ROUND;

/// 32 activations of a row and what a product needs of them besides: one cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(super) struct ActivationGroup {
    pub(super) codes: [i8; GROUP],
    pub(super) scale: f32,
    /// `scale · Σ codes`, for weights with biases.
    pub(super) scaled_sum: f32,
    /// The same of each half.
    pub(super) scaled_half_sums: [f32; 2],
    /// `−8 Σ codes`: takes back the 8 added to signed 4-bit codes.
    pub(super) minus_8_sum: i32,
    /// `−128 Σ codes`: takes back the 128 added to signed 8-bit codes.
    pub(super) minus_128_sum: i32,
    /// The same of each half.
    pub(super) minus_128_half_sums: [i32; 2],
}

const _: () = assert!(size_of::<ActivationGroup>() == 64);

impl ActivationGroup {
    /// 32 zeros.
    pub(super) const ZERO: Self = Self {
        codes: [0; GROUP],
        scale: 0.0,
        scaled_sum: 0.0,
        scaled_half_sums: [0.0; 2],
        minus_8_sum: 0,
        minus_128_sum: 0,
        minus_128_half_sums: [0; 2],
    };

    /// The codes as the products take them, four at a time.
    #[inline(always)]
    pub(super) fn quads(&self) -> &[[i8; 4]; GROUP / 4] {
        bytemuck::cast_ref(&self.codes)
    }
}

/// Quantizes rows of `columns` floats into `groups`, `[rows, columns / 32]`, by the rule of
/// [`int8`](crate::quantize::int8).
pub(super) fn quantize(
    set: InstructionSet,
    pool: &mut Pool,
    x: &[f32],
    columns: usize,
    activations: Activations,
    groups: &mut [ActivationGroup],
) {
    /// Groups of 32 that are quantized in the time of a dispatch.
    const SERIAL_GROUPS: usize = 128;
    let per_scale = if activations == Activations::Int8PerRow { columns } else { GROUP };
    for_each_part(pool, groups, columns / GROUP, SERIAL_GROUPS, |_, row, groups| {
        set.run(Quantize { x: &x[row * columns..][..columns], per_scale, groups });
    });
}

/// Quantizes a row with a scale per `per_scale` elements: 32 or all.
struct Quantize<'a> {
    x: &'a [f32],
    per_scale: usize,
    groups: &'a mut [ActivationGroup],
}

impl Kernel for Quantize<'_> {
    type Output = ();

    /// Plain loops, which vectorize.
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        if self.per_scale == GROUP {
            for (x, group) in self.x.as_chunks().0.iter().zip(self.groups) {
                *group = quantize_group(x, scale(x));
            }
            return;
        }
        let scale = scale(self.x);
        for (x, group) in self.x.as_chunks().0.iter().zip(self.groups) {
            *group = quantize_group(x, scale);
        }
    }
}

#[inline(always)]
fn scale(x: &[f32]) -> f32 {
    // As integers, the magnitudes of floats keep their order, and NaN is the largest.
    let max = x.iter().map(|x| x.to_bits() & 0x7FFF_FFFF).fold(0, u32::max);
    f32::from_bits(max) / 127.0
}

#[inline(always)]
fn quantize_group(x: &[f32; GROUP], scale: f32) -> ActivationGroup {
    let mut codes = [0; GROUP];
    // Without a scale to divide by, the products are zero or not finite whatever the codes are.
    if scale > 0.0 && scale.is_finite() {
        for (code, x) in codes.iter_mut().zip(x) {
            let rounded = (x / scale) + ROUND;
            *code = ((rounded.to_bits() as i32) - (ROUND.to_bits() as i32)).clamp(-127, 127) as i8;
        }
    }
    let mut halves = [0; 2];
    for (half, codes) in halves.iter_mut().zip(codes.as_chunks::<16>().0) {
        *half = codes.iter().map(|&code| i32::from(code)).sum();
    }
    let sum = halves[0] + halves[1];
    ActivationGroup {
        codes,
        scale,
        scaled_sum: scale * sum as f32,
        scaled_half_sums: halves.map(|half| scale * half as f32),
        minus_8_sum: -8 * sum,
        minus_128_sum: -128 * sum,
        minus_128_half_sums: halves.map(|half| -128 * half),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use proptest::prelude::*;

    use super::*;
    use crate::quantize::int8;

    proptest! {
        /// Every device quantizes activations alike.
        #[test]
        fn codes_are_those_of_the_contract(x in prop::collection::vec(-9.0f32..9.0, 64), per_row: bool) {
            let activations = if per_row { Activations::Int8PerRow } else { Activations::Int8PerGroup };
            let per_scale = if per_row { 64 } else { 32 };
            let mut expected = [0; 64];
            let parts = x.chunks(per_scale).zip(expected.chunks_mut(per_scale));
            let scales: Vec<_> = parts.map(|(x, codes)| int8(x, codes)).collect();
            let mut pool = Pool::new(NonZeroUsize::MIN).unwrap();
            for set in InstructionSet::ALL.into_iter().filter(|set| set.is_available()) {
                let mut groups = [ActivationGroup::default(); 2];
                quantize(set, &mut pool, &x, 64, activations, &mut groups);
                for (g, group) in groups.iter().enumerate() {
                    prop_assert_eq!(&group.codes[..], &expected[32 * g..][..32]);
                    prop_assert_eq!(group.scale, scales[32 * g / per_scale]);
                    prop_assert_eq!(group.minus_8_sum, -8 * group.codes.iter().map(|&c| i32::from(c)).sum::<i32>());
                }
            }
        }
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        let mut pool = Pool::new(NonZeroUsize::MIN).unwrap();
        let mut groups = [ActivationGroup::default(); 2];
        let mut x = [1.0; 64];
        x[40] = f32::NAN;
        quantize(InstructionSet::detect(), &mut pool, &x, 64, Activations::Int8PerGroup, &mut groups);
        assert_eq!(groups[0].codes, [127; 32]);
        assert!(groups[1].scale.is_nan());
    }
}
