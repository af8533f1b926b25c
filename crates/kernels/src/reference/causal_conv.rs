use super::swiglu::silu;
use crate::host::{Run, param_values};
use crate::ops::CausalConv;

pub(super) fn causal_conv(op: &CausalConv, run: &mut Run<'_>) {
    let (channels, taps) = (op.layout.conv_channels(), op.layout.conv_kernel_dim);
    let weight = param_values(&op.weight);
    let mut path = Vec::new();
    run.write(op.out, |run, out: &mut [f32]| {
        let x = run.read::<f32>(op.x);
        for (row, out) in out.chunks_exact_mut(channels).enumerate() {
            run.rows().path_into(row, &mut path);
            let window = &run.state(run.rows().sequence(row)).delta(op.slot).window;
            for (c, out) in out.iter_mut().enumerate() {
                let mut sum = 0.0;
                for j in 0..taps {
                    // Past the root the window goes on, newest input last.
                    let input = match path.len().checked_sub(j + 1) {
                        Some(place) => x[path[place] * channels + c],
                        None => window[(taps - 1 - (j + 1 - path.len())) * channels + c],
                    };
                    sum += weight[c * taps + taps - 1 - j] * input;
                }
                *out = silu(sum);
            }
        }
    });
}
