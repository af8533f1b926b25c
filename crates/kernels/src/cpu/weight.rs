//! Weights as this device keeps them.

use bytes::Bytes;

use super::instruction_set::InstructionSet;
use super::memory::Arena;
use super::pool::Pool;
use super::tiles::{TILE, Tiles};
use crate::{Activations, FloatFormat, Weight, WeightData, WeightFormat};

/// A weight in the form that products and embedding look-ups use.
pub(super) struct CpuWeight {
    /// What was loaded; without its bytes where the form has them.
    pub(super) data: WeightData,
    pub(super) form: Form,
}

/// How a weight meets its activations.
pub(super) enum Form {
    /// Floats, f32 activations.
    Floats(FloatFormat, Tiles),
    /// As stored; tiles are dequantized once per pass for f32 activations.
    Dequantized,
    /// Quantized, 8-bit activations.
    Codes(Tiles),
}

impl CpuWeight {
    /// Repacks what products read; see the table in `tiles.rs`.
    pub(super) fn new(set: InstructionSet, data: WeightData, pool: &mut Pool, arena: &mut Arena) -> Self {
        let form = match (data.format, data.activations) {
            (WeightFormat::Float(float), _) => Form::Floats(float, Tiles::new(set, &data, pool, arena)),
            (_, Activations::Float) => Form::Dequantized,
            _ => Form::Codes(Tiles::new(set, &data, pool, arena)),
        };
        let data = match form {
            Form::Dequantized => data,
            Form::Floats(..) | Form::Codes(_) => {
                WeightData { data: Bytes::new(), scales: Bytes::new(), biases: Bytes::new(), ..data }
            }
        };
        Self { data, form }
    }

    /// A weight for embedding look-ups, which stays as stored.
    pub(super) fn table(data: WeightData) -> Self {
        Self { data, form: Form::Dequantized }
    }

    /// Groups of 32 output features.
    pub(super) fn num_tiles(&self) -> usize {
        self.data.rows.div_ceil(TILE)
    }

    /// Bytes of all tiles, if products read tiles.
    pub(super) fn tiles_bytes(&self) -> Option<usize> {
        match &self.form {
            Form::Floats(_, tiles) | Form::Codes(tiles) => Some(self.num_tiles() * tiles.layout.tile_bytes()),
            Form::Dequantized => None,
        }
    }

    /// The precision in which activations must be quantized, if they must.
    pub(super) fn activations(&self) -> Option<Activations> {
        matches!(self.form, Form::Codes(_)).then_some(self.data.activations)
    }

    /// Floats that a thread needs for the product: a tile as rows and as a tile.
    pub(super) fn scratch_floats(&self) -> usize {
        if matches!(self.form, Form::Dequantized) { 2 * TILE * self.data.columns } else { 0 }
    }
}

/// The form of a weight of this device.
pub(super) fn cpu_weight(weight: &Weight) -> &CpuWeight {
    weight.storage().expect("`prepare` refuses weights of other devices")
}

impl std::fmt::Debug for CpuWeight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuWeight").field("format", &self.data.format).finish_non_exhaustive()
    }
}
