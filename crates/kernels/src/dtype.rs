//! Element types of activations and caches.

/// Element type of a [`Tensor`](crate::Tensor) or of a key-value cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit float: every activation.
    F32,
    /// IEEE half float: key-value caches.
    F16,
    /// bfloat16: key-value caches.
    BF16,
    /// 8-bit integer, with one bf16 scale per token, head, and kind (key or value): key-value caches only.
    I8,
    /// 32-bit integer: indices.
    I32,
}

impl DType {
    /// Size of one element in bytes.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::I8 => 1,
        }
    }

    /// Type of the rows of a pass that will be stored in a cache of this type: floats stay what they are, and integers
    /// are made of f32 where the rows are read, by the same rule in the pass and in its commit.
    pub const fn of_candidates(self) -> Self {
        match self {
            Self::I8 => Self::F32,
            other => other,
        }
    }
}
