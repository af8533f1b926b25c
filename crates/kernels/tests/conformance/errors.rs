//! What a device and a recording refuse, in which words, and that nothing is changed then.

use std::sync::Arc;

use bytes::Bytes;
use pleach_kernels::ops::{AttentionShape, ExpertWeights, KeyHeadOrder, Rope, RopePairing};
use pleach_kernels::{
    Activations, Capacity, DType, DeltaHeads, DeltaLayout, Device, FloatFormat, HeadRows, KernelError, KvLayout, Ops,
    Param, PassInputs, Rows, SequenceRows, StateLayout, Tensor, WeightData, WeightFormat,
};

use crate::support::devices;
use crate::support::model::{Model, USUAL};
use crate::support::random::{Random, Tree, forest};

const CAPACITY: Capacity = Capacity { rows: 4, outputs: 1 };

#[track_caller]
fn refused<T>(result: Result<T, KernelError>, message: &str) {
    match result {
        Ok(_) => panic!("accepted, expected: {message}"),
        Err(error) => assert_eq!(error.to_string(), message),
    }
}

fn float_weight(rows: usize, columns: usize) -> WeightData {
    Random::new(1).weight(WeightFormat::Float(FloatFormat::F32), rows, columns, Activations::Float)
}

fn weight_data(format: WeightFormat, rows: usize, columns: usize, sizes: [usize; 3]) -> WeightData {
    let [data, scales, biases] = sizes.map(|size| Bytes::from(vec![0; size]));
    WeightData { format, rows, columns, data, scales, biases, activations: Activations::Float }
}

#[test]
fn weights_whose_bytes_do_not_fit() {
    let affine = |bits, group_size| WeightFormat::Affine { bits, group_size, scales: FloatFormat::BF16 };
    let cases = [
        (
            weight_data(WeightFormat::Q4_0, 2, 64, [71, 0, 0]),
            "weight of format Q4_0 and shape [2, 64]: data has 71 bytes, expected 72",
        ),
        (
            weight_data(WeightFormat::Q4_K, 2, 64, [72, 0, 0]),
            "weight of format Q4_K has 64 input features, expected a multiple of 256",
        ),
        (
            weight_data(affine(4, 64), 3, 128, [192, 10, 12]),
            "weight of format affine 4-bit, groups of 64 and shape [3, 128]: scales has 10 bytes, expected 12",
        ),
        (
            weight_data(affine(4, 64), 3, 128, [192, 12, 0]),
            "weight of format affine 4-bit, groups of 64 and shape [3, 128]: biases has 0 bytes, expected 12",
        ),
        (
            weight_data(affine(4, 64), 3, 96, [144, 12, 12]),
            "weight of format affine 4-bit, groups of 64 has 96 input features, expected a multiple of 64",
        ),
        (
            weight_data(affine(6, 64), 3, 128, [288, 12, 12]),
            "affine weights of 6 bits in groups of 64 are not supported: expected 4 or 8 bits and groups of a multiple of 32",
        ),
        (
            weight_data(affine(8, 0), 3, 128, [384, 12, 12]),
            "affine weights of 8 bits in groups of 0 are not supported: expected 4 or 8 bits and groups of a multiple of 32",
        ),
        (
            weight_data(WeightFormat::Int8PerRow, 2, 33, [66, 8, 0]),
            "weight of format int8 per row has 33 input features, expected a multiple of 32",
        ),
        (
            weight_data(WeightFormat::Int8PerRow, 2, 32, [64, 4, 0]),
            "weight of format int8 per row and shape [2, 32]: scales has 4 bytes, expected 8",
        ),
        (
            weight_data(WeightFormat::Float(FloatFormat::F16), 2, 3, [12, 2, 0]),
            "weight of format F16 and shape [2, 3]: scales has 2 bytes, expected 0",
        ),
    ];
    for device in devices() {
        for (data, message) in &cases {
            refused(device.weight(data.clone()), message);
        }
    }
}

/// A shape whose size overflows must not fit any bytes, and nothing may be allocated for it.
#[test]
fn weights_larger_than_the_address_space() {
    for device in devices() {
        for format in [WeightFormat::Float(FloatFormat::F32), WeightFormat::Q8_0, WeightFormat::Int8PerRow] {
            let data = weight_data(format, usize::MAX / 4, 1 << 20, [0; 3]);
            assert!(matches!(device.weight(data), Err(KernelError::WeightBytes { .. })));
        }
    }
}

