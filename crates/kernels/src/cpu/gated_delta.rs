#![allow(clippy::needless_range_loop, reason = "sums in registers are told by number")]

use super::math::{load_part, map, store_part, sum_of_squares};
use super::share::{Shared, for_each_part};
use super::simd::{Kernel, LANES, Simd};
use super::{Kernels, Team};
use crate::host::Run;
use crate::ops::GatedDelta;
use crate::{DeltaLayout, DeltaStart, DeltaVisit};

/// Added to the sum of squares of a query or key.
const EPS: f32 = 1e-6;

/// Rows whose queries and keys are prepared together.
const ROWS: usize = 32;

/// Vectors of columns that are computed together over many rows: 128 key dimensions of them are half a first-level cache.
const NARROW: usize = 2;

/// Vectors of columns over few rows: whole rows of the state, in the order of memory.
const WIDE: usize = 8;

/// One value head of one sequence at a time, its rows in the order of the walk. The columns of a state do not meet each
/// other, so a strip of them goes through many rows while it stays in the first-level cache.
///
/// A step needs the state once, for both `Sᵀk` and `Sᵀq`, and writes it only if a later row continues it:
///
/// ```text
/// u = beta (v − exp(g) Sᵀk)        out = exp(g) Sᵀq + (k·q) u        S ← exp(g) S + k uᵀ
/// ```
///
/// which is the formula of the contract with the last product multiplied out. What is written already meets the query and
/// key of the next row. A chunked form would turn the products into matrix products, but it sums in another order than
/// plain decoding does. Speed: four products per element of the state and row; one row is bound by reading the state.
pub(super) fn gated_delta(cpu: &Kernels, op: &GatedDelta, run: &mut Run<'_>) {
    let (layout, heads) = (&op.layout, op.layout.num_value_heads);
    let state_len = layout.key_head_dim * layout.value_head_dim;
    run.write(op.out, |run, out: &mut [f32]| {
        run.write(op.terms, |run, terms: &mut [f32]| {
            let (run, out, terms) = (&*run, Shared::new(out), Shared::new(terms));
            let mut team = cpu.team();
            team.scratch.reserve_states((1 + run.rows().num_saved()) * state_len);
            let Team { pool, scratch, .. } = &mut *team;
            let workers = Shared::new(&mut scratch.workers);
            pool.run(run.rows().num_sequences() * heads, &|chunk| {
                // SAFETY: no two chunks run with the same worker at the same time.
                let worker = unsafe { &mut workers.range(chunk.worker..chunk.worker + 1)[0] };
                let (sequence, head) = (chunk.index / heads, chunk.index % heads);
                let committed = &run.state(sequence).delta(op.slot).recurrent[head * state_len..][..state_len];
                let (current, saved) = worker.states.split_at_mut(state_len);
                let states = States { committed, current, saved };
                let prepared = Prepared::new(&mut worker.values, layout);
                let walk = run.rows().delta_walk(sequence);
                cpu.set.run(WalkHead { inputs: HeadInputs { op, run, head }, walk, states, prepared, terms, out });
            });
        });
    });
}

/// Floats of memory that a thread needs.
pub(super) fn memory(layout: &DeltaLayout) -> usize {
    ROWS * (2 * layout.key_head_dim + 3)
}

/// Moves the state along `path`: `S ← exp(g) S + k uᵀ` of each row, with what the pass kept of it.
pub(super) fn advance_delta(cpu: &Kernels, op: &GatedDelta, run: &Run<'_>, path: &[usize], recurrent: &mut [f32]) {
    let state_len = op.layout.key_head_dim * op.layout.value_head_dim;
    let terms = run.read::<f32>(op.terms);
    let Team { pool, scratch, .. } = &mut *cpu.team();
    let workers = Shared::new(&mut scratch.workers);
    for_each_part(pool, recurrent, state_len, 0, |chunk, head, state| {
        // SAFETY: no two chunks run with the same worker at the same time.
        let worker = unsafe { &mut workers.range(chunk.worker..chunk.worker + 1)[0] };
        cpu.set.run(AdvanceHead { op, terms, head, path, state, memory: &mut worker.states });
    });
}

/// Where one value head finds its inputs.
#[derive(Clone, Copy)]
struct HeadInputs<'a> {
    op: &'a GatedDelta,
    run: &'a Run<'a>,
    head: usize,
}

impl<'a> HeadInputs<'a> {
    fn key_head(&self) -> usize {
        self.op.key_head_order.key_head(self.head, &self.op.layout)
    }

