//! The gated delta rule, one DeltaNet layer and tree verification against golden values, on every device.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod support;

use pleach_kernels::ops::KeyHeadOrder;
use pleach_kernels::{
    Activations, Capacity, DeltaHeads, DeltaLayout, DeltaValues, Device, FloatFormat, Ops, Param, Pass, PassInputs,
    Rows, SequenceRows, State, StateLayout, StateValues, Tensor, Weight, WeightData, WeightFormat, quantize,
};

use support::case::restored;
use support::fixture::Fixture;
use support::random::{Tree, forest};
use support::{Tolerance, assert_close, bits, devices};

/// The README's bound for recurrent kernels, trees and committed states.
const CLOSE: Tolerance = Tolerance::absolute(2e-5);
/// The README's bound for the case with the strongest and weakest decays.
const EDGES: Tolerance = Tolerance::absolute(1e-4);

/// One case of the bare rule.
struct KernelCase {
    name: &'static str,
    file: Fixture,
    layout: DeltaLayout,
    tokens: usize,
}

impl KernelCase {
    fn open(name: &'static str) -> Self {
        let file = Fixture::open("gdn/kernel.safetensors");
        let (q, v) = (file.shape(&format!("{name}.q")), file.shape(&format!("{name}.v")));
        let layout = DeltaLayout {
            num_key_heads: q[1],
            num_value_heads: v[1],
            key_head_dim: q[2],
            value_head_dim: v[2],
            conv_kernel_dim: 1,
        };
        Self { name, file, layout, tokens: q[0] }
    }

    fn f32(&self, tensor: &str) -> Vec<f32> {
        self.file.f32(&format!("{}.{tensor}", self.name))
    }

    fn f64(&self, tensor: &str) -> Vec<f64> {
        self.file.f64(&format!("{}.{tensor}", self.name))
    }

    /// All q heads, all k heads, all v heads of each row.
    fn qkv(&self) -> Vec<f32> {
        let parts = ["q", "k", "v"].map(|name| self.f32(name));
        let widths = parts.each_ref().map(|part| part.len() / self.tokens);
        let row =
            |row: usize| (0..3).flat_map(move |part| (0..widths[part]).map(move |i| (part, row * widths[part] + i)));
        (0..self.tokens).flat_map(row).map(|(part, i)| parts[part][i]).collect()
    }

    fn state_layout(&self) -> StateLayout {
        StateLayout { attention: vec![], delta: vec![self.layout] }
    }

    fn initial_state(&self, device: &dyn Device) -> Box<dyn State> {
        let delta = DeltaValues { recurrent: self.f32("initial_state"), window: vec![] };
        restored(device, &self.state_layout(), &StateValues { len: 0, attention: vec![], delta: vec![delta] })
    }

    fn tolerance(&self) -> Tolerance {
        if self.name == "edges" { EDGES } else { CLOSE }
    }

    fn check(&self, device: &dyn Device) {
        let what = |part: &str| format!("{}.{part}, {}", self.name, device.describe());
        let mut rule = Rule::new(device, self.layout, self.tokens);
        let (qkv, g, beta) = (self.qkv(), self.f32("g"), self.f32("beta"));
        let initial = self.initial_state(device);
        let out = rule.run([&qkv, &g, &beta], &*initial);
        assert_close(&what("out"), &out, &self.f64("out"), self.tolerance());

        let (final_state, expected) = (rule.committed(&*initial, self.tokens), self.f64("final_state"));
        assert_close(&what("final_state"), &final_state, &expected, self.tolerance());
        if !self.file.has(&format!("{}.states", self.name)) {
            return;
        }
        let counts = self.file.i32(&format!("{}.states_at", self.name));
        let states = self.f64("states");
        for (count, expected) in counts.iter().zip(states.chunks_exact(self.layout.state_elements())) {
            let found = rule.committed(&*initial, *count as usize);
            assert_close(&what(&format!("states at {count}")), &found, expected, self.tolerance());
        }
    }
}

