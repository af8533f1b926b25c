//! AVX2: two registers per vector, products of bytes through 16-bit sums.

#![allow(clippy::undocumented_unsafe_blocks, reason = "one argument holds for all: see `Avx2`")]

use std::arch::asm;
use std::arch::x86_64::*;

use super::avx512::{max_of_8, sum_of_8};
use super::{CODE_BYTES, Codes, Kernel, LANES, Simd};

/// The set with AVX2, FMA and F16C.
///
/// SAFETY of every block below: a value exists only where the instructions do ([`Avx2::new`]), and loads and stores go
/// through references to arrays of exactly the size they touch.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The machine has AVX2, FMA and F16C.
    #[inline(always)]
    pub(in crate::cpu) unsafe fn new() -> Self {
        Self(())
    }

    /// `sums` and the sums of neighboring 16-bit numbers.
    #[inline(always)]
    pub(in crate::cpu) fn widened(self, sums: __m256i, pairs: __m256i) -> __m256i {
        unsafe { _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))) }
    }
}

/// Vectors, of `n` at most, whose products of at most `product` a 16-bit sum holds; each vector adds two.
pub(in crate::cpu) const fn narrow(n: usize, product: i32) -> usize {
    let fit = (i16::MAX as i32 / (2 * product)) as usize;
    if fit < n { fit } else { n }
}

/// Both halves of an operation.
macro_rules! halves {
    ($op:ident, $a:expr $(, $rest:expr)*) => {
        unsafe { [$op($a[0] $(, $rest[0])*), $op($a[1] $(, $rest[1])*)] }
    };
}

/// `body` for each constant `P` from 0 to `n`, 8 at most, without a loop: the compiler would keep one of this size, and its sums
/// in memory.
macro_rules! unrolled {
    ($P:ident in 0..$n:ident $body:block) => {
        unrolled!(@ $P $n $body 0 1 2 3 4 5 6 7)
    };
    (@ $P:ident $n:ident $body:block $($i:literal)*) => {
        $(if $i < $n {
            const $P: usize = $i;
            $body
        })*
    };
}
pub(in crate::cpu) use unrolled;

