//! The two products of attention: queries with keys, weights with values.

#![allow(clippy::needless_range_loop, reason = "sums in registers are told by number")]

use std::ops::Range;

use super::cached::Load;
use super::tile::{Lineage, TileHead};
use crate::cpu::simd::{Kernel, LANES, Simd};
use crate::host::{KEY_PANEL, KV_BLOCK};

/// Queries whose sums stay in registers together.
pub(super) const TOGETHER: usize = 4;

/// Vectors whose sums stay in registers together where a vector is one register of 32; elsewhere it is one.
pub(super) const STRIP: usize = 4;

/// Whether a vector is one register. How many sums are kept in registers changes no bit of them.
const fn is_one_register<S: Simd>() -> bool {
    size_of::<S::F32>() == align_of::<S::F32>()
}

/// Whether a vector is in registers at all.
const fn is_in_registers<S: Simd>() -> bool {
    align_of::<S::F32>() > align_of::<f32>()
}

/// Asks for elements of `ahead` that will be read soon. The blocks of a cache are too short, and read in too many streams,
/// for the processor to foresee them.
#[inline(always)]
fn ask_ahead<S: Simd, U>(s: S, ahead: &[U], start: usize, len: usize) {
    if let Some(ahead) = ahead.get(start..start + len) {
        for line in 0..size_of_val(ahead).div_ceil(64) {
            s.prefetch(ahead.as_ptr().cast::<u8>().wrapping_add(line * 64));
        }
    }
}

/// Scores of all queries of a tile.
pub(super) struct Score<'a, U> {
    pub(super) of: &'a TileHead<'a>,
    /// Whole panels.
    pub(super) keys: &'a [U],
    /// Factor of each key.
    pub(super) scales: Option<&'a [f32]>,
    /// What is read next, as many bytes as the keys; empty if that is in a cache already.
    pub(super) ahead: &'a [U],
    /// `[queries, stride]`.
    pub(super) scores: &'a mut [f32],
    pub(super) stride: usize,
}

impl<U: Load> Kernel for Score<'_, U> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let queries = self.of.queries();
        let mut i = 0;
        while i < queries {
            let left = if const { is_in_registers::<S>() } { queries - i } else { 1 };
            i += match left {
                1 => self.score_queries::<S, 1>(s, i),
                2 => self.score_queries::<S, 2>(s, i),
                3 => self.score_queries::<S, 3>(s, i),
                _ => self.score_queries::<S, TOGETHER>(s, i),
            };
        }
    }
}

impl<U: Load> Score<'_, U> {
    #[inline(always)]
    fn score_queries<S: Simd, const Q: usize>(&mut self, s: S, first: usize) -> usize {
        if const { Q > 1 && !is_in_registers::<S>() } {
            return Q;
        }
        let mut queries = [&[][..]; Q];
        for (i, query) in queries.iter_mut().enumerate() {
            *query = self.of.query(first + i);
        }
        let panels = self.keys.len() / (self.of.sizes.head_dim * KEY_PANEL).max(1);
        let mut panel = 0;
        while panel < panels {
            panel += if const { is_one_register::<S>() } && panels - panel >= STRIP {
                self.score_panels::<S, Q, STRIP>(s, first, queries, panel)
            } else {
                self.score_panels::<S, Q, 1>(s, first, queries, panel)
            };
        }
        Q
    }

    /// `N` panels from `panel` on.
    #[inline(always)]
    fn score_panels<S: Simd, const Q: usize, const N: usize>(
        &mut self,
        s: S,
        first: usize,
        queries: [&[f32]; Q],
        panel: usize,
    ) -> usize {
        let head_dim = self.of.sizes.head_dim;
        let mut panels = [&[][..]; N];
        for (n, keys) in panels.iter_mut().enumerate() {
            let keys_of_panel = &self.keys[(panel + n) * head_dim * KEY_PANEL..][..head_dim * KEY_PANEL];
            *keys = &keys_of_panel.as_chunks::<KEY_PANEL>().0[..head_dim];
        }
        let mut sums = [[s.splat(0.0); N]; Q];
        for d in 0..head_dim {
            ask_ahead(s, self.ahead, (panel * head_dim + d * N) * KEY_PANEL, N * KEY_PANEL);
            let mut keys = [s.splat(0.0); N];
            for n in 0..N {
                keys[n] = U::load(s, &panels[n][d]);
            }
            for i in 0..Q {
                let q = s.splat(queries[i][..head_dim][d]);
                for n in 0..N {
                    sums[i][n] = s.fma(q, keys[n], sums[i][n]);
                }
            }
        }
        for i in 0..Q {
            let start = (first + i) * self.stride + panel * KEY_PANEL;
            let scores = self.scores[start..][..N * KEY_PANEL].as_chunks_mut().0;
            for n in 0..N {
                let mut score = s.mul(sums[i][n], s.splat(self.of.op.scale));
                if let Some(scales) = self.scales {
                    score = s.mul(score, s.load(&scales[(panel + n) * KEY_PANEL..].as_chunks().0[0]));
                }
                s.store(score, &mut scores[n]);
            }
        }
        N
    }
}

