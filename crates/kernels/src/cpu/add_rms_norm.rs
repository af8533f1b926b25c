use super::Kernels;
use super::add::AddVectors;
use super::rms_norm::Normalize;
use super::share::{Shared, for_each_row};
use crate::host::{Run, param_values};
use crate::ops::AddRmsNorm;

pub(super) fn add_rms_norm(cpu: &Kernels, op: &AddRmsNorm, run: &mut Run<'_>) {
    let (weight, eps) = (param_values(&op.weight), op.eps);
    let width = weight.len();
    run.write(op.out, |run, out: &mut [f32]| {
        let out = Shared::new(out);
        run.write(op.sum, |run, sum: &mut [f32]| {
            let (x, y) = (run.read::<f32>(op.x), run.read::<f32>(op.y));
            for_each_row(&mut cpu.team().pool, sum, width, |row, sum| {
                let part = row * width..(row + 1) * width;
                cpu.set.run(AddVectors { x: &x[part.clone()], y: &y[part.clone()], out: sum });
                // SAFETY: each row belongs to one call.
                let out = unsafe { out.range(part) };
                cpu.set.run(Normalize { x: sum, weight, eps, out });
            });
        });
    });
}
