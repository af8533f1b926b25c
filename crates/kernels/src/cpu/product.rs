//! Products of rows with weights: how the work is cut, for [`Linear`](crate::ops::Linear) and for experts alike.
//!
//! Each output element is computed by one thread, in the order of its input features, by the same lane of the same
//! instructions whatever the number of rows: its bits depend on its row and its weight only.

use std::ops::Range;

use super::activations::ActivationGroup;
use super::instruction_set::InstructionSet;
use super::pool::Pool;
use super::share::{Shared, chunk_size};
use super::tiles::{TILE, Tiles, pack_floats};
use super::weight::{CpuWeight, Form};
use crate::blocks::GROUP;
use crate::{Activations, FloatFormat};

mod codes;
mod floats;
mod scales;

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

/// Floats that one thread needs for a product, as many as [`CpuWeight::scratch_floats`] says.
pub(super) type TileScratch = Vec<f32>;

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
    tiles: Range<usize>,
}

impl TileRange<'_, '_> {
    fn run(&self, scratch: &mut TileScratch) {
        match &self.product.weight.form {
            Form::Codes(tiles) => self.each_block(|moves| self.multiply_codes(tiles, moves)),
            Form::Floats(format, tiles) => {
                let tile = |tile| tiles.tile(tile);
                self.each_block(|moves| self.multiply_floats(*format, &tile, self.tiles.clone(), moves));
            }
            // What is dequantized for a tile serves all rows.
            Form::Dequantized => self.tiles.clone().for_each(|tile| self.dequantized_tile(tile, scratch)),
        }
    }

    fn each_block(&self, multiply: impl Fn(&[Move])) {
        self.product.moves.chunks(ROW_BLOCK).for_each(multiply);
    }

    fn multiply_codes(&self, tiles: &Tiles, moves: &[Move]) {
        let groups = self.inputs.groups(self.product.weight.data.activations);
        let per_row = self.product.weight.data.columns / GROUP;
        self.set.run(codes::MultiplyTiles {
            tiles,
            range: self.tiles.clone(),
            moves,
            row: &|row| &groups[row as usize * per_row..][..per_row],
            write: &|to, tile, values| self.write(to, tile, values),
        });
    }

    fn multiply_floats<'t>(
        &self,
        format: FloatFormat,
        tiles: &dyn Fn(usize) -> &'t [u8],
        range: Range<usize>,
        moves: &[Move],
    ) {
        let columns = self.product.weight.data.columns;
        self.set.run(floats::MultiplyFloats {
            format,
            tiles,
            range,
            moves,
            row: &|row| &self.inputs.x[row as usize * columns..][..columns],
            write: &|to, tile, values| self.write(to, tile, values),
        });
    }

    fn dequantized_tile(&self, tile: usize, scratch: &mut [f32]) {
        let data = &self.product.weight.data;
        let (rows, packed) = scratch[..2 * TILE * data.columns].split_at_mut(TILE * data.columns);
        let features = self.features(tile);
        for (feature, row) in features.clone().zip(rows.chunks_exact_mut(data.columns)) {
            data.row(feature).dequantize(row);
        }
        let rows = bytemuck::cast_slice(&rows[..features.len() * data.columns]);
        pack_floats::<4>(rows, data.columns, bytemuck::cast_slice_mut(packed));
        let packed: &[u8] = bytemuck::cast_slice(packed);
        self.multiply_floats(FloatFormat::F32, &|_| packed, tile..tile + 1, self.product.moves);
    }

    /// Output features of a tile that exist.
    fn features(&self, tile: usize) -> Range<usize> {
        tile * TILE..self.product.weight.data.rows.min((tile + 1) * TILE)
    }

    /// Writes the output features of one row and tile, the bias added.
    #[inline(always)]
    fn write(&self, to: u32, tile: usize, values: &[f32; TILE]) {
        let features = self.features(tile);
        let start = to as usize * self.product.weight.data.rows + features.start;
        // SAFETY: each output element belongs to one tile and one move, and each tile to one chunk.
        let out = unsafe { self.product.out.range(start..start + features.len()) };
        match self.product.bias {
            Some(bias) => {
                for (out, (value, bias)) in out.iter_mut().zip(values.iter().zip(&bias[features])) {
                    *out = value + bias;
                }
            }
            // Almost every tile is whole, and a copy of known length is no call.
            None => match out.as_mut_array() {
                Some(out) => *out = *values,
                None => out.copy_from_slice(&values[..features.len()]),
            },
        }
    }
}
