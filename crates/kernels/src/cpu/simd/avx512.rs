//! AVX-512 with VNNI: one register per vector, four products per lane and instruction.

#![allow(clippy::undocumented_unsafe_blocks, reason = "one argument holds for all: see `Avx512`")]

use std::arch::asm;
use std::arch::x86_64::*;

use super::avx2::unrolled;
use super::{CODE_BYTES, Codes, Kernel, LANES, Simd};

/// The set with AVX-512 F, BW, VL and VNNI.
///
/// SAFETY of every block below: a value exists only where the instructions do ([`Avx512::new`]), and loads and stores go
/// through references to arrays of exactly the size they touch.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The machine has AVX-512 F, BW, VL and VNNI, AVX2, FMA and F16C.
    #[inline(always)]
    pub(in crate::cpu) unsafe fn new() -> Self {
        Self(())
    }
}

impl Simd for Avx512 {
    type F32 = __m512;
    type I32 = __m512i;
    type Codes = __m512i;
    // Of 32 registers, 24 hold the sums of all groups and of one, either way. Where both halves of 8 rows were multiplied
    // together, sums left and came back per group, and 8 rows took 1.0 to 1.4 times what 6 and 2 took (Zen 4).
    const ROWS: usize = 8;
    const ROWS_OF_BOTH_HALVES: usize = 6;
    const FLOAT_ROWS: usize = 8;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F32 {
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::F32 {
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, x: Self::F32, out: &mut [f32; LANES]) {
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), x) }
    }

    #[inline(always)]
    fn load_f16(self, x: &[u8; 2 * LANES]) -> Self::F32 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_bf16(self, x: &[u8; 2 * LANES]) -> Self::F32 {
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> Self::F32 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn load_u8(self, x: &[u8; LANES]) -> Self::F32 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(x.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    fn exp2_of_rounded(self, x: Self::F32) -> Self::F32 {
        unsafe {
            let shifted = _mm512_slli_epi32::<23>(_mm512_castps_si512(x));
            _mm512_castsi512_ps(_mm512_add_epi32(shifted, _mm512_set1_epi32(0x3F80_0000)))
        }
    }

    #[inline(always)]
    fn sum(self, x: Self::F32) -> f32 {
        unsafe {
            let high = _mm512_shuffle_f32x4::<0b11_10_11_10>(x, x);
            let x = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_castps512_ps256(high));
            sum_of_8(x)
        }
    }

    #[inline(always)]
    fn max_lane(self, x: Self::F32) -> f32 {
        unsafe {
            let high = _mm512_shuffle_f32x4::<0b11_10_11_10>(x, x);
            max_of_8(_mm256_max_ps(_mm512_castps512_ps256(x), _mm512_castps512_ps256(high)))
        }
    }

    #[inline(always)]
    fn load_codes(self, x: &[u8; CODE_BYTES]) -> Self::Codes {
        unsafe { _mm512_loadu_si512(x.as_ptr().cast()) }
    }

    /// With a constant shift, which loops over few vectors give it, one instruction each.
    #[inline(always)]
    fn bits(self, x: Self::Codes, shift: i32, mask: u8) -> Self::Codes {
        unsafe {
            let shifted = if shift >= 0 {
                _mm512_srl_epi16(x, _mm_cvtsi32_si128(shift))
            } else {
                _mm512_sll_epi16(x, _mm_cvtsi32_si128(-shift))
            };
            _mm512_and_si512(shifted, _mm512_set1_epi8(mask.cast_signed()))
        }
    }

    #[inline(always)]
    fn or(self, a: Self::Codes, b: Self::Codes) -> Self::Codes {
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], x: Self::Codes) -> Self::Codes {
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, x)
        }
    }

    /// Rows take turns, so that no product waits for the one before it. With both halves, one broadcast serves them.
    #[inline(always)]
    fn dot_codes<C: Codes, const N: usize, const R: usize, const H: usize>(
        self,
        codes: C,
        x: [&[[i8; 4]; N]; R],
        start: [i32; R],
    ) -> [[Self::I32; R]; H] {
        const { assert!(N <= 8, "no vector is left out") };
        unsafe {
            let mut sums = [start.map(|start| _mm512_set1_epi32(start)); H];
            unrolled!(P in 0..N {
                let mut vectors = [_mm512_setzero_si512(); H];
                for (half, vector) in vectors.iter_mut().enumerate() {
                    *vector = codes.vector(self, half, P);
                }
                for r in 0..R {
                    if H == 1 {
                        sums[0][r] = add_products::<P, N>(sums[0][r], vectors[0], x[r]);
                        continue;
                    }
                    let x = _mm512_set1_epi32(bytemuck::cast::<[i8; 4], i32>(x[r][P]));
                    for half in 0..H {
                        sums[half][r] = _mm512_dpbusd_epi32(sums[half][r], vectors[half], x);
                    }
                }
            });
            sums
        }
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
    fn prefetch(self, address: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }

    #[inline(always)]
    fn prefetch_near(self, address: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    #[inline(always)]
    fn to_f32(self, x: Self::I32) -> Self::F32 {
        unsafe { _mm512_cvtepi32_ps(x) }
    }

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
        fn compiled<K: Kernel>(s: Avx512, kernel: K) -> K::Output {
            kernel.run(s)
        }
        unsafe { compiled(self, kernel) }
    }
}

/// `sums + Σ codes · x`, the activations broadcast by the instruction: where they meet one vector, a register for them is
/// one too many, and the compiler would keep all of them for the next half.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn add_products<const P: usize, const N: usize>(mut sums: __m512i, codes: __m512i, x: &[[i8; 4]; N]) -> __m512i {
    assert!(P < N, "within the activations");
    // SAFETY: reads four bytes, element `P` of `x`, and writes no memory.
    unsafe {
        asm!(
            "vpdpbusd {sums}, {codes}, dword ptr [{x} + 4 * {p}]{{1to16}}",
            sums = inout(zmm_reg) sums,
            codes = in(zmm_reg) codes,
            x = in(reg) x.as_ptr(),
            p = const P,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    sums
}

/// Halves are added until one lane is left.
#[inline(always)]
pub(super) unsafe fn sum_of_8(x: __m256) -> f32 {
    unsafe {
        let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
    }
}

/// Largest lane.
#[inline(always)]
pub(super) unsafe fn max_of_8(x: __m256) -> f32 {
    unsafe {
        let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
    }
}
