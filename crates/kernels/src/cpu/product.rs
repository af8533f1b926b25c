//! Products of rows with weights: how the work is cut, for [`Linear`](crate::ops::Linear) and for experts alike.
//!
//! Each output element is computed by one thread, in the order of its input features, by the same lane of the same
//! instructions whatever the number of rows: its bits depend on its row and its weight only.

use std::ops::Range;

use super::Kernels;
use super::activations::ActivationGroup;
use super::ahead::Ahead;
use super::instruction_set::InstructionSet;
use super::math::{load_part, store_part};
use super::pool::Pool;
use super::scratch::grow;
use super::share::{Shared, chunk_size};
#[cfg(target_arch = "x86_64")]
use super::simd::Avx2;
use super::simd::{LANES, Simd};
use super::tiles::{TILE, Tiles, pack_floats};
use super::weight::{CpuWeight, Form};
use crate::blocks::GROUP;
use crate::{Activations, FloatFormat};

mod codes;
mod floats;
mod look_up;
mod scales;
#[cfg(target_arch = "x86_64")]
mod unpacked;

pub(super) use look_up::look_up;

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

/// Memory that one thread needs for products.
#[derive(Clone, Debug, Default)]
pub(super) struct TileScratch {
    /// As many as [`CpuWeight::scratch_floats`] says.
    floats: Vec<f32>,
    /// Activations of the rows of [`unpacked`].
    #[cfg(target_arch = "x86_64")]
    shifted: Vec<ActivationGroup>,
}

impl TileScratch {
    /// Grows to what products of `rows` rows with `weight` need.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "only AVX2 needs memory for rows"))]
    pub(super) fn reserve(&mut self, set: InstructionSet, weight: &CpuWeight, rows: usize) {
        grow(&mut self.floats, weight.scratch_floats());
        #[cfg(target_arch = "x86_64")]
        if set == InstructionSet::Avx2 && rows >= unpacked::FROM_ROWS && matches!(weight.form, Form::Codes(_)) {
            grow(&mut self.shifted, rows.min(unpacked::ROWS) * weight.data.columns / GROUP);
        }
    }
}

/// Rows that meet a tile before the next tile is taken, at most: its codes stay in the second-level cache meanwhile. Whole
/// groups of the rows that share a code vector, for every instruction set.
const ROW_BLOCK: usize = 64;

/// Computes `num_products` products in one dispatch; `product(i)` gives the i-th.
pub(super) fn multiply<'a>(
    cpu: &Kernels,
    pool: &mut Pool,
    ahead: &mut Ahead,
    scratch: &mut [TileScratch],
    inputs: Inputs<'_>,
    num_products: usize,
    product: &(dyn Fn(usize) -> Product<'a> + Sync),
) {
    let num_tiles: usize = (0..num_products).map(|i| product(i).weight.num_tiles()).sum();
    let per_chunk = chunk_size(pool, num_tiles);
    let scratch = Shared::new(scratch);
    let turn = ahead.turn(|| bytes_of_few_rows(num_products, product));
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
                let work =
                    TileRange { set: cpu.set, asks_ahead: turn.asks, inputs, product, tiles: from - first..to - first };
                work.run(scratch);
            }
            first += tiles;
        }
    });
    ahead.end(turn);
}

/// Bytes of weights that the products read, if all have one or two rows and read weights as packed. Formats that ask in any
/// case (`Q6_K`) count too, and draw the two ways together.
fn bytes_of_few_rows<'a>(num_products: usize, product: &(dyn Fn(usize) -> Product<'a> + Sync)) -> Option<usize> {
    let bytes = |i| {
        let Product { weight, moves, .. } = product(i);
        if (1..=2).contains(&moves.len()) { weight.tiles_bytes() } else { None }
    };
    (0..num_products).map(bytes).sum()
}

/// Some tiles of one product, for one thread.
struct TileRange<'a, 'b> {
    set: InstructionSet,
    asks_ahead: bool,
    inputs: Inputs<'a>,
    product: Product<'b>,
    tiles: Range<usize>,
}

