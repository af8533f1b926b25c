//! The queries that share keys and values: some rows of one sequence, with all query heads of a key-value head.

#![allow(clippy::needless_range_loop, reason = "sums in registers are told by number")]

use std::ops::Range;

use super::cached::{Cached, Load, scale_by, widen};
use super::candidates::HeadCandidates;
use super::softmax::{Softmax, merge_outputs, weights};
use super::sums::{Add, STRIP, Score, Span, TOGETHER};
use crate::cpu::InstructionSet;
use crate::cpu::simd::{LANES, Simd};
use crate::host::{KEY_PANEL, KV_BLOCK, KvView, Run};
use crate::ops::Attention;

/// Consecutive rows of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cpu) struct Tile {
    pub(super) rows: Range<usize>,
    /// First row of their sequence.
    pub(super) first: usize,
    /// Committed tokens of their sequence.
    pub(super) committed: usize,
    /// Whether each row of the sequence, up to the last of the tile, continues the one before it.
    pub(super) chain: bool,
    /// First block that a row sees any of.
    pub(super) first_block: usize,
    /// Positions that the rows see at most.
    pub(super) depth: usize,
}

impl Tile {
    /// Blocks of positions that the rows see.
    pub(super) fn blocks(&self) -> usize {
        self.depth.div_ceil(KV_BLOCK)
    }
}

/// Sizes of an attention layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) kv_heads: usize,
    /// Query heads per key-value head.
    pub(super) group: usize,
    pub(super) head_dim: usize,
    /// `head_dim` in whole vectors.
    pub(super) padded_dim: usize,
    /// Rows of a tile at most.
    pub(super) rows: usize,
}

impl Sizes {
    /// Queries of a tile that meet a block of keys and values while it is in the first two caches.
    const QUERIES: usize = 32;

    pub(super) fn new(op: &Attention) -> Self {
        let (kv_heads, head_dim) = (op.shape.num_key_value_heads, op.shape.head_dim);
        let group = op.shape.num_attention_heads / kv_heads;
        let padded_dim = head_dim.next_multiple_of(LANES);
        Self { kv_heads, group, head_dim, padded_dim, rows: (Self::QUERIES / group.max(1)).max(1) }
    }

    /// Lanes of a value per query.
    pub(super) fn lanes(&self) -> usize {
        (self.rows * self.group).next_multiple_of(LANES)
    }

    /// Outputs of all queries of a tile.
    pub(super) fn outputs(&self) -> usize {
        self.rows * self.group * self.padded_dim
    }

    /// Floats of [`Memory`] for a pass of `rows` rows.
    pub(super) fn memory(&self, rows: usize) -> usize {
        let queries = self.rows * self.group;
        let block = KV_BLOCK * (self.head_dim + self.padded_dim + 2);
        let scores = queries * (KV_BLOCK + candidate_columns(rows));
        block + scores + 2 * self.outputs() + 6 * self.lanes()
    }
}

/// Scores of candidates per query: `rows` rows may touch one panel more than they fill.
fn candidate_columns(rows: usize) -> usize {
    rows.next_multiple_of(KEY_PANEL) + KEY_PANEL
}

/// Working memory of a tile.
pub(super) struct Memory<'m> {
    /// A block of keys in f32.
    keys: &'m mut [f32],
    /// A block of values in f32.
    values: &'m mut [f32],
    key_scales: &'m mut [f32],
    value_scales: &'m mut [f32],
    /// Scores, then weights: `[queries, KV_BLOCK]`.
    scores: &'m mut [f32],
    /// `[queries, columns]`.
    candidate_scores: &'m mut [f32],
    columns: usize,
    /// What the block adds: `[queries, padded_dim]`.
    pub(super) sums: &'m mut [f32],
    pub(super) block: Softmax<'m>,
    /// Over the blocks so far: `[queries, padded_dim]`.
    pub(super) outputs: &'m mut [f32],
    pub(super) total: Softmax<'m>,
    before: &'m mut [f32],
    factor: &'m mut [f32],
}

