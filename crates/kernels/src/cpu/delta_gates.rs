use super::Kernels;
use super::share::{Shared, for_each_row};
use crate::host::{Run, param_values};
use crate::ops::DeltaGates;

/// A few values per row, so the functions of the standard library do.
pub(super) fn delta_gates(cpu: &Kernels, op: &DeltaGates, run: &mut Run<'_>) {
    let (neg_exp_a, dt_bias) = (param_values(&op.neg_exp_a), param_values(&op.dt_bias));
    let heads = neg_exp_a.len();
    run.write(op.beta, |run, beta: &mut [f32]| {
        let beta = Shared::new(beta);
        run.write(op.g, |run, g: &mut [f32]| {
            let (a, b) = (run.read::<f32>(op.a), run.read::<f32>(op.b));
            for_each_row(&mut cpu.team().pool, g, heads, |row, g| {
                let part = row * heads..(row + 1) * heads;
                // SAFETY: each row belongs to one call.
                let beta = unsafe { beta.range(part.clone()) };
                for (h, (a, b)) in a[part.clone()].iter().zip(&b[part]).enumerate() {
                    g[h] = neg_exp_a[h] * softplus(a + dt_bias[h]);
                    beta[h] = 1.0 / (1.0 + (-b).exp());
                }
            });
        });
    });
}

/// `ln(1 + exp(x))`.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
