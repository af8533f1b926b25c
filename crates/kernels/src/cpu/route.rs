use super::Kernels;
use super::share::{Shared, for_each_part};
use crate::host::Run;
use crate::ops::Route;

/// Logits whose softmax takes the time of a dispatch.
const SERIAL_CHOICES: usize = 8;

pub(super) fn route(cpu: &Kernels, op: &Route, run: &mut Run<'_>) {
    let (top_k, num_experts) = (op.chosen.width, op.logits.width);
    run.write(op.weights, |run, weights: &mut [f32]| {
        let weights = Shared::new(weights);
        run.write(op.chosen, |run, chosen: &mut [i32]| {
            let logits = run.read::<f32>(op.logits);
            let mut team = cpu.team();
            let team = &mut *team;
            let scratch = Shared::new(&mut team.scratch.workers);
            for_each_part(&mut team.pool, chosen, top_k, SERIAL_CHOICES, |chunk, row, chosen| {
                // SAFETY: no two chunks run with the same worker at the same time, and each row belongs to one call.
                let (worker, weights) = unsafe {
                    (
                        &mut scratch.range(chunk.worker..chunk.worker + 1)[0],
                        weights.range(row * top_k..(row + 1) * top_k),
                    )
                };
                let p = &mut worker.values[..num_experts];
                softmax(&logits[row * num_experts..][..num_experts], p);
                choose(p, chosen, weights);
                if op.normalize {
                    let sum: f32 = weights.iter().sum();
                    weights.iter_mut().for_each(|weight| *weight /= sum);
                }
            });
        });
    });
}

fn softmax(logits: &[f32], p: &mut [f32]) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for (p, logit) in p.iter_mut().zip(logits) {
        *p = (logit - max).exp();
    }
    let sum: f32 = p.iter().sum();
    p.iter_mut().for_each(|p| *p /= sum);
}

/// The largest of `p`, best first, ties to the lowest index, no place twice; `p` is used up.
fn choose(p: &mut [f32], chosen: &mut [i32], weights: &mut [f32]) {
    // Probabilities are at least 0, what is no number is less than any, and what is taken is less than that.
    let rank = |value: f32| if value.is_nan() { -1.0 } else { value };
    for (chosen, weight) in chosen.iter_mut().zip(weights) {
        let mut best = 0;
        for (i, &value) in p.iter().enumerate() {
            if rank(value) > rank(p[best]) {
                best = i;
            }
        }
        (*chosen, *weight) = (i32::try_from(best).expect("a layer has far fewer than 2^31 experts"), p[best]);
        p[best] = f32::NEG_INFINITY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_expert_is_chosen_twice_even_of_broken_values() {
        let (mut chosen, mut weights) = ([0; 3], [0.0; 3]);
        choose(&mut [f32::NAN; 4], &mut chosen, &mut weights);
        assert_eq!(chosen, [0, 1, 2]);
        choose(&mut [0.2, f32::NAN, 0.5, 0.2], &mut chosen, &mut weights);
        assert_eq!((chosen, weights), ([2, 0, 3], [0.5, 0.2, 0.2]));
    }
}
