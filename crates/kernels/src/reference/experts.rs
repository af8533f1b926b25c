use super::linear::product;
use super::stored;
use super::swiglu::silu;
use crate::host::Run;
use crate::ops::{ExpertWeights, Experts};

pub(super) fn experts(op: &Experts, run: &mut Run<'_>) {
    let (width, top_k) = (op.x.width, op.chosen.width);
    run.write(op.out, |run, out: &mut [f32]| {
        let (x, chosen, weights) = (run.read::<f32>(op.x), run.read::<i32>(op.chosen), run.read::<f32>(op.weights));
        out.fill(0.0);
        for (row, out) in out.chunks_exact_mut(width.max(1)).enumerate() {
            for j in row * top_k..(row + 1) * top_k {
                let expert = &op.experts[chosen[j] as usize];
                for (out, value) in out.iter_mut().zip(feed_forward(expert, &x[row * width..][..width])) {
                    *out += weights[j] * value;
                }
            }
        }
    });
}

/// `down( silu(gate x) · up x )`.
fn feed_forward(expert: &ExpertWeights, x: &[f32]) -> Vec<f32> {
    let [mut gate, mut up] = [&expert.gate, &expert.up].map(|weight| vec![0.0; weight.rows]);
    product(stored(&expert.gate), x, &mut gate);
    product(stored(&expert.up), x, &mut up);
    for (up, &gate) in up.iter_mut().zip(&gate) {
        *up *= silu(gate);
    }
    let mut down = vec![0.0; expert.down.rows];
    product(stored(&expert.down), &up, &mut down);
    down
}
