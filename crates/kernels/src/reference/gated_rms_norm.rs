use super::rms_norm::normalize;
use super::swiglu::silu;
use crate::host::{Run, param_values};
use crate::ops::GatedRmsNorm;

pub(super) fn gated_rms_norm(op: &GatedRmsNorm, run: &mut Run<'_>) {
    let weight = param_values(&op.weight);
    run.write(op.out, |run, out: &mut [f32]| {
        let (x, gate) = (run.read::<f32>(op.x), run.read::<f32>(op.gate));
        for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
            normalize(x, weight, op.eps, out);
        }
        for (out, &gate) in out.iter_mut().zip(gate) {
            *out *= silu(gate);
        }
    });
}
