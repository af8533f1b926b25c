use half::{bf16, f16};

use super::math::{load_part, sigmoid, store_part};
use super::scratch::{WorkerScratch, grow};
use super::share::Shared;
use super::simd::{Kernel, LANES, Simd};
use super::{Kernels, Team};
use crate::host::{KV_BLOCK, Run};
use crate::ops::Attention;
use crate::{DType, Recording};

mod cached;
mod candidates;
mod softmax;
mod sums;
mod tile;

use cached::Cached;
use candidates::{CandidateMemory, Candidates};
use softmax::{Softmax, merge_outputs};
use tile::{Memory, Sizes, Tile, TileHead};

/// Softmax over blocks of 64 positions, counted from the start of the sequence. Each block gives a maximum, a sum of
/// exponentials and a weighted sum of values of its own, and the blocks of a row are merged in ascending order. So the
/// order of summation of a row depends on positions only: not on the rows beside it, not on which of its ancestors are
/// committed, and not on who computed which block.
///
/// A *tile* is some consecutive rows of one sequence with all query heads of one key-value head: each key and value that
/// is loaded meets all its queries, four at a time in registers. Keys lie 16 positions side by side, so scores need no
/// sums over lanes. Where there are few tiles and many blocks, threads share the blocks of a tile, and a second dispatch
/// merges them.
///
/// Speed: for few rows bound by reading keys and values, for many by two products per query and position.
pub(super) fn attention(cpu: &Kernels, op: &Attention, run: &mut Run<'_>) {
    match op.layout.dtype {
        DType::F32 => attend::<f32>(cpu, op, run),
        DType::F16 => attend::<f16>(cpu, op, run),
        DType::BF16 => attend::<bf16>(cpu, op, run),
        DType::I8 => attend::<i8>(cpu, op, run),
        DType::I32 => unreachable!("a recording refuses this type of cache"),
    }
}

/// Memory of attention ops.
#[derive(Debug, Default)]
pub(super) struct AttentionScratch {
    tiles: Vec<Tile>,
    candidates: CandidateMemory,
    /// One [`Record`] per tile, head and block of a wave.
    blocks: Vec<f32>,
    /// One [`Record`] per tile and head.
    totals: Vec<f32>,
}

/// Tiles and heads below which the blocks of a tile are shared out, per thread.
const FEW_PER_THREAD: usize = 4;

/// Floats of block records that a wave may use.
const WAVE_FLOATS: usize = 1 << 18;

impl AttentionScratch {
    /// Grows to what any run of `op` needs.
    pub(super) fn reserve(&mut self, op: &Attention, recording: &Recording, threads: usize) {
        let (sizes, rows) = (Sizes::new(op), recording.capacity.rows);
        self.tiles.reserve(rows);
        self.candidates.reserve(op, rows);
        // Capacity is given in whole tiles, which a pass of many small sequences exceeds; it then shares out less.
        let most = (FEW_PER_THREAD * threads).min(rows * sizes.kv_heads) * Record::len(&sizes);
        grow(&mut self.totals, most);
        grow(&mut self.blocks, WAVE_FLOATS.max(most));
    }

    /// Floats that each thread needs.
    pub(super) fn per_worker(op: &Attention, rows: usize) -> usize {
        Sizes::new(op).memory(rows)
    }
}

/// Maximum, sum and outputs of each query of a tile.
struct Record<'a> {
    softmax: Softmax<'a>,
    outputs: &'a mut [f32],
}

impl<'a> Record<'a> {
    fn len(sizes: &Sizes) -> usize {
        2 * sizes.lanes() + sizes.outputs()
    }

    fn new(memory: &'a mut [f32], sizes: &Sizes) -> Self {
        let (max, rest) = memory.split_at_mut(sizes.lanes());
        let (sum, outputs) = rest.split_at_mut(sizes.lanes());
        Self { softmax: Softmax { max, sum }, outputs }
    }
}

