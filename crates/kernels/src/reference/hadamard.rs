use crate::host::{Run, param_values};
use crate::ops::Hadamard;

pub(super) fn hadamard(op: &Hadamard, run: &mut Run<'_>) {
    let (width, block) = (op.x.width, op.block);
    let signs = param_values(&op.signs);
    let root = (block as f32).sqrt();
    run.write(op.out, |run, out: &mut [f32]| {
        let x = run.read::<f32>(op.x);
        for (i, out) in out.iter_mut().enumerate() {
            let (first, j) = (i / block * block, i % block);
            let mut sum = 0.0;
            for k in 0..block {
                let value = x[first + k] * signs[(first + k) % width];
                sum += if (j & k).count_ones() % 2 == 0 { value } else { -value };
            }
            *out = sum / root;
        }
    });
}
