//! Which vector instructions the kernels use.

use std::fmt;

#[cfg(target_arch = "aarch64")]
use super::simd::Neon;
#[cfg(target_arch = "x86_64")]
use super::simd::{Avx2, Avx512};
use super::simd::{Kernel, Scalar, Simd};
use crate::KernelError;

/// Vector instructions, picked when the device is made; a plain build contains all of its architecture.
///
/// Every set computes with 16 float lanes in the same order, so all but the portable one give the same bits; that one
/// rounds products and sums separately where its target has no fused multiply-add.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InstructionSet {
    /// Portable loops, as far as the compiler vectorizes them for the build's target.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, VL and VNNI.
    Avx512Vnni,
    /// 64-bit Arm with NEON and `dotprod`: most cores since 2018.
    NeonDotprod,
    /// 64-bit Arm with `i8mm` besides: products of 2 × 8 with 8 × 2 bytes.
    NeonI8mm,
}

impl InstructionSet {
    /// All sets of all architectures, for each the plainest first.
    pub const ALL: [Self; 5] = [Self::Scalar, Self::Avx2, Self::Avx512Vnni, Self::NeonDotprod, Self::NeonI8mm];

    /// The fastest set of this machine.
    pub fn detect() -> Self {
        Self::ALL.into_iter().rev().find(|set| set.is_available()).unwrap_or(Self::Scalar)
    }

    /// Whether this machine has the set.
    #[cfg(target_arch = "x86_64")]
    pub fn is_available(self) -> bool {
        let avx2 =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        match self {
            Self::Scalar => true,
            Self::Avx2 => avx2,
            Self::Avx512Vnni => {
                avx2 && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            Self::NeonDotprod | Self::NeonI8mm => false,
        }
    }

    /// Whether this machine has the set.
    #[cfg(target_arch = "aarch64")]
    pub fn is_available(self) -> bool {
        use std::arch::is_aarch64_feature_detected;
        let dotprod = is_aarch64_feature_detected!("neon") && is_aarch64_feature_detected!("dotprod");
        match self {
            Self::Scalar => true,
            Self::NeonDotprod => dotprod,
            Self::NeonI8mm => dotprod && is_aarch64_feature_detected!("i8mm"),
            Self::Avx2 | Self::Avx512Vnni => false,
        }
    }

    /// Whether this machine has the set.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub fn is_available(self) -> bool {
        self == Self::Scalar
    }

    /// Name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "AVX2",
            Self::Avx512Vnni => "AVX-512 VNNI",
            Self::NeonDotprod => "NEON dotprod",
            Self::NeonI8mm => "NEON i8mm",
        }
    }

    /// Whether products of one or two rows begin by asking for memory by instruction; [`Ahead`](super::ahead::Ahead) then
    /// finds out what is faster.
    pub(super) const fn asks_ahead(self) -> bool {
        matches!(self, Self::Avx2)
    }

    /// `self`, if the machine has it.
    pub(super) fn checked(self) -> Result<Self, KernelError> {
        if self.is_available() { Ok(self) } else { Err(KernelError::InstructionSet { name: self.name() }) }
    }

    /// Runs `kernel` compiled for this set, which must be available.
    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        debug_assert!(self.is_available());
        match self {
            // SAFETY: a device only holds sets that passed `checked`.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { Avx2::new() }.call(kernel),
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => unsafe { Avx512::new() }.call(kernel),
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotprod => unsafe { Neon::<false>::new() }.call(kernel),
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm => unsafe { Neon::<true>::new() }.call(kernel),
            // The portable set; sets of other architectures did not pass.
            _ => Scalar.call(kernel),
        }
    }
}

impl fmt::Display for InstructionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_detected_set_is_available() {
        assert!(InstructionSet::detect().is_available());
        assert!(InstructionSet::Scalar.checked().is_ok());
    }

    /// Tests skip sets that the machine lacks; where all must be there, as in an emulator, the runner says so.
    #[test]
    fn the_sets_that_the_runner_expects_are_available() {
        let expected = std::env::var("PLEACH_TEST_SETS").unwrap_or_default();
        for name in expected.split(',').filter(|name| !name.is_empty()) {
            let set = InstructionSet::ALL.into_iter().find(|set| set.name() == name);
            assert!(set.is_some_and(InstructionSet::is_available), "{name} is missing");
        }
    }
}
