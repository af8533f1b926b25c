//! Ops that look at one row at a time and at no state.

use pleach_kernels::Tensor;

use crate::support::case::{Case, Record, plain_rows};
use crate::support::random::Random;
use crate::support::{Tolerance, wide};

/// Numbers of rows: one, few, an odd number, and a full tree.
const ROWS: [usize; 4] = [1, 2, 7, 64];
/// Widths: shorter than a vector, odd, and a whole number of vectors.
const WIDTHS: [usize; 4] = [1, 5, 67, 256];

/// One rounding per operation, and an exponential within a few units of the last place.
const POINTWISE: Tolerance = Tolerance { absolute: 1e-7, relative: 1e-6 };
/// A sum of up to 256 squares in any order.
const NORM: Tolerance = Tolerance { absolute: 1e-7, relative: 3e-6 };

struct Sample {
    rows: usize,
    width: usize,
    random: Random,
}

fn samples() -> impl Iterator<Item = Sample> {
    let sizes = ROWS.into_iter().flat_map(|rows| WIDTHS.map(|width| (rows, width)));
    sizes.map(|(rows, width)| Sample { rows, width, random: Random::new((rows * 1000 + width) as u64) })
}

impl Sample {
    fn values(&mut self) -> Vec<f32> {
        self.random.around(0.3, 2.0, self.rows * self.width)
    }

    fn check(&self, op: &str, inputs: &[&[f32]], record: &Record<'_>, expected: Vec<Vec<f64>>, tolerance: Tolerance) {
        Case {
            name: format!("{op} [{}, {}]", self.rows, self.width),
            rows: plain_rows(self.rows),
            outputs: vec![],
            inputs: inputs.iter().map(|input| input.to_vec()).collect(),
            states: None,
            record,
            expected,
            tolerance,
        }
        .check();
    }
}

pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub(crate) fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

fn zip(x: &[f32], y: &[f32], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    x.iter().zip(y).map(|(&x, &y)| f(f64::from(x), f64::from(y))).collect()
}

/// `x / √(mean(x²) + eps) · w` of each `w.len()` values.
pub(crate) fn normalized(x: &[f64], w: &[f32], eps: f64) -> Vec<f64> {
    let norm = |x: &[f64]| {
        let root = (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + eps).sqrt();
        x.iter().zip(w).map(|(x, &w)| x / root * f64::from(w)).collect::<Vec<_>>()
    };
    x.chunks_exact(w.len()).flat_map(norm).collect()
}

#[test]
fn add() {
    for mut sample in samples() {
        let (x, y) = (sample.values(), sample.values());
        let record: &Record<'_> = &|_, ops, inputs| Ok(vec![ops.add(inputs[0], inputs[1])?]);
        let expected = x.iter().zip(&y).map(|(x, y)| f64::from(x + y)).collect();
        sample.check("add", &[&x, &y], record, vec![expected], Tolerance::EXACT);
    }
}

#[test]
fn add_gated() {
    for mut sample in samples() {
        let (x, y) = (sample.values(), sample.values());
        let gate = sample.random.around(0.0, 3.0, sample.rows);
        let record: &Record<'_> = &|_, ops, inputs| Ok(vec![ops.add_gated(inputs[0], inputs[1], inputs[2])?]);
        let gates: Vec<f32> = (0..x.len()).map(|i| gate[i / sample.width]).collect();
        let gated = zip(&y, &gates, |y, gate| y * sigmoid(gate));
        let expected = x.iter().zip(&gated).map(|(&x, gated)| f64::from(x) + gated).collect();
        sample.check("add_gated", &[&x, &y, &gate], record, vec![expected], POINTWISE);
    }
}