/// Records on the first device only: recording is the same for all.
fn recording_refuses(message: &str, record: impl Fn(&dyn Device, &mut Ops) -> Result<Vec<Tensor>, KernelError>) {
    let device = &devices()[0];
    refused(record(&**device, &mut Ops::new(CAPACITY)), message);
}

#[test]
fn shapes_that_break_a_contract() {
    recording_refuses("`rms_norm`: `x` has size 5, expected 4", |device, ops| {
        let x = ops.input(5);
        Ok(vec![ops.rms_norm(x, &device.param(vec![1.0; 4])?, 1e-6)?])
    });
    recording_refuses("`add`: `y` has size 5, expected 4", |_, ops| {
        let (x, y) = (ops.input(4), ops.input(5));
        Ok(vec![ops.add(x, y)?])
    });
    recording_refuses("`linear`: `x` has size 4, expected 8", |device, ops| {
        let x = ops.input(4);
        Ok(ops.linear(x, [(&device.weight(float_weight(2, 8))?, None)])?.to_vec())
    });
    recording_refuses("`linear`: `bias` has size 3, expected 2", |device, ops| {
        let x = ops.input(8);
        Ok(ops.linear(x, [(&device.weight(float_weight(2, 8))?, Some(&device.param(vec![0.0; 3])?))])?.to_vec())
    });
    recording_refuses("`hadamard`: `block` is 12, expected a power of two", |device, ops| {
        let x = ops.input(24);
        Ok(vec![ops.hadamard(x, &device.param(vec![1.0; 24])?, 12)?])
    });
    recording_refuses("`gated_rms_norm`: `x` is 6, expected whole heads of the weight's size", |device, ops| {
        let (x, gate) = (ops.input(6), ops.input(6));
        Ok(vec![ops.gated_rms_norm(x, gate, &device.param(vec![1.0; 4])?, 1e-6)?])
    });
    recording_refuses("`route`: `top_k` is 5, expected between 1 and the number of experts", |_, ops| {
        let logits = ops.input(4);
        Ok(vec![ops.route(logits, 5, true)?.1])
    });
    recording_refuses("`add`: `width` is 0, expected at least 1", |_, ops| {
        let x = ops.input(0);
        Ok(vec![ops.add(x, x)?])
    });
}

const HEADS: AttentionShape = AttentionShape { num_attention_heads: 4, num_key_value_heads: 2, head_dim: 8 };

fn heads<'a>(ops: &mut Ops, shape: AttentionShape, rope: &'a Rope, cache: DType) -> HeadRows<'a> {
    let (q, k) = (ops.input(shape.query_width()), ops.input(shape.key_value_width()));
    HeadRows { q, k, v: k, shape, gated: false, q_norm: None, k_norm: None, eps: 0.0, rope, cache }
}

fn rope(inv_freq: Param) -> Rope {
    Rope { inv_freq, pairing: RopePairing::Halves, sections: None }
}

#[test]
fn attention_layers_that_break_a_contract() {
    recording_refuses("`qk_norm_rope`: `rotary_dim` is 10, expected at most `head_dim`", |device, ops| {
        let rope = rope(device.param(vec![1.0; 5])?);
        let heads = heads(ops, HEADS, &rope, DType::F16);
        Ok(vec![ops.qk_norm_rope(&heads)?.q])
    });
    recording_refuses("`qk_norm_rope`: `cache` holds I32, expected F32", |device, ops| {
        let rope = rope(device.param(vec![])?);
        let heads = heads(ops, HEADS, &rope, DType::I32);
        Ok(vec![ops.qk_norm_rope(&heads)?.q])
    });
    recording_refuses("`attention`: `k` holds F16, expected BF16", |device, ops| {
        let rope = rope(device.param(vec![])?);
        let heads = heads(ops, HEADS, &rope, DType::F16);
        let rotated = ops.qk_norm_rope(&heads)?;
        let layout = KvLayout { num_key_value_heads: 2, head_dim: 8, dtype: DType::BF16, window: None };
        Ok(vec![ops.attention(0, layout, HEADS, 1.0, rotated)?])
    });
    // As wide as the shape, but divided otherwise.
    recording_refuses("`attention`: `layout heads` has size 4, expected 2", |device, ops| {
        let rope = rope(device.param(vec![])?);
        let heads = heads(ops, HEADS, &rope, DType::F16);
        let rotated = ops.qk_norm_rope(&heads)?;
        let layout = KvLayout { num_key_value_heads: 4, head_dim: 4, dtype: DType::F16, window: None };
        Ok(vec![ops.attention(0, layout, HEADS, 1.0, rotated)?])
    });
    let odd = AttentionShape { num_attention_heads: 5, ..HEADS };
    recording_refuses("`attention`: `heads` is 5, expected a multiple of the key-value heads", |device, ops| {
        let rope = rope(device.param(vec![])?);
        let heads = heads(ops, odd, &rope, DType::F16);
        let rotated = ops.qk_norm_rope(&heads)?;
        let layout = KvLayout { num_key_value_heads: 2, head_dim: 8, dtype: DType::F16, window: None };
        Ok(vec![ops.attention(0, layout, odd, 1.0, rotated)?])
    });
}