impl Simd for Avx2 {
    type F32 = [__m256; 2];
    type I32 = [__m256i; 2];
    type Codes = [__m256i; 2];
    const ROWS: usize = 4;
    // Codes of 8 bits go one register at a time, so only its sums, one per row, need registers.
    const ROWS_OF_BYTES: usize = 8;
    const FLOAT_ROWS: usize = 2;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F32 {
        unsafe { [_mm256_set1_ps(x); 2] }
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::F32 {
        unsafe { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))] }
    }

    #[inline(always)]
    fn store(self, x: Self::F32, out: &mut [f32; LANES]) {
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), x[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), x[1]);
        }
    }

    #[inline(always)]
    fn load_f16(self, x: &[u8; 2 * LANES]) -> Self::F32 {
        let x: *const __m128i = x.as_ptr().cast();
        unsafe { [_mm256_cvtph_ps(_mm_loadu_si128(x)), _mm256_cvtph_ps(_mm_loadu_si128(x.add(1)))] }
    }

    #[inline(always)]
    fn load_bf16(self, x: &[u8; 2 * LANES]) -> Self::F32 {
        let x: *const __m128i = x.as_ptr().cast();
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(x));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(x.add(1)));
            [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high))]
        }
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> Self::F32 {
        unsafe {
            let x = _mm_loadu_si128(x.as_ptr().cast());
            let high = _mm_srli_si128::<8>(x);
            [_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high))]
        }
    }

    #[inline(always)]
    fn load_u8(self, x: &[u8; LANES]) -> Self::F32 {
        unsafe {
            let x = _mm_loadu_si128(x.as_ptr().cast());
            let high = _mm_srli_si128::<8>(x);
            [_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(high))]
        }
    }

    #[inline(always)]
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        halves!(_mm256_add_ps, a, b)
    }

    #[inline(always)]
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        halves!(_mm256_sub_ps, a, b)
    }

    #[inline(always)]
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        halves!(_mm256_mul_ps, a, b)
    }

    #[inline(always)]
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        halves!(_mm256_div_ps, a, b)
    }

    #[inline(always)]
    fn fma(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32 {
        halves!(_mm256_fmadd_ps, a, b, c)
    }

    #[inline(always)]
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        halves!(_mm256_max_ps, a, b)
    }

    #[inline(always)]
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        halves!(_mm256_min_ps, a, b)
    }

    #[inline(always)]
    fn exp2_of_rounded(self, x: Self::F32) -> Self::F32 {
        unsafe {
            let one = _mm256_set1_epi32(0x3F80_0000);
            let low = _mm256_slli_epi32::<23>(_mm256_castps_si256(x[0]));
            let high = _mm256_slli_epi32::<23>(_mm256_castps_si256(x[1]));
            [_mm256_castsi256_ps(_mm256_add_epi32(low, one)), _mm256_castsi256_ps(_mm256_add_epi32(high, one))]
        }
    }

    #[inline(always)]
    fn sum(self, x: Self::F32) -> f32 {
        unsafe { sum_of_8(_mm256_add_ps(x[0], x[1])) }
    }

    #[inline(always)]
    fn max_lane(self, x: Self::F32) -> f32 {
        unsafe { max_of_8(_mm256_max_ps(x[0], x[1])) }
    }

    #[inline(always)]
    fn load_codes(self, x: &[u8; CODE_BYTES]) -> Self::Codes {
        let x: *const __m256i = x.as_ptr().cast();
        unsafe { [_mm256_loadu_si256(x), _mm256_loadu_si256(x.add(1))] }
    }

    /// With a constant shift, which `unrolled` gives it, one instruction each.
    #[inline(always)]
    fn bits(self, x: Self::Codes, shift: i32, mask: u8) -> Self::Codes {
        unsafe {
            let shifted = if shift >= 0 {
                let count = _mm_cvtsi32_si128(shift);
                [_mm256_srl_epi16(x[0], count), _mm256_srl_epi16(x[1], count)]
            } else {
                let count = _mm_cvtsi32_si128(-shift);
                [_mm256_sll_epi16(x[0], count), _mm256_sll_epi16(x[1], count)]
            };
            let mask = _mm256_set1_epi8(mask.cast_signed());
            [_mm256_and_si256(shifted[0], mask), _mm256_and_si256(shifted[1], mask)]
        }
    }

    #[inline(always)]
    fn or(self, a: Self::Codes, b: Self::Codes) -> Self::Codes {
        halves!(_mm256_or_si256, a, b)
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], x: Self::Codes) -> Self::Codes {
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [_mm256_shuffle_epi8(table, x[0]), _mm256_shuffle_epi8(table, x[1])]
        }
    }

    /// A 16-bit sum holds 16 products of 4-bit codes (16 · 15 · 127 = 30480), 8 of 5 bits or 4 of 6.
    #[inline(always)]
    fn dot_codes<C: Codes, const N: usize, const R: usize, const H: usize>(
        self,
        codes: C,
        x: [&[[i8; 4]; N]; R],
        start: [i32; R],
    ) -> [[Self::I32; R]; H] {
        // Codes of 8 bits go through `dot_bytes`, though this is compiled for them as well.
        const {
            let divides = C::MAX == 255 || N.is_multiple_of(narrow(N, 127 * C::MAX));
            assert!(N <= 8 && divides, "no vector is left out");
        }
        let narrow = narrow(N, 127 * C::MAX);
        let zero = unsafe { _mm256_setzero_si256() };
        let mut sums = [start.map(|start| [unsafe { _mm256_set1_epi32(start) }; 2]); H];
        let mut pairs = [[[zero; 2]; R]; H];
        unrolled!(P in 0..N {
            let mut halves = [[zero; 2]; H];
            for (half, vector) in halves.iter_mut().enumerate() {
                *vector = codes.vector(self, half, P);
            }
            for r in 0..R {
                let x = unsafe { _mm256_set1_epi32(bytemuck::cast::<[i8; 4], i32>(x[r][P])) };
                for (pairs, codes) in pairs.iter_mut().zip(halves) {
                    for part in 0..2 {
                        pairs[r][part] =
                            unsafe { _mm256_add_epi16(pairs[r][part], _mm256_maddubs_epi16(codes[part], x)) };
                    }
                }
            }
            if (P + 1).is_multiple_of(narrow) {
                let pairs = taken(&mut pairs, [[[zero; 2]; R]; H]);
                for (sums, pairs) in sums.as_flattened_mut().iter_mut().zip(pairs.as_flattened()) {
                    for part in 0..2 {
                        sums[part] = self.widened(sums[part], pairs[part]);
                    }
                }
            }
        });
        sums
    }

    /// The codes become signed again; the sign moves to the activation: 2 · 128 · 127 = 32512 fits in 16 bits.
    #[inline(always)]
    fn dot_bytes<C: Codes, const N: usize, const R: usize, const H: usize>(
        self,
        codes: C,
        x: [&[[i8; 4]; N]; R],
        _: [i32; R],
    ) -> [[Self::I32; R]; H] {
        const { assert!(N <= 8, "no vector is left out") };
        let mut sums = [[[unsafe { _mm256_setzero_si256() }; 2]; R]; H];
        let parts = 2 * H;
        unrolled!(QUARTER in 0..parts {
            let (half, part) = (QUARTER / 2, QUARTER % 2);
            unrolled!(P in 0..N {
                let code = codes.vector(self, half, P)[part];
                unsafe {
                    let code = _mm256_xor_si256(code, _mm256_set1_epi8(-128));
                    let magnitude = _mm256_abs_epi8(code);
                    for r in 0..R {
                        let sums = &mut sums[half][r][part];
                        if R == 1 {
                            // The compiler keeps the activations of one row in registers, for all registers of codes.
                            let x = _mm256_set1_epi32(bytemuck::cast::<[i8; 4], i32>(x[r][P]));
                            let pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(x, code));
                            *sums = self.widened(*sums, pairs);
                        } else {
                            *sums = add_products::<P, N>(*sums, magnitude, code, x[r]);
                        }
                    }
                }
            });
        });
        sums
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }

    #[inline(always)]
    fn prefetch_near(self, address: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    #[inline(always)]
    fn to_f32(self, x: Self::I32) -> Self::F32 {
        halves!(_mm256_cvtepi32_ps, x)
    }

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "avx2,fma,f16c")]
        fn compiled<K: Kernel>(s: Avx2, kernel: K) -> K::Output {
            kernel.run(s)
        }
        unsafe { compiled(self, kernel) }
    }
}

