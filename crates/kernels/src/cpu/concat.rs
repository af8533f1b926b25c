use crate::host::Run;
use crate::ops::Concat;

pub(super) fn concat(op: &Concat, run: &mut Run<'_>) {
    let (x_width, y_width) = (op.x.width, op.y.width);
    run.write(op.out, |run, out: &mut [f32]| {
        let (x, y) = (run.read::<f32>(op.x), run.read::<f32>(op.y));
        for (row, out) in out.chunks_exact_mut((x_width + y_width).max(1)).enumerate() {
            let (left, right) = out.split_at_mut(x_width);
            left.copy_from_slice(&x[row * x_width..][..x_width]);
            right.copy_from_slice(&y[row * y_width..][..y_width]);
        }
    });
}
