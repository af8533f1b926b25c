//! Logarithm and exponential from basic arithmetic, for the same bits on every platform.
//!
//! The standard library's `ln` and `exp` call the platform's math library, whose last bit differs from one to the
//! next; a sampled text would differ with it. Here only IEEE additions, subtractions, multiplications and integer
//! operations occur, in a written order and never fused, so every conforming target gives the same result.

/// `ln(2)`, with its low 12 bits zero: products with small integers are exact.
const LN_2_HIGH: f32 = 0.693_115_23;
/// `ln(2) − LN_2_HIGH`.
const LN_2_LOW: f32 = 3.194_618_5e-5;
/// Bits of `√½`, where the mantissa's range is cut so that it lies around 1.
const SQRT_HALF_BITS: u32 = 0x3f35_04f3;

/// Chebyshev fit of `(ln(1 + r) − r + r²/2) / r³` on `[√½ − 1, √2 − 1]`, lowest degree first; relative error of the
/// logarithm below 1e-8.
const LN_TAIL: [f32; 9] = [
    0.333_333_3,
    -0.249_999_97,
    0.200_007_16,
    -0.166_678_03,
    0.142_490_58,
    -0.124_256_87,
    0.116_854_2,
    -0.114_797_34,
    0.069_716_12,
];

/// Chebyshev fit of `(exp(r) − 1 − r) / r²` on `[−ln(2)/2, ln(2)/2]`, lowest degree first; error below 1e-9.
const EXP_TAIL: [f32; 6] = [0.5, 0.166_666_67, 0.041_666_463, 0.008_333_31, 0.001_393_373_1, 1.989_108e-4];

/// Natural logarithm of a positive, normal number.
pub(crate) fn ln(x: f32) -> f32 {
    let bits = x.to_bits().wrapping_sub(SQRT_HALF_BITS);
    let exponent = (bits as i32 >> 23) as f32;
    let mantissa = f32::from_bits((bits & 0x007f_ffff).wrapping_add(SQRT_HALF_BITS));
    (exponent * LN_2_LOW + ln_1p(mantissa - 1.0)) + exponent * LN_2_HIGH
}

/// `ln(1 + r)` for `r` in `[√½ − 1, √2 − 1]`, accurate down to the smallest `r`.
pub(crate) fn ln_1p(r: f32) -> f32 {
    let square = r * r;
    r - (0.5 * square - r * square * horner(&LN_TAIL, r))
}

/// `exp(x)` for `x <= 0`; zero where the result would be subnormal.
pub(crate) fn exp(x: f32) -> f32 {
    // Adding 1.5·2²³ leaves no bits for a fraction: the sum is rounded to an integer, ties to even, and its bits count
    // in ones. Free of branches and casts, so that loops over it compile to vectors.
    const ROUND: f32 = 12_582_912.0;
    const SMALLEST: f32 = -87.0;
    let clamped = if x < SMALLEST { SMALLEST } else { x };
    let rounded = clamped * std::f32::consts::LOG2_E + ROUND;
    let power = rounded - ROUND;
    let r = (clamped - power * LN_2_HIGH) - power * LN_2_LOW;
    let scale = f32::from_bits(rounded.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23);
    let result = (1.0 + (r + r * r * horner(&EXP_TAIL, r))) * scale;
    if x < SMALLEST { 0.0 } else { result }
}

fn horner(coefficients: &[f32], x: f32) -> f32 {
    coefficients.iter().rev().fold(0.0, |sum, &c| sum * x + c)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance to the correctly rounded value, in units of its last place.
    fn ulps(found: f32, exact: f64) -> f64 {
        let rounded = exact as f32;
        let ulp = f64::from(f32::from_bits(rounded.abs().to_bits() + 1)) - f64::from(rounded.abs());
        (f64::from(found) - exact).abs() / ulp
    }

    #[test]
    fn ln_is_within_two_ulps_of_the_exact_value() {
        for bits in (f32::MIN_POSITIVE.to_bits()..f32::MAX.to_bits()).step_by(10_007) {
            let x = f32::from_bits(bits);
            let error = ulps(ln(x), f64::from(x).ln());
            assert!(error <= 2.0, "ln({x:e}) is {:e}, {error} ulps off", ln(x));
        }
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn ln_1p_keeps_its_precision_near_zero() {
        for bits in (1e-10f32.to_bits()..0.29f32.to_bits()).step_by(997) {
            let r = -f32::from_bits(bits);
            let error = ulps(ln_1p(r), f64::from(r).ln_1p());
            assert!(error <= 2.0, "ln_1p({r:e}) is {:e}, {error} ulps off", ln_1p(r));
        }
    }

    #[test]
    fn exp_is_within_two_ulps_of_the_exact_value() {
        for step in 0..870_000 {
            let x = -(step as f32) * 1e-4;
            let error = ulps(exp(x), f64::from(x).exp());
            assert!(error <= 2.0, "exp({x}) is {:e}, {error} ulps off", exp(x));
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    }
}
