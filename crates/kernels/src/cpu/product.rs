//! Products of rows with weights: how the work is cut, for [`Linear`](crate::ops::Linear) and for experts alike.
//!
//! Each output element is computed by one thread, in the order of its input features, by the same lane of the same
//! instructions whatever the number of rows: its bits depend on its row and its weight only.

use super::activations::ActivationGroup;
use super::instruction_set::InstructionSet;
use super::pool::Pool;
use super::share::{Shared, chunk_size};
use super::simd::LANES;
use super::weight::{CpuWeight, Form};
use crate::blocks::GROUP;
use crate::{Activations, FloatFormat, WeightFormat};

mod codes;
mod floats;
mod scales;

use scales::{FloatScales, TileScales};

pub(super) use floats::FEATURES;

/// A row of the activations and the row of the output that its product goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) from: u32,
    pub(super) to: u32,
}

/// One weight, the rows it multiplies, and where the products go.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    pub(super) weight: &'a CpuWeight,
    /// `[out_features]`.
    pub(super) bias: Option<&'a [f32]>,
    pub(super) moves: &'a [Move],
    /// `[rows, out_features]`.
    pub(super) out: Shared<'a, f32>,
}

/// The activations of the products of one dispatch, in the precisions that their weights ask for.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'a> {
    /// `[rows, columns]`.
    pub(super) x: &'a [f32],
    /// `[rows, columns / 32]`, with a scale per group.
    pub(super) per_group: &'a [ActivationGroup],
    /// The same with a scale per row.
    pub(super) per_row: &'a [ActivationGroup],
}

impl<'a> Inputs<'a> {
    fn groups(&self, activations: Activations) -> &'a [ActivationGroup] {
        if activations == Activations::Int8PerRow { self.per_row } else { self.per_group }
    }
}

/// Memory of one thread, as large as [`ProductScratch`](super::weight::ProductScratch) says.
#[derive(Clone, Debug, Default)]
pub(super) struct TileScratch {
    pub(super) codes: Vec<[u8; super::simd::CODE_BYTES]>,
    pub(super) scales: Vec<[f32; LANES]>,
    pub(super) biases: Vec<[f32; LANES]>,
    pub(super) values: Vec<f32>,
}

/// Rows that meet a tile before the next tile is taken: their codes stay in the second-level cache meanwhile.
const ROW_BLOCK: usize = 64;

/// Computes `num_products` products in one dispatch; `product(i)` gives the i-th.
pub(super) fn multiply<'a>(
    set: InstructionSet,
    pool: &mut Pool,
    scratch: &mut [TileScratch],
    inputs: Inputs<'_>,
    num_products: usize,
    product: &(dyn Fn(usize) -> Product<'a> + Sync),
) {
    let num_tiles: usize = (0..num_products).map(|i| product(i).weight.num_tiles()).sum();
    let per_chunk = chunk_size(pool, num_tiles);
    let scratch = Shared::new(scratch);
    pool.run(num_tiles.div_ceil(per_chunk), &|chunk| {
        // SAFETY: no two chunks run with the same worker at the same time.
        let scratch = unsafe { &mut scratch.range(chunk.worker..chunk.worker + 1)[0] };
        let (start, end) = (chunk.index * per_chunk, num_tiles.min((chunk.index + 1) * per_chunk));
        let mut first = 0;
        for i in 0..num_products {
            let product = product(i);
            let tiles = product.weight.num_tiles();
            let (from, to) = (start.max(first), end.min(first + tiles));
            if from < to {
                let work = TileRange { set, inputs, product, tiles: from - first..to - first };
                work.run(scratch);
            }
            first += tiles;
        }
    });
}

/// Some tiles of one product, for one thread.
struct TileRange<'a, 'b> {
    set: InstructionSet,
    inputs: Inputs<'a>,
    product: Product<'b>,
    tiles: std::ops::Range<usize>,
}

impl TileRange<'_, '_> {
    fn run(&self, scratch: &mut TileScratch) {
        let block = match self.product.weight.form {
            // What is unpacked for a tile should serve all rows.
            Form::Unpacked | Form::Dequantized => usize::MAX,
            Form::Floats(_) | Form::Tiles(_) => ROW_BLOCK,
        };
        for moves in self.product.moves.chunks(block) {
            for tile in self.tiles.clone() {
                self.tile(tile, moves, scratch);
            }
        }
    }

