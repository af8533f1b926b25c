//! The convolution and the gated delta rule over windows, states and trees.

use pleach_kernels::ops::KeyHeadOrder;
use pleach_kernels::{
    Capacity, DeltaHeads, DeltaLayout, Device, Ops, PassInputs, Rows, State, StateLayout, StateValues,
};

use super::pointwise::silu;
use crate::support::case::{Case, Record, restored};
use crate::support::random::{Random, SHAPES, Shape, Tree, forest};
use crate::support::{Tolerance, assert_close, bits, devices};

/// A chain of up to 64 updates of unit keys; nothing grows.
const DELTA: Tolerance = Tolerance { absolute: 2e-6, relative: 5e-6 };

const LAYOUT: DeltaLayout =
    DeltaLayout { num_key_heads: 2, num_value_heads: 6, key_head_dim: 16, value_head_dim: 8, conv_kernel_dim: 4 };

fn rows_and_states(
    random: &mut Random,
    layout: DeltaLayout,
    trees: &[(usize, usize, Shape)],
) -> (Rows, StateLayout, Vec<StateValues>) {
    let trees: Vec<_> =
        trees.iter().map(|&(len, n, shape)| Tree { len, tokens: vec![0; n], parents: random.tree(shape, n) }).collect();
    let layout = StateLayout { attention: vec![], delta: vec![layout] };
    let states = trees.iter().map(|tree| random.state(&layout, tree.len)).collect();
    (forest(&trees), layout, states)
}

fn path(rows: &Rows, row: usize) -> Vec<usize> {
    let mut path = Vec::new();
    rows.path_into(row, &mut path);
    path
}

/// The convolution of one row, channel by channel, over the window followed by the row's path.
fn convolved(layout: &DeltaLayout, window: &[f32], weight: &[f32], x: &[f32], path: &[usize]) -> Vec<f64> {
    let (channels, taps) = (layout.conv_channels(), layout.conv_kernel_dim);
    let channel = |c: usize| {
        let committed = window[c * (taps - 1)..][..taps - 1].iter().copied();
        let inputs: Vec<f32> = committed.chain(path.iter().map(|row| x[row * channels + c])).collect();
        let last = &inputs[inputs.len() - taps..];
        let weights = &weight[c * taps..][..taps];
        silu(last.iter().zip(weights).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum())
    };
    (0..channels).map(channel).collect()
}

fn check_conv(seed: u64, taps: usize, trees: &[(usize, usize, Shape)]) {
    let mut random = Random::new(seed);
    let layout = DeltaLayout { conv_kernel_dim: taps, ..LAYOUT };
    let (rows, state_layout, states) = rows_and_states(&mut random, layout, trees);
    let x = random.normals(rows.len() * layout.conv_channels());
    let weight = random.normals(layout.conv_channels() * taps);
    let record: &Record<'_> =
        &|device, ops, inputs| Ok(vec![ops.causal_conv(0, layout, inputs[0], &device.param(weight.clone())?)?]);
    let row = |row: usize| {
        let window = &states[rows.sequence(row)].delta[0].window;
        convolved(&layout, window, &weight, &x, &path(&rows, row))
    };
    Case {
        name: format!("causal_conv of {taps} taps, {trees:?}"),
        rows: rows.clone(),
        outputs: vec![],
        inputs: vec![x.clone()],
        states: Some((state_layout, states.clone())),
        record,
        expected: vec![(0..rows.len()).flat_map(row).collect()],
        // A handful of products and an exponential.
        tolerance: Tolerance { absolute: 1e-6, relative: 1e-6 },
    }
    .check();
}

#[test]
fn causal_conv() {
    for (seed, shape) in SHAPES.into_iter().enumerate() {
        check_conv(seed as u64, 4, &[(9, 11, shape)]);
    }
    for taps in [1, 2, 7] {
        check_conv(taps as u64, taps, &[(9, 5, Shape::Random), (0, 3, Shape::Chain), (40, 20, Shape::Random)]);
    }
}

/// Inputs of the delta rule.
struct Inputs {
    qkv: Vec<f32>,
    g: Vec<f32>,
    beta: Vec<f32>,
}

