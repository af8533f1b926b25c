//! What a sequence remembers between passes.

use std::any::Any;
use std::num::NonZeroUsize;

use crate::{DType, KernelError};

/// Shape of the key-value cache of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Key-value heads.
    pub num_key_value_heads: usize,
    /// Elements per head, keys and values alike.
    pub head_dim: usize,
    /// Storage type: [`DType::F32`], [`DType::F16`], [`DType::BF16`] or [`DType::I8`].
    pub dtype: DType,
    /// Tokens back from the last that are kept at least, for a layer that sees no further; `None` for all of them.
    pub window: Option<NonZeroUsize>,
}

impl KvLayout {
    /// Elements of the keys (or of the values) of one token.
    pub const fn width(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }

    /// Bytes of the keys and values of one token.
    pub const fn token_bytes(&self) -> usize {
        let scales = match self.dtype {
            DType::I8 => 2 * self.num_key_value_heads,
            _ => 0,
        };
        2 * (self.width() * self.dtype.size_bytes() + scales)
    }
}

/// Shape of the state of one Gated DeltaNet layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaLayout {
    /// Query and key heads.
    pub num_key_heads: usize,
    /// Value heads, a multiple of the key heads.
    pub num_value_heads: usize,
    /// Elements per query or key head.
    pub key_head_dim: usize,
    /// Elements per value head.
    pub value_head_dim: usize,
    /// Taps of the causal convolution.
    pub conv_kernel_dim: usize,
}

impl DeltaLayout {
    /// Channels of the convolution: all query, key and value heads.
    pub const fn conv_channels(&self) -> usize {
        2 * self.num_key_heads * self.key_head_dim + self.num_value_heads * self.value_head_dim
    }

    /// Elements per row of [`GatedDelta::terms`](crate::ops::GatedDelta::terms): normalized keys `[key_heads, key_dim]`,
    /// what is written `[value_heads, value_dim]`, decays `[value_heads]`.
    pub const fn term_width(&self) -> usize {
        self.decay_term(self.num_value_heads)
    }

    /// Where the normalized key of a key head starts among the terms of a row.
    pub(crate) const fn key_terms(&self, key_head: usize) -> usize {
        key_head * self.key_head_dim
    }

    /// Where `u` of a value head starts among the terms of a row.
    pub(crate) const fn write_terms(&self, value_head: usize) -> usize {
        self.key_terms(self.num_key_heads) + value_head * self.value_head_dim
    }

    /// Where the decay of a value head stands among the terms of a row.
    pub(crate) const fn decay_term(&self, value_head: usize) -> usize {
        self.write_terms(self.num_value_heads) + value_head
    }

    /// Elements of the recurrent state `[value_heads, key_dim, value_dim]`.
    pub const fn state_elements(&self) -> usize {
        self.num_value_heads * self.key_head_dim * self.value_head_dim
    }
}

/// Shapes of everything one sequence remembers; layers of a kind find their state by slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateLayout {
    /// One entry per attention layer.
    pub attention: Vec<KvLayout>,
    /// One entry per Gated DeltaNet layer.
    pub delta: Vec<DeltaLayout>,
}

/// Everything a sequence remembers, as plain values: what a state can be saved as and restored from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StateValues {
    /// Committed tokens.
    pub len: usize,
    /// One entry per attention layer.
    pub attention: Vec<KvValues>,
    /// One entry per Gated DeltaNet layer.
    pub delta: Vec<DeltaValues>,
}

/// The cache of one attention layer; the type of the cache holds every value exactly.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KvValues {
    /// `[len, kv_heads, head_dim]`.
    pub keys: Vec<f32>,
    /// `[len, kv_heads, head_dim]`.
    pub values: Vec<f32>,
}

/// The state of one Gated DeltaNet layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeltaValues {
    /// `[value_heads, key_dim, value_dim]`.
    pub recurrent: Vec<f32>,
    /// Last inputs of the convolution, oldest first: `[channels, kernel - 1]`.
    pub window: Vec<f32>,
}

/// A piece of a state's memory. Copies of a state share pieces until one of them writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatePart {
    /// Tells pieces that exist at the same time apart.
    pub id: usize,
    /// Its size.
    pub bytes: usize,
}

/// The memory of one sequence on a device: it stands for exactly `len` committed tokens.
///
/// A pass reads it; only [`Pass::commit`](crate::Pass::commit) moves it on, so nothing is ever rolled back.
pub trait State: Send + Sync {
    /// Committed tokens.
    fn len(&self) -> usize;

    /// Whether no token is committed.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes held on the device.
    fn size_bytes(&self) -> usize;

    /// The pieces of its memory, so that what several states share can be counted once. A device whose copies share
    /// nothing has one for all.
    fn parts(&self) -> Vec<StatePart> {
        vec![StatePart { id: std::ptr::from_ref(self).addr(), bytes: self.size_bytes() }]
    }

    /// A copy that later commits to `self` do not change. Key-value blocks are shared until one side writes.
    fn snapshot(&self) -> Box<dyn State>;

    /// Copies everything out, for storage outside the device.
    fn values(&self) -> StateValues;

    /// Replaces everything by `values`, which [`values`](Self::values) of a state of the same layout gave.
    ///
    /// # Errors
    /// [`KernelError::Layers`] or [`KernelError::Shape`] if `values` belong to another layout; nothing is changed then.
    fn restore(&mut self, values: &StateValues) -> Result<(), KernelError>;

    /// Keys and values of an attention layer, each `[len, kv_heads, head_dim]`: for tests and tools.
    ///
    /// # Errors
    /// [`KernelError::Missing`] if there is no such slot.
    fn read_kv(&self, slot: usize) -> Result<(Vec<f32>, Vec<f32>), KernelError>;

    /// Recurrent state `[value_heads, key_dim, value_dim]` and convolution window `[channels, kernel - 1]` (oldest
    /// first) of a DeltaNet layer: for tests and tools.
    ///
    /// # Errors
    /// [`KernelError::Missing`] if there is no such slot.
    fn read_delta(&self, slot: usize) -> Result<(Vec<f32>, Vec<f32>), KernelError>;

    /// For the device to find its own type again.
    fn as_any(&self) -> &dyn Any;

    /// For the device to find its own type again.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}
