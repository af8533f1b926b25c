use super::rms_norm::normalize;
use crate::host::{Run, param_values};
use crate::ops::AddRmsNorm;

pub(super) fn add_rms_norm(op: &AddRmsNorm, run: &mut Run<'_>) {
    run.write(op.sum, |run, sum: &mut [f32]| {
        let (x, y) = (run.read::<f32>(op.x), run.read::<f32>(op.y));
        for i in 0..sum.len() {
            sum[i] = x[i] + y[i];
        }
    });
    let weight = param_values(&op.weight);
    run.write(op.out, |run, out: &mut [f32]| {
        let sum = run.read::<f32>(op.sum);
        for (sum, out) in sum.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
            normalize(sum, weight, op.eps, out);
        }
    });
}
