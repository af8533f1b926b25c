//! Attention over a long cache, for one row and for many: what a row costs by the length of its context.
//!
//! ```text
//! cargo bench -p pleach-kernels --bench attention -- f16
//! ```
//!
//! The shape is that of Qwen3-0.6B: 16 query heads, 8 key-value heads of 128. A case goes through enough layers to leave
//! the caches, and reports bytes of keys and values and products per second.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot start has nothing to say")]

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use pleach_kernels::ops::{AttentionShape, Rope, RopePairing};
use pleach_kernels::{
    Capacity, CpuDevice, CpuOptions, DType, Device, HeadRows, KvLayout, KvValues, Ops, PassInputs, Rows, SequenceRows,
    StateLayout, StateValues,
};

fn main() {
    divan::main();
}

const SHAPE: AttentionShape = AttentionShape { num_attention_heads: 16, num_key_value_heads: 8, head_dim: 128 };

/// Context and rows.
const CASES: [(usize, usize); 10] =
    [(0, 512), (512, 1), (512, 8), (512, 64), (4096, 1), (4096, 8), (4096, 64), (16_384, 1), (16_384, 8), (16_384, 64)];

/// Bytes of keys and values that a case goes through, if one layer has less.
const WORKING_SET: usize = 96 << 20;

fn attend(bencher: Bencher<'_, '_>, dtype: DType, (context, rows): (usize, usize)) {
    let device = CpuDevice::new(CpuOptions::default()).unwrap();
    let layout =
        KvLayout { num_key_value_heads: SHAPE.num_key_value_heads, head_dim: SHAPE.head_dim, dtype, window: None };
    let layer_bytes = layout.token_bytes() * context;
    let layers = if context == 0 { 1 } else { WORKING_SET.div_ceil(layer_bytes) };
    let mut ops = Ops::new(Capacity { rows, outputs: 1 });
    let (q, k, v) =
        (ops.input(SHAPE.query_width()), ops.input(SHAPE.key_value_width()), ops.input(SHAPE.key_value_width()));
    let inv_freq = device.param(vec![]).unwrap();
    let rope = Rope { inv_freq, pairing: RopePairing::Halves, sections: None };
    let heads = HeadRows {
        q,
        k,
        v,
        shape: SHAPE,
        gated: false,
        q_norm: None,
        k_norm: None,
        eps: 0.0,
        rope: &rope,
        cache: dtype,
    };
    let heads = ops.qk_norm_rope(&heads).unwrap();
    for slot in 0..layers {
        ops.attention(slot, layout, SHAPE, 0.09, heads).unwrap();
    }
    let mut pass = device.prepare(ops.finish()).unwrap();
    let values = |len: usize| (0..len).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<_>>();
    let kv = KvValues { keys: values(context * layout.width()), values: values(context * layout.width()) };
    let mut state = device.state(&StateLayout { attention: vec![layout; layers], delta: vec![] }).unwrap();
    state.restore(&StateValues { len: context, attention: vec![kv; layers], delta: vec![] }).unwrap();
    let of_pass = Rows::new(&[SequenceRows::chain(context, &vec![0; rows])]).unwrap();
    let (q_values, kv_values) = (values(rows * SHAPE.query_width()), values(rows * SHAPE.key_value_width()));
    let inputs = [(q, &q_values[..]), (k, &kv_values[..]), (v, &kv_values[..])];
    let seen: usize = (0..rows).map(|row| context + row + 1).sum();
    let products = 2 * seen * SHAPE.query_width() * layers;
    bencher.counter(BytesCount::new(layer_bytes * layers)).counter(ItemsCount::new(products)).bench_local(|| {
        pass.run(&PassInputs { rows: &of_pass, outputs: &[], inputs: &inputs }, &[&*state]).unwrap();
    });
}

#[divan::bench(args = CASES, sample_count = 15, sample_size = 1)]
fn f16(bencher: Bencher<'_, '_>, case: (usize, usize)) {
    attend(bencher, DType::F16, case);
}

#[divan::bench(args = CASES, sample_count = 15, sample_size = 1)]
fn q8(bencher: Bencher<'_, '_>, case: (usize, usize)) {
    attend(bencher, DType::I8, case);
}

#[divan::bench(args = CASES, sample_count = 15, sample_size = 1)]
fn f32(bencher: Bencher<'_, '_>, case: (usize, usize)) {
    attend(bencher, DType::F32, case);
}
