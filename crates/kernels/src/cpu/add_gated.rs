use super::Kernels;
use super::math::map;
use super::share::for_each_row;
use super::simd::{Kernel, Simd};
use crate::host::Run;
use crate::ops::AddGated;

pub(super) fn add_gated(cpu: &Kernels, op: &AddGated, run: &mut Run<'_>) {
    let width = op.x.width;
    run.write(op.out, |run, out: &mut [f32]| {
        let (x, y, gate) = (run.read::<f32>(op.x), run.read::<f32>(op.y), run.read::<f32>(op.gate));
        for_each_row(&mut cpu.team().pool, out, width, |row, out| {
            let part = row * width..(row + 1) * width;
            let gate = 1.0 / (1.0 + (-gate[row]).exp());
            cpu.set.run(AddScaled { x: &x[part.clone()], y: &y[part], scale: gate, out });
        });
    });
}

/// `out = x + scale · y`.
struct AddScaled<'a> {
    x: &'a [f32],
    y: &'a [f32],
    scale: f32,
    out: &'a mut [f32],
}

impl Kernel for AddScaled<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let scale = s.splat(self.scale);
        map!(s, [x = self.x, y = self.y], self.out, s.fma(scale, y, x));
    }
}