impl Inputs {
    fn random(random: &mut Random, layout: &DeltaLayout, rows: usize) -> Self {
        let heads = rows * layout.num_value_heads;
        Self {
            qkv: random.normals(rows * layout.conv_channels()),
            g: (0..heads).map(|_| -2.0 * random.uniform()).collect(),
            beta: (0..heads).map(|_| random.uniform()).collect(),
        }
    }
}

fn unit(x: &[f32]) -> Vec<f64> {
    let root = (x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() + 1e-6).sqrt();
    x.iter().map(|&x| f64::from(x) / root).collect()
}

/// One step of one head in f64; returns the output and moves the state.
fn step(
    layout: &DeltaLayout,
    order: KeyHeadOrder,
    inputs: &Inputs,
    row: usize,
    head: usize,
    state: &mut [f64],
) -> Vec<f64> {
    let (dk, dv) = (layout.key_head_dim, layout.value_head_dim);
    let keys = layout.num_key_heads * dk;
    let key_head = match order {
        KeyHeadOrder::Grouped => head * layout.num_key_heads / layout.num_value_heads,
        KeyHeadOrder::RoundRobin => head % layout.num_key_heads,
    };
    let qkv = &inputs.qkv[row * layout.conv_channels()..][..layout.conv_channels()];
    let (q, k) = (unit(&qkv[key_head * dk..][..dk]), unit(&qkv[keys + key_head * dk..][..dk]));
    let v = &qkv[2 * keys + head * dv..][..dv];
    let gate = row * layout.num_value_heads + head;
    let (decay, beta) = (f64::from(inputs.g[gate]).exp(), f64::from(inputs.beta[gate]));
    state.iter_mut().for_each(|s| *s *= decay);
    let read = |state: &[f64], x: &[f64], j: usize| (0..dk).map(|i| state[i * dv + j] * x[i]).sum::<f64>();
    for j in 0..dv {
        let u = beta * (f64::from(v[j]) - read(state, &k, j));
        (0..dk).for_each(|i| state[i * dv + j] += k[i] * u);
    }
    (0..dv).map(|j| read(state, &q, j) / (dk as f64).sqrt()).collect()
}

/// Walks `path` from the committed state; returns the last output and the state, both of all heads.
fn walked(
    layout: &DeltaLayout,
    order: KeyHeadOrder,
    inputs: &Inputs,
    path: &[usize],
    recurrent: &[f32],
) -> (Vec<f64>, Vec<f64>) {
    let (mut outs, mut states) = (Vec::new(), Vec::new());
    let size = layout.key_head_dim * layout.value_head_dim;
    for (head, committed) in recurrent.chunks_exact(size).enumerate() {
        let mut state: Vec<f64> = committed.iter().map(|&s| f64::from(s)).collect();
        let mut out = Vec::new();
        for &row in path {
            out = step(layout, order, inputs, row, head, &mut state);
        }
        outs.extend(out);
        states.extend(state);
    }
    (outs, states)
}

fn check_delta(seed: u64, layout: DeltaLayout, order: KeyHeadOrder, trees: &[(usize, usize, Shape)]) {
    let mut random = Random::new(seed);
    let (rows, state_layout, states) = rows_and_states(&mut random, layout, trees);
    let inputs = Inputs::random(&mut random, &layout, rows.len());
    let record: &Record<'_> = &|_, ops, tensors| {
        let (qkv, g, beta) = (tensors[0], tensors[1], tensors[2]);
        Ok(vec![ops.gated_delta(&DeltaHeads { slot: 0, layout, qkv, g, beta, key_head_order: order })?])
    };
    let row = |row: usize| {
        let recurrent = &states[rows.sequence(row)].delta[0].recurrent;
        walked(&layout, order, &inputs, &path(&rows, row), recurrent).0
    };
    let expected = vec![(0..rows.len()).flat_map(row).collect()];
    Case {
        name: format!("gated_delta {layout:?}, {order:?}, {trees:?}"),
        rows: rows.clone(),
        outputs: vec![],
        inputs: vec![inputs.qkv.clone(), inputs.g.clone(), inputs.beta.clone()],
        states: Some((state_layout, states.clone())),
        record,
        expected,
        tolerance: DELTA,
    }
    .check();
}