    fn tile(&self, tile: usize, moves: &[Move], scratch: &mut TileScratch) {
        let CpuWeight { data, form } = self.product.weight;
        match form {
            Form::Tiles(tiles) => {
                let (codes, scales) = tiles.tile(tile);
                let scales = scales::of_tile(self.set, &tiles.layout, scales, scratch);
                self.code_tile(tile, &codes::Tile { layout: tiles.layout.codes, codes, scales }, moves);
            }
            Form::Unpacked => {
                let groups = data.columns / GROUP;
                let layout = super::tiles::CodeLayout::BytesPer16;
                let codes = &mut scratch.codes[..groups * layout.vectors()];
                let (scales, biases) = (&mut scratch.scales[..2 * groups], &mut scratch.biases[..2 * groups]);
                super::tiles::unpack_tile(data, tile, codes, scales, biases);
                let biased = matches!(data.format, WeightFormat::Q2_K);
                let scales = TileScales::Floats(FloatScales { scales, biases: biased.then_some(biases) });
                self.code_tile(tile, &codes::Tile { layout, codes, scales }, moves);
            }
            Form::Floats(format) => self.float_tile(tile, *format, moves, |feature| {
                let row_bytes = data.columns * format.size_bytes();
                &data.data[feature * row_bytes..][..row_bytes]
            }),
            Form::Dequantized => self.dequantized_tile(tile, moves, &mut scratch.values),
        }
    }

    /// Output features of a tile that exist.
    fn features(&self, tile: usize) -> std::ops::Range<usize> {
        tile * LANES..self.product.weight.data.rows.min((tile + 1) * LANES)
    }

    fn code_tile(&self, tile: usize, work: &codes::Tile<'_>, moves: &[Move]) {
        let groups = self.inputs.groups(self.product.weight.data.activations);
        let per_row = self.product.weight.data.columns / GROUP;
        let features = self.features(tile);
        let row = |row: u32| &groups[row as usize * per_row..][..per_row];
        self.set.run(codes::MultiplyTile {
            tile: work,
            moves,
            row: &row,
            write: &|to, values| self.write(to, features.start, &values[..features.len()]),
        });
    }

    fn dequantized_tile(&self, tile: usize, moves: &[Move], values: &mut [f32]) {
        let data = &self.product.weight.data;
        let features = self.features(tile);
        for first in features.clone().step_by(FEATURES) {
            let count = FEATURES.min(features.end - first);
            for i in 0..count {
                data.row(first + i).dequantize(&mut values[i * data.columns..][..data.columns]);
            }
            let bytes: &[u8] = bytemuck::cast_slice(values);
            let row_bytes = 4 * data.columns;
            self.float_features(first..first + count, FloatFormat::F32, moves, |feature| {
                &bytes[(feature - first) * row_bytes..][..row_bytes]
            });
        }
    }

    fn float_tile<'w>(&self, tile: usize, format: FloatFormat, moves: &[Move], row: impl Fn(usize) -> &'w [u8]) {
        self.float_features(self.features(tile), format, moves, row);
    }

    fn float_features<'w>(
        &self,
        features: std::ops::Range<usize>,
        format: FloatFormat,
        moves: &[Move],
        row: impl Fn(usize) -> &'w [u8],
    ) {
        let columns = self.product.weight.data.columns;
        let x = |row: u32| &self.inputs.x[row as usize * columns..][..columns];
        let work = floats::MultiplyFloats {
            format,
            features,
            moves,
            weight_row: &row,
            row: &x,
            write: &|to, feature, value| self.write(to, feature, &[value]),
        };
        self.set.run(work);
    }

    /// Writes some output features of one row, the bias added.
    #[inline(always)]
    fn write(&self, to: u32, feature: usize, values: &[f32]) {
        let start = to as usize * self.product.weight.data.rows + feature;
        // SAFETY: each output element belongs to one tile and one move, and each tile to one chunk.
        let out = unsafe { self.product.out.range(start..start + values.len()) };
        match self.product.bias {
            Some(bias) => {
                for (i, out) in out.iter_mut().enumerate() {
                    *out = values[i] + bias[feature + i];
                }
            }
            None => out.copy_from_slice(values),
        }
    }
}
