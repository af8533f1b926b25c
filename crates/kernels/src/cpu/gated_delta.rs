use super::instruction_set::Kernel;
use super::math::{load_part, map, store_part, sum_of_squares};
use super::share::{Shared, for_each_part};
use super::simd::{LANES, Simd};
use super::{Kernels, Team};
use crate::host::Run;
use crate::ops::GatedDelta;
use crate::{DeltaLayout, DeltaStart};

/// Added to the sum of squares of a query or key.
const EPS: f32 = 1e-6;

/// One value head of one sequence at a time, its rows in the order of the walk, its state in the second-level cache.
///
/// A step reads the state once, for both `Sᵀk` and `Sᵀq`, and writes it only if a later row continues it:
///
/// ```text
/// u = beta (v − exp(g) Sᵀk)        out = exp(g) Sᵀq + (k·q) u        S ← exp(g) S + k uᵀ
/// ```
///
/// which is the formula of the contract with the last product multiplied out. Speed: two products per element of the
/// state and row, and two more where the state is kept.
pub(super) fn gated_delta(cpu: &Kernels, op: &GatedDelta, run: &mut Run<'_>) {
    let (layout, heads) = (&op.layout, op.layout.num_value_heads);
    let state_len = layout.key_head_dim * layout.value_head_dim;
    run.write(op.out, |run, out: &mut [f32]| {
        let (run, out) = (&*run, Shared::new(out));
        let mut team = cpu.team();
        team.scratch.reserve_states((1 + run.rows().num_saved()) * state_len);
        let Team { pool, scratch, .. } = &mut *team;
        let workers = Shared::new(&mut scratch.workers);
        pool.run(run.rows().num_sequences() * heads, &|chunk| {
            // SAFETY: no two chunks run with the same worker at the same time.
            let worker = unsafe { &mut workers.range(chunk.worker..chunk.worker + 1)[0] };
            let (sequence, head) = (chunk.index / heads, chunk.index % heads);
            let committed = &run.state(sequence).delta(op.slot).recurrent[head * state_len..][..state_len];
            let inputs = HeadInputs { op, run, head };
            let states = &mut worker.states[..];
            cpu.set.run(WalkHead { inputs, sequence, committed, states, memory: &mut worker.values, out });
        });
    });
}

