//! Arrays instead of vectors: right everywhere, and as fast as the compiler makes them.

use half::{bf16, f16};

use super::{CODE_BYTES, Codes, Kernel, LANES, Simd};

/// The portable set.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Scalar;

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// Folds the upper half onto the lower one until one lane is left.
#[inline(always)]
fn fold(mut x: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            x[i] = f(x[i], x[i + width]);
        }
        width /= 2;
    }
    x[0]
}

impl Simd for Scalar {
    type F32 = [f32; LANES];
    type I32 = [i32; LANES];
    type Codes = [u8; CODE_BYTES];
    const ROWS: usize = 2;
    const FLOAT_ROWS: usize = 2;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F32 {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::F32 {
        *x
    }

    #[inline(always)]
    fn store(self, x: Self::F32, out: &mut [f32; LANES]) {
        *out = x;
    }

    #[inline(always)]
    fn load_f16(self, x: &[u8; 2 * LANES]) -> Self::F32 {
        std::array::from_fn(|i| f16::from_le_bytes([x[2 * i], x[2 * i + 1]]).to_f32())
    }

    #[inline(always)]
    fn load_bf16(self, x: &[u8; 2 * LANES]) -> Self::F32 {
        std::array::from_fn(|i| bf16::from_le_bytes([x[2 * i], x[2 * i + 1]]).to_f32())
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> Self::F32 {
        x.map(f32::from)
    }

    #[inline(always)]
    fn load_u8(self, x: &[u8; LANES]) -> Self::F32 {
        x.map(f32::from)
    }

    #[inline(always)]
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn fma(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32 {
        // Without the instruction, `mul_add` would be a slow call.
        let fused = cfg!(any(target_arch = "aarch64", target_feature = "fma"));
        std::array::from_fn(|i| if fused { a[i].mul_add(b[i], c[i]) } else { a[i] * b[i] + c[i] })
    }

    #[inline(always)]
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn exp2_of_rounded(self, x: Self::F32) -> Self::F32 {
        x.map(|x| f32::from_bits((x.to_bits() << 23).wrapping_add(0x3F80_0000)))
    }

    #[inline(always)]
    fn sum(self, x: Self::F32) -> f32 {
        fold(x, |a, b| a + b)
    }

    #[inline(always)]
    fn max_lane(self, x: Self::F32) -> f32 {
        fold(x, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn load_codes(self, x: &[u8; CODE_BYTES]) -> Self::Codes {
        *x
    }

    #[inline(always)]
    fn bits(self, x: Self::Codes, shift: i32, mask: u8) -> Self::Codes {
        x.map(|byte| if shift >= 0 { byte >> shift & mask } else { byte << -shift & mask })
    }

    #[inline(always)]
    fn or(self, a: Self::Codes, b: Self::Codes) -> Self::Codes {
        std::array::from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], x: Self::Codes) -> Self::Codes {
        x.map(|i| table[usize::from(i & 15)])
    }

    #[inline(always)]
    fn dot_codes<C: Codes, const N: usize, const R: usize, const H: usize>(
        self,
        codes: C,
        x: [&[[i8; 4]; N]; R],
        start: [i32; R],
    ) -> [[Self::I32; R]; H] {
        let mut halves = [start.map(|start| [start; LANES]); H];
        for (half, rows) in halves.iter_mut().enumerate() {
            for p in 0..N {
                let codes = codes.vector(self, half, p);
                for (sums, x) in rows.iter_mut().zip(x) {
                    for (sum, codes) in sums.iter_mut().zip(codes.as_chunks::<4>().0) {
                        *sum += (0..4).map(|j| i32::from(codes[j]) * i32::from(x[p][j])).sum::<i32>();
                    }
                }
            }
        }
        halves
    }

    #[inline(always)]
    fn dot_bytes<C: Codes, const N: usize, const R: usize, const H: usize>(
        self,
        codes: C,
        x: [&[[i8; 4]; N]; R],
        minus_128_sum: [i32; R],
    ) -> [[Self::I32; R]; H] {
        self.dot_codes(codes, x, minus_128_sum)
    }

    #[inline(always)]
    fn prefetch(self, _: *const u8) {}

    #[inline(always)]
    fn prefetch_near(self, _: *const u8) {}

    #[inline(always)]
    fn to_f32(self, x: Self::I32) -> Self::F32 {
        x.map(|x| x as f32)
    }

    #[inline(never)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
}
