//! The CPU device against the reference, and against itself: with every instruction set, any number of threads, and any
//! other rows in the pass.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::num::NonZeroUsize;
use std::sync::Arc;

use bytes::Bytes;
use pleach_kernels::ops::{AttentionShape, ExpertWeights, KeyHeadOrder, Rope, RopePairing};
use pleach_kernels::*;
use proptest::prelude::*;

/// A generator of test values, the same on every machine (SplitMix64).
struct Values(u64);

impl Values {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    /// Between −1 and 1.
    fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.float()).collect()
    }
}

fn cpu(set: InstructionSet, threads: usize) -> CpuDevice {
    CpuDevice::new(CpuOptions { threads: NonZeroUsize::new(threads), instruction_set: Some(set) }).unwrap()
}

fn sets() -> impl Iterator<Item = InstructionSet> {
    InstructionSet::ALL.into_iter().filter(|set| set.is_available())
}

const FORMATS: [WeightFormat; 20] = {
    use FloatFormat::{BF16, F16, F32};
    use WeightFormat::*;
    [
        Float(F32),
        Float(F16),
        Float(BF16),
        Q4_0,
        Q4_1,
        Q5_0,
        Q5_1,
        Q8_0,
        Q2_K,
        Q3_K,
        Q4_K,
        Q5_K,
        Q6_K,
        IQ4_NL,
        IQ4_XS,
        Affine { bits: 4, group_size: 32, scales: F16 },
        Affine { bits: 4, group_size: 64, scales: BF16 },
        Affine { bits: 8, group_size: 64, scales: F32 },
        Affine { bits: 8, group_size: 128, scales: BF16 },
        Int8PerRow,
    ]
};

fn element(format: FloatFormat, value: f32) -> Vec<u8> {
    match format {
        FloatFormat::F32 => value.to_le_bytes().to_vec(),
        FloatFormat::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
        FloatFormat::BF16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
    }
}

/// Where a GGUF block keeps its half-float scales: they must be sane, all other bytes may be anything.
fn scale_places(format: WeightFormat) -> &'static [usize] {
    match format {
        WeightFormat::Q4_1 | WeightFormat::Q5_1 | WeightFormat::Q4_K | WeightFormat::Q5_K => &[0, 2],
        WeightFormat::Q2_K => &[80, 82],
        WeightFormat::Q3_K => &[108],
        WeightFormat::Q6_K => &[208],
        _ => &[0],
    }
}

fn weight_data(values: &mut Values, format: WeightFormat, rows: usize, columns: usize) -> WeightData {
    let block = format.block_bytes();
    let (mut scales, mut biases) = (Vec::new(), Vec::new());
    let data: Vec<u8> = match format {
        WeightFormat::Float(float) => (0..rows * columns).flat_map(|_| element(float, values.float())).collect(),
        WeightFormat::Affine { group_size, scales: float, .. } => {
            for _ in 0..rows * columns / group_size {
                scales.extend(element(float, 0.01 * values.float()));
                biases.extend(element(float, 0.1 * values.float()));
            }
            (0..rows * columns / group_size * block).map(|_| values.bits() as u8).collect()
        }
        WeightFormat::Int8PerRow => {
            scales = (0..rows).flat_map(|_| (0.01 * values.float()).to_le_bytes()).collect();
            (0..rows * columns).map(|_| values.bits() as u8).collect()
        }
        _ => {
            let blocks = rows * columns / format.block_elements();
            let mut data: Vec<u8> = (0..blocks * block).map(|_| values.bits() as u8).collect();
            for block in data.chunks_mut(block) {
                for &place in scale_places(format) {
                    let scale = half::f16::from_f32(0.01 * values.float());
                    block[place..place + 2].copy_from_slice(&scale.to_le_bytes());
                }
            }
            data
        }
    };
    let activations = Activations::Int8PerGroup;
    let (data, scales, biases) = (Bytes::from(data), Bytes::from(scales), Bytes::from(biases));
    WeightData { format, rows, columns, data, scales, biases, activations }
}

/// Largest difference, relative to the largest expected magnitude.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(1e-3f32, |max, x| max.max(x.abs()));
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest
}

/// Rows of a pass without states.
fn plain_rows(count: usize) -> Rows {
    Rows::new(&[SequenceRows::chain(0, &vec![0; count])]).unwrap()
}

