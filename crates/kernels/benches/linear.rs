//! Products with the weights of a small model, for 1 to 64 rows: what one row costs, and what more rows cost besides.
//!
//! ```text
//! cargo bench -p pleach-kernels --bench linear -- q4_0
//! ```
//!
//! A case runs over enough copies of its weight to leave the caches, as a pass over a model does, and reports bytes of
//! weights as stored in the file and products per second. Set `PLEACH_BENCH_THREADS` and `PLEACH_BENCH_SET` (`scalar`,
//! `avx2`, `avx512`) to leave the defaults.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot start has nothing to say")]

use bytes::Bytes;
use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use pleach_kernels::{
    Activations, Capacity, CpuDevice, CpuOptions, Device, FloatFormat, InstructionSet, Ops, PassInputs, Rows,
    SequenceRows, WeightData, WeightFormat, row_bytes,
};

fn main() {
    divan::main();
}

const ROWS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Output and input features of the matrices of Qwen3-0.6B.
const SHAPES: [(usize, usize); 3] = [(3072, 1024), (1024, 3072), (2048, 1024)];

/// Bytes of weights that a case goes through.
const WORKING_SET: usize = 96 << 20;

fn device() -> CpuDevice {
    let threads = std::env::var("PLEACH_BENCH_THREADS").ok().and_then(|threads| threads.parse().ok());
    let instruction_set = std::env::var("PLEACH_BENCH_SET").ok().map(|set| match set.as_str() {
        "scalar" => InstructionSet::Scalar,
        "avx2" => InstructionSet::Avx2,
        _ => InstructionSet::Avx512Vnni,
    });
    CpuDevice::new(CpuOptions { threads, instruction_set }).unwrap()
}

/// Affine weights of 4 bits, as MLX makes them.
const AFFINE: WeightFormat = WeightFormat::Affine { bits: 4, group_size: 64, scales: FloatFormat::BF16 };

/// A weight of any bytes whose scales are sane.
fn weight(format: WeightFormat, rows: usize, columns: usize) -> WeightData {
    let mut state = 1u64;
    let mut bytes = |len: usize| -> Bytes {
        let bytes = (0..len).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Small exponents for whatever is read as a half float.
            (state >> 40) as u8 & 0x3F
        });
        bytes.collect()
    };
    let data = bytes(rows * row_bytes(format, columns));
    let of_groups = stored_bytes(format, rows, columns) - data.len();
    let (scales, biases) = (bytes(of_groups / 2), bytes(of_groups / 2));
    WeightData { format, rows, columns, data, scales, biases, activations: Activations::Int8PerGroup }
}

/// Bytes of a weight in a file, scales and biases included.
fn stored_bytes(format: WeightFormat, rows: usize, columns: usize) -> usize {
    let scales = if format == AFFINE { 2 * columns / 64 * size_of::<u16>() } else { 0 };
    rows * (row_bytes(format, columns) + scales)
}

fn multiply(bencher: Bencher<'_, '_>, format: WeightFormat, rows: usize) {
    let device = device();
    let shape_bytes: usize = SHAPES.iter().map(|&(rows, columns)| stored_bytes(format, rows, columns)).sum();
    let copies = WORKING_SET.div_ceil(shape_bytes);
    let mut ops = Ops::new(Capacity { rows, outputs: 1 });
    let narrow = ops.input(1024);
    let wide = ops.input(3072);
    for _ in 0..copies {
        for (out, columns) in SHAPES {
            let weight = device.weight(weight(format, out, columns)).unwrap();
            ops.linear(if columns == 1024 { narrow } else { wide }, [(&weight, None)]).unwrap();
        }
    }
    let mut pass = device.prepare(ops.finish()).unwrap();
    let of_pass = Rows::new(&[SequenceRows::chain(0, &vec![0; rows])]).unwrap();
    let x: Vec<f32> = (0..rows * 3072).map(|i| (i as f32 * 0.37).sin()).collect();
    let inputs = [(narrow, &x[..rows * 1024]), (wide, &x[..])];
    let macs: usize = SHAPES.iter().map(|(out, columns)| out * columns * copies * rows).sum();
    // The device first finds out how it reads weights for one or two rows: by 192 products, here 18 or more a pass.
    for _ in 0..11 {
        pass.run(&PassInputs { rows: &of_pass, outputs: &[], inputs: &inputs }, &[]).unwrap();
    }
    bencher.counter(BytesCount::new(copies * shape_bytes)).counter(ItemsCount::new(macs)).bench_local(|| {
        pass.run(&PassInputs { rows: &of_pass, outputs: &[], inputs: &inputs }, &[]).unwrap();
    });
}

#[divan::bench(args = ROWS, sample_count = 15, sample_size = 1)]
fn q4_0(bencher: Bencher<'_, '_>, rows: usize) {
    multiply(bencher, WeightFormat::Q4_0, rows);
}

#[divan::bench(args = ROWS, sample_count = 15, sample_size = 1)]
fn q4_1(bencher: Bencher<'_, '_>, rows: usize) {
    multiply(bencher, WeightFormat::Q4_1, rows);
}

#[divan::bench(args = ROWS, sample_count = 15, sample_size = 1)]
fn q4_k(bencher: Bencher<'_, '_>, rows: usize) {
    multiply(bencher, WeightFormat::Q4_K, rows);
}

#[divan::bench(args = ROWS, sample_count = 15, sample_size = 1)]
fn q5_0(bencher: Bencher<'_, '_>, rows: usize) {
    multiply(bencher, WeightFormat::Q5_0, rows);
}

#[divan::bench(args = ROWS, sample_count = 15, sample_size = 1)]
fn q5_k(bencher: Bencher<'_, '_>, rows: usize) {
    multiply(bencher, WeightFormat::Q5_K, rows);
}

#[divan::bench(args = ROWS, sample_count = 15, sample_size = 1)]
fn iq4_nl(bencher: Bencher<'_, '_>, rows: usize) {
    multiply(bencher, WeightFormat::IQ4_NL, rows);
}

#[divan::bench(args = ROWS, sample_count = 15, sample_size = 1)]
fn iq4_xs(bencher: Bencher<'_, '_>, rows: usize) {
    multiply(bencher, WeightFormat::IQ4_XS, rows);
}

#[divan::bench(args = ROWS, sample_count = 15, sample_size = 1)]
fn affine4(bencher: Bencher<'_, '_>, rows: usize) {
    multiply(bencher, AFFINE, rows);
}

#[divan::bench(args = ROWS, sample_count = 15, sample_size = 1)]
fn q6_k(bencher: Bencher<'_, '_>, rows: usize) {
    multiply(bencher, WeightFormat::Q6_K, rows);
}

#[divan::bench(args = ROWS, sample_count = 15, sample_size = 1)]
fn q8_0(bencher: Bencher<'_, '_>, rows: usize) {
    multiply(bencher, WeightFormat::Q8_0, rows);
}

#[divan::bench(args = ROWS, sample_count = 15, sample_size = 1)]
fn bf16(bencher: Bencher<'_, '_>, rows: usize) {
    multiply(bencher, WeightFormat::Float(FloatFormat::BF16), rows);
}
