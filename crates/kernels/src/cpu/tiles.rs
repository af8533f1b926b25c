//! The form in which weights are multiplied: tiles of 32 output features, read as one stream.
//!
//! A *code vector* holds four consecutive codes of each of 16 features, so one 64-byte load meets four activations that
//! are broadcast to all lanes, a lane is a feature, and no sum ever crosses lanes. A tile has two *halves* of 16
//! features, so that a broadcast serves two products. Its bytes lie in the order in which a product reads them: for each
//! block of input features that share a header, the scales of all 32 features, then, group of 32 input features by
//! group, the code vectors, those of the two halves by turns.
//!
//! ```text
//! tile    block, block, …
//! block   header (scales of 32 features), then its groups
//! group   for each stored vector: first half (64 bytes), second half (64 bytes)
//! ```
//!
//! That one stream is what lets the processor's own prefetching keep up: on a Zen 4 core one row of `Q4_0` reads as
//! fast as a plain sum over the same memory (30 GB/s), where the same codes with their scales apart, or with one half
//! after the other, reached 11 to 23 GB/s whatever was prefetched by instruction.
//!
//! A group of `b`-bit codes is `b` stored vectors per half. With `b = 4`, stored vector `v` holds code vector `2v` in
//! the low halves of its bytes and `2v + 1` in the high ones. In general the lowest 2, 4 or 8 bits of the codes make up
//! one plane, and 1 or 2 bits above them another behind it; see [`encode`](words::encode). Code vector `p`, feature `f`,
//! byte `j` is code `4p + j` of feature `f`.
//!
//! Repacking loses nothing: codes are moved, scales keep the type or the parts they came in.
//!
//! | format | codes | header | bits per weight: file, tile |
//! |---|---|---|---|
//! | `Q4_0` | 4 bits, 8 added | f16 scale, per 32 | 4.5, 4.5 |
//! | `Q4_1` | 4 bits | f16 scale and bias, per 32 | 5, 5 |
//! | `Q5_0` | 4 + 1 bits, 16 added | f16 scale, per 32 | 5.5, 5.5 |
//! | `Q5_1` | 4 + 1 bits | f16 scale and bias, per 32 | 6, 6 |
//! | `Q8_0` | 8 bits, 128 added | f16 scale, per 32 | 8.5, 8.5 |
//! | `Q2_K` | 2 bits | f16 pair per 256, pair of 4 bits per 16 | 2.63, 2.63 |
//! | `Q3_K` | 2 + 1 bits, 4 added | f16 per 256, 6 bits (in 8) per 16 | 3.44, 3.56 |
//! | `Q4_K` | 4 bits | f16 pair per 256, pair of 6 bits (in 8) per 32 | 4.5, 4.63 |
//! | `Q5_K` | 4 + 1 bits | f16 pair per 256, pair of 6 bits (in 8) per 32 | 5.5, 5.63 |
//! | `Q6_K` | 4 + 2 bits, 32 added | f16 per 256, 8 bits per 16 | 6.56, 6.56 |
//! | `IQ4_NL` | 4 bits into the table | f16 per 32 | 4.5, 4.5 |
//! | `IQ4_XS` | 4 bits into the table | f16 per 256, 6 bits (in 8) per 32 | 4.25, 4.31 |
//! | affine, 4 bits | 4 bits | scale and bias per group, in their type | the same |
//! | affine, 8 bits | 8 bits | f32 scale and bias per group | with 16-bit scales per 64: 8.5, 9 |
//! | int8 per row | 8 bits, 128 added | f32 per row | the same |
//! | floats | 32 features side by side, for each input feature | | the same |

use super::instruction_set::InstructionSet;
use super::memory::{Arena, WeightMemory};
use super::pool::Pool;
use super::share::for_each_part;
use super::simd::{CODE_BYTES, LANES};
use crate::blocks::GROUP;
use crate::{WeightData, WeightFormat};

mod pack;
mod words;

pub(super) use pack::pack_floats;

/// Output features of a tile.
pub(super) const TILE: usize = 2 * LANES;

