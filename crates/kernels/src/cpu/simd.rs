//! Vectors of 16 floats and of 64 codes, in the instructions of each set.

mod scalar;

pub(super) use scalar::Scalar;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::{Avx2, narrow, taken, unrolled};
#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub(super) use neon::Neon;

/// Lanes of a float vector; a weight tile has twice as many output features.
pub(super) const LANES: usize = 16;

/// Bytes of a code vector: four consecutive codes of each of 16 output features.
pub(super) const CODE_BYTES: usize = 64;

/// Work that is compiled once per instruction set.
///
/// `run` and everything it calls on the hot path must be `#[inline(always)]`: only what is inlined into [`Simd::call`] is
/// compiled with the instructions of the set.
pub(super) trait Kernel {
    type Output;

    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// The vector operations that the kernels are written in.
///
/// A value of the type is the proof that its instructions exist. All sets have the same logical width and the same order
/// of every sum, so a kernel is written once.
pub(super) trait Simd: Copy + Send + Sync + 'static {
    /// 16 floats.
    type F32: Copy;
    /// 16 integers.
    type I32: Copy;
    /// 64 codes: bytes `4 lane ..` belong to a lane.
    type Codes: Copy;
    /// Rows that share an unpacked code vector: as many as the registers hold sums for, at most 8.
    const ROWS: usize;
    /// The same for codes of 8 bits.
    const ROWS_OF_BYTES: usize = Self::ROWS;
    /// Rows up to which both halves of a tile are multiplied together; with more of them, one half after the other.
    const ROWS_OF_BOTH_HALVES: usize = 8;
    /// Rows that share 32 float weights.
    const FLOAT_ROWS: usize;

    fn splat(self, x: f32) -> Self::F32;
    fn load(self, x: &[f32; LANES]) -> Self::F32;
    fn store(self, x: Self::F32, out: &mut [f32; LANES]);
    /// Little-endian floats at any address.
    #[inline(always)]
    fn load_f32_bytes(self, x: &[u8; 4 * LANES]) -> Self::F32 {
        let x = x.as_chunks::<4>().0;
        self.load(&std::array::from_fn(|i| f32::from_le_bytes(x[i])))
    }
    /// IEEE half floats.
    fn load_f16(self, x: &[u8; 2 * LANES]) -> Self::F32;
    fn load_bf16(self, x: &[u8; 2 * LANES]) -> Self::F32;
    fn load_i8(self, x: &[i8; LANES]) -> Self::F32;
    fn load_u8(self, x: &[u8; LANES]) -> Self::F32;
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a b + c`.
    fn fma(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// `b` where either is NaN.
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `b` where either is NaN.
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `2ⁿ` for the integer `n` in the low bits of `1.5 · 2²³ + n`, −126 ≤ n ≤ 127.
    fn exp2_of_rounded(self, x: Self::F32) -> Self::F32;
    /// Sum of the lanes: halves are added until one is left.
    fn sum(self, x: Self::F32) -> f32;
    /// Largest lane.
    fn max_lane(self, x: Self::F32) -> f32;

    fn load_codes(self, x: &[u8; CODE_BYTES]) -> Self::Codes;
    /// Each byte shifted to the right, or to the left where `shift` is negative, and masked; `mask` has no bit that a
    /// shift could bring over from a neighbor.
    fn bits(self, x: Self::Codes, shift: i32, mask: u8) -> Self::Codes;
    /// Bitwise or.
    fn or(self, a: Self::Codes, b: Self::Codes) -> Self::Codes;
    /// `table[i]` for each byte `i` below 16.
    fn lookup(self, table: &[u8; 16], x: Self::Codes) -> Self::Codes;
    /// For each half of `codes` and each row `start + Σ code · x` per lane, for codes of 0..=[`C::MAX`](Codes::MAX), at
    /// most 63; vector `p` meets `x[p]`. At most 8 vectors.
    fn dot_codes<C: Codes, const N: usize, const R: usize, const H: usize>(
        self,
        codes: C,
        x: [&[[i8; 4]; N]; R],
        start: [i32; R],
    ) -> [[Self::I32; R]; H];
    /// For each half of `codes` and each row `Σ (code − 128) · x` per lane, for codes of 0..=255;
    /// `minus_128_sum = −128 Σ x`. At most 8 vectors.
    fn dot_bytes<C: Codes, const N: usize, const R: usize, const H: usize>(
        self,
        codes: C,
        x: [&[[i8; 4]; N]; R],
        minus_128_sum: [i32; R],
    ) -> [[Self::I32; R]; H];
    /// Asks for the cache line at `address`, which need not be valid, into the second-level cache.
    fn prefetch(self, address: *const u8);
    /// The same into the first-level cache.
    fn prefetch_near(self, address: *const u8);
    fn to_f32(self, x: Self::I32) -> Self::F32;

    /// Runs `kernel` as a function of its own, compiled for this set.
    ///
    /// Variants that are chosen between while kernels run are called, not inlined: as one function per set, products took nine
    /// minutes to compile in the tests' profile in place of two, and sums of `Q4_K` were spilled.
    fn call<K: Kernel>(self, kernel: K) -> K::Output;
}

/// The code vectors of a group of input features, unpacked one by one.
///
/// A trait rather than a closure: its method is inlined for certain, so it is compiled with the instructions of its set.
pub(super) trait Codes: Copy {
    /// The largest code.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "products through 16-bit sums ask for it"))]
    const MAX: i32;

    /// Vector `p` of half `half`: of a tile, or the only one.
    fn vector<S: Simd>(self, s: S, half: usize, p: usize) -> S::Codes;
}
