use crate::host::Run;
use crate::ops::Route;

pub(super) fn route(op: &Route, run: &mut Run<'_>) {
    let (experts, top_k) = (op.logits.width, op.chosen.width);
    run.write(op.chosen, |run, chosen: &mut [i32]| {
        run.write(op.weights, |run, weights: &mut [f32]| {
            let logits = run.read::<f32>(op.logits);
            for (row, logits) in logits.chunks_exact(experts).enumerate() {
                let (chosen, weights) = (&mut chosen[row * top_k..][..top_k], &mut weights[row * top_k..][..top_k]);
                choose(&softmax(logits), chosen, weights);
                if op.normalize {
                    let sum: f32 = weights.iter().sum();
                    weights.iter_mut().for_each(|weight| *weight /= sum);
                }
            }
        });
    });
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exponentials: Vec<f32> = logits.iter().map(|logit| (logit - max).exp()).collect();
    let sum: f32 = exponentials.iter().sum();
    exponentials.iter().map(|e| e / sum).collect()
}

/// The largest of `p`, best first. NaN is never larger, so a row of NaN chooses the first experts.
fn choose(p: &[f32], chosen: &mut [i32], weights: &mut [f32]) {
    let mut left: Vec<usize> = (0..p.len()).collect();
    for (chosen, weight) in chosen.iter_mut().zip(weights) {
        let mut best = 0;
        for place in 1..left.len() {
            if p[left[place]] > p[left[best]] {
                best = place;
            }
        }
        let expert = left.remove(best);
        (*chosen, *weight) = (expert as i32, p[expert]);
    }
}