fn attend<T: Cached>(cpu: &Kernels, op: &Attention, run: &mut Run<'_>) {
    let sizes = Sizes::new(op);
    run.write(op.out, |run, out: &mut [f32]| {
        let run = &*run;
        let Team { pool, scratch, .. } = &mut *cpu.team();
        let AttentionScratch { tiles, candidates, blocks, totals } = &mut scratch.attention;
        plan_tiles(op, run, sizes.rows, tiles);
        let candidates = Candidates::new::<T>(cpu.set, pool, candidates, op, run);
        let set = cpu.set;
        let part = |tile, head: usize| TileHead { set, op, run, sizes, tile, head, candidates: candidates.head(head) };
        let (workers, out) = (Shared::new(&mut scratch.workers), Shared::new(out));
        let (parts, record) = (tiles.len() * sizes.kv_heads, Record::len(&sizes));
        let most_blocks = tiles.iter().map(Tile::blocks).max().unwrap_or(0);
        let few = pool.num_threads() > 1 && parts < FEW_PER_THREAD * pool.num_threads();
        if !few || most_blocks < 2 || parts * record > totals.len() {
            // The longest first: the last chunks are small, so threads end together.
            pool.run(parts, &|chunk| {
                let (head, tile) = (chunk.index / tiles.len(), tiles.len() - 1 - chunk.index % tiles.len());
                // SAFETY: no two chunks run with the same worker at the same time.
                let worker = unsafe { &mut workers.range(chunk.worker..chunk.worker + 1)[0] };
                let range = tiles[tile].first_block..tiles[tile].blocks();
                let (part, sums) = (part(&tiles[tile], head), Sums::Outputs(out));
                set.run(SumBlocks::<T> { part, range, worker, sums, cached: Default::default() });
            });
            return;
        }
        let wave = (blocks.len() / (parts * record)).max(1);
        let (blocks, totals) = (Shared::new(blocks), Shared::new(totals));
        for start in (0..most_blocks).step_by(wave) {
            let end = most_blocks.min(start + wave);
            // A few chunks per thread, so that one that is slow delays the others by little.
            let per_chunk = ((end - start) * parts).div_ceil(6 * pool.num_threads()).min(end - start);
            let chunks = (end - start).div_ceil(per_chunk);
            pool.run(parts * chunks, &|chunk| {
                let (i, first) = (chunk.index / chunks, start + chunk.index % chunks * per_chunk);
                let tile = &tiles[i % tiles.len()];
                let range = first..end.min(first + per_chunk).min(tile.blocks());
                let records = (i * wave + first - start) * record;
                // SAFETY: no two chunks run with the same worker at the same time, and none with the same blocks.
                let (worker, records) = unsafe {
                    let worker = &mut workers.range(chunk.worker..chunk.worker + 1)[0];
                    (worker, blocks.range(records..records + range.len() * record))
                };
                let (part, sums) = (part(tile, i / tiles.len()), Sums::Records(records));
                set.run(SumBlocks::<T> { part, range, worker, sums, cached: Default::default() });
            });
            pool.run(parts, &|chunk| {
                let tile = &tiles[chunk.index % tiles.len()];
                let in_wave = tile.blocks().clamp(start, end) - start;
                let (records, total) = (chunk.index * wave * record, chunk.index * record);
                // SAFETY: each tile and head belongs to one chunk, and no two chunks run with the same worker.
                let (worker, records, total) = unsafe {
                    let worker = &mut workers.range(chunk.worker..chunk.worker + 1)[0];
                    (worker, blocks.range(records..records + in_wave * record), totals.range(total..total + record))
                };
                let part = part(tile, chunk.index / tiles.len());
                let (is_first, is_last) = (start == 0, end == most_blocks);
                set.run(MergeBlocks { part, records, total, worker, out, is_first, is_last });
            });
        }
    });
}

/// Cuts the rows of each sequence into tiles of at most `most` rows.
fn plan_tiles(op: &Attention, run: &Run<'_>, most: usize, tiles: &mut Vec<Tile>) {
    let rows = run.rows();
    tiles.clear();
    let (mut first, mut chain) = (0, true);
    for row in 0..rows.len() {
        let starts_sequence = row == 0 || rows.sequence(row) != rows.sequence(row - 1);
        if starts_sequence {
            (first, chain) = (row, true);
        } else {
            chain &= rows.parent(row) == Some(row - 1);
        }
        let sight = op.sight.positions(rows.position(row), rows.seen(row));
        let (first_block, depth) = (sight.start / KV_BLOCK, sight.end);
        match tiles.last_mut().filter(|tile| !starts_sequence && tile.rows.len() < most) {
            Some(tile) => {
                tile.rows.end += 1;
                tile.depth = tile.depth.max(depth);
                tile.first_block = tile.first_block.min(first_block);
                tile.chain = chain;
            }
            None => {
                let committed = rows.sequence_len(rows.sequence(row));
                tiles.push(Tile { rows: row..row + 1, first, committed, chain, first_block, depth });
            }
        }
    }
}