#[test]
fn grouped_convolutions_that_break_a_contract() {
    let conv = |ops: &mut Ops, base: Param, side, sizes| {
        let (x, dynamic) = (ops.input(8), ops.input(8));
        Ok(vec![ops.grouped_conv(x, &base, dynamic, side, sizes)?])
    };
    recording_refuses("`grouped_conv`: `base` has size 31, expected 32", |device, ops| {
        conv(ops, device.param(vec![0.0; 31])?, 0, [2, 4])
    });
    recording_refuses("`grouped_conv`: `dynamic` has size 8, expected 16", |device, ops| {
        conv(ops, device.param(vec![0.0; 32])?, 0, [2, 2])
    });
    for group_size in [0, 3] {
        let expected = format!("`grouped_conv`: `group_size` is {group_size}, expected a divisor of the channels");
        recording_refuses(&expected, |device, ops| conv(ops, device.param(vec![0.0; 32])?, 1, [2, group_size]));
    }
    recording_refuses("`grouped_conv`: `side` is 2, expected 0 or 1", |device, ops| {
        conv(ops, device.param(vec![0.0; 32])?, 2, [2, 4])
    });
    recording_refuses("`grouped_conv`: `taps` is 0, expected at least 1", |device, ops| {
        conv(ops, device.param(vec![])?, 0, [0, 4])
    });
}

const DELTA: DeltaLayout =
    DeltaLayout { num_key_heads: 2, num_value_heads: 4, key_head_dim: 3, value_head_dim: 5, conv_kernel_dim: 4 };

fn delta_heads(ops: &mut Ops, layout: DeltaLayout, channels: usize) -> DeltaHeads {
    let (qkv, g, beta) = (ops.input(channels), ops.input(4), ops.input(4));
    DeltaHeads { slot: 0, layout, qkv, g, beta, key_head_order: KeyHeadOrder::Grouped }
}

#[test]
fn delta_layers_that_break_a_contract() {
    recording_refuses("`gated_delta`: `qkv` has size 30, expected 32", |_, ops| {
        let heads = delta_heads(ops, DELTA, 30);
        Ok(vec![ops.gated_delta(&heads)?])
    });
    recording_refuses("`gated_delta`: `value heads` is 4, expected a multiple of the key heads", |_, ops| {
        let layout = DeltaLayout { num_key_heads: 3, ..DELTA };
        let heads = delta_heads(ops, layout, layout.conv_channels());
        Ok(vec![ops.gated_delta(&heads)?])
    });
    recording_refuses("`gated_delta`: `state` is 0, expected at least 1 element", |_, ops| {
        let layout = DeltaLayout { key_head_dim: 0, ..DELTA };
        let heads = delta_heads(ops, layout, layout.conv_channels());
        Ok(vec![ops.gated_delta(&heads)?])
    });
    recording_refuses("`causal_conv`: `weight` has size 96, expected 128", |device, ops| {
        let x = ops.input(32);
        Ok(vec![ops.causal_conv(0, DELTA, x, &device.param(vec![0.0; 96])?)?])
    });
    recording_refuses("`causal_conv`: `conv_kernel_dim` is 0, expected at least 1", |device, ops| {
        let x = ops.input(32);
        let layout = DeltaLayout { conv_kernel_dim: 0, ..DELTA };
        Ok(vec![ops.causal_conv(0, layout, x, &device.param(vec![])?)?])
    });
}

