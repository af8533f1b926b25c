//! NEON with the integer products of later Arm cores: four registers per vector.

#![allow(clippy::undocumented_unsafe_blocks, reason = "one argument holds for all: see `Neon`")]

use std::arch::aarch64::*;
use std::arch::asm;

use super::{CODE_BYTES, Codes, Kernel, LANES, Simd};

/// NEON with `dotprod`, and with `i8mm` besides if `MATRIX`.
///
/// SAFETY of every block below: a value exists only where the instructions do ([`Neon::new`]), loads and stores go
/// through references to arrays of exactly the size they touch, and the assembly touches registers only.
///
/// The two integer products, the half floats and the prefetch are written as assembly because their intrinsics are not
/// stable yet.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Neon<const MATRIX: bool>(());

impl<const MATRIX: bool> Neon<MATRIX> {
    /// # Safety
    /// The machine has NEON and `dotprod`; `i8mm` too if `MATRIX`.
    #[inline(always)]
    pub(in crate::cpu) unsafe fn new() -> Self {
        Self(())
    }
}

/// An operation on all four quarters of its operands.
macro_rules! quarters {
    ($op:ident, $a:expr $(, $rest:expr)*) => {
        unsafe {
            [
                $op($a[0] $(, $rest[0])*),
                $op($a[1] $(, $rest[1])*),
                $op($a[2] $(, $rest[2])*),
                $op($a[3] $(, $rest[3])*),
            ]
        }
    };
}

impl<const MATRIX: bool> Simd for Neon<MATRIX> {
    type F32 = [float32x4_t; 4];
    type I32 = [int32x4_t; 4];
    type Codes = [uint8x16_t; 4];
    const ROWS: usize = 4;
    const FLOAT_ROWS: usize = 2;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F32 {
        unsafe { [vdupq_n_f32(x); 4] }
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::F32 {
        let x = x.as_ptr();
        unsafe { [vld1q_f32(x), vld1q_f32(x.add(4)), vld1q_f32(x.add(8)), vld1q_f32(x.add(12))] }
    }

    #[inline(always)]
    fn store(self, x: Self::F32, out: &mut [f32; LANES]) {
        let out = out.as_mut_ptr();
        unsafe {
            vst1q_f32(out, x[0]);
            vst1q_f32(out.add(4), x[1]);
            vst1q_f32(out.add(8), x[2]);
            vst1q_f32(out.add(12), x[3]);
        }
    }

    #[inline(always)]
    fn load_f16(self, x: &[u8; 2 * LANES]) -> Self::F32 {
        unsafe {
            let (low, high) = (vld1q_u8(x.as_ptr()), vld1q_u8(x.as_ptr().add(16)));
            [widen_low_f16(low), widen_high_f16(low), widen_low_f16(high), widen_high_f16(high)]
        }
    }

    #[inline(always)]
    fn load_bf16(self, x: &[u8; 2 * LANES]) -> Self::F32 {
        let quarters = unsafe {
            let low = vreinterpretq_u16_u8(vld1q_u8(x.as_ptr()));
            let high = vreinterpretq_u16_u8(vld1q_u8(x.as_ptr().add(16)));
            [
                vshll_n_u16::<16>(vget_low_u16(low)),
                vshll_high_n_u16::<16>(low),
                vshll_n_u16::<16>(vget_low_u16(high)),
                vshll_high_n_u16::<16>(high),
            ]
        };
        quarters!(vreinterpretq_f32_u32, quarters)
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> Self::F32 {
        let quarters = unsafe {
            let x = vld1q_s8(x.as_ptr());
            let (low, high) = (vmovl_s8(vget_low_s8(x)), vmovl_high_s8(x));
            [vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)]
        };
        quarters!(vcvtq_f32_s32, quarters)
    }

    #[inline(always)]
    fn load_u8(self, x: &[u8; LANES]) -> Self::F32 {
        let quarters = unsafe {
            let x = vld1q_u8(x.as_ptr());
            let (low, high) = (vmovl_u8(vget_low_u8(x)), vmovl_high_u8(x));
            [vmovl_u16(vget_low_u16(low)), vmovl_high_u16(low), vmovl_u16(vget_low_u16(high)), vmovl_high_u16(high)]
        };
        quarters!(vcvtq_f32_u32, quarters)
    }

    #[inline(always)]
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        quarters!(vaddq_f32, a, b)
    }

