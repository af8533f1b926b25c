use super::Kernels;
use super::share::for_each_row;
use super::simd::{Kernel, Simd};
use crate::host::{Run, param_values};
use crate::ops::Hadamard;

pub(super) fn hadamard(cpu: &Kernels, op: &Hadamard, run: &mut Run<'_>) {
    let signs = param_values(&op.signs);
    run.write(op.out, |run, out: &mut [f32]| {
        let x = run.read::<f32>(op.x);
        for_each_row(&mut cpu.team().pool, out, op.block, |part, out| {
            let x = &x[part * op.block..][..op.block];
            let start = part * op.block % signs.len();
            cpu.set.run(Transform { x, signs: &signs[start..][..op.block], out });
        });
    });
}

/// The fast Walsh-Hadamard transform of one block: `n log n` additions instead of `n²` products.
struct Transform<'a> {
    x: &'a [f32],
    signs: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Transform<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { x, signs, out } = self;
        let scale = 1.0 / (out.len() as f32).sqrt();
        for (out, (x, sign)) in out.iter_mut().zip(x.iter().zip(signs)) {
            *out = x * sign;
        }
        let mut half = 1;
        while half < out.len() {
            for pair in out.chunks_exact_mut(2 * half) {
                let (low, high) = pair.split_at_mut(half);
                for (low, high) in low.iter_mut().zip(high) {
                    (*low, *high) = (*low + *high, *low - *high);
                }
            }
            half *= 2;
        }
        for out in out {
            *out *= scale;
        }
    }
}