/// A pass of the rule alone.
struct Rule {
    pass: Box<dyn Pass>,
    inputs: [Tensor; 3],
    out: Tensor,
}

impl Rule {
    fn new(device: &dyn Device, layout: DeltaLayout, rows: usize) -> Self {
        let mut ops = Ops::new(Capacity { rows, outputs: 0 });
        let heads = layout.num_value_heads;
        let [qkv, g, beta] = [layout.conv_channels(), heads, heads].map(|width| ops.input(width));
        let key_head_order = KeyHeadOrder::Grouped;
        let out = ops.gated_delta(&DeltaHeads { slot: 0, layout, qkv, g, beta, key_head_order }).unwrap();
        ops.keep(out);
        Self { pass: device.prepare(ops.finish()).unwrap(), inputs: [qkv, g, beta], out }
    }

    fn run(&mut self, values: [&[f32]; 3], state: &dyn State) -> Vec<f32> {
        let rows = values[0].len() / self.inputs[0].width;
        let rows = forest(&[Tree::chain(state.len(), vec![0; rows])]);
        let inputs: Vec<_> = self.inputs.into_iter().zip(values).collect();
        self.pass.run(&PassInputs { rows: &rows, outputs: &[], inputs: &inputs }, &[state]).unwrap();
        self.pass.read(self.out).unwrap().to_vec()
    }

    /// The recurrent state after the first `count` rows of the last run.
    fn committed(&mut self, state: &dyn State, count: usize) -> Vec<f32> {
        let mut state = state.snapshot();
        let path: Vec<_> = (0..count).collect();
        self.pass.commit(&path, &mut *state).unwrap();
        state.read_delta(0).unwrap().0
    }
}

#[test]
fn kernel_cases() {
    for name in ["small", "zero_state", "edges", "wide", "decode"] {
        let case = KernelCase::open(name);
        for device in devices() {
            case.check(&*device);
        }
    }
}

/// The same tokens one at a time, each committed: the bits of the chunk.
#[test]
fn kernel_cases_step_by_step() {
    for name in ["small", "edges"] {
        let case = KernelCase::open(name);
        let (qkv, g, beta) = (case.qkv(), case.f32("g"), case.f32("beta"));
        let widths = [case.layout.conv_channels(), case.layout.num_value_heads, case.layout.num_value_heads];
        for device in devices() {
            let mut rule = Rule::new(&*device, case.layout, case.tokens);
            let mut state = case.initial_state(&*device);
            let whole = rule.run([&qkv, &g, &beta], &*state);
            let final_state = rule.committed(&*state, case.tokens);
            let mut steps = Vec::new();
            for row in 0..case.tokens {
                let cut = |place: usize, values: &'_ [f32]| values[row * widths[place]..][..widths[place]].to_vec();
                let (qkv, g, beta) = (cut(0, &qkv), cut(1, &g), cut(2, &beta));
                steps.extend(rule.run([&qkv, &g, &beta], &*state));
                rule.pass.commit(&[0], &mut *state).unwrap();
            }
            assert_eq!(bits(&whole), bits(&steps), "{name}, {}", device.describe());
            assert_eq!(bits(&final_state), bits(&state.read_delta(0).unwrap().0), "{name}, {}", device.describe());
        }
    }
}

const LAYER: DeltaLayout =
    DeltaLayout { num_key_heads: 2, num_value_heads: 4, key_head_dim: 16, value_head_dim: 16, conv_kernel_dim: 4 };
const HIDDEN: usize = 48;

