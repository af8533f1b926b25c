use super::attention::sigmoid;
use crate::host::{Run, param_values};
use crate::ops::DeltaGates;

pub(super) fn delta_gates(op: &DeltaGates, run: &mut Run<'_>) {
    let (neg_exp_a, dt_bias) = (param_values(&op.neg_exp_a), param_values(&op.dt_bias));
    run.write(op.g, |run, g: &mut [f32]| {
        let a = run.read::<f32>(op.a);
        for i in 0..g.len() {
            let head = i % neg_exp_a.len();
            g[i] = neg_exp_a[head] * softplus(a[i] + dt_bias[head]);
        }
    });
    run.write(op.beta, |run, beta: &mut [f32]| {
        let b = run.read::<f32>(op.b);
        for i in 0..beta.len() {
            beta[i] = sigmoid(b[i]);
        }
    });
}

/// `ln(1 + exp(x))`; above 20 the two differ by less than f32 can hold.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