#[test]
fn gated_delta_over_trees() {
    for (seed, shape) in SHAPES.into_iter().enumerate() {
        check_delta(seed as u64, LAYOUT, KeyHeadOrder::Grouped, &[(9, 14, shape)]);
    }
    let trees = [(9, 64, Shape::Random), (0, 1, Shape::Chain), (3, 20, Shape::Binary)];
    check_delta(30, LAYOUT, KeyHeadOrder::RoundRobin, &trees);
}

#[test]
fn gated_delta_of_other_head_sizes() {
    for (key_heads, value_heads, dk, dv) in [(1, 1, 1, 1), (2, 2, 5, 3), (1, 4, 32, 64), (1, 2, 128, 128)] {
        let layout = DeltaLayout {
            num_key_heads: key_heads,
            num_value_heads: value_heads,
            key_head_dim: dk,
            value_head_dim: dv,
            conv_kernel_dim: 1,
        };
        check_delta(40 + dk as u64, layout, KeyHeadOrder::Grouped, &[(2, 7, Shape::Random)]);
    }
}

/// A commit moves window and recurrent state along the path, and leaves them as the path run row by row would.
#[test]
fn commit_moves_the_state_along_the_path() {
    let mut random = Random::new(60);
    let parents = vec![None, Some(0), Some(0), Some(2), Some(3), Some(2), None];
    let tree = Tree { len: 5, tokens: vec![0; 7], parents };
    let layout = StateLayout { attention: vec![], delta: vec![LAYOUT] };
    let before = random.state(&layout, 5);
    let inputs = Inputs::random(&mut random, &LAYOUT, 7);
    for device in devices() {
        for path in [vec![0], vec![6], vec![0, 2], vec![0, 2, 3, 4]] {
            let mut state = restored(&*device, &layout, &before);
            commit_inputs(&*device, &tree, &inputs, &path, &mut *state);
            let after = state.values();
            assert_eq!(after.len, 5 + path.len());
            let (_, expected) = walked(&LAYOUT, KeyHeadOrder::Grouped, &inputs, &path, &before.delta[0].recurrent);
            assert_close("recurrent state", &after.delta[0].recurrent, &expected, DELTA);
            assert_eq!(bits(&after.delta[0].window), bits(&window_after(&before, &inputs, &path)));
        }
    }
}

fn commit_inputs(device: &dyn Device, tree: &Tree, inputs: &Inputs, path: &[usize], state: &mut dyn State) {
    let mut ops = Ops::new(Capacity { rows: 7, outputs: 0 });
    let (qkv, g, beta) = (ops.input(LAYOUT.conv_channels()), ops.input(6), ops.input(6));
    let weight = device.param(vec![0.1; 4 * LAYOUT.conv_channels()]).unwrap();
    ops.causal_conv(0, LAYOUT, qkv, &weight).unwrap();
    let key_head_order = KeyHeadOrder::Grouped;
    ops.gated_delta(&DeltaHeads { slot: 0, layout: LAYOUT, qkv, g, beta, key_head_order }).unwrap();
    let mut pass = device.prepare(ops.finish()).unwrap();
    let rows = forest(std::slice::from_ref(tree));
    let values = [(qkv, &inputs.qkv[..]), (g, &inputs.g[..]), (beta, &inputs.beta[..])];
    let run = PassInputs { rows: &rows, outputs: &[], inputs: &values };
    pass.run(&run, &[&*state]).unwrap();
    pass.commit(path, state).unwrap();
}

/// `[channels, 3]`: the last three inputs of the window followed by the path.
fn window_after(before: &StateValues, inputs: &Inputs, path: &[usize]) -> Vec<f32> {
    let channels = LAYOUT.conv_channels();
    let channel = |c: usize| {
        let mut all = before.delta[0].window[c * 3..][..3].to_vec();
        all.extend(path.iter().map(|row| inputs.qkv[row * channels + c]));
        all[all.len() - 3..].to_vec()
    };
    (0..channels).flat_map(channel).collect()
}
