//! The gated delta rule and its convolution, for one row and for many, with and without the commit.
//!
//! ```text
//! cargo bench -p pleach-kernels --bench gated_delta
//! ```
//!
//! The shape is that of Qwen3.5-0.8B: 16 heads of 128 × 128. A case goes through its 18 layers, which leave the caches,
//! and reports bytes of state.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot start has nothing to say")]

use divan::Bencher;
use divan::counter::BytesCount;
use pleach_kernels::ops::KeyHeadOrder;
use pleach_kernels::{
    Capacity, CpuDevice, CpuOptions, DeltaHeads, DeltaLayout, Device, Ops, PassInputs, Rows, SequenceRows, StateLayout,
};

fn main() {
    divan::main();
}

const ROWS: [usize; 4] = [1, 8, 64, 512];
const LAYERS: usize = 18;
const LAYOUT: DeltaLayout =
    DeltaLayout { num_key_heads: 16, num_value_heads: 16, key_head_dim: 128, value_head_dim: 128, conv_kernel_dim: 4 };

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Run,
    RunAndCommit,
    Convolution,
}

fn step(bencher: Bencher<'_, '_>, rows: usize, part: Part) {
    let device = CpuDevice::new(CpuOptions::default()).unwrap();
    let mut ops = Ops::new(Capacity { rows, outputs: 1 });
    let (qkv, g, beta) = (ops.input(LAYOUT.conv_channels()), ops.input(16), ops.input(16));
    let weight = device.param(vec![0.3; 4 * LAYOUT.conv_channels()]).unwrap();
    for slot in 0..LAYERS {
        if part == Part::Convolution {
            ops.causal_conv(slot, LAYOUT, qkv, &weight).unwrap();
        } else {
            let key_head_order = KeyHeadOrder::Grouped;
            ops.gated_delta(&DeltaHeads { slot, layout: LAYOUT, qkv, g, beta, key_head_order }).unwrap();
        }
    }
    let mut pass = device.prepare(ops.finish()).unwrap();
    let mut state = device.state(&StateLayout { attention: vec![], delta: vec![LAYOUT; LAYERS] }).unwrap();
    let values = |len: usize| (0..len).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<_>>();
    let (qkv_values, gates) = (values(rows * LAYOUT.conv_channels()), vec![-0.1; rows * 16]);
    let inputs = [(qkv, &qkv_values[..]), (g, &gates[..]), (beta, &gates[..])];
    let path: Vec<_> = (0..rows).collect();
    let tokens = vec![0; rows];
    bencher.counter(BytesCount::new(4 * LAYERS * LAYOUT.state_elements())).bench_local(|| {
        let of_pass = Rows::new(&[SequenceRows::chain(state.len(), &tokens)]).unwrap();
        pass.run(&PassInputs { rows: &of_pass, outputs: &[], inputs: &inputs }, &[&*state]).unwrap();
        if part == Part::RunAndCommit {
            pass.commit(&path, &mut *state).unwrap();
        }
    });
}

#[divan::bench(args = ROWS, sample_count = 15, sample_size = 1)]
fn run(bencher: Bencher<'_, '_>, rows: usize) {
    step(bencher, rows, Part::Run);
}

#[divan::bench(args = ROWS, sample_count = 15, sample_size = 1)]
fn run_and_commit(bencher: Bencher<'_, '_>, rows: usize) {
    step(bencher, rows, Part::RunAndCommit);
}

#[divan::bench(args = ROWS, sample_count = 15, sample_size = 1)]
fn convolution(bencher: Bencher<'_, '_>, rows: usize) {
    step(bencher, rows, Part::Convolution);
}
