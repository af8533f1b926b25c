use super::Kernels;
use super::math::map;
use super::share::for_each_row;
use super::simd::{Kernel, Simd};
use crate::host::Run;
use crate::ops::Add;

pub(super) fn add(cpu: &Kernels, op: &Add, run: &mut Run<'_>) {
    let width = op.x.width;
    run.write(op.out, |run, out: &mut [f32]| {
        let (x, y) = (run.read::<f32>(op.x), run.read::<f32>(op.y));
        for_each_row(&mut cpu.team().pool, out, width, |row, out| {
            let part = row * width..(row + 1) * width;
            cpu.set.run(AddVectors { x: &x[part.clone()], y: &y[part], out });
        });
    });
}

/// `out = x + y`.
pub(super) struct AddVectors<'a> {
    pub(super) x: &'a [f32],
    pub(super) y: &'a [f32],
    pub(super) out: &'a mut [f32],
}

impl Kernel for AddVectors<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        map!(s, [x = self.x, y = self.y], self.out, s.add(x, y));
    }
}
