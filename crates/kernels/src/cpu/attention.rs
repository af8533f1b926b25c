use half::{bf16, f16};

use super::instruction_set::Kernel;
use super::math::{exp, load_part, sigmoid, store_part};
use super::share::{Shared, for_each_part};
use super::simd::{LANES, Simd};
use super::{Kernels, Team};
use crate::DType;
use crate::host::{Element, KV_BLOCK, Run};
use crate::ops::Attention;

/// Online softmax over blocks of 64 positions, counted from the start of the sequence: the maximum and the sums move on
/// block by block, so their order depends on positions only. Parallel over rows and key-value heads; the query heads that
/// share keys are computed together.
///
/// Speed: two products per row, head and cached element; the block of keys and values stays in the first-level cache for
/// all query heads of its group.
pub(super) fn attention(cpu: &Kernels, op: &Attention, run: &mut Run<'_>) {
    match op.layout.dtype {
        DType::F32 => attend::<f32>(cpu, op, run),
        DType::F16 => attend::<f16>(cpu, op, run),
        DType::BF16 => attend::<bf16>(cpu, op, run),
        DType::I32 => unreachable!("a recording refuses integer caches"),
    }
}

fn attend<T: Loaded>(cpu: &Kernels, op: &Attention, run: &mut Run<'_>) {
    let kv_heads = op.shape.num_key_value_heads;
    let width = op.shape.query_width() / kv_heads;
    run.write(op.out, |run, out: &mut [f32]| {
        let run = &*run;
        let Team { pool, scratch, .. } = &mut *cpu.team();
        let workers = Shared::new(&mut scratch.workers);
        for_each_part(pool, out, width, 0, |chunk, part, out| {
            // SAFETY: no two chunks run with the same worker at the same time.
            let worker = unsafe { &mut workers.range(chunk.worker..chunk.worker + 1)[0] };
            let (row, head) = (part / kv_heads, part % kv_heads);
            run.rows().path_into(row, &mut worker.path);
            let seen = Seen::<T>::new(op, run, row, &worker.path, head);
            let q = &run.read::<f32>(op.q)[part * width..][..width];
            let gate = op.gate.map(|gate| &run.read::<f32>(gate)[part * width..][..width]);
            cpu.set.run(AttendGroup { seen, q, gate, scale: op.scale, out });
        });
    });
}

/// What one key-value head of a row sees: the committed tokens, then the rows of its path.
struct Seen<'a, T> {
    op: &'a Attention,
    run: &'a Run<'a>,
    row: usize,
    path: &'a [usize],
    head: usize,
    committed: usize,
    /// Keys and values of the rows of the pass.
    pass: [&'a [T]; 2],
}

impl<'a, T: Loaded> Seen<'a, T> {
    fn new(op: &'a Attention, run: &'a Run<'a>, row: usize, path: &'a [usize], head: usize) -> Self {
        let rows = run.rows();
        let committed = rows.sequence_len(rows.sequence(row));
        Self { op, run, row, path, head, committed, pass: [run.read(op.k), run.read(op.v)] }
    }

    fn len(&self) -> usize {
        self.committed + self.path.len()
    }

    /// Keys and values at the positions of a block, as many as are seen.
    fn block(&self, block: usize) -> Block<'a, T> {
        let head_dim = self.op.shape.head_dim;
        let start = block * KV_BLOCK;
        let len = KV_BLOCK.min(self.len() - start);
        let mut vectors = Block { keys: [&[]; KV_BLOCK], values: [&[]; KV_BLOCK], len };
        let committed = self.committed.saturating_sub(start).min(len);
        if committed > 0 {
            let state = self.run.state(self.run.rows().sequence(self.row));
            let view = state.attention(self.op.slot).view(block, self.head);
            let (keys, values) = (view.keys::<T>(), view.values::<T>());
            for place in 0..committed {
                vectors.keys[place] = &keys[place * head_dim..][..head_dim];
                vectors.values[place] = &values[place * head_dim..][..head_dim];
            }
        }
        let width = self.op.shape.key_value_width();
        for place in committed..len {
            let row = self.path[start + place - self.committed];
            let vector = row * width + self.head * head_dim..row * width + (self.head + 1) * head_dim;
            vectors.keys[place] = &self.pass[0][vector.clone()];
            vectors.values[place] = &self.pass[1][vector];
        }
        vectors
    }
}

/// Keys and values of up to [`KV_BLOCK`] consecutive positions.
struct Block<'a, T> {
    keys: [&'a [T]; KV_BLOCK],
    values: [&'a [T]; KV_BLOCK],
    len: usize,
}

/// The query heads of one row that share a key-value head.
struct AttendGroup<'a, T> {
    seen: Seen<'a, T>,
    q: &'a [f32],
    gate: Option<&'a [f32]>,
    scale: f32,
    out: &'a mut [f32],
}

/// Query heads whose running maximum and sum fit on the stack; larger groups take several rounds over the keys.
const HEADS_TOGETHER: usize = 16;

impl<T: Loaded> Kernel for AttendGroup<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { seen, q, gate, scale, out } = self;
        let head_dim = seen.op.shape.head_dim;
        let round = HEADS_TOGETHER * head_dim;
        for (q, out) in q.chunks(round).zip(out.chunks_mut(round)) {
            attend_heads(s, &seen, scale, q, out);
        }
        let Some(gate) = gate else { return };
        for (gate, out) in gate.chunks(LANES).zip(out.chunks_mut(LANES)) {
            let product = s.mul(load_part(s, out), sigmoid(s, load_part(s, gate)));
            store_part(s, product, out);
        }
    }
}

/// Running maximum and sum of one head.
#[derive(Clone, Copy)]
struct Softmax {
    max: f32,
    sum: f32,
}