    /// Whether this is the first value head of its key head.
    fn is_first(&self) -> bool {
        (0..self.head).all(|head| self.op.key_head_order.key_head(head, &self.op.layout) != self.key_head())
    }

    /// Query, key and value vectors of a row.
    #[inline(always)]
    fn vectors(&self, row: usize) -> [&'a [f32]; 3] {
        let DeltaLayout { num_key_heads, key_head_dim, value_head_dim, .. } = self.op.layout;
        let width = self.op.qkv.width;
        let qkv = &self.run.read::<f32>(self.op.qkv)[row * width..][..width];
        let (q, rest) = qkv.split_at(num_key_heads * key_head_dim);
        let (k, v) = rest.split_at(num_key_heads * key_head_dim);
        let key_part = self.key_head() * key_head_dim..(self.key_head() + 1) * key_head_dim;
        [&q[key_part.clone()], &k[key_part], &v[self.head * value_head_dim..][..value_head_dim]]
    }

    /// Decay and write strength of a row.
    #[inline(always)]
    fn gates(&self, row: usize) -> (f32, f32) {
        let place = row * self.op.layout.num_value_heads + self.head;
        (self.run.read::<f32>(self.op.g)[place].exp(), self.run.read::<f32>(self.op.beta)[place])
    }
}

/// Queries, keys and gates of up to [`ROWS`] rows.
struct Prepared<'m> {
    /// `[ROWS, key_dim]`, normalized and scaled.
    q: &'m mut [f32],
    /// `[ROWS, key_dim]`, normalized.
    k: &'m mut [f32],
    /// `k·q` of each row.
    kq: &'m mut [f32],
    decay: &'m mut [f32],
    beta: &'m mut [f32],
    key_dim: usize,
}

impl<'m> Prepared<'m> {
    fn new(memory: &'m mut [f32], layout: &DeltaLayout) -> Self {
        let key_dim = layout.key_head_dim;
        let (q, rest) = memory.split_at_mut(ROWS * key_dim);
        let (k, rest) = rest.split_at_mut(ROWS * key_dim);
        let (kq, rest) = rest.split_at_mut(ROWS);
        let (decay, rest) = rest.split_at_mut(ROWS);
        Self { q, k, kq, decay, beta: &mut rest[..ROWS], key_dim }
    }

    #[inline(always)]
    fn prepare<S: Simd>(&mut self, s: S, i: usize, inputs: &HeadInputs<'_>, row: usize) {
        let part = i * self.key_dim..(i + 1) * self.key_dim;
        let (to_q, to_k) = (&mut self.q[part.clone()], &mut self.k[part]);
        let [q, k, _] = inputs.vectors(row);
        scale_into(s, q, (q.len() as f32).sqrt().recip() / (sum_of_squares(s, q) + EPS).sqrt(), to_q);
        scale_into(s, k, 1.0 / (sum_of_squares(s, k) + EPS).sqrt(), to_k);
        self.kq[i] = s.sum(product(s, to_k, to_q));
        (self.decay[i], self.beta[i]) = inputs.gates(row);
    }

    #[inline(always)]
    fn vectors(&self, i: usize) -> KeyAndQuery<'_> {
        let part = i * self.key_dim..(i + 1) * self.key_dim;
        KeyAndQuery { k: &self.k[part.clone()], q: &self.q[part] }
    }
}

#[derive(Clone, Copy)]
struct KeyAndQuery<'a> {
    k: &'a [f32],
    q: &'a [f32],
}

#[inline(always)]
fn scale_into<S: Simd>(s: S, x: &[f32], scale: f32, out: &mut [f32]) {
    map!(s, [x = x], out, s.mul(x, s.splat(scale)));
}

/// Products of two vectors, summed into 16 lanes.
#[inline(always)]
fn product<S: Simd>(s: S, x: &[f32], y: &[f32]) -> S::F32 {
    let mut sum = s.splat(0.0);
    for (x, y) in x.chunks(LANES).zip(y.chunks(LANES)) {
        sum = s.fma(load_part(s, x), load_part(s, y), sum);
    }
    sum
}

/// States of one head.
struct States<'a> {
    /// `[key_dim, value_dim]`.
    committed: &'a [f32],
    /// The columns of each strip together, `[key_dim, columns]` one strip after the other: in rows of a whole state, a strip
    /// would meet a fraction of a cache's sets only.
    current: &'a mut [f32],
    /// As `current`, one after the other.
    saved: &'a mut [f32],
}

/// `Sᵀk` and `Sᵀq` of `N` vectors of columns.
type Reads<S, const N: usize> = [[<S as Simd>::F32; N]; 2];

