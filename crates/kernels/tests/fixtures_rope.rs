//! Rotary embeddings against golden values, on every device.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod support;

use pleach_kernels::ops::{AttentionShape, Rope, RopePairing};
use pleach_kernels::{DType, HeadRows, Rows, SequenceRows};

use support::Tolerance;
use support::case::{Case, Record};
use support::fixture::Fixture;

/// One head each of queries and keys, rotated at nine positions up to 131071.
struct RopeCase {
    name: &'static str,
    file: Fixture,
    sections: Option<[usize; 3]>,
}

impl RopeCase {
    fn open(name: &'static str) -> Self {
        let sections = (name == "qwen35_mrope").then_some([11, 11, 10]);
        Self { name, file: Fixture::open("rope/rope.safetensors"), sections }
    }

    fn f32(&self, tensor: &str) -> Vec<f32> {
        self.file.f32(&format!("{}.{tensor}", self.name))
    }

    fn head_dim(&self) -> usize {
        self.file.shape(&format!("{}.q", self.name))[2]
    }

    /// A sequence of its own for each position.
    fn rows(&self) -> Rows {
        let lens: Vec<_> = self.file.i32("positions").iter().map(|&position| position as usize).collect();
        let parts: Vec<_> = lens.iter().map(|&len| SequenceRows::chain(len, &[0])).collect();
        let rows = Rows::new(&parts).unwrap();
        if self.sections.is_none() {
            return rows;
        }
        let axes = self.file.i32(&format!("{}.positions_thw", self.name));
        let triple = |row: usize| [0, 1, 2].map(|axis| axes[axis * lens.len() + row] as u32);
        rows.with_rope_positions((0..lens.len()).map(triple).collect()).unwrap()
    }

    fn check(&self, rows: Rows, [q, k]: [Vec<f32>; 2], [q_out, k_out]: [Vec<f64>; 2], tolerance: Tolerance) {
        let head_dim = self.head_dim();
        let shape = AttentionShape { num_attention_heads: 1, num_key_value_heads: 1, head_dim };
        let record: &Record<'_> = &|device, ops, inputs| {
            let inv_freq = device.param(self.f32("inv_freq"))?;
            let heads = ops.qk_norm_rope(&HeadRows {
                q: inputs[0],
                k: inputs[1],
                v: inputs[1],
                shape,
                gated: false,
                q_norm: None,
                k_norm: None,
                eps: 0.0,
                rope: &Rope { inv_freq, pairing: RopePairing::Halves, sections: self.sections },
                cache: DType::F32,
            })?;
            Ok(vec![heads.q, heads.k])
        };
        let (name, inputs, expected) = (self.name.to_owned(), vec![q, k], vec![q_out, k_out]);
        Case { name, rows, outputs: vec![], inputs, states: None, record, expected, tolerance }.check_golden();
    }

    /// Rows below `end` of a `[9, width]` tensor.
    fn below<T: Clone>(values: &[T], end: usize) -> Vec<T> {
        values[..values.len() / 9 * end].to_vec()
    }
}

const CASES: [&str; 5] = ["smollm2", "qwen3", "llama3", "qwen35_text", "qwen35_mrope"];

#[test]
fn rotated_queries_and_keys() {
    for case in CASES.map(RopeCase::open) {
        let expected = ["q_out", "k_out"].map(|name| case.file.f64(&format!("{}.{name}", case.name)));
        // The README's 1e-6, of the head's largest value.
        case.check(case.rows(), ["q", "k"].map(|name| case.f32(name)), expected, Tolerance::relative(1e-6));
    }
}

/// A query of ones and zeros comes out as cosines and sines.
#[test]
fn cosines_and_sines() {
    for case in CASES.map(RopeCase::open) {
        let (head_dim, half) = (case.head_dim(), case.f32("inv_freq").len());
        let head = |i: usize| if i % head_dim < half { 1.0 } else { 0.0 };
        let q: Vec<f32> = (0..9 * head_dim).map(head).collect();
        let (cos, sin) = (case.f32("cos"), case.f32("sin"));
        let turned = |i: usize| {
            let (row, i) = (i / head_dim, i % head_dim);
            let place = row * 2 * half + i;
            f64::from(if i < half {
                cos[place]
            } else if i < 2 * half {
                sin[place]
            } else {
                0.0
            })
        };
        let expected: Vec<f64> = (0..9 * head_dim).map(turned).collect();
        let whole = [expected.clone(), expected.clone()];
        // An f32 angle of 131071 radians is good to 2e-3.
        case.check(case.rows(), [q.clone(), q.clone()], whole, Tolerance::absolute(2e-3));

        // Up to position 4095 it is good to 2e-5.
        let q = RopeCase::below(&q, 8);
        let expected = RopeCase::below(&expected, 8);
        case.check(rows_below(&case, 8), [q.clone(), q], [expected.clone(), expected], Tolerance::absolute(2e-5));
    }
}

/// The first rows of a case alone.
fn rows_below(case: &RopeCase, end: usize) -> Rows {
    let all = case.rows();
    let lens: Vec<_> = (0..end).map(|row| all.position(row)).collect();
    let parts: Vec<_> = lens.iter().map(|&len| SequenceRows::chain(len, &[0])).collect();
    let positions = (0..end).map(|row| [0, 1, 2].map(|axis| all.rope_position(row, axis))).collect();
    Rows::new(&parts).unwrap().with_rope_positions(positions).unwrap()
}

/// With one position on all axes, sections change nothing.
#[test]
fn sections_with_equal_positions_are_plain_rope() {
    let case = RopeCase { sections: Some([11, 11, 10]), ..RopeCase::open("qwen35_text") };
    let lens: Vec<_> = case.file.i32("positions").iter().map(|&position| position as usize).collect();
    let parts: Vec<_> = lens.iter().map(|&len| SequenceRows::chain(len, &[0])).collect();
    let expected = ["q_out", "k_out"].map(|name| case.file.f64(&format!("{}.{name}", case.name)));
    let inputs = ["q", "k"].map(|name| case.f32(name));
    case.check(Rows::new(&parts).unwrap(), inputs, expected, Tolerance::relative(1e-6));
}