/// Expert indices are not looked at again in a run, so they must come from a choice among these experts.
#[test]
fn experts_that_nobody_chose_among() {
    let message = "`experts`: `experts` is 2, expected as many as the logits that `route` chose from";
    recording_refuses(message, |device, ops| {
        let weight = || device.weight(float_weight(4, 4));
        let expert = ExpertWeights { gate: weight()?, up: weight()?, down: weight()? };
        let experts: Arc<[_]> = Arc::new([expert.clone(), expert]);
        let (x, logits) = (ops.input(4), ops.input(3));
        let (chosen, weights) = ops.route(logits, 1, true)?;
        Ok(vec![ops.experts(x, &experts, chosen, weights)?])
    });
}

/// After gathering a tensor counts outputs; ops that look at rows, or at both, cannot read it.
#[test]
fn rows_and_outputs_do_not_mix() {
    recording_refuses("`gather_outputs`: `x` is 1, expected a tensor over rows", |_, ops| {
        let x = ops.input(4);
        let gathered = ops.gather_outputs(x)?;
        Ok(vec![ops.gather_outputs(gathered)?])
    });
    recording_refuses("`causal_conv`: `x` is 1, expected a tensor over rows", |device, ops| {
        let x = ops.input(32);
        let gathered = ops.gather_outputs(x)?;
        Ok(vec![ops.causal_conv(0, DELTA, gathered, &device.param(vec![0.0; 128])?)?])
    });
    let message = "`add`: `tensor` is 1, expected a tensor over the same rows as the op's first argument";
    recording_refuses(message, |_, ops| {
        let x = ops.input(4);
        let gathered = ops.gather_outputs(x)?;
        Ok(vec![ops.add(x, gathered)?])
    });
}

#[test]
fn tensors_of_another_recording() {
    let mut other = Ops::new(CAPACITY);
    let first = other.input(4);
    let foreign = other.input(4);
    recording_refuses("tensor 1 does not exist: there are 0", |_, ops| Ok(vec![ops.add(foreign, foreign)?]));
    // The result of the op itself would be tensor 0, but it is not there to be read yet.
    recording_refuses("tensor 0 does not exist: there are 0", |_, ops| Ok(vec![ops.add(first, first)?]));
    for device in devices() {
        let mut ops = Ops::new(CAPACITY);
        ops.input(4);
        ops.keep(foreign);
        let pass = device.prepare(ops.finish()).unwrap();
        refused(pass.read(foreign), "kept tensor 1 does not exist: there are 0");
    }
}

#[test]
fn weights_of_another_device() {
    let devices = devices();
    for (place, device) in devices.iter().enumerate() {
        for other in devices.iter().enumerate().filter(|(other, _)| *other != place).map(|(_, other)| other) {
            if other.name() == device.name() {
                continue;
            }
            let weight = other.weight(float_weight(4, 4)).unwrap();
            let mut ops = Ops::new(CAPACITY);
            ops.embed(&weight).unwrap();
            let message = format!(
                "a weight belongs to another device than `{}`: load it with the device that runs the pass",
                device.name()
            );
            refused(device.prepare(ops.finish()), &message);
        }
    }
}

#[test]
fn runs_that_do_not_fit_the_pass() {
    for device in devices() {
        let mut model = Model::new(&*device, USUAL, CAPACITY);
        let state = device.state(&model.layout).unwrap();
        let mut run = |tokens: &[u32], len: usize, outputs: &[usize]| {
            let rows = Rows::new(&[SequenceRows::chain(len, tokens)]).unwrap();
            model.pass.run(&PassInputs { rows: &rows, outputs, inputs: &[] }, &[&*state])
        };
        refused(run(&[1; 5], 0, &[]), "the pass was recorded for 4 rows, but 5 were given");
        refused(run(&[1; 2], 0, &[0, 1]), "the pass was recorded for 1 outputs, but 2 were given");
        refused(run(&[1; 2], 0, &[2]), "output row 2 does not exist: there are 2");
        refused(run(&[1, 40], 0, &[]), "token 40 of row 1 is outside the vocabulary of 40 entries");
        refused(run(&[1], 3, &[]), "the state of sequence 0 stands for 0 tokens, but its rows continue after 3");
        run(&[1, 2], 0, &[1]).unwrap();
    }
}

