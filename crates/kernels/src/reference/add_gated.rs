use super::attention::sigmoid;
use crate::host::Run;
use crate::ops::AddGated;

pub(super) fn add_gated(op: &AddGated, run: &mut Run<'_>) {
    let width = op.x.width;
    run.write(op.out, |run, out: &mut [f32]| {
        let (x, y, gate) = (run.read::<f32>(op.x), run.read::<f32>(op.y), run.read::<f32>(op.gate));
        for i in 0..out.len() {
            out[i] = x[i] + sigmoid(gate[i / width]) * y[i];
        }
    });
}