impl TileRange<'_, '_> {
    fn run(&self, scratch: &mut TileScratch) {
        match &self.product.weight.form {
            #[cfg(target_arch = "x86_64")]
            Form::Codes(tiles) if self.set == InstructionSet::Avx2 => {
                for moves in self.product.moves.chunks(unpacked::ROWS) {
                    if moves.len() < unpacked::FROM_ROWS {
                        self.multiply_codes(tiles, moves);
                    } else {
                        self.multiply_unpacked(tiles, moves, &mut scratch.shifted);
                    }
                }
            }
            Form::Codes(tiles) => self.each_block(|moves| self.multiply_codes(tiles, moves)),
            Form::Floats(format, tiles) => {
                let tile = |tile| tiles.tile(tile);
                self.each_block(|moves| self.multiply_floats(*format, &tile, self.tiles.clone(), moves));
            }
            // What is dequantized for a tile serves all rows.
            Form::Dequantized => self.tiles.clone().for_each(|tile| self.dequantized_tile(tile, &mut scratch.floats)),
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn multiply_unpacked(&self, tiles: &Tiles, moves: &[Move], shifted: &mut Vec<ActivationGroup>) {
        debug_assert_eq!(self.set, InstructionSet::Avx2);
        // SAFETY: called for AVX2 only, which the device has checked.
        let s = unsafe { Avx2::new() };
        unpacked::multiply(unpacked::MultiplyUnpacked { s, work: self.of_codes(tiles, moves), shifted });
    }

    fn each_block(&self, multiply: impl Fn(&[Move])) {
        self.product.moves.chunks(ROW_BLOCK).for_each(multiply);
    }

    fn multiply_codes(&self, tiles: &Tiles, moves: &[Move]) {
        self.set.run(self.of_codes(tiles, moves));
    }

    fn of_codes<'t>(&'t self, tiles: &'t Tiles, moves: &'t [Move]) -> codes::MultiplyTiles<'t, 't> {
        codes::MultiplyTiles {
            tiles,
            range: self.tiles.clone(),
            moves,
            x: self.inputs.groups(self.product.weight.data.activations),
            groups: self.product.weight.data.columns / GROUP,
            asks_ahead: self.asks_ahead,
            outputs: self.outputs(),
        }
    }

    fn multiply_floats<'t>(
        &self,
        format: FloatFormat,
        tiles: &dyn Fn(usize) -> &'t [u8],
        range: Range<usize>,
        moves: &[Move],
    ) {
        self.set.run(floats::MultiplyFloats {
            format,
            tiles,
            range,
            moves,
            x: self.inputs.x,
            columns: self.product.weight.data.columns,
            asks_ahead: self.asks_ahead,
            outputs: self.outputs(),
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
        self.outputs().features(tile)
    }

    fn outputs(&self) -> Outputs<'_> {
        Outputs { out: self.product.out, width: self.product.weight.data.rows, bias: self.product.bias }
    }
}

/// Where products go.
#[derive(Clone, Copy)]
struct Outputs<'a> {
    /// `[rows, width]`.
    out: Shared<'a, f32>,
    /// Output features.
    width: usize,
    /// `[width]`.
    bias: Option<&'a [f32]>,
}

impl Outputs<'_> {
    /// Output features of a tile that exist.
    #[inline(always)]
    fn features(&self, tile: usize) -> Range<usize> {
        tile * TILE..self.width.min((tile + 1) * TILE)
    }

    /// Writes the output features of one row and tile, the bias added.
    #[inline(always)]
    fn write<S: Simd>(&self, s: S, to: u32, tile: usize, halves: [S::F32; 2]) {
        let features = self.features(tile);
        let start = to as usize * self.width + features.start;
        // SAFETY: each output element belongs to one tile and one move, and each tile to one chunk.
        let out = unsafe { self.out.range(start..start + features.len()) };
        // Almost every tile is whole.
        if let ([low, high], None) = (out.as_chunks_mut::<LANES>().0, self.bias) {
            s.store(halves[0], low);
            s.store(halves[1], high);
            return;
        }
        for ((half, out), start) in halves.into_iter().zip(out.chunks_mut(LANES)).zip(features.step_by(LANES)) {
            let sum = match self.bias {
                Some(bias) => s.add(half, load_part(s, &bias[start..][..out.len()])),
                None => half,
            };
            store_part(s, sum, out);
        }
    }
}
