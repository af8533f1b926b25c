use crate::host::Run;
use crate::ops::SwiGlu;

pub(super) fn swiglu(op: &SwiGlu, run: &mut Run<'_>) {
    run.write(op.out, |run, out: &mut [f32]| {
        let (gate, up) = (run.read::<f32>(op.gate), run.read::<f32>(op.up));
        for i in 0..out.len() {
            out[i] = silu(gate[i]) * up[i];
        }
    });
}

/// `x / (1 + exp(−x))`.
pub(super) fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}