#[test]
fn states_that_do_not_fit_the_pass() {
    for device in devices() {
        let mut model = Model::new(&*device, USUAL, CAPACITY);
        let state = device.state(&model.layout).unwrap();
        let rows = forest(&[Tree::chain(0, vec![1]), Tree::chain(0, vec![2])]);
        let inputs = PassInputs { rows: &rows, outputs: &[], inputs: &[] };
        refused(model.pass.run(&inputs, &[&*state]), "state 1 does not exist: there are 1");

        let mut other = model.layout.clone();
        other.attention[0].dtype = DType::F32;
        for layout in [other, StateLayout::default()] {
            let stranger = device.state(&layout).unwrap();
            let message =
                "the state of sequence 1 does not have the layers of the pass: make it with the model that runs";
            refused(model.pass.run(&inputs, &[&*state, &*stranger]), message);
        }
    }
}

#[test]
fn inputs_that_are_missing_or_short() {
    for device in devices() {
        let mut ops = Ops::new(CAPACITY);
        let x = ops.input(4);
        let y = ops.add(x, x).unwrap();
        ops.keep(y);
        let mut pass = device.prepare(ops.finish()).unwrap();
        let rows = forest(&[Tree::chain(0, vec![0, 0])]);
        let mut run = |inputs: &[(Tensor, &[f32])]| pass.run(&PassInputs { rows: &rows, outputs: &[], inputs }, &[]);
        refused(run(&[]), "input 0 does not exist: there are 0");
        refused(run(&[(x, &[1.0; 7])]), "`input`: `values` has size 7, expected 8");
        run(&[(x, &[1.0; 8])]).unwrap();
    }
}

#[test]
fn tensors_that_were_not_kept() {
    for device in devices() {
        let mut ops = Ops::new(CAPACITY);
        let x = ops.input(4);
        let y = ops.add(x, x).unwrap();
        let pass = device.prepare(ops.finish()).unwrap();
        refused(pass.read(y), "kept tensor 1 does not exist: there are 0");
    }
}

#[test]
fn paths_that_are_no_path() {
    for device in devices() {
        let mut model = Model::new(&*device, USUAL, CAPACITY);
        let mut state = device.state(&model.layout).unwrap();
        let mut other = device.state(&model.layout).unwrap();
        refused(
            model.pass.commit(&[0], &mut *state),
            "row 0 at place 0 of the path does not continue the row before it",
        );

        let parents = vec![None, Some(0), Some(0)];
        let rows = forest(&[Tree { len: 0, tokens: vec![1, 2, 3], parents }, Tree::chain(0, vec![4])]);
        model.run(&rows, &[&*state, &*other]);
        for (path, row, place) in [(&[][..], 0, 0), (&[1], 1, 0), (&[0, 1, 2], 2, 2), (&[0, 3], 3, 1), (&[9], 9, 0)] {
            let message = format!("row {row} at place {place} of the path does not continue the row before it");
            refused(model.pass.commit(path, &mut *state), &message);
            assert_eq!(state.len(), 0);
        }
        model.pass.commit(&[0, 2], &mut *state).unwrap();
        let message = "the state of sequence 0 stands for 2 tokens, but its rows continue after 0";
        refused(model.pass.commit(&[0, 2], &mut *state), message);
        model.pass.commit(&[3], &mut *other).unwrap();
        assert_eq!((state.len(), other.len()), (2, 1));
    }
}

#[test]
fn rows_that_are_no_forest() {
    refused(
        Rows::new(&[SequenceRows::chain(0, &[1]), SequenceRows::tree(0, &[1, 2], &[None, Some(5)])]),
        "row 1 of sequence 1 has parent 5, expected an earlier row or none",
    );
    refused(Rows::new(&[SequenceRows::tree(0, &[1, 2], &[None])]), "sequence 0 has 2 tokens but 1 parents");
    refused(
        Rows::new(&[SequenceRows::chain(0, &[1, 2])]).unwrap().with_rope_positions(vec![[0; 3]]),
        "`rows`: `rope_positions` has size 1, expected 2",
    );
}

/// A pass without rows does nothing, and does it without complaint.
#[test]
fn a_pass_without_rows() {
    for device in devices() {
        let mut model = Model::new(&*device, USUAL, CAPACITY);
        let inputs = PassInputs { rows: &Rows::new(&[]).unwrap(), outputs: &[], inputs: &[] };
        model.pass.run(&inputs, &[]).unwrap();
        assert!(model.pass.read(model.hidden).unwrap().is_empty());
    }
}