/// Runs what `record` records on one input and returns the tensors it keeps.
fn run_once(
    device: &dyn Device,
    rows: &Rows,
    x: &[f32],
    outputs: &[usize],
    record: &dyn Fn(&dyn Device, &mut Ops, Tensor) -> Vec<Tensor>,
) -> Vec<Vec<f32>> {
    let mut ops = Ops::new(Capacity { rows: rows.len(), outputs: outputs.len() });
    let input = ops.input(x.len() / rows.len());
    let kept = record(device, &mut ops, input);
    kept.iter().for_each(|&tensor| ops.keep(tensor));
    let mut pass = device.prepare(ops.finish()).unwrap();
    pass.run(&PassInputs { rows, outputs, inputs: &[(input, x)] }, &[]).unwrap();
    kept.iter().map(|&tensor| pass.read(tensor).unwrap().to_vec()).collect()
}

/// Checks an op on every instruction set and 1, 2 and 3 threads against the reference.
fn check(
    name: &str,
    rows: usize,
    width: usize,
    tolerance: f32,
    record: &dyn Fn(&dyn Device, &mut Ops, Tensor) -> Vec<Tensor>,
) {
    let x: Vec<f32> = Values(rows as u64).floats(rows * width);
    let (rows, outputs) = (plain_rows(rows), [0]);
    let expected = run_once(&ReferenceDevice::new(), &rows, &x, &outputs, record);
    for set in sets() {
        let mut one_thread = None;
        for threads in 1..=3 {
            let found = run_once(&cpu(set, threads), &rows, &x, &outputs, record);
            for (found, expected) in found.iter().zip(&expected) {
                let difference = difference(found, expected);
                assert!(difference <= tolerance, "{name}, {} rows, {set}, {threads} threads: {difference}", rows.len());
            }
            let bits: Vec<Vec<u32>> = found.iter().map(|x| x.iter().map(|x| x.to_bits()).collect()).collect();
            let same = *one_thread.get_or_insert_with(|| bits.clone()) == bits;
            assert!(same, "{name}, {set}: {threads} threads give other bits than one");
        }
    }
}

#[test]
fn products_of_every_format() {
    for format in FORMATS {
        for activations in [Activations::Int8PerGroup, Activations::Int8PerRow, Activations::Float] {
            for rows in [1, 2, 5, 9, 19, 70] {
                check(&format!("linear {format} {activations:?}"), rows, 768, 2e-5, &|device, ops, x| {
                    let mut values = Values(7);
                    let mut a = weight_data(&mut values, format, 37, 768);
                    let mut b = weight_data(&mut values, format, 16, 768);
                    (a.activations, b.activations) = (activations, activations);
                    let (a, b) = (device.weight(a).unwrap(), device.weight(b).unwrap());
                    let bias = device.param(values.floats(37)).unwrap();
                    ops.linear(x, [(&a, Some(&bias)), (&b, None)]).unwrap().to_vec()
                });
            }
        }
    }
}

/// Few rows and many go through different loops, which must give a row the same bits.
#[test]
fn a_row_of_a_product_has_the_same_bits_in_any_company() {
    const ROWS: usize = 70;
    const WIDTH: usize = 768;
    let x = Values(ROWS as u64).floats(ROWS * WIDTH);
    for format in FORMATS {
        for activations in [Activations::Int8PerGroup, Activations::Int8PerRow] {
            let product = |device: &dyn Device, ops: &mut Ops, x: Tensor| {
                let weight = WeightData { activations, ..weight_data(&mut Values(7), format, 37, WIDTH) };
                ops.linear(x, [(&device.weight(weight).unwrap(), None)]).unwrap().to_vec()
            };
            for set in sets() {
                let of_rows = |rows: std::ops::Range<usize>| -> Vec<u32> {
                    let x = &x[rows.start * WIDTH..rows.end * WIDTH];
                    let found = run_once(&cpu(set, 2), &plain_rows(rows.len()), x, &[0], &product);
                    found[0].iter().map(|x| x.to_bits()).collect()
                };
                let all = of_rows(0..ROWS);
                for rows in [0..1, 3..8, 20..44, 69..70] {
                    let expected = &all[rows.start * 37..rows.end * 37];
                    assert_eq!(of_rows(rows.clone()), expected, "{format} {activations:?}, {set}, rows {rows:?}");
                }
            }
        }
    }
}

#[test]
fn float_products_of_any_width() {
    for format in [FloatFormat::F32, FloatFormat::F16, FloatFormat::BF16] {
        for width in [1, 15, 16, 33] {
            check(&format!("linear {format:?} {width}"), 6, width, 1e-5, &|device, ops, x| {
                let weight = weight_data(&mut Values(3), WeightFormat::Float(format), 7, width);
                ops.linear(x, [(&device.weight(weight).unwrap(), None)]).unwrap().to_vec()
            });
        }
    }
}

