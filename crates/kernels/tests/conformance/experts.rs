//! The choice of experts and their products.

use std::sync::Arc;

use pleach_kernels::ops::ExpertWeights;
use pleach_kernels::{Activations, Device, FloatFormat, KernelError, WeightData, WeightFormat};

use super::linear::product;
use super::pointwise::silu;
use crate::support::Tolerance;
use crate::support::case::{Case, Record, plain_rows};
use crate::support::random::Random;

/// Softmax and weights of the chosen, best first, by the op's contract.
fn chosen(logits: &[f32], top_k: usize, normalize: bool) -> Vec<(usize, f64)> {
    let exponentials: Vec<f64> = logits.iter().map(|&logit| f64::from(logit).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    order.truncate(top_k);
    let kept: f64 = if normalize { order.iter().map(|&e| exponentials[e]).sum() } else { sum };
    order.into_iter().map(|e| (e, exponentials[e] / kept)).collect()
}

#[test]
fn route() {
    for (rows, experts, top_k) in [(1, 1, 1), (3, 8, 3), (64, 60, 4), (5, 128, 8), (2, 7, 7)] {
        let logits = Random::new(experts as u64).around(0.0, 2.0, rows * experts);
        for normalize in [false, true] {
            let record: &Record<'_> = &|_, ops, inputs| Ok(vec![ops.route(inputs[0], top_k, normalize)?.1]);
            let weights = logits.chunks_exact(experts).flat_map(|logits| chosen(logits, top_k, normalize));
            Case {
                name: format!("route {top_k} of {experts}, normalize {normalize}, {rows} rows"),
                rows: plain_rows(rows),
                outputs: vec![],
                inputs: vec![logits.clone()],
                states: None,
                record,
                expected: vec![weights.map(|(_, weight)| weight).collect()],
                // Exponentials and a sum of up to 128 of them.
                tolerance: Tolerance::relative(2e-6),
            }
            .check();
        }
    }
}

struct StoredExpert {
    gate: WeightData,
    up: WeightData,
    down: WeightData,
}

impl StoredExpert {
    fn load(&self, device: &dyn Device) -> Result<ExpertWeights, KernelError> {
        let [gate, up, down] = [&self.gate, &self.up, &self.down].map(|weight| device.weight(weight.clone()));
        Ok(ExpertWeights { gate: gate?, up: up?, down: down? })
    }

    fn apply(&self, x: &[f32]) -> Vec<f64> {
        let (gate, up) = (product(x, &self.gate), product(x, &self.up));
        let inner: Vec<f32> = gate.iter().zip(&up).map(|(gate, up)| (silu(*gate) * up) as f32).collect();
        product(&inner, &self.down)
    }
}

fn check_experts(format: WeightFormat, rows: usize, num_experts: usize, top_k: usize, tolerance: Tolerance) {
    let mut random = Random::new((rows + num_experts) as u64);
    let (hidden, inner) = (64, 32);
    let mut weight = |rows, columns| random.weight(format, rows, columns, Activations::Int8PerGroup);
    let stored: Vec<_> = (0..num_experts)
        .map(|_| StoredExpert { gate: weight(inner, hidden), up: weight(inner, hidden), down: weight(hidden, inner) })
        .collect();
    let x = random.normals(rows * hidden);
    let logits = random.normals(rows * num_experts);
    let record: &Record<'_> = &|device, ops, inputs| {
        let experts: Result<Arc<[_]>, _> = stored.iter().map(|expert| expert.load(device)).collect();
        let (chosen, weights) = ops.route(inputs[1], top_k, true)?;
        Ok(vec![ops.experts(inputs[0], &experts?, chosen, weights)?])
    };
    let row = |(x, logits): (&[f32], &[f32])| {
        let mut out = vec![0.0; hidden];
        for (expert, weight) in chosen(logits, top_k, true) {
            let values = stored[expert].apply(x);
            out.iter_mut().zip(values).for_each(|(out, value)| *out += weight * value);
        }
        out
    };
    let expected = x.chunks_exact(hidden).zip(logits.chunks_exact(num_experts)).flat_map(row).collect();
    Case {
        name: format!("experts {format}, {top_k} of {num_experts}, {rows} rows"),
        rows: plain_rows(rows),
        outputs: vec![],
        inputs: vec![x, logits],
        states: None,
        record,
        expected: vec![expected],
        tolerance,
    }
    .check();
}

#[test]
fn float_experts() {
    for (rows, experts, top_k) in [(1, 3, 1), (7, 8, 3), (64, 16, 2)] {
        check_experts(WeightFormat::Float(FloatFormat::F32), rows, experts, top_k, Tolerance::relative(1e-5));
    }
}

/// Between the products activations are quantized again, and a last bit of the first product can move a code by one:
/// one part in 127 of a group's largest value.
#[test]
fn quantized_experts() {
    for (rows, experts, top_k) in [(1, 3, 1), (7, 8, 3), (64, 16, 2)] {
        check_experts(WeightFormat::Q4_1, rows, experts, top_k, Tolerance::relative(1e-2));
    }
}

/// Each expert answers with its own number, so the choice shows in the sum.
#[test]
fn ties_go_to_the_lowest_expert() {
    let one = |value: f32| WeightData {
        format: WeightFormat::Float(FloatFormat::F32),
        rows: 1,
        columns: 1,
        data: value.to_le_bytes().to_vec().into(),
        scales: Default::default(),
        biases: Default::default(),
        activations: Activations::Float,
    };
    let answers = [1.0, 10.0, 100.0, 1000.0];
    let stored = answers.map(|answer| StoredExpert { gate: one(1.0), up: one(1.0), down: one(answer) });
    let record: &Record<'_> = &|device, ops, inputs| {
        let experts: Result<Arc<[_]>, _> = stored.iter().map(|expert| expert.load(device)).collect();
        let (chosen, weights) = ops.route(inputs[1], 2, true)?;
        Ok(vec![ops.experts(inputs[0], &experts?, chosen, weights)?])
    };
    let logits = vec![0.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, -1.0, 5.0, -1.0, -1.0];
    let nearly = 1.0 / (1.0 + (-6.0_f64).exp());
    let sums = [(10.0 + 100.0) / 2.0, (1.0 + 10.0) / 2.0, 10.0 * nearly + 1.0 - nearly];
    let expected = sums.map(|sum| sum * silu(1.0));
    Case {
        name: "experts of tied logits".to_owned(),
        rows: plain_rows(3),
        outputs: vec![],
        inputs: vec![vec![1.0; 3], logits],
        states: None,
        record,
        expected: vec![expected.to_vec()],
        tolerance: Tolerance::relative(1e-6),
    }
    .check();
}
