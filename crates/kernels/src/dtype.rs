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
    /// 32-bit integer: indices.
    I32,
}

impl DType {
    /// Size of one element in bytes.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }
}