/// Places of a block whose values are summed.
pub(super) struct Span<'p> {
    pub(super) lineage: Lineage<'p>,
    /// Place in the lineage of place 0.
    pub(super) start: isize,
    pub(super) places: Range<usize>,
    /// Whether the sums start here.
    pub(super) fresh: bool,
}

/// `sums += Σ weight · value` over places in ascending order, for neighboring queries with the same ancestors.
pub(super) struct Add<'a, U> {
    pub(super) queries: Range<usize>,
    pub(super) places: Span<'a>,
    /// `[rows, padded_dim]`.
    pub(super) values: &'a [U],
    /// What is read next, as many bytes as a block of values; empty if that is in a cache already.
    pub(super) ahead: &'a [U],
    /// `[queries, KV_BLOCK]`.
    pub(super) weights: &'a [f32],
    /// `[queries, padded_dim]`.
    pub(super) sums: &'a mut [f32],
    pub(super) padded_dim: usize,
}

impl<U: Load> Kernel for Add<'_, U> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let Range { start: mut i, end } = self.queries;
        while i < end {
            let left = if const { is_in_registers::<S>() } { end - i } else { 1 };
            i += match left {
                1 => self.add_queries::<S, 1>(s, i),
                2 => self.add_queries::<S, 2>(s, i),
                3 => self.add_queries::<S, 3>(s, i),
                _ => self.add_queries::<S, TOGETHER>(s, i),
            };
        }
    }
}

impl<U: Load> Add<'_, U> {
    #[inline(always)]
    fn add_queries<S: Simd, const Q: usize>(&mut self, s: S, first: usize) -> usize {
        if const { Q > 1 && !is_in_registers::<S>() } {
            return Q;
        }
        let mut start = 0;
        while start < self.padded_dim {
            start += if const { is_one_register::<S>() } && self.padded_dim - start >= STRIP * LANES {
                self.add_strip::<S, Q, STRIP>(s, first, start)
            } else {
                self.add_strip::<S, Q, 1>(s, first, start)
            };
        }
        Q
    }

    /// `N` vectors of elements from `strip` on.
    #[inline(always)]
    fn add_strip<S: Simd, const Q: usize, const N: usize>(&mut self, s: S, first: usize, strip: usize) -> usize {
        let dim = self.padded_dim;
        let mut weights = [&[0.0; KV_BLOCK]; Q];
        for (i, of_query) in weights.iter_mut().enumerate() {
            let of_queries = &self.weights[(first + i) * KV_BLOCK..];
            *of_query = of_queries.first_chunk().expect("weights of a whole block per query");
        }
        let mut acc = [[s.splat(0.0); N]; Q];
        if !self.places.fresh {
            for i in 0..Q {
                let sums = self.sums[(first + i) * dim + strip..][..N * LANES].as_chunks().0;
                for n in 0..N {
                    acc[i][n] = s.load(&sums[n]);
                }
            }
        }
        let Span { lineage, start, .. } = self.places;
        for place in self.places.places.clone() {
            let row = lineage.row(place.wrapping_add_signed(start));
            let value = self.values[row * dim + strip..][..N * LANES].as_chunks().0;
            ask_ahead(s, self.ahead, strip * KV_BLOCK + place * N * LANES, N * LANES);
            let mut x = [s.splat(0.0); N];
            for n in 0..N {
                x[n] = U::load(s, &value[n]);
            }
            for i in 0..Q {
                let weight = s.splat(weights[i][place]);
                for n in 0..N {
                    acc[i][n] = s.fma(weight, x[n], acc[i][n]);
                }
            }
        }
        for i in 0..Q {
            let sums = self.sums[(first + i) * dim + strip..][..N * LANES].as_chunks_mut().0;
            for n in 0..N {
                s.store(acc[i][n], &mut sums[n]);
            }
        }
        N * LANES
    }
}