#[test]
fn swiglu() {
    for mut sample in samples() {
        let (mut gate, up) = (sample.values(), sample.values());
        // Far out, where the exponential overflows or vanishes.
        for (value, extreme) in gate.iter_mut().zip([-200.0, 200.0, -88.5, 0.0]) {
            *value = extreme;
        }
        let record: &Record<'_> = &|_, ops, inputs| Ok(vec![ops.swiglu(inputs[0], inputs[1])?]);
        let expected = zip(&gate, &up, |gate, up| silu(gate) * up);
        sample.check("swiglu", &[&gate, &up], record, vec![expected], POINTWISE);
    }
}

#[test]
fn rms_norm() {
    for mut sample in samples() {
        let x = sample.values();
        let weight = sample.random.around(1.0, 0.3, sample.width);
        let record: &Record<'_> =
            &|device, ops, inputs| Ok(vec![ops.rms_norm(inputs[0], &device.param(weight.clone())?, 1e-3)?]);
        let expected = normalized(&wide(&x), &weight, f64::from(1e-3_f32));
        sample.check("rms_norm", &[&x], record, vec![expected], NORM);
    }
}

#[test]
fn rms_norm_of_zeros_is_zero() {
    let sample = Sample { rows: 2, width: 8, random: Random::new(1) };
    let record: &Record<'_> =
        &|device, ops, inputs| Ok(vec![ops.rms_norm(inputs[0], &device.param(vec![1.0; 8])?, 1e-6)?]);
    sample.check("rms_norm", &[&[0.0; 16]], record, vec![vec![0.0; 16]], Tolerance::EXACT);
}

#[test]
fn add_rms_norm() {
    for mut sample in samples() {
        let (x, y) = (sample.values(), sample.values());
        let weight = sample.random.around(1.0, 0.3, sample.width);
        let record: &Record<'_> = &|device, ops, inputs| {
            let (sum, out) = ops.add_rms_norm(inputs[0], inputs[1], &device.param(weight.clone())?, 1e-5)?;
            Ok(vec![sum, out])
        };
        let sum = zip(&x, &y, |x, y| x + y);
        let expected = normalized(&sum, &weight, f64::from(1e-5_f32));
        sample.check("add_rms_norm", &[&x, &y], record, vec![sum, expected], NORM);
    }
}

#[test]
fn gated_rms_norm() {
    for (rows, heads, head_dim) in [(1, 1, 8), (3, 4, 16), (64, 2, 32), (5, 3, 7), (2, 2, 128)] {
        let mut sample = Sample { rows, width: heads * head_dim, random: Random::new(rows as u64) };
        let (x, gate) = (sample.values(), sample.values());
        let weight = sample.random.around(1.0, 0.3, head_dim);
        let record: &Record<'_> = &|device, ops, inputs| {
            Ok(vec![ops.gated_rms_norm(inputs[0], inputs[1], &device.param(weight.clone())?, 1e-6)?])
        };
        let normed = normalized(&wide(&x), &weight, f64::from(1e-6_f32));
        let expected = normed.iter().zip(&gate).map(|(x, &gate)| x * silu(f64::from(gate))).collect();
        sample.check("gated_rms_norm", &[&x, &gate], record, vec![expected], NORM);
    }
}

#[test]
fn delta_gates() {
    for mut sample in samples() {
        let (mut a, b) = (sample.values(), sample.values());
        // Both sides of the place where softplus becomes the identity.
        for (value, extreme) in a.iter_mut().zip([19.9, 20.1, -40.0]) {
            *value = extreme;
        }
        let neg_exp_a = sample.random.around(-1.0, 0.3, sample.width);
        let dt_bias = sample.random.normals(sample.width);
        let record: &Record<'_> = &|device, ops, inputs| {
            let (neg_exp_a, dt_bias) = (device.param(neg_exp_a.clone())?, device.param(dt_bias.clone())?);
            let (g, beta) = ops.delta_gates(inputs[0], inputs[1], &neg_exp_a, &dt_bias)?;
            Ok(vec![g, beta])
        };
        let head = |i: usize| i % sample.width;
        let g = a
            .iter()
            .enumerate()
            .map(|(i, &a)| f64::from(neg_exp_a[head(i)]) * (f64::from(a) + f64::from(dt_bias[head(i)])).exp().ln_1p());
        let expected = vec![g.collect(), b.iter().map(|&b| sigmoid(f64::from(b))).collect()];
        sample.check("delta_gates", &[&a, &b], record, expected, POINTWISE);
    }
}

