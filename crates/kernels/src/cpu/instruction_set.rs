//! Which vector instructions the kernels use.

use std::fmt;

#[cfg(target_arch = "x86_64")]
use super::simd::{Avx2, Avx512};
use super::simd::{Scalar, Simd};
use crate::KernelError;

/// Vector instructions, picked when the device is made; a plain build contains all of them.
///
/// Every set computes with 16 float lanes in the same order, so AVX2 and AVX-512 give the same bits; the portable one
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
}

impl InstructionSet {
    /// All sets, the plainest first.
    pub const ALL: [Self; 3] = [Self::Scalar, Self::Avx2, Self::Avx512Vnni];

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
        }
    }

    /// Whether this machine has the set.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_available(self) -> bool {
        self == Self::Scalar
    }

    /// Name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "AVX2",
            Self::Avx512Vnni => "AVX-512 VNNI",
        }
    }

    /// `self`, if the machine has it.
    pub(super) fn checked(self) -> Result<Self, KernelError> {
        if self.is_available() { Ok(self) } else { Err(KernelError::InstructionSet { name: self.name() }) }
    }

    /// Runs `kernel` compiled for this set, which must be available.
    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        debug_assert!(self.is_available());
        match self {
            Self::Scalar => kernel.run(Scalar),
            // SAFETY: a device only holds sets that passed `checked`.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { run_avx2(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => unsafe { run_avx512(kernel) },
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512Vnni => kernel.run(Scalar),
        }
    }
}

impl fmt::Display for InstructionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Work that is compiled once per instruction set.
///
/// `run` and everything it calls on the hot path must be `#[inline(always)]`: only what is inlined into the functions
/// below is compiled with their instructions.
pub(super) trait Kernel {
    type Output;

    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: this function runs only where its target features exist.
    kernel.run(unsafe { Avx2::new() })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: this function runs only where its target features exist.
    kernel.run(unsafe { Avx512::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_detected_set_is_available() {
        assert!(InstructionSet::detect().is_available());
        assert!(InstructionSet::Scalar.checked().is_ok());
    }
}