impl<'m> Memory<'m> {
    pub(super) fn new(memory: &'m mut [f32], sizes: &Sizes, rows: usize) -> Self {
        let (queries, lanes, columns) = (sizes.rows * sizes.group, sizes.lanes(), candidate_columns(rows));
        let mut rest = memory;
        let mut take = |len: usize| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(len);
            rest = after;
            part
        };
        Self {
            keys: take(KV_BLOCK * sizes.head_dim),
            values: take(KV_BLOCK * sizes.padded_dim),
            key_scales: take(KV_BLOCK),
            value_scales: take(KV_BLOCK),
            scores: take(queries * KV_BLOCK),
            candidate_scores: take(queries * columns),
            columns,
            sums: take(sizes.outputs()),
            block: Softmax { max: take(lanes), sum: take(lanes) },
            outputs: take(sizes.outputs()),
            total: Softmax { max: take(lanes), sum: take(lanes) },
            before: take(lanes),
            factor: take(lanes),
        }
    }

    /// Starts the sums over blocks.
    pub(super) fn clear(&mut self) {
        self.outputs.fill(0.0);
        self.total.clear();
    }
}

/// One key-value head of a tile.
#[derive(Clone, Copy)]
pub(super) struct TileHead<'a> {
    pub(super) set: InstructionSet,
    pub(super) op: &'a Attention,
    pub(super) run: &'a Run<'a>,
    pub(super) sizes: Sizes,
    pub(super) tile: &'a Tile,
    pub(super) head: usize,
    pub(super) candidates: HeadCandidates<'a>,
}

/// The rows of a path, by place.
#[derive(Clone, Copy)]
pub(super) enum Lineage<'p> {
    /// They follow each other.
    Chain {
        first: usize,
    },
    Tree(&'p [usize]),
}

impl Lineage<'_> {
    #[inline(always)]
    pub(super) fn row(self, place: usize) -> usize {
        match self {
            Self::Chain { first } => first + place,
            Self::Tree(path) => path[place],
        }
    }
}

/// Places of one block that a row sees.
#[derive(Clone, Copy)]
struct Places {
    /// Below this one they are committed.
    committed: usize,
    /// Place in a path of the candidate at place 0; negative if its block starts with committed tokens.
    start: isize,
    /// Those that are seen, unless it is none.
    first: usize,
    seen: usize,
}

impl Places {
    #[inline(always)]
    fn in_path(self, place: usize) -> usize {
        place.wrapping_add_signed(self.start)
    }
}

impl<'a> TileHead<'a> {
    pub(super) fn queries(&self) -> usize {
        self.tile.rows.len() * self.sizes.group
    }