/// A whole DeltaNet layer with every intermediate kept.
struct Layer {
    pass: Box<dyn Pass>,
    x: Tensor,
    /// By the fixtures' names.
    kept: Vec<(&'static str, Tensor)>,
}

impl Layer {
    fn new(device: &dyn Device, file: &Fixture) -> Self {
        let weight = |name: &str, rows: usize| load(device, file, name, rows);
        let param = |name: &str| device.param(file.f32(&format!("weight.{name}"))).unwrap();
        let width = LAYER.num_value_heads * LAYER.value_head_dim;
        let (in_qkv, in_z) = (weight("in_proj_qkv.weight", LAYER.conv_channels()), weight("in_proj_z.weight", width));
        let (in_a, in_b) = (weight("in_proj_a.weight", 4), weight("in_proj_b.weight", 4));
        let out_proj = weight("out_proj.weight", HIDDEN);
        let neg_exp_a = file.f32("weight.A_log").iter().map(|a| -a.exp()).collect();
        let neg_exp_a: Param = device.param(neg_exp_a).unwrap();

        let mut ops = Ops::new(Capacity { rows: 16, outputs: 0 });
        let x = ops.input(HIDDEN);
        let projections = [(&in_qkv, None), (&in_z, None), (&in_a, None), (&in_b, None)];
        let [qkv, z, a, b] = ops.linear(x, projections).unwrap();
        let (g, beta) = ops.delta_gates(a, b, &neg_exp_a, &param("dt_bias")).unwrap();
        let conv = ops.causal_conv(0, LAYER, qkv, &param("conv1d.weight")).unwrap();
        let key_head_order = KeyHeadOrder::Grouped;
        let heads = DeltaHeads { slot: 0, layout: LAYER, qkv: conv, g, beta, key_head_order };
        let core = ops.gated_delta(&heads).unwrap();
        let normed = ops.gated_rms_norm(core, z, &param("norm.weight"), 1e-6).unwrap();
        let [out] = ops.linear(normed, [(&out_proj, None)]).unwrap();
        let kept = [
            ("qkv", qkv),
            ("z", z),
            ("a", a),
            ("b", b),
            ("g", g),
            ("beta", beta),
            ("conv", conv),
            ("core", core),
            ("normed", normed),
            ("out", out),
        ];
        kept.iter().for_each(|&(_, tensor)| ops.keep(tensor));
        Self { pass: device.prepare(ops.finish()).unwrap(), x, kept: kept.to_vec() }
    }

    fn run(&mut self, rows: &Rows, x: &[f32], state: &dyn State) {
        let inputs = PassInputs { rows, outputs: &[], inputs: &[(self.x, x)] };
        self.pass.run(&inputs, &[state]).unwrap();
    }

    fn read(&mut self, name: &str) -> Vec<f32> {
        let (_, tensor) = *self.kept.iter().find(|(kept, _)| *kept == name).unwrap();
        self.pass.read(tensor).unwrap().to_vec()
    }

