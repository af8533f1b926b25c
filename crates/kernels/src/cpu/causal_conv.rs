use super::Kernels;
use super::instruction_set::Kernel;
use super::math::{load_part, silu, store_part};
use super::share::Shared;
use super::simd::{LANES, Simd};
use crate::host::{Run, param_values};
use crate::ops::CausalConv;

/// Channels that one chunk computes for all rows.
const PANEL: usize = 4 * LANES;

/// Speed: about `taps` loads per output; parallel over panels of channels.
pub(super) fn causal_conv(cpu: &Kernels, op: &CausalConv, run: &mut Run<'_>) {
    let channels = op.layout.conv_channels();
    run.write(op.out, |run, out: &mut [f32]| {
        let out = Shared::new(out);
        let panels = channels.div_ceil(PANEL);
        // With few rows a panel is too little work to hand over alone.
        let per_chunk = if run.rows().len() * channels < 8192 { panels } else { panels.div_ceil(16) }.max(1);
        let run = &*run;
        cpu.team().pool.run(panels.div_ceil(per_chunk), &|chunk| {
            for panel in chunk.index * per_chunk..panels.min((chunk.index + 1) * per_chunk) {
                let channel_range = panel * PANEL..channels.min((panel + 1) * PANEL);
                cpu.set.run(ConvolvePanel { op, run, channels: channel_range, out });
            }
        });
    });
}

struct ConvolvePanel<'a> {
    op: &'a CausalConv,
    run: &'a Run<'a>,
    channels: std::ops::Range<usize>,
    out: Shared<'a, f32>,
}

impl Kernel for ConvolvePanel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (taps, width) = (self.op.layout.conv_kernel_dim, self.op.layout.conv_channels());
        for row in 0..self.run.rows().len() {
            let start = row * width;
            // SAFETY: each channel belongs to one chunk.
            let out = unsafe { self.out.range(start + self.channels.start..start + self.channels.end) };
            let mut sums = [s.splat(0.0); PANEL / LANES];
            for tap in 0..taps {
                let Some(x) = self.ancestor(row, tap) else {
                    break;
                };
                for (i, (sum, x)) in sums.iter_mut().zip(x.chunks(LANES)).enumerate() {
                    let weight = self.weights(s, i * LANES, taps - 1 - tap, x.len());
                    *sum = s.fma(weight, load_part(s, x), *sum);
                }
            }
            for (sum, out) in sums.into_iter().zip(out.chunks_mut(LANES)) {
                store_part(s, silu(s, sum), out);
            }
        }
    }
}

impl ConvolvePanel<'_> {
    /// Inputs of the row `steps` before `row` on its path; past the root, of the committed tokens.
    #[inline(always)]
    fn ancestor(&self, row: usize, steps: usize) -> Option<&[f32]> {
        let rows = self.run.rows();
        let width = self.op.layout.conv_channels();
        let (mut at, mut left) = (row, steps);
        while left > 0 {
            left -= 1;
            match rows.parent(at) {
                Some(parent) => at = parent,
                None => {
                    let window = &self.run.state(rows.sequence(row)).delta(self.op.slot).window;
                    let newest = window.len().checked_div(width)?.checked_sub(1)?;
                    let place = newest.checked_sub(left)?;
                    return Some(&window[place * width..][self.channels.clone()]);
                }
            }
        }
        Some(&self.run.read::<f32>(self.op.x)[at * width..][self.channels.clone()])
    }

    /// Weights of one tap for up to 16 channels from `first` of the panel on.
    #[inline(always)]
    fn weights<S: Simd>(&self, s: S, first: usize, tap: usize, len: usize) -> S::F32 {
        let taps = self.op.layout.conv_kernel_dim;
        let weight = &param_values(&self.op.weight)[(self.channels.start + first) * taps..];
        let mut lanes = [0.0; LANES];
        for (lane, weight) in lanes[..len].iter_mut().zip(weight.chunks_exact(taps)) {
            *lane = weight[tap];
        }
        s.load(&lanes)
    }
}
