//! The number formats that tensors are stored in, and their sizes.

use std::fmt;

/// A plain floating-point format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FloatFormat {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an IEEE single.
    BF16,
}

/// How the elements of a tensor are stored.
///
/// The names of the block formats are GGUF's. A block holds [`block_len`](Self::block_len) consecutive elements of one
/// row in [`block_bytes`](Self::block_bytes) bytes; rows hold whole blocks.
#[allow(non_camel_case_types, reason = "the field writes these names with an underscore, and so does every file")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorFormat {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an IEEE single.
    BF16,
    /// 32 elements: f16 scale, 4-bit codes around 8.
    Q4_0,
    /// 32 elements: f16 scale, f16 minimum, 4-bit codes.
    Q4_1,
    /// 32 elements: f16 scale, 5-bit codes around 16.
    Q5_0,
    /// 32 elements: f16 scale, f16 minimum, 5-bit codes.
    Q5_1,
    /// 32 elements: f16 scale, signed bytes.
    Q8_0,
    /// 256 elements: 2-bit codes, 4-bit scales and minima per 16.
    Q2_K,
    /// 256 elements: 3-bit codes, 6-bit scales per 16.
    Q3_K,
    /// 256 elements: 4-bit codes, 6-bit scales and minima per 32.
    Q4_K,
    /// 256 elements: 5-bit codes, 6-bit scales and minima per 32.
    Q5_K,
    /// 256 elements: 6-bit codes, 8-bit scales per 16.
    Q6_K,
    /// 32 elements: f16 scale, 4-bit indices into a fixed table of 16 values.
    IQ4_NL,
    /// 256 elements: as `IQ4_NL`, with 6-bit scales per 32.
    IQ4_XS,
    /// MLX: `value = code * scale + bias`, one scale and one bias per group along a row.
    Affine {
        /// Bits of a code: 4 or 8. Codes are packed into little-endian 32-bit words, first code lowest.
        bits: u8,
        /// Elements that share a scale and a bias: 32, 64 or 128.
        group_size: usize,
        /// The format of scales and biases.
        scales: FloatFormat,
    },
}

impl TensorFormat {
    /// Elements in a block; 1 for plain floats, the group for [`Affine`](Self::Affine).
    pub fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::IQ4_NL => 32,
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K | Self::IQ4_XS => 256,
            Self::Affine { group_size, .. } => group_size,
        }
    }

    /// Bytes of a block; for [`Affine`](Self::Affine) the codes of a group without scale and bias, which are apart.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 | Self::IQ4_NL => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2_K => 84,
            Self::Q3_K => 110,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
            Self::IQ4_XS => 136,
            Self::Affine { bits, group_size, .. } => group_size * usize::from(bits) / 8,
        }
    }

    /// The plain floating-point format, or `None` for block and group formats.
    pub fn as_float(self) -> Option<FloatFormat> {
        match self {
            Self::F32 => Some(FloatFormat::F32),
            Self::F16 => Some(FloatFormat::F16),
            Self::BF16 => Some(FloatFormat::BF16),
            _ => None,
        }
    }

    /// Bytes of `shape` in this format, without scales and biases of [`Affine`](Self::Affine).
    ///
    /// `None` where a row (the last axis) is no whole number of blocks, or the size passes 64 bits.
    pub fn size_bytes(self, shape: &[usize]) -> Option<usize> {
        let row = shape.last().copied().unwrap_or(1);
        if !row.is_multiple_of(self.block_len()) {
            return None;
        }
        let elements = shape.iter().try_fold(1usize, |product, &axis| product.checked_mul(axis))?;
        (elements / self.block_len()).checked_mul(self.block_bytes())
    }
}

impl From<FloatFormat> for TensorFormat {
    fn from(format: FloatFormat) -> Self {
        match format {
            FloatFormat::F32 => Self::F32,
            FloatFormat::F16 => Self::F16,
            FloatFormat::BF16 => Self::BF16,
        }
    }
}

impl fmt::Display for FloatFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl fmt::Display for TensorFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Affine { bits, group_size, scales } => {
                write!(f, "affine {bits}-bit, group {group_size}, {scales} scales")
            }
            named => fmt::Debug::fmt(named, f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_blocks() {
        assert_eq!(TensorFormat::F32.size_bytes(&[2, 3]), Some(24));
        assert_eq!(TensorFormat::Q4_0.size_bytes(&[3, 64]), Some(3 * 2 * 18));
        assert_eq!(TensorFormat::Q6_K.size_bytes(&[2, 512]), Some(2 * 2 * 210));
        let affine = TensorFormat::Affine { bits: 4, group_size: 64, scales: FloatFormat::BF16 };
        assert_eq!(affine.size_bytes(&[2, 128]), Some(128));
        assert_eq!(affine.to_string(), "affine 4-bit, group 64, BF16 scales");
    }

    #[test]
    fn a_row_that_cuts_a_block_has_no_size() {
        assert_eq!(TensorFormat::Q4_0.size_bytes(&[32, 16]), None);
        assert_eq!(TensorFormat::F32.size_bytes(&[usize::MAX, 2]), None);
    }
}
