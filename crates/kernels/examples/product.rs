//! One product of rows with a weight, for counting its instructions:
//!
//! ```text
//! product FORMAT ROWS
//! ```
//!
//! `scripts/instruction_counts.py` runs it under valgrind, which knows AVX2 and not AVX-512, so AVX2 is what it uses.

#![allow(clippy::unwrap_used, reason = "an example that cannot go on panics")]

use std::num::NonZeroUsize;

use bytes::Bytes;
use pleach_kernels::{
    Activations, Capacity, CpuDevice, CpuOptions, Device, FloatFormat, InstructionSet, Ops, Pass, PassInputs, Rows,
    SequenceRows, WeightData, WeightFormat, row_bytes,
};

const OUT_FEATURES: usize = 256;
const IN_FEATURES: usize = 1024;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, format, rows] = arguments.as_slice() else { panic!("usage: product FORMAT ROWS") };
    let format = match format.as_str() {
        "q4_0" => WeightFormat::Q4_0,
        "q4_1" => WeightFormat::Q4_1,
        "q4_k" => WeightFormat::Q4_K,
        "q6_k" => WeightFormat::Q6_K,
        "q8_0" => WeightFormat::Q8_0,
        "bf16" => WeightFormat::Float(FloatFormat::BF16),
        other => panic!("`{other}` is not one of q4_0, q4_1, q4_k, q6_k, q8_0 and bf16"),
    };
    let rows: usize = rows.parse().unwrap();

    let options = CpuOptions { threads: Some(NonZeroUsize::MIN), instruction_set: Some(InstructionSet::Avx2) };
    let device = CpuDevice::new(options).unwrap();
    let weight = device.weight(weight(format)).unwrap();
    let mut ops = Ops::new(Capacity { rows, outputs: 1 });
    let x = ops.input(IN_FEATURES);
    let [out] = ops.linear(x, [(&weight, None)]).unwrap();
    ops.keep(out);
    let mut pass = device.prepare(ops.finish()).unwrap();

    let values: Vec<f32> = (0..rows * IN_FEATURES).map(|i| (i % 17) as f32 - 8.0).collect();
    let of_pass = Rows::new(&[SequenceRows::chain(0, &vec![0; rows])]).unwrap();
    measured(&mut *pass, &PassInputs { rows: &of_pass, outputs: &[], inputs: &[(x, &values)] });
    assert_eq!(pass.read(out).unwrap().len(), rows * OUT_FEATURES);
}

/// What is counted.
#[inline(never)]
fn measured(pass: &mut dyn Pass, inputs: &PassInputs<'_>) {
    pass.run(inputs, &[]).unwrap();
}

/// Small codes and scales, the same on every run.
fn weight(format: WeightFormat) -> WeightData {
    let bytes = OUT_FEATURES * row_bytes(format, IN_FEATURES);
    WeightData {
        format,
        rows: OUT_FEATURES,
        columns: IN_FEATURES,
        data: (0..bytes).map(|i| (i % 61) as u8).collect(),
        scales: Bytes::new(),
        biases: Bytes::new(),
        activations: Activations::Int8PerGroup,
    }
}
