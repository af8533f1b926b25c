use half::{bf16, f16};

use crate::DType;
use crate::host::{Element, KV_BLOCK, KvView, Run};
use crate::ops::Attention;

pub(super) fn attention(op: &Attention, run: &mut Run<'_>) {
    match op.layout.dtype {
        DType::F32 => attend::<f32>(op, run),
        DType::F16 => attend::<f16>(op, run),
        DType::BF16 => attend::<bf16>(op, run),
        DType::I32 => unreachable!("a recording refuses integer caches"),
    }
}

fn attend<T: Element>(op: &Attention, run: &mut Run<'_>) {
    let (heads, head_dim) = (op.shape.num_attention_heads, op.shape.head_dim);
    let queries_per_key = heads / op.shape.num_key_value_heads;
    let mut path = Vec::new();
    run.write(op.out, |run, out: &mut [f32]| {
        let q = run.read::<f32>(op.q);
        for (i, out) in out.chunks_exact_mut(head_dim).enumerate() {
            run.rows().path_into(i / heads, &mut path);
            let seen = Seen { op, run, path: &path, head: i % heads / queries_per_key };
            attend_head::<T>(&seen, &q[i * head_dim..][..head_dim], out);
        }
        let Some(gate) = op.gate else { return };
        for (out, &gate) in out.iter_mut().zip(run.read::<f32>(gate)) {
            *out *= sigmoid(gate);
        }
    });
}

/// `out = softmax(scale · q Kᵀ) V` of one head of one row: one pass for the scores, one for the sum.
fn attend_head<T: Element>(seen: &Seen<'_>, q: &[f32], out: &mut [f32]) {
    let scores: Vec<f32> = (0..seen.len())
        .map(|position| {
            let dot: f32 = q.iter().zip(seen.key::<T>(position)).map(|(q, k)| q * k.to_f32()).sum();
            seen.op.scale * dot
        })
        .collect();
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum: f32 = weights.iter().sum();
    out.fill(0.0);
    for (position, weight) in weights.iter().enumerate() {
        for (out, value) in out.iter_mut().zip(seen.value::<T>(position)) {
            *out += weight / sum * value.to_f32();
        }
    }
}

/// What one head of a row sees, by position: the committed tokens, then the rows of its path.
struct Seen<'a> {
    op: &'a Attention,
    run: &'a Run<'a>,
    path: &'a [usize],
    head: usize,
}

impl<'a> Seen<'a> {
    fn committed(&self) -> usize {
        let rows = self.run.rows();
        rows.sequence_len(rows.sequence(self.path[0]))
    }

    fn len(&self) -> usize {
        self.committed() + self.path.len()
    }

    fn key<T: Element>(&self, position: usize) -> &'a [T] {
        self.vector(position, Part::Key)
    }

    fn value<T: Element>(&self, position: usize) -> &'a [T] {
        self.vector(position, Part::Value)
    }

    fn vector<T: Element>(&self, position: usize, part: Part) -> &'a [T] {
        let head_dim = self.op.shape.head_dim;
        let (all, start): (&[T], usize) = match position.checked_sub(self.committed()) {
            Some(place) => {
                let tensor = if part == Part::Key { self.op.k } else { self.op.v };
                (self.run.read(tensor), self.path[place] * tensor.width + self.head * head_dim)
            }
            None => {
                let state = self.run.state(self.run.rows().sequence(self.path[0]));
                let view: KvView<'_> = state.attention(self.op.slot).view(position / KV_BLOCK, self.head);
                let all = if part == Part::Key { view.keys() } else { view.values() };
                (all, position % KV_BLOCK * head_dim)
            }
        };
        &all[start..][..head_dim]
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
