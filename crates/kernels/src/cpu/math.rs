//! Elementary functions and sums on vectors of 16 floats.

use super::simd::{LANES, Simd};
use crate::quantize::ROUND;

/// `exp(x)`, at most 2 units in the last place off between −87 and 88; 0 below −104, infinite above 89.
///
/// `x = n ln 2 + r`, a polynomial of degree 6 in `r` (coefficients of the Cephes library's `expf`), then `2ⁿ` in two
/// steps so that the ends of the range come out right.
#[inline(always)]
pub(super) fn exp<S: Simd>(s: S, x: S::F32) -> S::F32 {
    // `ROUND` leaves the integer in the low bits.
    // `max` and `min` give their second argument for a NaN, so it stays one.
    let x = s.min(s.splat(104.0), s.max(s.splat(-104.0), x));
    let n = s.sub(s.fma(x, s.splat(std::f32::consts::LOG2_E), s.splat(ROUND)), s.splat(ROUND));
    let r = s.fma(n, s.splat(-0.693_359_4), x);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(1.987_569_1e-4);
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5] {
        p = s.fma(p, r, s.splat(coefficient));
    }
    let y = s.add(s.fma(s.mul(p, r), r, r), s.splat(1.0));
    let half = s.fma(n, s.splat(0.5), s.splat(ROUND));
    let rest = s.add(s.sub(n, s.sub(half, s.splat(ROUND))), s.splat(ROUND));
    s.mul(s.mul(y, s.exp2_of_rounded(half)), s.exp2_of_rounded(rest))
}

/// `1 / (1 + exp(−x))`.
#[inline(always)]
pub(super) fn sigmoid<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.sub(s.splat(0.0), x))))
}

/// `x / (1 + exp(−x))`.
#[inline(always)]
pub(super) fn silu<S: Simd>(s: S, x: S::F32) -> S::F32 {
    s.div(x, s.add(s.splat(1.0), exp(s, s.sub(s.splat(0.0), x))))
}

/// Up to 16 floats, zeros behind them.
#[inline(always)]
pub(super) fn load_part<S: Simd>(s: S, x: &[f32]) -> S::F32 {
    if let Ok(x) = x.try_into() {
        return s.load(x);
    }
    let mut lanes = [0.0; LANES];
    lanes[..x.len()].copy_from_slice(x);
    s.load(&lanes)
}

/// The first lanes, as many as `out` holds.
#[inline(always)]
pub(super) fn store_part<S: Simd>(s: S, x: S::F32, out: &mut [f32]) {
    if let Ok(out) = out.try_into() {
        return s.store(x, out);
    }
    let mut lanes = [0.0; LANES];
    s.store(x, &mut lanes);
    out.copy_from_slice(&lanes[..out.len()]);
}

/// `out = body` elementwise, each name standing for 16 elements of its slice.
///
/// A macro, because a real closure is not always inlined, and what is not inlined is not compiled with the instructions
/// of its set.
macro_rules! map {
    ($s:expr, [$($name:ident = $slice:expr),+], $out:expr, $body:expr) => {
        for (i, out) in $out.chunks_mut($crate::cpu::simd::LANES).enumerate() {
            let start = i * $crate::cpu::simd::LANES;
            $(let $name = $crate::cpu::math::load_part($s, &$slice[start..start + out.len()]);)+
            $crate::cpu::math::store_part($s, $body, out);
        }
    };
}

pub(super) use map;

/// `Σ x²`, in four sums of 16 lanes.
#[inline(always)]
pub(super) fn sum_of_squares<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut sums = [s.splat(0.0); 4];
    let (x, tail) = x.as_chunks();
    let (quads, rest) = x.as_chunks::<4>();
    for quad in quads {
        for (sum, x) in sums.iter_mut().zip(quad) {
            let x = s.load(x);
            *sum = s.fma(x, x, *sum);
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        let x = s.load(x);
        *sum = s.fma(x, x, *sum);
    }
    let tail = load_part(s, tail);
    sums[3] = s.fma(tail, tail, sums[3]);
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}

/// `out = x / √(mean(x²) + eps) · weight`.
#[inline(always)]
pub(super) fn normalize<S: Simd>(s: S, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let scale = s.splat(1.0 / (sum_of_squares(s, x) / x.len() as f32 + eps).sqrt());
    map!(s, [x = x, weight = weight], out, s.mul(s.mul(x, scale), weight));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::InstructionSet;
    use crate::cpu::simd::Kernel;

    struct Exp<'a>(&'a [f32], &'a mut [f32]);

    impl Kernel for Exp<'_> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            map!(s, [x = self.0], self.1, exp(s, x));
        }
    }

    fn exps(set: InstructionSet, x: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len()];
        set.run(Exp(x, &mut out));
        out
    }

    fn available() -> impl Iterator<Item = InstructionSet> {
        InstructionSet::ALL.into_iter().filter(|set| set.is_available())
    }

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let x: Vec<f32> = (-870_000..=880_000).step_by(7).map(|i| i as f32 * 1e-4).collect();
        for set in available() {
            for (x, y) in x.iter().zip(exps(set, &x)) {
                let exact = f64::from(*x).exp();
                let unit = f64::from(f32::from_bits((exact as f32).to_bits() + 1)) - f64::from(exact as f32);
                assert!((f64::from(y) - exact).abs() <= 2.0 * unit, "{set}: exp({x}) = {y}, expected {exact}");
            }
        }
    }

    #[test]
    fn exp_keeps_its_ends() {
        for set in available() {
            let y = exps(set, &[f32::NEG_INFINITY, -200.0, 0.0, 100.0, f32::INFINITY, f32::NAN]);
            assert_eq!(y[..5], [0.0, 0.0, 1.0, f32::INFINITY, f32::INFINITY], "{set}");
            assert!(y[5].is_nan(), "{set}");
        }
    }
}