/// Moves the state along `path`; the same steps, all of them kept.
pub(super) fn advance_delta(cpu: &Kernels, op: &GatedDelta, run: &Run<'_>, path: &[usize], recurrent: &mut [f32]) {
    let state_len = op.layout.key_head_dim * op.layout.value_head_dim;
    let Team { pool, scratch, .. } = &mut *cpu.team();
    let workers = Shared::new(&mut scratch.workers);
    for_each_part(pool, recurrent, state_len, 0, |chunk, head, state| {
        // SAFETY: no two chunks run with the same worker at the same time.
        let worker = unsafe { &mut workers.range(chunk.worker..chunk.worker + 1)[0] };
        let inputs = HeadInputs { op, run, head };
        cpu.set.run(AdvanceHead { inputs, path, state, memory: &mut worker.values });
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
    /// Query, key and value vectors of a row.
    #[inline(always)]
    fn vectors(&self, row: usize) -> [&'a [f32]; 3] {
        let DeltaLayout { num_key_heads, key_head_dim, value_head_dim, .. } = self.op.layout;
        let key_head = self.op.key_head_order.key_head(self.head, &self.op.layout);
        let width = self.op.qkv.width;
        let qkv = &self.run.read::<f32>(self.op.qkv)[row * width..][..width];
        let (q, rest) = qkv.split_at(num_key_heads * key_head_dim);
        let (k, v) = rest.split_at(num_key_heads * key_head_dim);
        let key_part = key_head * key_head_dim..(key_head + 1) * key_head_dim;
        [&q[key_part.clone()], &k[key_part], &v[self.head * value_head_dim..][..value_head_dim]]
    }

    /// Decay and write strength of a row.
    #[inline(always)]
    fn gates(&self, row: usize) -> (f32, f32) {
        let place = row * self.op.layout.num_value_heads + self.head;
        (self.run.read::<f32>(self.op.g)[place].exp(), self.run.read::<f32>(self.op.beta)[place])
    }
}

/// Memory of a step: normalized query and key, what the head writes, and what it reads.
struct Step<'m> {
    q: &'m mut [f32],
    k: &'m mut [f32],
    u: &'m mut [f32],
    out: &'m mut [f32],
    decay: f32,
}

impl<'m> Step<'m> {
    #[inline(always)]
    fn new(memory: &'m mut [f32], layout: &DeltaLayout) -> Self {
        let (q, rest) = memory.split_at_mut(layout.key_head_dim);
        let (k, rest) = rest.split_at_mut(layout.key_head_dim);
        let (u, rest) = rest.split_at_mut(layout.value_head_dim);
        Self { q, k, u, out: &mut rest[..layout.value_head_dim], decay: 1.0 }
    }

    /// Computes `u`, and the output of the head, for `row` after the state `before`.
    #[inline(always)]
    fn read<S: Simd>(&mut self, s: S, inputs: &HeadInputs<'_>, row: usize, before: &[f32]) {
        let [q, k, v] = inputs.vectors(row);
        let (decay, beta) = inputs.gates(row);
        self.decay = decay;
        scale_into(s, q, (q.len() as f32).sqrt().recip() / (sum_of_squares(s, q) + EPS).sqrt(), self.q);
        scale_into(s, k, 1.0 / (sum_of_squares(s, k) + EPS).sqrt(), self.k);
        let kq = s.sum(product(s, self.k, self.q));
        let width = v.len();
        let mut start = 0;
        while width - start >= 4 * LANES {
            self.read_columns::<S, 4>(s, before, v, beta, kq, start);
            start += 4 * LANES;
        }
        while start < width {
            self.read_columns::<S, 1>(s, before, v, beta, kq, start);
            start += LANES;
        }
    }

    /// `N` vectors of columns from `start` on, the last one perhaps in part.
    #[inline(always)]
    fn read_columns<S: Simd, const N: usize>(
        &mut self,
        s: S,
        before: &[f32],
        v: &[f32],
        beta: f32,
        kq: f32,
        start: usize,
    ) {
        let width = v.len();
        let end = width.min(start + N * LANES);
        let mut by_key = [s.splat(0.0); N];
        let mut by_query = [s.splat(0.0); N];
        for (row, (k, q)) in before.chunks_exact(width).zip(self.k.iter().zip(&*self.q)) {
            let (k, q) = (s.splat(*k), s.splat(*q));
            for (i, x) in row[start..end].chunks(LANES).enumerate().take(N) {
                let x = load_part(s, x);
                by_key[i] = s.fma(x, k, by_key[i]);
                by_query[i] = s.fma(x, q, by_query[i]);
            }
        }
        for i in 0..N {
            let part = start + i * LANES..end.min(start + (i + 1) * LANES);
            let v = load_part(s, &v[part.clone()]);
            let decay = s.splat(self.decay);
            let u = s.mul(s.splat(beta), s.sub(v, s.mul(decay, by_key[i])));
            store_part(s, u, &mut self.u[part.clone()]);
            let out = s.fma(s.splat(kq), u, s.mul(decay, by_query[i]));
            store_part(s, out, &mut self.out[part]);
        }
    }

    /// `S ← exp(g) S + k uᵀ`.
    #[inline(always)]
    fn write<S: Simd>(&self, s: S, state: &mut [f32]) {
        let decay = s.splat(self.decay);
        for (row, k) in state.chunks_exact_mut(self.u.len()).zip(&*self.k) {
            let k = s.splat(*k);
            let (row, row_tail) = row.as_chunks_mut();
            let (u, u_tail) = self.u.as_chunks();
            for (x, u) in row.iter_mut().zip(u) {
                s.store(s.fma(k, s.load(u), s.mul(decay, s.load(x))), x);
            }
            if !row_tail.is_empty() {
                let sum = s.fma(k, load_part(s, u_tail), s.mul(decay, load_part(s, row_tail)));
                store_part(s, sum, row_tail);
            }
        }
    }
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

/// All rows of one sequence, for one value head.
struct WalkHead<'a> {
    inputs: HeadInputs<'a>,
    sequence: usize,
    /// `[key_dim, value_dim]`.
    committed: &'a [f32],
    /// The current state, then the saved ones.
    states: &'a mut [f32],
    memory: &'a mut [f32],
    out: Shared<'a, f32>,
}

impl Kernel for WalkHead<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let HeadInputs { op, run, head } = self.inputs;
        let (width, len) = (op.layout.value_head_dim, self.committed.len());
        let mut step = Step::new(self.memory, &op.layout);
        let (current, saved) = self.states.split_at_mut(len);
        let walk = run.rows().delta_walk(self.sequence);
        for (i, visit) in walk.iter().enumerate() {
            let before = match visit.start {
                DeltaStart::Committed => self.committed,
                DeltaStart::Previous => current,
                DeltaStart::Saved(slot) => &saved[slot * len..][..len],
            };
            step.read(s, &self.inputs, visit.row, before);
            let place = visit.row * op.out.width + head * width;
            // SAFETY: each head of a row belongs to one chunk.
            unsafe { self.out.range(place..place + width) }.copy_from_slice(step.out);
            let continued = walk.get(i + 1).is_some_and(|next| next.start == DeltaStart::Previous);
            if !continued && visit.save.is_none() {
                continue;
            }
            match visit.start {
                DeltaStart::Committed => current.copy_from_slice(self.committed),
                DeltaStart::Previous => {}
                DeltaStart::Saved(slot) => current.copy_from_slice(&saved[slot * len..][..len]),
            }
            step.write(s, current);
            if let Some(slot) = visit.save {
                saved[slot * len..][..len].copy_from_slice(current);
            }
        }
    }
}

/// The rows of a path, for one value head whose state moves along.
struct AdvanceHead<'a> {
    inputs: HeadInputs<'a>,
    path: &'a [usize],
    state: &'a mut [f32],
    memory: &'a mut [f32],
}

impl Kernel for AdvanceHead<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut step = Step::new(self.memory, &self.inputs.op.layout);
        for &row in self.path {
            step.read(s, &self.inputs, row, self.state);
            step.write(s, self.state);
        }
    }
}
