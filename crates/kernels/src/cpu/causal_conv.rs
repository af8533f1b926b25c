use super::Kernels;
use super::math::{load_part, silu, store_part};
use super::share::Shared;
use super::simd::{Kernel, LANES, Simd};
use crate::host::{Run, param_values};
use crate::ops::CausalConv;

/// Channels that are computed for all rows together: a KiB of each row, so that the processor foresees what is read.
const PANEL: usize = 16 * LANES;

/// Products that are summed in the time of a dispatch.
const SERIAL_PRODUCTS: usize = 16_384;

/// Taps whose weights are kept channel by channel while a panel goes through the rows; more are possible.
const TAPS: usize = 4;

/// Speed: a load and a product per tap and output; parallel over panels of channels.
pub(super) fn causal_conv(cpu: &Kernels, op: &CausalConv, run: &mut Run<'_>) {
    let channels = op.layout.conv_channels();
    run.write(op.out, |run, out: &mut [f32]| {
        let out = Shared::new(out);
        let panels = channels.div_ceil(PANEL);
        let products = run.rows().len() * channels * op.layout.conv_kernel_dim;
        let mut team = cpu.team();
        let chunks = (products / SERIAL_PRODUCTS).clamp(1, 8 * team.pool.num_threads());
        let per_chunk = panels.div_ceil(chunks).max(1);
        let run = &*run;
        team.pool.run(panels.div_ceil(per_chunk), &|chunk| {
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
        let newest = self.newest_taps();
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
                    let weight = match newest.get(tap) {
                        Some(weights) => load_part(s, &weights[i * LANES..][..LANES]),
                        None => self.weights(s, i * LANES, taps - 1 - tap, x.len()),
                    };
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
    /// Weights of the last [`TAPS`] taps, the row's own first, channel by channel.
    #[inline(always)]
    fn newest_taps(&self) -> [[f32; PANEL]; TAPS] {
        let taps = self.op.layout.conv_kernel_dim;
        let weight = &param_values(&self.op.weight)[self.channels.start * taps..self.channels.end * taps];
        let mut newest = [[0.0; PANEL]; TAPS];
        if let (TAPS, (weight, [])) = (taps, weight.as_chunks::<TAPS>()) {
            // The usual number, as a loop that vectorizes.
            for (channel, weight) in weight.iter().enumerate() {
                for (tap, newest) in newest.iter_mut().enumerate() {
                    newest[channel] = weight[TAPS - 1 - tap];
                }
            }
        } else {
            for (channel, weight) in weight.chunks_exact(taps).enumerate() {
                for (newest, weight) in newest.iter_mut().zip(weight.iter().rev()) {
                    newest[channel] = *weight;
                }
            }
        }
        newest
    }

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
