use super::Kernels;
use super::math::normalize;
use super::share::for_each_row;
use super::simd::{Kernel, Simd};
use crate::host::{Run, param_values};
use crate::ops::RmsNorm;

pub(super) fn rms_norm(cpu: &Kernels, op: &RmsNorm, run: &mut Run<'_>) {
    let (weight, eps) = (param_values(&op.weight), op.eps);
    run.write(op.out, |run, out: &mut [f32]| {
        let x = run.read::<f32>(op.x);
        for_each_row(&mut cpu.team().pool, out, weight.len(), |row, out| {
            let x = &x[row * weight.len()..][..weight.len()];
            cpu.set.run(Normalize { x, weight, eps, out });
        });
    });
}

/// `out = x / √(mean(x²) + eps) · weight`.
pub(super) struct Normalize<'a> {
    pub(super) x: &'a [f32],
    pub(super) weight: &'a [f32],
    pub(super) eps: f32,
    pub(super) out: &'a mut [f32],
}

impl Kernel for Normalize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        normalize(s, self.x, self.weight, self.eps, self.out);
    }
}