/// `N` vectors of columns; the last may be there in part if it is the only one.
#[derive(Clone, Copy)]
struct Strip {
    start: usize,
    end: usize,
}

impl Strip {
    /// Up to `N` vectors from `start` on.
    fn new<const N: usize>(start: usize, width: usize) -> Self {
        Self { start, end: width.min(start + N * LANES) }
    }

    fn columns(self) -> usize {
        self.end - self.start
    }

    /// Where the strip lies in a state kept strip by strip.
    fn range(self, key_dim: usize) -> std::ops::Range<usize> {
        self.start * key_dim..self.end * key_dim
    }

    /// Columns of vector `n`, from the first of the strip.
    #[inline(always)]
    fn part<const N: usize>(self, n: usize) -> std::ops::Range<usize> {
        n * LANES..self.columns().min((n + 1) * LANES)
    }

    /// The vectors of a strip that has several, which are whole.
    ///
    /// Whether there is a path for a part in the loops below decides their speed: with it, the sums of a strip go to memory
    /// and back for every row of the state, and a step takes three times as long.
    #[inline(always)]
    fn whole<const N: usize>(row: &[f32]) -> &[[f32; LANES]; N] {
        row.as_chunks().0.first_chunk().expect("a strip of several vectors has no part")
    }

    #[inline(always)]
    fn load<S: Simd, const N: usize>(self, s: S, row: &[f32], n: usize) -> S::F32 {
        if N > 1 { s.load(&Self::whole::<N>(row)[n]) } else { load_part(s, &row[self.part::<N>(n)]) }
    }

    #[inline(always)]
    fn store<S: Simd, const N: usize>(self, s: S, x: S::F32, row: &mut [f32], n: usize) {
        if N > 1 {
            let whole: &mut [[f32; LANES]; N] =
                row.as_chunks_mut().0.first_chunk_mut().expect("a strip of several vectors has no part");
            s.store(x, &mut whole[n]);
        } else {
            store_part(s, x, &mut row[self.part::<N>(n)]);
        }
    }

    /// Both products with a state whose rows are `stride` apart; the strip starts at its first column.
    #[inline(always)]
    fn read<S: Simd, const N: usize>(self, s: S, state: &[f32], stride: usize, with: KeyAndQuery<'_>) -> Reads<S, N> {
        let mut reads = [[s.splat(0.0); N]; 2];
        for (row, (k, q)) in state.chunks(stride).zip(with.k.iter().zip(with.q)) {
            let (k, q) = (s.splat(*k), s.splat(*q));
            for n in 0..N {
                let x = self.load::<S, N>(s, row, n);
                reads[0][n] = s.fma(x, k, reads[0][n]);
                reads[1][n] = s.fma(x, q, reads[1][n]);
            }
        }
        reads
    }

    /// `S ← decay S + k uᵀ` in place.
    #[inline(always)]
    fn write<S: Simd, const N: usize>(
        self,
        s: S,
        state: &mut [f32],
        stride: usize,
        decay: f32,
        k: &[f32],
        u: [S::F32; N],
    ) {
        let decay = s.splat(decay);
        for (row, k) in state.chunks_mut(stride).zip(k) {
            let k = s.splat(*k);
            for n in 0..N {
                let next = s.fma(k, u[n], s.mul(decay, self.load::<S, N>(s, row, n)));
                self.store::<S, N>(s, next, row, n);
            }
        }
    }

    /// [`write`](Self::write), then [`read`](Self::read) with the next row's key and query, in one go.
    #[inline(always)]
    fn write_and_read<S: Simd, const N: usize>(
        self,
        s: S,
        state: &mut [f32],
        decay: f32,
        k: &[f32],
        u: [S::F32; N],
        next: KeyAndQuery<'_>,
    ) -> Reads<S, N> {
        let decay = s.splat(decay);
        let mut reads = [[s.splat(0.0); N]; 2];
        let with = k.iter().zip(next.k.iter().zip(next.q));
        for (row, (k, (next_k, next_q))) in state.chunks_exact_mut(self.columns()).zip(with) {
            let (k, next_k, next_q) = (s.splat(*k), s.splat(*next_k), s.splat(*next_q));
            for n in 0..N {
                let y = s.fma(k, u[n], s.mul(decay, self.load::<S, N>(s, row, n)));
                self.store::<S, N>(s, y, row, n);
                reads[0][n] = s.fma(y, next_k, reads[0][n]);
                reads[1][n] = s.fma(y, next_q, reads[1][n]);
            }
        }
        reads
    }