    #[inline(always)]
    pub(super) fn query(&self, i: usize) -> &'a [f32] {
        let Sizes { group, head_dim, kv_heads, .. } = self.sizes;
        let head = self.head * group + i % group;
        let row = self.tile.rows.start + i / group;
        &self.run.read::<f32>(self.op.q)[(row * kv_heads * group + head) * head_dim..][..head_dim]
    }

    fn places(&self, block: usize, row: usize) -> Places {
        let (start, rows) = (block * KV_BLOCK, self.run.rows());
        let sight = self.op.sight.positions(rows.position(row), rows.seen(row));
        Places {
            committed: self.tile.committed.saturating_sub(start).min(KV_BLOCK),
            start: start as isize - self.tile.committed as isize,
            first: sight.start.saturating_sub(start).min(KV_BLOCK),
            seen: sight.end.saturating_sub(start).min(KV_BLOCK),
        }
    }

    /// First row of the panels of keys that the tile meets.
    fn first_panel_row(&self) -> usize {
        self.tile.first / KEY_PANEL * KEY_PANEL
    }

    /// Scores of all candidates that a row of the tile may see, if one of `blocks` holds any.
    #[inline(always)]
    pub(super) fn score_candidates<T: Cached>(&self, blocks: &Range<usize>, memory: &mut Memory<'_>) {
        if blocks.end * KV_BLOCK <= self.tile.committed {
            return;
        }
        let Sizes { head_dim, .. } = self.sizes;
        // Rows of a block see those after the tile as well.
        let end = self.tile.rows.end.max(self.tile.first + self.tile.depth - self.tile.committed);
        let rows = self.first_panel_row()..end.next_multiple_of(KEY_PANEL);
        let keys = &self.candidates.keys[rows.start * head_dim..rows.end * head_dim];
        let scales = T::SCALED.then(|| &self.candidates.key_scales[rows]);
        let columns = memory.columns;
        self.score(keys, scales, &[], memory.candidate_scores, columns);
    }

    /// Sums of one block of positions: what it adds to each query's output, and its maximum and sum.
    #[inline(always)]
    pub(super) fn sum_block<S: Simd, T: Cached>(
        &self,
        s: S,
        block: usize,
        memory: &mut Memory<'_>,
        path: &mut Vec<usize>,
    ) {
        let committed = self.places(block, self.tile.rows.start).committed;
        let view = (committed > 0).then(|| {
            let state = self.run.state(self.run.rows().sequence(self.tile.rows.start));
            state.attention(self.op.slot).view(block, self.head)
        });
        // Few queries read the block as it is stored; many pay for its conversion once.
        let convert = self.queries() > TOGETHER || !self.sizes.head_dim.is_multiple_of(STRIP * LANES);
        if let Some(view) = view {
            self.score_block::<S, T>(s, view, convert, memory);
        }
        self.weigh::<S, T>(s, block, memory, path);
        if let Some(view) = view {
            self.add_block::<S, T>(s, view, self.keys_after(block), committed, convert, memory);
        }
        self.add_candidates(block, memory, path);
    }

    /// The committed keys of the next block.
    fn keys_after<T: Cached>(&self, block: usize) -> &'a [T] {
        if (block + 1) * KV_BLOCK >= self.tile.committed {
            return &[];
        }
        let state = self.run.state(self.run.rows().sequence(self.tile.rows.start));
        state.attention(self.op.slot).view(block + 1, self.head).keys()
    }

    /// Scores of the committed keys.
    #[inline(always)]
    fn score_block<S: Simd, T: Cached>(&self, s: S, view: KvView<'_>, convert: bool, memory: &mut Memory<'_>) {
        if let (Some(keys), Some(values)) = (view.key_scales(), view.value_scales()) {
            widen(s, keys, memory.key_scales);
            widen(s, values, memory.value_scales);
        }
        let scales = T::SCALED.then_some(&*memory.key_scales);
        if convert {
            widen(s, view.keys::<T>(), memory.keys);
            self.score(memory.keys, scales, &[], memory.scores, KV_BLOCK);
        } else {
            self.score(view.keys::<T>(), scales, view.values(), memory.scores, KV_BLOCK);
        }
    }

    /// `scale · q k` of all queries and of the keys of whole panels.
    fn score<U: Load>(&self, keys: &[U], scales: Option<&[f32]>, ahead: &[U], scores: &mut [f32], stride: usize) {
        self.set.run(Score { of: self, keys, scales, ahead, scores, stride });
    }

    /// Puts the candidates' scores to those of the committed keys and turns all into weights.
    #[inline(always)]
    fn weigh<S: Simd, T: Cached>(&self, s: S, block: usize, memory: &mut Memory<'_>, path: &mut Vec<usize>) {
        let group = self.sizes.group;
        let first_column = self.first_panel_row();
        for (i, row) in self.tile.rows.clone().enumerate() {
            let places = self.places(block, row);
            let Places { committed, first: first_seen, seen, .. } = places;
            let lineage = self.lineage(row, committed < seen, path);
            for query in i * group..(i + 1) * group {
                if seen <= first_seen {
                    (memory.block.max[query], memory.block.sum[query]) = Softmax::NOTHING;
                    continue;
                }
                let scores = &mut memory.scores[query * KV_BLOCK..][..KV_BLOCK];
                let candidates = &memory.candidate_scores[query * memory.columns..][..memory.columns];
                if let (Lineage::Chain { first }, true) = (lineage, committed < seen) {
                    let start = first + places.in_path(committed) - first_column;
                    scores[committed..seen].copy_from_slice(&candidates[start..start + seen - committed]);
                } else {
                    for (place, score) in scores.iter_mut().enumerate().take(seen).skip(committed) {
                        *score = candidates[lineage.row(places.in_path(place)) - first_column];
                    }
                }
                scores[..first_seen].fill(f32::NEG_INFINITY);
                scores[seen..].fill(f32::NEG_INFINITY);
                let scores = scores.first_chunk_mut().expect("a slice of this length");
                (memory.block.max[query], memory.block.sum[query]) = weights(s, scores);
                if T::SCALED {
                    scale_by(s, memory.value_scales, &mut scores[..committed]);
                    for (place, weight) in scores.iter_mut().enumerate().take(seen).skip(committed) {
                        *weight *= self.candidates.value_scales[lineage.row(places.in_path(place))];
                    }
                }
            }
        }
    }

    /// The rows that candidates' places stand for; `path` is filled only for trees, and only if `needed`.
    #[inline(always)]
    fn lineage<'p>(&self, row: usize, needed: bool, path: &'p mut Vec<usize>) -> Lineage<'p> {
        if self.tile.chain || !needed {
            return Lineage::Chain { first: self.tile.first };
        }
        self.run.rows().path_into(row, path);
        Lineage::Tree(path)
    }

    /// Weighted committed values; they start the sums.
    #[inline(always)]
    fn add_block<S: Simd, T: Cached>(
        &self,
        s: S,
        view: KvView<'_>,
        ahead: &[T],
        committed: usize,
        convert: bool,
        memory: &mut Memory<'_>,
    ) {
        let Sizes { head_dim, padded_dim, .. } = self.sizes;
        let Memory { values: converted, scores, sums, .. } = memory;
        let values = &view.values::<T>()[..committed * head_dim];
        if convert {
            let vectors = values.chunks_exact(head_dim).zip(converted.chunks_exact_mut(padded_dim));
            for (value, out) in vectors {
                widen(s, value, out);
            }
        }
        let (queries, lineage) = (0..self.queries(), Lineage::Chain { first: 0 });
        let places = Span { lineage, start: 0, places: 0..committed, fresh: true };
        if convert {
            self.set.run(Add { queries, places, values: converted, ahead: &[], weights: scores, sums, padded_dim });
        } else {
            self.set.run(Add { queries, places, values, ahead, weights: scores, sums, padded_dim });
        }
    }

    /// Weighted values of candidates; they start the sums where nothing of the block is committed.
    #[inline(always)]
    fn add_candidates(&self, block: usize, memory: &mut Memory<'_>, path: &mut Vec<usize>) {
        let (group, padded_dim) = (self.sizes.group, self.sizes.padded_dim);
        let values = self.candidates.values;
        // Queries of neighboring rows share their loads where they share their ancestors; as many rows as fill registers.
        let rows_together = match (self.tile.chain, group % TOGETHER) {
            (false, _) | (_, 0) => 1,
            (true, 2) => 2,
            (true, _) => TOGETHER,
        };
        let mut row = self.tile.rows.start;
        while row < self.tile.rows.end {
            let last = self.tile.rows.end.min(row + rows_together) - 1;
            let (least, most) = (self.places(block, row), self.places(block, last));
            let Places { committed, start, .. } = least;
            if most.seen > committed {
                let lineage = self.lineage(row, true, path);
                let shared = committed..least.seen.max(committed);
                let first = (row - self.tile.rows.start) * group;
                let end = (last + 1 - self.tile.rows.start) * group;
                let mut add = |queries, places, fresh| {
                    let (weights, sums) = (&*memory.scores, &mut *memory.sums);
                    let places = Span { lineage, start, places, fresh };
                    self.set.run(Add { queries, places, values, ahead: &[], weights, sums, padded_dim });
                };
                add(first..end, shared.clone(), committed == 0);
                for i in first + group..end {
                    let seen = self.places(block, self.tile.rows.start + i / group).seen;
                    if seen > shared.end {
                        add(i..i + 1, shared.end..seen, false);
                    }
                }
            }
            row = last + 1;
        }
    }

    /// Takes the sums of a block into the outputs over blocks.
    #[inline(always)]
    pub(super) fn merge<S: Simd>(&self, s: S, memory: &mut Memory<'_>) {
        let Memory { sums, block, outputs, total, before, factor, .. } = memory;
        total.merge(s, block.max, block.sum, before, factor);
        let padded_dim = self.sizes.padded_dim;
        let vectors = sums.chunks_exact(padded_dim).zip(outputs.chunks_exact_mut(padded_dim));
        for (query, (sums, outputs)) in vectors.enumerate().take(self.queries()) {
            // A sum of 0 means that the query sees nothing of the block: its weights hold a 1 otherwise, or a NaN.
            if block.sum[query] != 0.0 {
                merge_outputs(s, before[query], factor[query], sums, outputs);
            }
        }
    }
}