    /// Commits `path` to a copy of `state` and compares it with the fixture's tensors `{prefix}recurrent_state` and
    /// `{prefix}conv_state`.
    fn check_commit(&mut self, file: &Fixture, prefix: &str, path: &[usize], state: &dyn State) -> Box<dyn State> {
        let mut state = state.snapshot();
        self.pass.commit(path, &mut *state).unwrap();
        let (recurrent, window) = state.read_delta(0).unwrap();
        assert_close(
            &format!("{prefix}recurrent_state"),
            &recurrent,
            &file.f64(&format!("{prefix}recurrent_state")),
            CLOSE,
        );
        assert_close(&format!("{prefix}conv_state"), &window, &file.f64(&format!("{prefix}conv_state")), CLOSE);
        state
    }
}

fn load(device: &dyn Device, file: &Fixture, name: &str, rows: usize) -> Weight {
    let values = file.f32(&format!("weight.{name}"));
    let data = WeightData {
        format: WeightFormat::Float(FloatFormat::F32),
        rows,
        columns: values.len() / rows,
        data: quantize::floats(&values, FloatFormat::F32),
        scales: Default::default(),
        biases: Default::default(),
        activations: Activations::Float,
    };
    device.weight(data).unwrap()
}

fn empty_state(device: &dyn Device) -> Box<dyn State> {
    device.state(&StateLayout { attention: vec![], delta: vec![LAYER] }).unwrap()
}

#[test]
fn layer_with_every_intermediate() {
    let file = Fixture::open("gdn/layer.safetensors");
    let x = file.f32("x");
    for device in devices() {
        let mut layer = Layer::new(&*device, &file);
        let state = empty_state(&*device);
        layer.run(&forest(&[Tree::chain(0, vec![0; 12])]), &x[..12 * HIDDEN], &*state);
        for (name, _) in layer.kept.clone() {
            let expected = file.f64(&format!("trace.{name}"));
            assert_close(&format!("trace.{name}, {}", device.describe()), &layer.read(name), &expected, CLOSE);
        }
        let path: Vec<_> = (0..12).collect();
        let state = layer.check_commit(&file, "", &path, &*state);

        layer.run(&forest(&[Tree::chain(12, vec![0])]), &x[12 * HIDDEN..], &*state);
        assert_close("next.out", &layer.read("out"), &file.f64("next.out"), CLOSE);
        layer.check_commit(&file, "next.", &[0], &*state);
    }
}

/// The layer after the fixture's committed prefix.
fn after_prefix(device: &dyn Device, file: &Fixture) -> (Layer, Box<dyn State>) {
    let mut layer = Layer::new(device, file);
    let state = empty_state(device);
    layer.run(&forest(&[Tree::chain(0, vec![0; 11])]), &file.f32("prefix.x"), &*state);
    assert_close("prefix.out", &layer.read("out"), &file.f64("prefix.out"), CLOSE);
    let path: Vec<_> = (0..11).collect();
    let state = layer.check_commit(file, "prefix.", &path, &*state);
    (layer, state)
}

fn tree_rows(file: &Fixture, name: &str) -> Rows {
    let parents: Vec<_> = file.i32(&format!("{name}.parents")).iter().map(|&p| usize::try_from(p).ok()).collect();
    let rows = Rows::new(&[SequenceRows::tree(11, &vec![0; parents.len()], &parents)]).unwrap();
    let depths = file.i32(&format!("{name}.depth"));
    for (row, depth) in depths.into_iter().enumerate() {
        assert_eq!(rows.position(row), 11 + depth as usize);
    }
    rows
}

#[test]
fn trees_after_a_committed_prefix() {
    let file = Fixture::open("gdn/tree.safetensors");
    for device in devices() {
        let (mut layer, state) = after_prefix(&*device, &file);
        for name in ["tree", "bushy", "forest", "chain", "star"] {
            layer.run(&tree_rows(&file, name), &file.f32(&format!("{name}.x")), &*state);
            for part in ["out", "core"] {
                let what = format!("{name}.{part}");
                assert_close(&format!("{what}, {}", device.describe()), &layer.read(part), &file.f64(&what), CLOSE);
            }
            for commit in 0..3 {
                let prefix = format!("{name}.commit.{commit}.");
                let path: Vec<_> = file.i32(&format!("{prefix}path")).iter().map(|&row| row as usize).collect();
                layer.check_commit(&file, &prefix, &path, &*state);
            }
        }
    }
}

/// Every node of one tree as the end of the accepted path.
#[test]
fn states_of_every_node() {
    let file = Fixture::open("gdn/tree.safetensors");
    let (recurrent, windows) = (file.f64("tree.node_recurrent_states"), file.f64("tree.node_conv_states"));
    for device in devices() {
        let (mut layer, state) = after_prefix(&*device, &file);
        let rows = tree_rows(&file, "tree");
        layer.run(&rows, &file.f32("tree.x"), &*state);
        let mut path = Vec::new();
        for row in 0..rows.len() {
            rows.path_into(row, &mut path);
            let mut committed = state.snapshot();
            layer.pass.commit(&path, &mut *committed).unwrap();
            let (found, window) = committed.read_delta(0).unwrap();
            let part = |all: &[f64], len: usize| all[row * len..(row + 1) * len].to_vec();
            assert_close(&format!("recurrent state of node {row}"), &found, &part(&recurrent, found.len()), CLOSE);
            assert_close(&format!("window of node {row}"), &window, &part(&windows, window.len()), CLOSE);
        }
    }
}
