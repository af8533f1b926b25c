use crate::host::{Run, param_values};
use crate::ops::GroupedConv;

pub(super) fn grouped_conv(op: &GroupedConv, run: &mut Run<'_>) {
    let (channels, taps, groups) = (op.x.width, op.taps, op.groups());
    let base = param_values(&op.base);
    run.write(op.out, |run, out: &mut [f32]| {
        let (x, dynamic) = (run.read::<f32>(op.x), run.read::<f32>(op.dynamic));
        for (row, out) in out.chunks_exact_mut(channels).enumerate() {
            for (c, out) in out.iter_mut().enumerate() {
                *out = 0.0;
                let mut ancestor = Some(row);
                for j in 0..taps {
                    let Some(at) = ancestor else { break };
                    let tap = op.side * taps + j;
                    let added = dynamic[(row * 2 * taps + tap) * groups + c / op.group_size];
                    *out += (base[tap * channels + c] + added) * x[at * channels + c];
                    ancestor = run.rows().parent(at);
                }
            }
        }
    });
}