    /// Takes the strip out of a state of `width` columns.
    fn gather(self, state: &[f32], width: usize, strip: &mut [f32]) {
        for (row, strip) in state.chunks_exact(width).zip(strip.chunks_exact_mut(self.columns())) {
            strip.copy_from_slice(&row[self.start..self.end]);
        }
    }

    /// Puts the strip back into a state of `width` columns.
    fn scatter(self, strip: &[f32], state: &mut [f32], width: usize) {
        for (row, strip) in state.chunks_exact_mut(width).zip(strip.chunks_exact(self.columns())) {
            row[self.start..self.end].copy_from_slice(strip);
        }
    }
}

/// All rows of one sequence, for one value head.
struct WalkHead<'a> {
    inputs: HeadInputs<'a>,
    walk: &'a [DeltaVisit],
    states: States<'a>,
    prepared: Prepared<'a>,
    terms: Shared<'a, f32>,
    out: Shared<'a, f32>,
}

impl Kernel for WalkHead<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let (walk, width) = (self.walk, self.inputs.op.layout.value_head_dim);
        let keeps_keys = self.inputs.is_first();
        for start in (0..walk.len()).step_by(ROWS) {
            let visits = start..walk.len().min(start + ROWS);
            for (i, visit) in walk[visits.clone()].iter().enumerate() {
                self.prepared.prepare(s, i, &self.inputs, visit.row);
                self.keep_terms(i, visit.row, keeps_keys);
            }
            let mut column = 0;
            while column < width {
                let wide = walk.len() == 1 && width - column >= WIDE * LANES;
                column = if wide {
                    self.walk_strip::<S, WIDE>(s, visits.clone(), column)
                } else if width - column >= NARROW * LANES {
                    self.walk_strip::<S, NARROW>(s, visits.clone(), column)
                } else {
                    self.walk_strip::<S, 1>(s, visits.clone(), column)
                };
            }
        }
    }
}

impl WalkHead<'_> {
    /// Key and decay of a row, for its commit.
    fn keep_terms(&self, i: usize, row: usize, keeps_keys: bool) {
        let layout = &self.inputs.op.layout;
        let width = layout.term_width();
        let decay = row * width + layout.decay_term(self.inputs.head);
        // SAFETY: each head has its decay, and only the first value head of a key head keeps the key.
        let of_head = unsafe { self.terms.range(decay..decay + 1) };
        of_head[0] = self.prepared.decay[i];
        if keeps_keys {
            let key = row * width + layout.key_terms(self.inputs.key_head());
            // SAFETY: as above.
            let key = unsafe { self.terms.range(key..key + layout.key_head_dim) };
            key.copy_from_slice(self.prepared.vectors(i).k);
        }
    }

    /// The rows `visits` of the walk for the strip of columns from `column` on; returns where it ends.
    #[inline(always)]
    fn walk_strip<S: Simd, const N: usize>(&mut self, s: S, visits: std::ops::Range<usize>, column: usize) -> usize {
        let layout = &self.inputs.op.layout;
        let width = layout.value_head_dim;
        let strip = Strip::new::<N>(column, width);
        let range = strip.range(layout.key_head_dim);
        let States { committed, current, saved } = &mut self.states;
        let (committed, len) = (*committed, committed.len());
        let current = &mut current[range.clone()];
        let of_slot = |slot: usize| slot * len + range.start..slot * len + range.end;
        let mut carried = None;
        for (i, place) in visits.clone().enumerate() {
            let visit = self.walk[place];
            let with = self.prepared.vectors(i);
            let reads = match (carried.take(), visit.start) {
                (Some(reads), _) => reads,
                (None, DeltaStart::Committed) => strip.read::<S, N>(s, &committed[column..], width, with),
                (None, DeltaStart::Previous) => strip.read::<S, N>(s, current, strip.columns(), with),
                (None, DeltaStart::Saved(slot)) => strip.read::<S, N>(s, &saved[of_slot(slot)], strip.columns(), with),
            };
            let u = output(s, &self.inputs, &self.prepared, i, visit.row, strip, reads, self.terms, self.out);
            let next = self.walk.get(place + 1).filter(|next| next.start == DeltaStart::Previous);
            if next.is_none() && visit.save.is_none() {
                continue;
            }
            match visit.start {
                DeltaStart::Committed => strip.gather(committed, width, current),
                DeltaStart::Previous => {}
                DeltaStart::Saved(slot) => current.copy_from_slice(&saved[of_slot(slot)]),
            }
            let decay = self.prepared.decay[i];
            if next.is_some() && place + 1 < visits.end {
                let next = self.prepared.vectors(i + 1);
                carried = Some(strip.write_and_read(s, current, decay, with.k, u, next));
            } else {
                strip.write(s, current, strip.columns(), decay, with.k, u);
            }
            if let Some(slot) = visit.save {
                saved[of_slot(slot)].copy_from_slice(current);
            }
        }
        strip.end
    }
}

