use std::ops::Range;

use half::{bf16, f16};

use crate::host::{Element, KV_BLOCK, KvView, Run};
use crate::ops::Attention;
use crate::quantize::int8_head;
use crate::{DType, Tensor};

pub(super) fn attention(op: &Attention, run: &mut Run<'_>) {
    let candidates = [op.k, op.v].map(|tensor| candidates(op, run, tensor));
    let (heads, head_dim) = (op.shape.num_attention_heads, op.shape.head_dim);
    let queries_per_key = heads / op.shape.num_key_value_heads;
    let mut path = Vec::new();
    run.write(op.out, |run, out: &mut [f32]| {
        let q = run.read::<f32>(op.q);
        for (i, out) in out.chunks_exact_mut(head_dim).enumerate() {
            run.rows().path_into(i / heads, &mut path);
            let (rows, row) = (run.rows(), i / heads);
            let positions = op.sight.positions(rows.position(row), rows.seen(row));
            let head = i % heads / queries_per_key;
            let seen = Seen { op, run, candidates: &candidates, path: &path, positions, head };
            attend_head(&seen, &q[i * head_dim..][..head_dim], out);
        }
        let Some(gate) = op.gate else { return };
        for (out, &gate) in out.iter_mut().zip(run.read::<f32>(gate)) {
            *out *= sigmoid(gate);
        }
    });
}

/// Keys or values of the rows of the pass, `[rows, kv_heads · head_dim]`, as the cache will hold them.
fn candidates(op: &Attention, run: &Run<'_>, tensor: Tensor) -> Vec<f32> {
    fn floats<T: Element>(run: &Run<'_>, tensor: Tensor) -> Vec<f32> {
        run.read::<T>(tensor).iter().map(|x| x.to_f32()).collect()
    }
    match op.layout.dtype {
        DType::F32 | DType::I32 => floats::<f32>(run, tensor),
        DType::F16 => floats::<f16>(run, tensor),
        DType::BF16 => floats::<bf16>(run, tensor),
        DType::I8 => {
            let mut values = floats::<f32>(run, tensor);
            for head in values.chunks_exact_mut(op.shape.head_dim) {
                let mut codes = vec![0; head.len()];
                let scale = int8_head(head, &mut codes).to_f32();
                head.iter_mut().zip(codes).for_each(|(x, code)| *x = scale * f32::from(code));
            }
            values
        }
    }
}

/// `out = softmax(scale · q Kᵀ) V` of one head of one row: one pass for the scores, one for the sum.
fn attend_head(seen: &Seen<'_>, q: &[f32], out: &mut [f32]) {
    let scores: Vec<f32> = seen
        .positions
        .clone()
        .map(|position| {
            let dot: f32 = q.iter().zip(seen.vector(position, Part::Key)).map(|(q, k)| q * k).sum();
            seen.op.scale * dot
        })
        .collect();
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum: f32 = weights.iter().sum();
    out.fill(0.0);
    for (position, weight) in seen.positions.clone().zip(&weights) {
        for (out, value) in out.iter_mut().zip(seen.vector(position, Part::Value)) {
            *out += weight / sum * value;
        }
    }
}

/// What one head of a row sees, by position: of the committed tokens and then the rows of its path, those in its sight.
struct Seen<'a> {
    op: &'a Attention,
    run: &'a Run<'a>,
    /// Keys and values of the rows of the pass.
    candidates: &'a [Vec<f32>; 2],
    path: &'a [usize],
    positions: Range<usize>,
    head: usize,
}

impl<'a> Seen<'a> {
    fn committed(&self) -> usize {
        let rows = self.run.rows();
        rows.sequence_len(rows.sequence(self.path[0]))
    }

    fn vector(&self, position: usize, part: Part) -> impl Iterator<Item = f32> {
        let head_dim = self.op.shape.head_dim;
        (0..head_dim).map(move |i| match (position.checked_sub(self.committed()), part) {
            (Some(place), Part::Key) => self.candidates[0][self.candidate(place) + i],
            (Some(place), Part::Value) => self.candidates[1][self.candidate(place) + i],
            (None, Part::Key) => self.committed_block(position).key(position % KV_BLOCK, i),
            (None, Part::Value) => self.committed_block(position).value(position % KV_BLOCK, i),
        })
    }

    /// Where the head of a row of the path starts.
    fn candidate(&self, place: usize) -> usize {
        self.path[place] * self.op.shape.key_value_width() + self.head * self.op.shape.head_dim
    }

    fn committed_block(&self, position: usize) -> KvView<'a> {
        let state = self.run.state(self.run.rows().sequence(self.path[0]));
        state.attention(self.op.slot).view(position / KV_BLOCK, self.head)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Key,
    Value,
}

/// `1 / (1 + exp(−x))`.
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
