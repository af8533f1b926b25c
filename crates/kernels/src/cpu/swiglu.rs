use super::Kernels;
use super::math::{map, silu};
use super::share::for_each_part;
use super::simd::{Kernel, Simd};
use crate::host::Run;
use crate::ops::SwiGlu;

/// Elements that are gated in the time of a dispatch.
const SERIAL_ELEMENTS: usize = 4096;

pub(super) fn swiglu(cpu: &Kernels, op: &SwiGlu, run: &mut Run<'_>) {
    let width = op.gate.width;
    run.write(op.out, |run, out: &mut [f32]| {
        let (gate, up) = (run.read::<f32>(op.gate), run.read::<f32>(op.up));
        for_each_part(&mut cpu.team().pool, out, width, SERIAL_ELEMENTS, |_, row, out| {
            let part = row * width..(row + 1) * width;
            cpu.set.run(Gate { gate: &gate[part.clone()], up: &up[part], out });
        });
    });
}

/// `out = silu(gate) · up`.
pub(super) struct Gate<'a> {
    pub(super) gate: &'a [f32],
    pub(super) up: &'a [f32],
    pub(super) out: &'a mut [f32],
}

impl Kernel for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        map!(s, [gate = self.gate, up = self.up], self.out, s.mul(silu(s, gate), up));
    }
}