#[test]
fn concat() {
    for mut sample in samples() {
        let x = sample.values();
        let y = sample.random.normals(sample.rows * 3);
        let record: &Record<'_> = &|_, ops, inputs| Ok(vec![ops.concat(inputs[0], inputs[1])?]);
        let rows = x.chunks_exact(sample.width).zip(y.chunks_exact(3));
        let expected = rows.flat_map(|(x, y)| wide(&[x, y].concat())).collect();
        sample.check("concat", &[&x, &y], record, vec![expected], Tolerance::EXACT);
    }
}

#[test]
fn hadamard() {
    for (rows, width, block) in [(1, 32, 32), (7, 256, 32), (64, 96, 16), (2, 128, 128), (3, 6, 1)] {
        let mut sample = Sample { rows, width, random: Random::new(width as u64) };
        let x = sample.values();
        let signs: Vec<f32> = (0..width).map(|_| if sample.random.below(2) == 0 { -1.0 } else { 1.0 }).collect();
        let record: &Record<'_> =
            &|device, ops, inputs| Ok(vec![ops.hadamard(inputs[0], &device.param(signs.clone())?, block)?]);
        let element = |i: usize| {
            let start = i / block * block;
            let term = |k: usize| {
                let sign = if ((i % block) & k).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
                sign * f64::from(x[start + k]) * f64::from(signs[(start + k) % width])
            };
            (0..block).map(term).sum::<f64>() / (block as f64).sqrt()
        };
        let expected = (0..x.len()).map(element).collect();
        // Sums of up to 128 terms.
        sample.check("hadamard", &[&x], record, vec![expected], Tolerance { absolute: 2e-6, relative: 1e-6 });
    }
}

#[test]
fn gather_outputs() {
    let mut random = Random::new(5);
    for (rows, outputs) in
        [(1, vec![0]), (6, vec![5]), (6, vec![]), (6, vec![4, 0, 4, 1]), (64, (0..64).rev().collect())]
    {
        let x = random.normals(rows * 33);
        let record: &Record<'_> = &|_, ops, inputs| Ok(vec![ops.gather_outputs(inputs[0])?]);
        let expected = outputs.iter().flat_map(|row| wide(&x[row * 33..(row + 1) * 33])).collect();
        let name = format!("gather_outputs {outputs:?} of {rows}");
        let (rows, inputs, tolerance) = (plain_rows(rows), vec![x], Tolerance::EXACT);
        Case { name, rows, outputs, inputs, states: None, record, expected: vec![expected], tolerance }.check();
    }
}

/// What comes after the gathering counts outputs, not rows.
#[test]
fn ops_after_gathering_run_over_outputs() {
    let x = Random::new(6).normals(40 * 8);
    let outputs = vec![39, 7];
    let record: &Record<'_> = &|device, ops, inputs| {
        let last: Tensor = ops.gather_outputs(inputs[0])?;
        Ok(vec![ops.rms_norm(last, &device.param(vec![2.0; 8])?, 1e-6)?])
    };
    let gathered: Vec<f64> = outputs.iter().flat_map(|row| wide(&x[row * 8..(row + 1) * 8])).collect();
    let expected = normalized(&gathered, &[2.0; 8], 1e-6);
    let (name, rows, inputs) = ("rms_norm of outputs".to_owned(), plain_rows(40), vec![x]);
    Case { name, rows, outputs, inputs, states: None, record, expected: vec![expected], tolerance: NORM }.check();
}
