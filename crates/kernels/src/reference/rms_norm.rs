use crate::host::{Run, param_values};
use crate::ops::RmsNorm;

pub(super) fn rms_norm(op: &RmsNorm, run: &mut Run<'_>) {
    let weight = param_values(&op.weight);
    run.write(op.out, |run, out: &mut [f32]| {
        let x = run.read::<f32>(op.x);
        for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
            normalize(x, weight, op.eps, out);
        }
    });
}

/// `out = x / √(mean(x²) + eps) · weight`.
pub(super) fn normalize(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let root = root_mean_square(x, eps);
    for i in 0..x.len() {
        out[i] = x[i] / root * weight[i];
    }
}

/// `√(mean(x²) + eps)`.
pub(super) fn root_mean_square(x: &[f32], eps: f32) -> f32 {
    let sum: f32 = x.iter().map(|x| x * x).sum();
    (sum / x.len() as f32 + eps).sqrt()
}