/// `sums + Σ code · x[P]` of a register of signed bytes; `magnitude` is `|code|`.
///
/// Not `pure`, so that products stay in this order: the compiler would compute one row after the other, and keep all
/// activations in memory meanwhile.
#[inline]
#[target_feature(enable = "avx2")]
fn add_products<const P: usize, const N: usize>(
    mut sums: __m256i,
    magnitude: __m256i,
    code: __m256i,
    x: &[[i8; 4]; N],
) -> __m256i {
    assert!(P < N, "within the activations");
    // SAFETY: reads four bytes, element `P` of `x`, and writes no memory.
    unsafe {
        asm!(
            "vpbroadcastd {pairs}, dword ptr [{x} + 4 * {p}]",
            "vpsignb {pairs}, {pairs}, {code}",
            "vpmaddubsw {pairs}, {magnitude}, {pairs}",
            "vpmaddwd {pairs}, {pairs}, {ones}",
            "vpaddd {sums}, {sums}, {pairs}",
            pairs = out(ymm_reg) _,
            sums = inout(ymm_reg) sums,
            magnitude = in(ymm_reg) magnitude,
            code = in(ymm_reg) code,
            ones = in(ymm_reg) _mm256_set1_epi16(1),
            x = in(reg) x.as_ptr(),
            p = const P,
            options(readonly, nostack, preserves_flags),
        );
    }
    sums
}

/// What `sums` holds, which starts again from `zeros`. Without the checks of `std::mem::replace` in builds for tests, which
/// are a large part of a product.
#[inline(always)]
pub(in crate::cpu) fn taken<T: Copy>(sums: &mut T, zeros: T) -> T {
    let taken = *sums;
    *sums = zeros;
    taken
}