#[test]
fn elementwise_ops_and_norms() {
    for (rows, width) in [(1, 32), (3, 96), (40, 320)] {
        check("elementwise", rows, width, 3e-6, &|device, ops, x| {
            let mut values = Values(5);
            let weight = device.param(values.floats(width)).unwrap();
            let head = device.param(values.floats(32)).unwrap();
            let signs = device.param((0..width).map(|i| if i % 3 == 0 { -1.0 } else { 1.0 }).collect()).unwrap();
            let gates = weight_data(&mut values, WeightFormat::Float(FloatFormat::F32), 5, width);
            let gates = device.weight(gates).unwrap();
            let one = weight_data(&mut values, WeightFormat::Float(FloatFormat::F32), 1, width);
            let one = device.weight(one).unwrap();
            let normed = ops.rms_norm(x, &weight, 1e-6).unwrap();
            let gated = ops.swiglu(x, normed).unwrap();
            let (sum, out) = ops.add_rms_norm(x, gated, &weight, 1e-6).unwrap();
            let added = ops.add(sum, out).unwrap();
            let by_head = ops.gated_rms_norm(added, x, &head, 1e-6).unwrap();
            let turned = ops.hadamard(x, &signs, 32).unwrap();
            let [a, b] = ops.linear(x, [(&gates, None), (&gates, None)]).unwrap();
            let params = [device.param(vec![-0.5; 5]).unwrap(), device.param(vec![20.0; 5]).unwrap()];
            let (g, beta) = ops.delta_gates(a, b, &params[0], &params[1]).unwrap();
            let [gate] = ops.linear(x, [(&one, None)]).unwrap();
            let shared = ops.add_gated(x, added, gate).unwrap();
            let both = ops.concat(turned, shared).unwrap();
            let last = ops.gather_outputs(both).unwrap();
            vec![normed, gated, sum, out, added, by_head, turned, g, beta, shared, both, last]
        });
    }
}

#[test]
fn experts_and_their_choice() {
    for (rows, normalize) in [(1, true), (7, false), (33, true), (120, true)] {
        check("experts", rows, 64, 2e-5, &|device, ops, x| {
            let mut values = Values(11);
            let mut weight =
                |format, rows, columns| device.weight(weight_data(&mut values, format, rows, columns)).unwrap();
            let router = weight(WeightFormat::Float(FloatFormat::F32), 6, 64);
            let experts: Arc<[_]> = (0..6)
                .map(|_| ExpertWeights {
                    gate: weight(WeightFormat::Q4_0, 96, 64),
                    up: weight(WeightFormat::Q8_0, 96, 64),
                    down: weight(WeightFormat::Float(FloatFormat::BF16), 64, 96),
                })
                .collect();
            let [logits] = ops.linear(x, [(&router, None)]).unwrap();
            let (chosen, weights) = ops.route(logits, 2, normalize).unwrap();
            let out = ops.experts(x, &experts, chosen, weights).unwrap();
            vec![weights, out]
        });
    }
}

const CACHES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::I8];

const SHAPE: AttentionShape = AttentionShape { num_attention_heads: 4, num_key_value_heads: 2, head_dim: 40 };
const DELTA: DeltaLayout =
    DeltaLayout { num_key_heads: 2, num_value_heads: 4, key_head_dim: 24, value_head_dim: 40, conv_kernel_dim: 4 };
const HIDDEN: usize = 256;

fn layout(cache: DType) -> StateLayout {
    let kv = KvLayout { num_key_value_heads: 2, head_dim: 40, dtype: cache, window: None };
    StateLayout { attention: vec![kv], delta: vec![DELTA] }
}

/// One attention layer and one DeltaNet layer with everything around them.
struct Model {
    pass: Box<dyn Pass>,
    layout: StateLayout,
    kept: Vec<Tensor>,
}

