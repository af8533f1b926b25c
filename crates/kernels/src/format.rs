//! The storage formats of weights.

use std::fmt;

use crate::{GROUP, KernelError};

/// Float types a weight, a scale or a bias may be stored in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatFormat {
    /// 32-bit float.
    F32,
    /// IEEE half float.
    F16,
    /// bfloat16.
    BF16,
}

impl FloatFormat {
    /// Size of one element in bytes.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }
}

/// How the elements of a weight matrix are stored.
///
/// The formats with GGUF's names have GGUF's block layouts, drawn at their structs in `blocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, reason = "the names are those of the GGUF format")]
pub enum WeightFormat {
    /// Plain floats.
    Float(FloatFormat),
    /// 4 bits, blocks of 32, one scale.
    Q4_0,
    /// 4 bits, blocks of 32, scale and minimum.
    Q4_1,
    /// 5 bits, blocks of 32, one scale.
    Q5_0,
    /// 5 bits, blocks of 32, scale and minimum.
    Q5_1,
    /// 8 bits, blocks of 32, one scale.
    Q8_0,
    /// 2 bits, super-blocks of 256 with 4-bit scales and minimums per 16.
    Q2_K,
    /// 3 bits, super-blocks of 256 with 6-bit scales per 16.
    Q3_K,
    /// 4 bits, super-blocks of 256 with 6-bit scales and minimums per 32.
    Q4_K,
    /// 5 bits, super-blocks of 256 with 6-bit scales and minimums per 32.
    Q5_K,
    /// 6 bits, super-blocks of 256 with 8-bit scales per 16.
    Q6_K,
    /// 4-bit indices into a fixed table of 16 values, blocks of 32, one scale.
    IQ4_NL,
    /// The same table, super-blocks of 256 with 6-bit scales per 32.
    IQ4_XS,
    /// `scale * code + bias` per group: codes packed from the low bits of little-endian words.
    Affine {
        /// Bits per code: 4 or 8.
        bits: u8,
        /// Elements per scale and bias: 32, 64, 128, or any multiple of 32 that divides the row.
        group_size: usize,
        /// Type of scales and biases.
        scales: FloatFormat,
    },
    /// Signed 8-bit codes with one f32 scale per output feature.
    Int8PerRow,
}

impl WeightFormat {
    /// Refuses the settings that no device knows.
    ///
    /// # Errors
    /// [`KernelError::Affine`] for bits other than 4 and 8 or groups that are no multiple of 32.
    pub(crate) fn check(self) -> Result<(), KernelError> {
        match self {
            Self::Affine { bits, group_size, .. }
                if !matches!(bits, 4 | 8) || group_size == 0 || group_size % GROUP != 0 =>
            {
                Err(KernelError::Affine { bits, group_size })
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float(float) => write!(f, "{float:?}"),
            Self::Affine { bits, group_size, .. } => write!(f, "affine {bits}-bit, groups of {group_size}"),
            Self::Int8PerRow => f.write_str("int8 per row"),
            other => write!(f, "{other:?}"),
        }
    }
}