    #[inline(always)]
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        quarters!(vsubq_f32, a, b)
    }

    #[inline(always)]
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        quarters!(vmulq_f32, a, b)
    }

    #[inline(always)]
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        quarters!(vdivq_f32, a, b)
    }

    #[inline(always)]
    fn fma(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32 {
        quarters!(vfmaq_f32, c, a, b)
    }

    #[inline(always)]
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        quarters!(max, a, b)
    }

    #[inline(always)]
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        quarters!(min, a, b)
    }

    #[inline(always)]
    fn exp2_of_rounded(self, x: Self::F32) -> Self::F32 {
        quarters!(exp2_of_rounded, x)
    }

    #[inline(always)]
    fn sum(self, x: Self::F32) -> f32 {
        unsafe {
            let x = vaddq_f32(vaddq_f32(x[0], x[2]), vaddq_f32(x[1], x[3]));
            vpadds_f32(vadd_f32(vget_low_f32(x), vget_high_f32(x)))
        }
    }

    #[inline(always)]
    fn max_lane(self, x: Self::F32) -> f32 {
        unsafe {
            let x = max(max(x[0], x[2]), max(x[1], x[3]));
            let x = max(x, vextq_f32::<2>(x, x));
            vgetq_lane_f32::<0>(max(x, vextq_f32::<1>(x, x)))
        }
    }

    #[inline(always)]
    fn load_codes(self, x: &[u8; CODE_BYTES]) -> Self::Codes {
        let x = x.as_ptr();
        unsafe { [vld1q_u8(x), vld1q_u8(x.add(16)), vld1q_u8(x.add(32)), vld1q_u8(x.add(48))] }
    }

    #[inline(always)]
    fn bits(self, x: Self::Codes, shift: i32, mask: u8) -> Self::Codes {
        let (shift, mask) = unsafe { ([vdupq_n_s8(-shift as i8); 4], [vdupq_n_u8(mask); 4]) };
        let shifted = quarters!(vshlq_u8, x, shift);
        quarters!(vandq_u8, shifted, mask)
    }

    #[inline(always)]
    fn or(self, a: Self::Codes, b: Self::Codes) -> Self::Codes {
        quarters!(vorrq_u8, a, b)
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], x: Self::Codes) -> Self::Codes {
        let table = [unsafe { vld1q_u8(table.as_ptr()) }; 4];
        quarters!(vqtbl1q_u8, table, x)
    }

    #[inline(always)]
    fn dot_codes<C: Codes, const N: usize, const R: usize, const H: usize>(
        self,
        codes: C,
        x: [&[[i8; 4]; N]; R],
        start: [i32; R],
    ) -> [[Self::I32; R]; H] {
        self.products(codes, x, start, 0)
    }

    /// The codes become signed again, which the instructions take as they are.
    #[inline(always)]
    fn dot_bytes<C: Codes, const N: usize, const R: usize, const H: usize>(
        self,
        codes: C,
        x: [&[[i8; 4]; N]; R],
        _: [i32; R],
    ) -> [[Self::I32; R]; H] {
        self.products(codes, x, [0; R], 0x80)
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        unsafe {
            asm!("prfm pldl2keep, [{address}]", address = in(reg) address, options(readonly, nostack, preserves_flags));
        }
    }

    #[inline(always)]
    fn prefetch_near(self, address: *const u8) {
        unsafe {
            asm!("prfm pldl1keep, [{address}]", address = in(reg) address, options(readonly, nostack, preserves_flags));
        }
    }

    #[inline(always)]
    fn to_f32(self, x: Self::I32) -> Self::F32 {
        quarters!(vcvtq_f32_s32, x)
    }

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "neon,dotprod")]
        fn compiled<K: Kernel>(s: Neon<false>, kernel: K) -> K::Output {
            kernel.run(s)
        }
        #[inline(never)]
        #[target_feature(enable = "neon,dotprod,i8mm")]
        fn compiled_with_matrices<K: Kernel>(s: Neon<true>, kernel: K) -> K::Output {
            kernel.run(s)
        }
        // `self` again: the compiler does not see that its type is that of the branch.
        if MATRIX {
            unsafe { compiled_with_matrices(Neon::new(), kernel) }
        } else {
            unsafe { compiled(Neon::new(), kernel) }
        }
    }
}

impl<const MATRIX: bool> Neon<MATRIX> {
    /// `start + Σ (code ⊕ flip) · x` of each half, exactly.
    #[inline(always)]
    fn products<C: Codes, const N: usize, const R: usize, const H: usize>(
        self,
        codes: C,
        x: [&[[i8; 4]; N]; R],
        start: [i32; R],
        flip: u8,
    ) -> [[[int32x4_t; 4]; R]; H] {
        let mut sums = [[[unsafe { vdupq_n_s32(0) }; 4]; R]; H];
        for half in 0..H {
            let mut vectors = [[unsafe { vdupq_n_s8(0) }; 4]; N];
            for p in 0..N {
                let codes = codes.vector(self, half, p);
                for quarter in 0..4 {
                    vectors[p][quarter] = unsafe { vreinterpretq_s8_u8(veorq_u8(codes[quarter], vdupq_n_u8(flip))) };
                }
            }
            for quarter in 0..4 {
                self.quarter(&vectors, &x, start, quarter, &mut sums[half]);
            }
        }
        sums
    }