impl Model {
    fn new(device: &dyn Device, cache: DType, pairing: RopePairing, format: WeightFormat, rows: usize) -> Self {
        let mut values = Values(1);
        let mut weight = |rows, columns| device.weight(weight_data(&mut values, format, rows, columns)).unwrap();
        let table = weight(64, HIDDEN);
        let (q, k, v, o) = (weight(320, HIDDEN), weight(80, HIDDEN), weight(80, HIDDEN), weight(HIDDEN, HIDDEN));
        let (qkv, ab) = (weight(DELTA.conv_channels(), HIDDEN), weight(4, HIDDEN));
        let mut param = |len| device.param(values.floats(len)).unwrap();
        let (norm, head_norm, delta_norm) = (param(HIDDEN), param(40), param(40));
        let (conv, dt_bias) = (param(4 * DELTA.conv_channels()), param(4));
        let neg_exp_a = device.param(vec![-0.5, -1.0, -0.1, -3.0]).unwrap();
        let inv_freq = device.param((0..16).map(|i| 10f32.powf(-(i as f32) / 4.0)).collect()).unwrap();
        let rope = Rope { inv_freq, pairing, sections: Some([6, 5, 5]) };
        let layout = layout(cache);

        let mut ops = Ops::new(Capacity { rows, outputs: rows });
        let x = ops.embed(&table).unwrap();
        let normed = ops.rms_norm(x, &norm, 1e-6).unwrap();
        let [q, k, v] = ops.linear(normed, [(&q, None), (&k, None), (&v, None)]).unwrap();
        let heads = HeadRows {
            q,
            k,
            v,
            shape: SHAPE,
            gated: true,
            q_norm: Some(&head_norm),
            k_norm: Some(&head_norm),
            eps: 1e-6,
            rope: &rope,
            cache,
        };
        let rotated = ops.qk_norm_rope(&heads).unwrap();
        let attended = ops.attention(0, layout.attention[0], SHAPE, 0.158, rotated).unwrap();
        let wide = ops.concat(attended, attended).unwrap();
        let [mixed] = ops.linear(normed, [(&o, None)]).unwrap();
        let (x, normed) = ops.add_rms_norm(x, mixed, &norm, 1e-6).unwrap();
        let [qkv, a, b] = ops.linear(normed, [(&qkv, None), (&ab, None), (&ab, None)]).unwrap();
        let (g, beta) = ops.delta_gates(a, b, &neg_exp_a, &dt_bias).unwrap();
        let qkv = ops.causal_conv(0, DELTA, qkv, &conv).unwrap();
        let heads = DeltaHeads { slot: 0, layout: DELTA, qkv, g, beta, key_head_order: KeyHeadOrder::RoundRobin };
        let core = ops.gated_delta(&heads).unwrap();
        let gated = ops.gated_rms_norm(core, attended, &delta_norm, 1e-6).unwrap();
        let kept = vec![attended, wide, x, core, gated];
        kept.iter().for_each(|&tensor| ops.keep(tensor));
        Self { pass: device.prepare(ops.finish()).unwrap(), layout, kept }
    }

    fn run(&mut self, rows: &Rows, states: &[&dyn State]) -> Vec<Vec<f32>> {
        self.pass.run(&PassInputs { rows, outputs: &[], inputs: &[] }, states).unwrap();
        self.kept.iter().map(|&tensor| self.pass.read(tensor).unwrap().to_vec()).collect()
    }
}

/// Values of a row of each kept tensor, as bits.
fn row_bits(kept: &[Vec<f32>], rows: usize, row: usize) -> Vec<u32> {
    kept.iter()
        .flat_map(|values| {
            let width = values.len() / rows;
            values[row * width..(row + 1) * width].iter().map(|x| x.to_bits())
        })
        .collect()
}

/// All that a state holds, as bits.
fn state_bits(state: &dyn State) -> Vec<u32> {
    let ((keys, values), (recurrent, window)) = (state.read_kv(0).unwrap(), state.read_delta(0).unwrap());
    [keys, values, recurrent, window].concat().iter().map(|x| x.to_bits()).collect()
}

/// Place and values where two lists of bits part, which says more than the lists.
fn first_difference(found: &[u32], expected: &[u32]) -> Option<(usize, f32, f32)> {
    assert_eq!(found.len(), expected.len());
    let place = found.iter().zip(expected).position(|(found, expected)| found != expected)?;
    Some((place, f32::from_bits(found[place]), f32::from_bits(expected[place])))
}