/// Some blocks of a tile: into a record each, or all of them into its outputs.
struct SumBlocks<'a, T> {
    part: TileHead<'a>,
    range: std::ops::Range<usize>,
    worker: &'a mut WorkerScratch,
    sums: Sums<'a>,
    cached: std::marker::PhantomData<T>,
}

/// Where the sums of blocks go.
enum Sums<'a> {
    Records(&'a mut [f32]),
    Outputs(Shared<'a, f32>),
}

impl<T: Cached> Kernel for SumBlocks<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { part, range, worker: WorkerScratch { path, values, .. }, mut sums, .. } = self;
        if range.is_empty() {
            return;
        }
        let mut memory = Memory::new(values, &part.sizes, part.run.rows().len());
        memory.clear();
        part.score_candidates::<T>(&range, &mut memory);
        for block in range.clone() {
            if block < part.tile.first_block {
                memory.block.skip();
            } else {
                part.sum_block::<S, T>(s, block, &mut memory, path);
            }
            match &mut sums {
                Sums::Outputs(_) => part.merge(s, &mut memory),
                Sums::Records(records) => {
                    let len = Record::len(&part.sizes);
                    let record = &mut records[(block - range.start) * len..][..len];
                    let Record { softmax, outputs } = Record::new(record, &part.sizes);
                    softmax.max.copy_from_slice(memory.block.max);
                    softmax.sum.copy_from_slice(memory.block.sum);
                    outputs.copy_from_slice(memory.sums);
                }
            }
        }
        if let Sums::Outputs(out) = sums {
            finish(s, &part, memory.total.sum, memory.outputs, out);
        }
    }
}

/// Merges the blocks of a wave in ascending order; after the last wave the outputs are complete.
struct MergeBlocks<'a> {
    part: TileHead<'a>,
    records: &'a mut [f32],
    total: &'a mut [f32],
    worker: &'a mut WorkerScratch,
    out: Shared<'a, f32>,
    is_first: bool,
    is_last: bool,
}

impl Kernel for MergeBlocks<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { part, records, total, worker, out, is_first, is_last } = self;
        let sizes = &part.sizes;
        let mut total = Record::new(total, sizes);
        if is_first {
            total.softmax.clear();
            total.outputs.fill(0.0);
        }
        let (before, rest) = worker.values.split_at_mut(sizes.lanes());
        let factor = &mut rest[..sizes.lanes()];
        let queries = part.tile.rows.len() * sizes.group;
        for record in records.chunks_exact_mut(Record::len(sizes)) {
            let Record { softmax, outputs } = Record::new(record, sizes);
            total.softmax.merge(s, softmax.max, softmax.sum, before, factor);
            let vectors = outputs.chunks_exact(sizes.padded_dim).zip(total.outputs.chunks_exact_mut(sizes.padded_dim));
            for (query, (sums, outputs)) in vectors.enumerate().take(queries) {
                if softmax.sum[query] != 0.0 {
                    merge_outputs(s, before[query], factor[query], sums, outputs);
                }
            }
        }
        if is_last {
            finish(s, &part, total.softmax.sum, total.outputs, out);
        }
    }
}

/// Divides the outputs of a tile by their sums and gates them.
#[inline(always)]
fn finish<S: Simd>(s: S, part: &TileHead<'_>, sums: &[f32], outputs: &[f32], out: Shared<'_, f32>) {
    let Sizes { kv_heads, group, head_dim, padded_dim, .. } = part.sizes;
    for (query, outputs) in outputs.chunks_exact(padded_dim).enumerate().take(part.tile.rows.len() * group) {
        let (row, head) = (part.tile.rows.start + query / group, part.head * group + query % group);
        let place = (row * kv_heads * group + head) * head_dim;
        // SAFETY: each head of a row belongs to one tile.
        let out = unsafe { out.range(place..place + head_dim) };
        let scale = s.splat(1.0 / sums[query]);
        for (sums, out) in outputs.chunks_exact(LANES).zip(out.chunks_mut(LANES)) {
            store_part(s, s.mul(load_part(s, sums), scale), out);
        }
        let Some(gate) = part.op.gate else { continue };
        let gate = &part.run.read::<f32>(gate)[place..place + head_dim];
        for (gate, out) in gate.chunks(LANES).zip(out.chunks_mut(LANES)) {
            store_part(s, s.mul(load_part(s, out), sigmoid(s, load_part(s, gate))), out);
        }
    }
}

const _: () = assert!(KV_BLOCK.is_multiple_of(LANES));