    /// Four output features: rows by twos where there is a matrix product, else one by one.
    #[inline(always)]
    fn quarter<const N: usize, const R: usize>(
        self,
        codes: &[[int8x16_t; 4]; N],
        x: &[&[[i8; 4]; N]; R],
        start: [i32; R],
        quarter: usize,
        out: &mut [[int32x4_t; 4]; R],
    ) {
        let by_twos = if MATRIX && N.is_multiple_of(2) { R - R % 2 } else { 0 };
        if by_twos > 0 {
            quarter_by_twos(codes, x, start, quarter, out);
        }
        let mut sums = [unsafe { vdupq_n_s32(0) }; R];
        for r in by_twos..R {
            sums[r] = unsafe { vdupq_n_s32(start[r]) };
        }
        for p in 0..N {
            for r in by_twos..R {
                unsafe {
                    let x = vreinterpretq_s8_s32(vdupq_n_s32(bytemuck::cast::<[i8; 4], i32>(x[r][p])));
                    sums[r] = sdot(sums[r], codes[p][quarter], x);
                }
            }
        }
        for r in by_twos..R {
            out[r][quarter] = sums[r];
        }
    }
}

/// All pairs of rows, for four output features. Eight input features of two output features meet those of two rows: a
/// 2 × 2 result per instruction, which is put into the order of the lanes at the end.
#[inline(always)]
fn quarter_by_twos<const N: usize, const R: usize>(
    codes: &[[int8x16_t; 4]; N],
    x: &[&[[i8; 4]; N]; R],
    start: [i32; R],
    quarter: usize,
    out: &mut [[int32x4_t; 4]; R],
) {
    unsafe {
        // For each pair: both rows with the first two output features, and with the last two.
        let mut sums = [[vdupq_n_s32(0); 2]; R];
        for p in (0..N).step_by(2) {
            let low = vreinterpretq_s32_s8(codes[p][quarter]);
            let high = vreinterpretq_s32_s8(codes[p + 1][quarter]);
            let first = vreinterpretq_s8_s32(vzip1q_s32(low, high));
            let last = vreinterpretq_s8_s32(vzip2q_s32(low, high));
            for pair in 0..R / 2 {
                let (upper, lower) = (&x[2 * pair][p..p + 2], &x[2 * pair + 1][p..p + 2]);
                let x = vcombine_s8(vld1_s8(upper.as_ptr().cast()), vld1_s8(lower.as_ptr().cast()));
                sums[pair][0] = smmla(sums[pair][0], x, first);
                sums[pair][1] = smmla(sums[pair][1], x, last);
            }
        }
        for pair in 0..R / 2 {
            let (first, last) = (vreinterpretq_s64_s32(sums[pair][0]), vreinterpretq_s64_s32(sums[pair][1]));
            let upper = vreinterpretq_s32_s64(vzip1q_s64(first, last));
            let lower = vreinterpretq_s32_s64(vzip2q_s64(first, last));
            out[2 * pair][quarter] = vaddq_s32(upper, vdupq_n_s32(start[2 * pair]));
            out[2 * pair + 1][quarter] = vaddq_s32(lower, vdupq_n_s32(start[2 * pair + 1]));
        }
    }
}

/// `sum + Σ a b` over the four bytes of each lane. `dotprod` must be there.
#[inline(always)]
unsafe fn sdot(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// Adds the products of both 8-byte rows of `a` with both of `b`: `a0 b0, a0 b1, a1 b0, a1 b1`. `i8mm` must be there.
#[inline(always)]
unsafe fn smmla(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    unsafe {
        asm!(
            "smmla {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// The first four half floats.
#[inline(always)]
unsafe fn widen_low_f16(x: uint8x16_t) -> float32x4_t {
    let out: float32x4_t;
    unsafe {
        asm!(
            "fcvtl {out:v}.4s, {x:v}.4h",
            out = lateout(vreg) out,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    out
}

/// The last four half floats.
#[inline(always)]
unsafe fn widen_high_f16(x: uint8x16_t) -> float32x4_t {
    let out: float32x4_t;
    unsafe {
        asm!(
            "fcvtl2 {out:v}.4s, {x:v}.8h",
            out = lateout(vreg) out,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    out
}

/// `b` where either is NaN: the instruction of this name gives NaN.
#[inline(always)]
unsafe fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

/// `b` where either is NaN.
#[inline(always)]
unsafe fn min(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    unsafe { vbslq_f32(vcltq_f32(a, b), a, b) }
}

#[inline(always)]
unsafe fn exp2_of_rounded(x: float32x4_t) -> float32x4_t {
    unsafe {
        let shifted = vshlq_n_s32::<23>(vreinterpretq_s32_f32(x));
        vreinterpretq_f32_s32(vaddq_s32(shifted, vdupq_n_s32(0x3F80_0000)))
    }
}