/// Groups that share the outer scale of a K format.
pub(super) const SUPER_GROUPS: usize = 8;

/// Where the bytes of a tile are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TileLayout {
    /// What is packed.
    pub(super) format: WeightFormat,
    /// Blocks in a tile.
    pub(super) blocks: usize,
    /// Bytes of scales at the start of a block.
    pub(super) header_bytes: usize,
    /// Groups of 32 input features in a block.
    pub(super) block_groups: usize,
    /// Stored vectors of each half of a group: the bits of a code.
    pub(super) vectors: usize,
}

impl TileLayout {
    /// The tiles of a format.
    ///
    /// Rows of K formats are whole super-blocks, those of affine formats whole groups.
    pub(super) fn of(format: WeightFormat, columns: usize) -> Self {
        use WeightFormat::*;
        /// One half float per feature.
        const HALVES: usize = 2 * TILE;
        let groups = columns / GROUP;
        let (vectors, header_bytes, block_groups) = match format {
            Float(float) => return Self::floats(format, columns, TILE * float.size_bytes()),
            Q4_0 | IQ4_NL => (4, HALVES, 1),
            Q4_1 => (4, 2 * HALVES, 1),
            Q5_0 => (5, HALVES, 1),
            Q5_1 => (5, 2 * HALVES, 1),
            Q8_0 => (8, HALVES, 1),
            Q2_K => (2, 2 * HALVES + 2 * SUPER_GROUPS * TILE, SUPER_GROUPS),
            Q3_K => (3, HALVES + 2 * SUPER_GROUPS * TILE, SUPER_GROUPS),
            Q4_K => (4, 2 * HALVES + 2 * SUPER_GROUPS * TILE, SUPER_GROUPS),
            Q5_K => (5, 2 * HALVES + 2 * SUPER_GROUPS * TILE, SUPER_GROUPS),
            Q6_K => (6, HALVES + 2 * SUPER_GROUPS * TILE, SUPER_GROUPS),
            IQ4_XS => (4, HALVES + SUPER_GROUPS * TILE, SUPER_GROUPS),
            Affine { bits: 4, group_size, scales } => (4, 2 * TILE * scales.size_bytes(), group_size / GROUP),
            // The bias takes up the 128, which the stored type might round.
            Affine { group_size, .. } => (8, 2 * TILE * size_of::<f32>(), group_size / GROUP),
            Int8PerRow => (8, TILE * size_of::<f32>(), groups.max(1)),
        };
        Self { format, blocks: groups / block_groups, header_bytes, block_groups, vectors }
    }

    /// Float tiles have a block per input feature, which is all header.
    fn floats(format: WeightFormat, columns: usize, header_bytes: usize) -> Self {
        Self { format, blocks: columns, header_bytes, block_groups: 0, vectors: 0 }
    }

    /// Bytes of one block.
    pub(super) fn block_bytes(&self) -> usize {
        self.header_bytes + self.block_groups * 2 * self.vectors * CODE_BYTES
    }

    /// Bytes of one tile: whole cache lines.
    pub(super) fn tile_bytes(&self) -> usize {
        self.blocks * self.block_bytes()
    }
}

/// A repacked weight, tile after tile.
pub(super) struct Tiles {
    pub(super) layout: TileLayout,
    memory: WeightMemory,
}

impl Tiles {
    /// Repacks a weight; output features past its end stay zero.
    pub(super) fn new(set: InstructionSet, data: &WeightData, pool: &mut Pool, arena: &mut Arena) -> Self {
        let layout = TileLayout::of(data.format, data.columns);
        let tile_bytes = layout.tile_bytes();
        let mut memory = arena.take(data.rows.div_ceil(TILE) * tile_bytes);
        for_each_part(pool, memory.bytes_mut(), tile_bytes, 0, |_, tile, bytes| {
            set.run(pack::PackTile { data, layout: &layout, tile, out: bytes });
        });
        Self { layout, memory }
    }

    /// The bytes of one tile.
    pub(super) fn tile(&self, tile: usize) -> &[u8] {
        let len = self.layout.tile_bytes();
        &self.memory.bytes()[tile * len..][..len]
    }
}
