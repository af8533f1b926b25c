//! Weights and parameters: what a device keeps after loading.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::blocks::row_bytes;
use crate::{KernelError, WeightFormat};

/// In which precision a quantized weight meets its activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activations {
    /// Activations stay f32 and the weight is dequantized: exact, slow.
    Float,
    /// Activations become int8 per group of 32 elements of a row, products are summed exactly in i32.
    #[default]
    Int8PerGroup,
    /// Activations become int8 with one scale per row.
    Int8PerRow,
}

/// A weight matrix `[rows, columns]` (output features, input features) as stored in a file.
///
/// The byte ranges are shared, usually parts of a file mapping; a device may keep them as they are.
#[derive(Clone, Debug)]
pub struct WeightData {
    /// Storage format.
    pub format: WeightFormat,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub columns: usize,
    /// Blocks, floats or codes, row after row.
    pub data: Bytes,
    /// Scales of [`WeightFormat::Affine`] `[rows, columns / group_size]` and [`WeightFormat::Int8PerRow`] `[rows]`, else empty.
    pub scales: Bytes,
    /// Biases of [`WeightFormat::Affine`], shaped as its scales, else empty.
    pub biases: Bytes,
    /// Precision of the activations it multiplies; float formats always multiply f32.
    pub activations: Activations,
}

impl WeightData {
    /// Checks that the byte ranges fit format and shape.
    ///
    /// Sizes saturate: no byte range is as long as the address space, so a shape that overflows never fits.
    ///
    /// # Errors
    /// [`KernelError::WeightBlocks`] if a row cuts a block, [`KernelError::WeightBytes`] if a byte range has another
    /// length.
    pub fn check(&self) -> Result<(), KernelError> {
        let WeightData { format, rows, columns, .. } = *self;
        format.check()?;
        let block = format.block_elements();
        if columns % block != 0 {
            return Err(KernelError::WeightBlocks { format, columns, block });
        }
        let (scales, biases) = match format {
            WeightFormat::Affine { group_size, scales, .. } => {
                let bytes = rows.saturating_mul(columns / group_size).saturating_mul(scales.size_bytes());
                (bytes, bytes)
            }
            WeightFormat::Int8PerRow => (rows.saturating_mul(4), 0),
            _ => (0, 0),
        };
        let parts = [
            ("data", self.data.len(), rows.saturating_mul(row_bytes(format, columns))),
            ("scales", self.scales.len(), scales),
            ("biases", self.biases.len(), biases),
        ];
        for (part, found, expected) in parts {
            if found != expected {
                return Err(KernelError::WeightBytes { format, rows, columns, part, found, expected });
            }
        }
        Ok(())
    }
}

/// A weight matrix that a device holds.
#[derive(Clone)]
pub struct Weight {
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub columns: usize,
    /// The format it was loaded from.
    pub format: WeightFormat,
    /// Bytes that it took in its file, scales and biases included.
    pub stored_bytes: u64,
    storage: Arc<dyn Any + Send + Sync>,
}

impl Weight {
    /// Wraps what a device keeps for a weight of the shape and format of `data`.
    pub(crate) fn new(data: &WeightData, storage: Arc<dyn Any + Send + Sync>) -> Self {
        let stored_bytes = (data.data.len() + data.scales.len() + data.biases.len()) as u64;
        Self { rows: data.rows, columns: data.columns, format: data.format, stored_bytes, storage }
    }

    /// What the device kept, if it is of type `T`.
    pub(crate) fn storage<T: Any>(&self) -> Option<&T> {
        self.storage.downcast_ref()
    }
}

impl fmt::Debug for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Weight([{}, {}], {})", self.rows, self.columns, self.format)
    }
}

/// A small f32 vector that a device holds: norm weights, biases, convolution taps.
#[derive(Clone)]
pub struct Param {
    /// Number of elements.
    pub len: usize,
    storage: Arc<dyn Any + Send + Sync>,
}

impl Param {
    pub(crate) fn new(len: usize, storage: Arc<dyn Any + Send + Sync>) -> Self {
        Self { len, storage }
    }

    /// What the device kept, if it is of type `T`.
    pub(crate) fn storage<T: Any>(&self) -> Option<&T> {
        self.storage.downcast_ref()
    }
}

impl fmt::Debug for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Param([{}])", self.len)
    }
}