#[inline(always)]
fn attend_heads<S: Simd, T: Loaded>(s: S, seen: &Seen<'_, T>, scale: f32, q: &[f32], out: &mut [f32]) {
    let head_dim = seen.op.shape.head_dim;
    let mut softmax = [Softmax { max: f32::NEG_INFINITY, sum: 0.0 }; HEADS_TOGETHER];
    out.fill(0.0);
    for block in 0..seen.len().div_ceil(KV_BLOCK) {
        let block = seen.block(block);
        let heads = q.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim));
        for ((q, out), softmax) in heads.zip(&mut softmax) {
            let mut weights = scores(s, q, scale, &block);
            let rescale = softmax.advance(s, &mut weights);
            add_values(s, &weights, rescale, &block, out);
        }
    }
    for (out, softmax) in out.chunks_exact_mut(head_dim).zip(&softmax) {
        let scale = s.splat(1.0 / softmax.sum);
        for out in out.chunks_mut(LANES) {
            store_part(s, s.mul(load_part(s, out), scale), out);
        }
    }
}

type Scores = [[f32; LANES]; KV_BLOCK / LANES];

/// `scale · q k` of each position; −∞ where there is none.
#[inline(always)]
fn scores<S: Simd, T: Loaded>(s: S, q: &[f32], scale: f32, block: &Block<'_, T>) -> Scores {
    let mut scores = [[f32::NEG_INFINITY; LANES]; KV_BLOCK / LANES];
    let keys = block.keys[..block.len].chunks(LANES);
    for (keys, scores) in keys.zip(&mut scores) {
        let mut products = [s.splat(0.0); LANES];
        for (key, product) in keys.iter().zip(&mut products) {
            *product = dot(s, q, key);
        }
        let sums = s.sums(&products);
        for (score, sum) in scores.iter_mut().zip(&sums[..keys.len()]) {
            *score = scale * sum;
        }
    }
    scores
}

/// The 16 partial sums of a product.
#[inline(always)]
fn dot<S: Simd, T: Loaded>(s: S, q: &[f32], key: &[T]) -> S::F32 {
    let mut sum = s.splat(0.0);
    let (q, q_tail) = q.as_chunks();
    let (key, key_tail) = key.as_chunks();
    for (q, key) in q.iter().zip(key) {
        sum = s.fma(s.load(q), T::load(s, key), sum);
    }
    if !q_tail.is_empty() {
        sum = s.fma(load_part(s, q_tail), load_tail(s, key_tail), sum);
    }
    sum
}

#[inline(always)]
fn load_tail<S: Simd, T: Loaded>(s: S, x: &[T]) -> S::F32 {
    let mut lanes = [T::from_f32(0.0); LANES];
    lanes[..x.len()].copy_from_slice(x);
    T::load(s, &lanes)
}

impl Softmax {
    /// Turns scores into weights `exp(score − max)`; returns what earlier sums must be multiplied with.
    #[inline(always)]
    fn advance<S: Simd>(&mut self, s: S, scores: &mut Scores) -> f32 {
        let mut max = s.splat(self.max);
        for scores in scores.iter() {
            max = s.max(s.load(scores), max);
        }
        let max = s.max_lane(max);
        let mut rescale = [0.0; LANES];
        s.store(exp(s, s.splat(self.max - max)), &mut rescale);
        let mut sum = s.splat(0.0);
        for scores in scores {
            let weights = exp(s, s.sub(s.load(scores), s.splat(max)));
            s.store(weights, scores);
            sum = s.add(sum, weights);
        }
        *self = Self { max, sum: self.sum * rescale[0] + s.sum(sum) };
        rescale[0]
    }
}

/// `out = rescale · out + Σ weight · value`, positions in ascending order.
#[inline(always)]
fn add_values<S: Simd, T: Loaded>(s: S, weights: &Scores, rescale: f32, block: &Block<'_, T>, out: &mut [f32]) {
    let weights = &weights.as_flattened()[..block.len];
    let values = &block.values[..block.len];
    let (strips, tail) = out.as_chunks_mut::<{ 4 * LANES }>();
    let start_of_tail = strips.len() * 4 * LANES;
    for (i, strip) in strips.iter_mut().enumerate() {
        let start = i * 4 * LANES;
        let (out, _) = strip.as_chunks_mut::<LANES>();
        let mut sums = [s.splat(0.0); 4];
        for (sum, out) in sums.iter_mut().zip(&*out) {
            *sum = s.mul(s.load(out), s.splat(rescale));
        }
        for (&weight, value) in weights.iter().zip(values) {
            let value = value[start..start + 4 * LANES].as_chunks::<LANES>().0;
            let weight = s.splat(weight);
            for (sum, value) in sums.iter_mut().zip(value) {
                *sum = s.fma(weight, T::load(s, value), *sum);
            }
        }
        for (sum, out) in sums.into_iter().zip(out) {
            s.store(sum, out);
        }
    }
    for (i, out) in tail.chunks_mut(LANES).enumerate() {
        let start = start_of_tail + i * LANES;
        let mut sum = s.mul(load_part(s, out), s.splat(rescale));
        for (&weight, value) in weights.iter().zip(values) {
            sum = s.fma(s.splat(weight), load_tail(s, &value[start..start + out.len()]), sum);
        }
        store_part(s, sum, out);
    }
}

/// A type that caches store, read 16 elements at a time.
trait Loaded: Element + Sync {
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F32;
}

impl Loaded for f32 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F32 {
        s.load(x)
    }
}

impl Loaded for f16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F32 {
        s.load_f16(bytemuck::cast_ref(x))
    }
}

impl Loaded for bf16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F32 {
        s.load_bf16(bytemuck::cast_ref(x))
    }
}