/// Writes the outputs of a strip of columns and what the head writes there, which is returned.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "the parts of a `WalkHead` whose states are borrowed")]
fn output<S: Simd, const N: usize>(
    s: S,
    inputs: &HeadInputs<'_>,
    prepared: &Prepared<'_>,
    i: usize,
    row: usize,
    strip: Strip,
    [by_key, by_query]: Reads<S, N>,
    terms: Shared<'_, f32>,
    out: Shared<'_, f32>,
) -> [S::F32; N] {
    let layout = &inputs.op.layout;
    let [_, _, v] = inputs.vectors(row);
    let (decay, beta, kq) = (s.splat(prepared.decay[i]), s.splat(prepared.beta[i]), s.splat(prepared.kq[i]));
    let term = row * layout.term_width() + layout.write_terms(inputs.head) + strip.start;
    let v = &v[strip.start..strip.end];
    let place = row * inputs.op.out.width + inputs.head * layout.value_head_dim + strip.start;
    let mut written = [s.splat(0.0); N];
    for n in 0..N {
        let part = strip.part::<N>(n);
        let u = s.mul(beta, s.sub(load_part(s, &v[part.clone()]), s.mul(decay, by_key[n])));
        let y = s.fma(kq, u, s.mul(decay, by_query[n]));
        // SAFETY: each head of a row belongs to one chunk.
        let (term, out) = unsafe {
            (terms.range(term + part.start..term + part.end), out.range(place + part.start..place + part.end))
        };
        store_part(s, u, term);
        store_part(s, y, out);
        written[n] = u;
    }
    written
}

/// The rows of a path, for one value head whose state moves along.
struct AdvanceHead<'a> {
    op: &'a GatedDelta,
    /// `[rows, term_width]`.
    terms: &'a [f32],
    head: usize,
    path: &'a [usize],
    /// `[key_dim, value_dim]`.
    state: &'a mut [f32],
    /// At least one strip.
    memory: &'a mut [f32],
}

impl Kernel for AdvanceHead<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let width = self.op.layout.value_head_dim;
        let mut column = 0;
        while column < width {
            column = if self.path.len() == 1 && width - column >= WIDE * LANES {
                self.advance_strip::<S, WIDE>(s, column)
            } else if width - column >= NARROW * LANES {
                self.advance_strip::<S, NARROW>(s, column)
            } else {
                self.advance_strip::<S, 1>(s, column)
            };
        }
    }
}

impl AdvanceHead<'_> {
    /// The strip of columns from `column` on; returns where it ends.
    #[inline(always)]
    fn advance_strip<S: Simd, const N: usize>(&mut self, s: S, column: usize) -> usize {
        let layout = &self.op.layout;
        let width = layout.value_head_dim;
        let strip = Strip::new::<N>(column, width);
        if let &[row] = self.path {
            let (decay, k, u) = row_terms::<S, N>(s, self.op, self.terms, self.head, row, strip);
            strip.write(s, &mut self.state[column..], width, decay, k, u);
            return strip.end;
        }
        let memory = &mut self.memory[..strip.range(layout.key_head_dim).len()];
        strip.gather(self.state, width, memory);
        for &row in self.path {
            let (decay, k, u) = row_terms::<S, N>(s, self.op, self.terms, self.head, row, strip);
            strip.write(s, memory, strip.columns(), decay, k, u);
        }
        strip.scatter(memory, self.state, width);
        strip.end
    }
}

/// Decay, key, and a strip of what `head` writes, of one row.
#[inline(always)]
fn row_terms<'a, S: Simd, const N: usize>(
    s: S,
    op: &GatedDelta,
    terms: &'a [f32],
    head: usize,
    row: usize,
    strip: Strip,
) -> (f32, &'a [f32], [S::F32; N]) {
    let layout = &op.layout;
    let terms = &terms[row * layout.term_width()..][..layout.term_width()];
    let written = &terms[layout.write_terms(head) + strip.start..][..strip.columns()];
    let mut u = [s.splat(0.0); N];
    for n in 0..N {
        u[n] = load_part(s, &written[strip.part::<N>(n)]);
    }
    let key = layout.key_terms(op.key_head_order.key_head(head, layout));
    (terms[layout.decay_term(head)], &terms[key..][..layout.key_head_dim], u)
}
