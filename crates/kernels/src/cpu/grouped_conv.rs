use super::Kernels;
use super::math::{load_part, store_part};
use super::share::for_each_row;
use super::simd::{Kernel, LANES, Simd};
use crate::host::{Run, param_values};
use crate::ops::GroupedConv;

/// Speed: three loads and two operations per tap and output; parallel over rows.
pub(super) fn grouped_conv(cpu: &Kernels, op: &GroupedConv, run: &mut Run<'_>) {
    run.write(op.out, |run, out: &mut [f32]| {
        let run = &*run;
        for_each_row(&mut cpu.team().pool, out, op.x.width, |row, out| {
            cpu.set.run(ConvolveRow { op, run, row, out });
        });
    });
}

struct ConvolveRow<'a> {
    op: &'a GroupedConv,
    run: &'a Run<'a>,
    row: usize,
    out: &'a mut [f32],
}

impl Kernel for ConvolveRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { op, run, row, out } = self;
        let (channels, groups) = (op.x.width, op.groups());
        let (x, dynamic) = (run.read::<f32>(op.x), run.read::<f32>(op.dynamic));
        let base = param_values(&op.base);
        out.fill(0.0);
        let mut ancestor = Some(row);
        for j in 0..op.taps {
            let Some(at) = ancestor else { break };
            let tap = op.side * op.taps + j;
            let base = &base[tap * channels..][..channels];
            let added = &dynamic[(row * 2 * op.taps + tap) * groups..][..groups];
            let x = &x[at * channels..][..channels];
            for (group, &added) in added.iter().enumerate() {
                let part = group * op.group_size..(group + 1) * op.group_size;
                let inputs = base[part.clone()].chunks(LANES).zip(x[part.clone()].chunks(LANES));
                for ((base, x), out) in inputs.zip(out[part].chunks_mut(LANES)) {
                    let kernel = s.add(load_part(s, base), s.splat(added));
                    let sum = s.fma(kernel, load_part(s, x), load_part(s, out));
                    store_part(s, sum, out);
                }
            }
            ancestor = run.rows().parent(at);
        }
    }
}