#[test]
fn a_tree_after_a_prompt() {
    let prompt: Vec<u32> = (0..70).map(|i| i * 7 % 64).collect();
    let parents = [None, Some(0), Some(0), Some(1), Some(2), Some(2), Some(5), None];
    let tokens = [1, 2, 3, 4, 5, 6, 7, 8];
    for (cache, pairing) in CACHES.into_iter().zip([RopePairing::Halves, RopePairing::Neighbors].into_iter().cycle()) {
        let run = |device: &dyn Device| {
            let mut model = Model::new(device, cache, pairing, WeightFormat::Float(FloatFormat::F32), 70);
            let mut state = device.state(&model.layout).unwrap();
            let mut all = model.run(&Rows::new(&[SequenceRows::chain(0, &prompt)]).unwrap(), &[&*state]);
            model.pass.commit(&(0..70).collect::<Vec<_>>(), &mut *state).unwrap();
            let tree = Rows::new(&[SequenceRows::tree(70, &tokens, &parents)]).unwrap();
            all.extend(model.run(&tree, &[&*state]));
            model.pass.commit(&[0, 2, 5, 6], &mut *state).unwrap();
            let (keys, values) = state.read_kv(0).unwrap();
            let (recurrent, window) = state.read_delta(0).unwrap();
            all.extend([keys, values, recurrent, window]);
            all
        };
        let expected = run(&ReferenceDevice::new());
        for set in sets() {
            for threads in 1..=3 {
                for (i, (found, expected)) in run(&cpu(set, threads)).iter().zip(&expected).enumerate() {
                    // Caches of less than 32 bits may round a value to its neighbor.
                    let tolerance = match cache {
                        DType::BF16 | DType::I8 => 2e-2,
                        DType::F16 => 3e-3,
                        _ => 1e-4,
                    };
                    let difference = difference(found, expected);
                    assert!(difference <= tolerance, "{cache:?}, {set}, {threads} threads, tensor {i}: {difference}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// A row gives the same bits alone, in any tree, beside any other sequence, and on any number of threads; and the
    /// committed state does not depend on how its tokens came in.
    #[test]
    fn rows_do_not_depend_on_their_company(
        seed: u64,
        set in prop::sample::select(sets().collect::<Vec<_>>()),
        threads in 1usize..5,
        format in prop::sample::select(FORMATS.to_vec()),
        cache in prop::sample::select(CACHES.to_vec()),
        prompt in 1usize..80,
        size in 1usize..14,
    ) {
        let mut values = Values(seed);
        let mut token = || (values.bits() % 64) as u32;
        let prompt: Vec<u32> = (0..prompt).map(|_| token()).collect();
        let tokens: Vec<u32> = (0..size).map(|_| token()).collect();
        let parents: Vec<_> = (0..size).map(|i| (token() as usize % (i + 1)).checked_sub(1)).collect();
        let beside: Vec<u32> = (0..1 + token() as usize % 5).map(|_| token()).collect();
        let last = size - 1;

        let (alone, other) = (cpu(set, 1), cpu(set, threads));
        let model = |device| Model::new(device, cache, RopePairing::Halves, format, 100);
        // Token by token along the path of the last row.
        let mut path = vec![];
        let mut next = Some(last);
        while let Some(row) = next {
            path.insert(0, row);
            next = parents[row];
        }
        let mut model_alone = model(&alone);
        let mut state_alone = alone.state(&model_alone.layout).unwrap();
        let mut bits_alone = vec![];
        for &token in prompt.iter().chain(path.iter().map(|&row| &tokens[row])) {
            let rows = Rows::new(&[SequenceRows::chain(state_alone.len(), &[token])]).unwrap();
            let kept = model_alone.run(&rows, &[&*state_alone]);
            bits_alone = row_bits(&kept, 1, 0);
            model_alone.pass.commit(&[0], &mut *state_alone).unwrap();
        }
        // The prompt in one pass, then the whole tree beside another sequence.
        let mut model = model(&other);
        let (mut state, empty) = (other.state(&model.layout).unwrap(), other.state(&model.layout).unwrap());
        model.run(&Rows::new(&[SequenceRows::chain(0, &prompt)]).unwrap(), &[&*state]);
        model.pass.commit(&(0..prompt.len()).collect::<Vec<_>>(), &mut *state).unwrap();
        let rows = Rows::new(&[
            SequenceRows::chain(0, &beside),
            SequenceRows::tree(prompt.len(), &tokens, &parents),
        ]).unwrap();
        let kept = model.run(&rows, &[&*empty, &*state]);
        prop_assert_eq!(first_difference(&row_bits(&kept, rows.len(), beside.len() + last), &bits_alone), None);
        let path: Vec<_> = path.iter().map(|row| beside.len() + row).collect();
        model.pass.commit(&path, &mut *state).unwrap();
        prop_assert_eq!(first_difference(&state_bits(&*state), &state_bits(&*state_alone)), None);
    }
}

#[test]
fn weights_of_another_device_are_refused() {
    let reference = ReferenceDevice::new();
    let weight = weight_data(&mut Values(1), WeightFormat::Q4_0, 4, 32);
    let weight = reference.weight(weight).unwrap();
    let mut ops = Ops::new(Capacity { rows: 1, outputs: 1 });
    ops.embed(&weight).unwrap();
    let error = cpu(InstructionSet::detect(), 1).prepare(ops.finish()).err().unwrap();
    assert_eq!(
        error.to_string(),
        "a weight belongs to another device than `cpu`: load it with the device that runs the pass"
    );
}
