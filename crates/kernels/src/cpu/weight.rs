//! Weights as this device keeps them.

use super::memory::Arena;
use super::pool::Pool;
use super::share::for_each_part;
use super::simd::LANES;
use super::tiles::{TileLayout, Tiles, pack_tile};
use crate::{Activations, FloatFormat, Weight, WeightData, WeightFormat};

/// A weight in the form that its products use, and the bytes it came in for embedding look-ups.
///
/// The bytes of a repacked weight are not touched by products again. If they are part of a file mapping, the pages that
/// repacking read stay in the process's resident set until the system wants them back: they are clean, and cost nothing
/// to drop.
pub(super) struct CpuWeight {
    pub(super) data: WeightData,
    pub(super) form: Form,
}

/// How a weight meets its activations.
pub(super) enum Form {
    /// Floats as stored, f32 activations.
    Floats(FloatFormat),
    /// Quantized as stored; rows are dequantized for f32 activations.
    Dequantized,
    /// Quantized as stored; tiles are unpacked once per pass for 8-bit activations.
    Unpacked,
    /// Repacked for 8-bit activations.
    Tiles(Tiles),
}

impl CpuWeight {
    /// Repacks where that pays; see the table in `tiles.rs`.
    pub(super) fn new(data: WeightData, pool: &mut Pool, arena: &mut Arena) -> Self {
        let layout = TileLayout::of(data.format, data.columns);
        let form = match (data.format, data.activations, layout) {
            (WeightFormat::Float(float), _, _) => Form::Floats(float),
            (_, Activations::Float, _) => Form::Dequantized,
            (_, _, Some(layout)) => Form::Tiles(repack(&data, layout, pool, arena)),
            (_, _, None) => Form::Unpacked,
        };
        Self { data, form }
    }

    /// Groups of 16 output features.
    pub(super) fn num_tiles(&self) -> usize {
        self.data.rows.div_ceil(LANES)
    }

    /// The precision in which activations must be quantized, if they must.
    pub(super) fn activations(&self) -> Option<Activations> {
        matches!(self.form, Form::Tiles(_) | Form::Unpacked).then_some(self.data.activations)
    }
}

/// The form of a weight of this device.
pub(super) fn cpu_weight(weight: &Weight) -> &CpuWeight {
    weight.storage().expect("`prepare` refuses weights of other devices")
}

fn repack(data: &WeightData, layout: TileLayout, pool: &mut Pool, arena: &mut Arena) -> Tiles {
    let num_tiles = data.rows.div_ceil(LANES);
    let mut tiles = Tiles::new(layout, num_tiles, arena);
    for_each_part(pool, tiles.bytes_mut(), layout.tile_bytes(), 0, |_, tile, bytes| {
        pack_tile(data, &layout, tile, bytes);
    });
    tiles
}

/// What one thread needs for the products of a weight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProductScratch {
    /// Code vectors of an unpacked tile.
    pub(super) codes: usize,
    /// Vectors of scales (and of biases) of a tile.
    pub(super) scales: usize,
    /// Floats of dequantized rows.
    pub(super) values: usize,
}

impl ProductScratch {
    pub(super) fn of(weight: &CpuWeight) -> Self {
        let groups = weight.data.columns / crate::GROUP;
        match &weight.form {
            Form::Floats(_) => Self::default(),
            Form::Dequantized => Self { values: super::product::FEATURES * weight.data.columns, ..Self::default() },
            Form::Unpacked => Self { codes: 8 * groups, scales: 2 * groups, values: 0 },
            Form::Tiles(tiles) => Self { scales: groups * tiles.layout.codes.scales_per_group(), ..Self::default() },
        }
    }
}

impl std::fmt::Debug for CpuWeight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuWeight").field("format", &self.data.format).finish_non_exhaustive()
    }
}
