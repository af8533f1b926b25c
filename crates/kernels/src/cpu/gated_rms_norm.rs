use super::Kernels;
use super::math::{normalize, silu};
use super::share::for_each_row;
use super::simd::{Kernel, LANES, Simd};
use crate::host::{Run, param_values};
use crate::ops::GatedRmsNorm;

pub(super) fn gated_rms_norm(cpu: &Kernels, op: &GatedRmsNorm, run: &mut Run<'_>) {
    let (weight, eps) = (param_values(&op.weight), op.eps);
    let head_dim = weight.len();
    run.write(op.out, |run, out: &mut [f32]| {
        let (x, gate) = (run.read::<f32>(op.x), run.read::<f32>(op.gate));
        for_each_row(&mut cpu.team().pool, out, head_dim, |head, out| {
            let part = head * head_dim..(head + 1) * head_dim;
            cpu.set.run(NormalizeGated { x: &x[part.clone()], gate: &gate[part], weight, eps, out });
        });
    });
}

struct NormalizeGated<'a> {
    x: &'a [f32],
    gate: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for NormalizeGated<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        normalize(s, self.x, self.weight, self.eps, self.out);
        multiply_by_silu(s, self.gate, self.out);
    }
}

/// `out = out · silu(gate)`.
#[inline(always)]
fn multiply_by_silu<S: Simd>(s: S, gate: &[f32], out: &mut [f32]) {
    for (gate, out) in gate.chunks(LANES).zip(out.chunks_mut(LANES)) {
        let gate = super::math::load_part(s, gate);
        let product = s.mul(super::math::load_part(s, out), silu(s, gate));
        super::math::store_part(s, product, out);
    }
}
