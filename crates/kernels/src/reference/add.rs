use crate::host::Run;
use crate::ops::Add;

pub(super) fn add(op: &Add, run: &mut Run<'_>) {
    run.write(op.out, |run, out: &mut [f32]| {
        let (x, y) = (run.read::<f32>(op.x), run.read::<f32>(op.y));
        for i in 0..out.len() {
            out[i] = x[i] + y[i];
        }
    });
}
