//! Keys and values of the rows of a pass, as attention reads them.

use super::cached::Cached;
use crate::cpu::InstructionSet;
use crate::cpu::pool::Pool;
use crate::cpu::scratch::grow;
use crate::cpu::share::Shared;
use crate::cpu::simd::{Kernel, LANES, Simd};
use crate::host::{KEY_PANEL, Run};
use crate::ops::Attention;

/// Memory of [`Candidates`]; shared by all attention layers of a device's passes.
#[derive(Debug, Default)]
pub(in crate::cpu) struct CandidateMemory {
    keys: Vec<f32>,
    values: Vec<f32>,
    key_scales: Vec<f32>,
    value_scales: Vec<f32>,
}

impl CandidateMemory {
    /// Grows to `rows` rows of the layer of `op`.
    pub(in crate::cpu) fn reserve(&mut self, op: &Attention, rows: usize) {
        let sizes = Sizes::new(op, rows);
        let heads = op.shape.num_key_value_heads;
        grow(&mut self.keys, heads * sizes.keys());
        grow(&mut self.values, heads * sizes.values());
        grow(&mut self.key_scales, heads * sizes.rows);
        grow(&mut self.value_scales, heads * sizes.rows);
    }
}

/// Sizes per head.
#[derive(Clone, Copy)]
struct Sizes {
    /// Whole panels.
    rows: usize,
    head_dim: usize,
    padded_dim: usize,
}

impl Sizes {
    fn new(op: &Attention, rows: usize) -> Self {
        let head_dim = op.shape.head_dim;
        Self { rows: rows.next_multiple_of(KEY_PANEL), head_dim, padded_dim: head_dim.next_multiple_of(LANES) }
    }

    fn keys(self) -> usize {
        self.rows * self.head_dim
    }

    fn values(self) -> usize {
        self.rows * self.padded_dim
    }
}

/// Keys and values of the rows of a pass in f32: the bits that a cache of the layer's type gives back, without scales.
#[derive(Clone, Copy)]
pub(super) struct Candidates<'a> {
    sizes: Sizes,
    /// `[kv_heads, rows / KEY_PANEL, head_dim, KEY_PANEL]`.
    keys: &'a [f32],
    /// `[kv_heads, rows, padded head_dim]`.
    values: &'a [f32],
    /// `[kv_heads, rows]`.
    key_scales: &'a [f32],
    /// `[kv_heads, rows]`.
    value_scales: &'a [f32],
}

/// The candidates of one head.
#[derive(Clone, Copy)]
pub(super) struct HeadCandidates<'a> {
    /// `[rows / KEY_PANEL, head_dim, KEY_PANEL]`.
    pub(super) keys: &'a [f32],
    /// `[rows, padded head_dim]`.
    pub(super) values: &'a [f32],
    /// `[rows]`.
    pub(super) key_scales: &'a [f32],
    /// `[rows]`.
    pub(super) value_scales: &'a [f32],
}

impl<'a> Candidates<'a> {
    /// Converts keys and values once for all queries that meet them.
    pub(super) fn new<T: Cached>(
        set: InstructionSet,
        pool: &mut Pool,
        memory: &'a mut CandidateMemory,
        op: &Attention,
        run: &Run<'_>,
    ) -> Self {
        /// Elements that are converted in the time of a dispatch.
        const SERIAL_ELEMENTS: usize = 8192;
        let (rows, heads) = (run.rows().len(), op.shape.num_key_value_heads);
        memory.reserve(op, rows);
        let sizes = Sizes::new(op, rows);
        let CandidateMemory { keys, values, key_scales, value_scales } = memory;
        {
            let outs = [&mut *keys, &mut *values, &mut *key_scales, &mut *value_scales].map(|out| Shared::new(out));
            let panels = sizes.rows / KEY_PANEL;
            let parts = heads * panels;
            let per_chunk = if rows * op.layout.width() <= SERIAL_ELEMENTS { parts.max(1) } else { 4 };
            pool.run(parts.div_ceil(per_chunk), &|chunk| {
                for part in chunk.index * per_chunk..parts.min((chunk.index + 1) * per_chunk) {
                    let (head, panel) = (part / panels, part % panels);
                    // SAFETY: each panel belongs to one chunk.
                    let [keys, values, key_scales, value_scales] = unsafe {
                        [
                            outs[0].range(panel_of(part, KEY_PANEL * sizes.head_dim)),
                            outs[1].range(panel_of(part, KEY_PANEL * sizes.padded_dim)),
                            outs[2].range(panel_of(part, KEY_PANEL)),
                            outs[3].range(panel_of(part, KEY_PANEL)),
                        ]
                    };
                    let rows = panel * KEY_PANEL..rows.min((panel + 1) * KEY_PANEL);
                    let [k, v] = [op.k, op.v].map(|tensor| run.read::<T::Candidate>(tensor));
                    let pack =
                        PackPanel::<T> { k, v, heads, head, rows, keys, values, key_scales, value_scales, sizes };
                    set.run(pack);
                }
            });
        }
        Self { sizes, keys, values, key_scales, value_scales }
    }

    pub(super) fn head(&self, head: usize) -> HeadCandidates<'a> {
        let part = |all: &'a [f32], size: usize| &all[head * size..][..size];
        HeadCandidates {
            keys: part(self.keys, self.sizes.keys()),
            values: part(self.values, self.sizes.values()),
            key_scales: part(self.key_scales, self.sizes.rows),
            value_scales: part(self.value_scales, self.sizes.rows),
        }
    }
}

fn panel_of(part: usize, size: usize) -> std::ops::Range<usize> {
    part * size..(part + 1) * size
}

/// One head of up to 16 rows.
struct PackPanel<'a, T: Cached> {
    k: &'a [T::Candidate],
    v: &'a [T::Candidate],
    heads: usize,
    head: usize,
    rows: std::ops::Range<usize>,
    keys: &'a mut [f32],
    values: &'a mut [f32],
    key_scales: &'a mut [f32],
    value_scales: &'a mut [f32],
    sizes: Sizes,
}

impl<T: Cached> Kernel for PackPanel<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        /// Head sizes up to this one need no memory besides the stack.
        const MOST: usize = 512;
        let Sizes { head_dim, padded_dim, .. } = self.sizes;
        let (mut floats, mut codes) = ([0.0; MOST], [0; MOST]);
        let (mut more_floats, mut more_codes) = (Vec::new(), Vec::new());
        let (floats, codes) = if head_dim <= MOST {
            (&mut floats[..head_dim], &mut codes[..head_dim])
        } else {
            more_floats.resize(head_dim, 0.0);
            more_codes.resize(head_dim, 0);
            (&mut more_floats[..], &mut more_codes[..])
        };
        for (lane, row) in self.rows.enumerate() {
            let vector = (row * self.heads + self.head) * head_dim..(row * self.heads + self.head + 1) * head_dim;
            self.key_scales[lane] = T::candidate(s, &self.k[vector.clone()], floats, codes);
            for (column, &x) in self.keys.as_chunks_mut::<KEY_PANEL>().0.iter_mut().zip(&*floats) {
                column[lane] = x;
            }
            let value = &mut self.values[lane * padded_dim..][..padded_dim];
            self.value_scales[lane] = T::candidate(s, &self.v[vector], value, codes);
        }
    }
}
