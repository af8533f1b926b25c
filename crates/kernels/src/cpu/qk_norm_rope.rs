use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::math::{load_part, normalize, store_part};
use super::pool::Pool;
use super::share::{Shared, for_each_part};
use super::simd::{Kernel, LANES, Simd};
use super::{Kernels, Team};
use crate::host::{Element, Run, param_values};
use crate::ops::{QkNormRope, RopePairing};
use crate::{DType, Rows};

/// Query elements that are rotated in the time of a dispatch.
const SERIAL_ELEMENTS: usize = 4096;

/// Angles that are computed in the time of a dispatch.
const SERIAL_ANGLES: usize = 256;

pub(super) fn qk_norm_rope(cpu: &Kernels, op: &QkNormRope, run: &mut Run<'_>) {
    match op.out_k.dtype {
        DType::F32 => rows::<f32>(cpu, op, run),
        DType::F16 => rows::<f16>(cpu, op, run),
        DType::BF16 => rows::<bf16>(cpu, op, run),
        DType::I32 | DType::I8 => unreachable!("a recording refuses integer candidates"),
    }
}

fn rows<T: Stored>(cpu: &Kernels, op: &QkNormRope, run: &mut Run<'_>) {
    run.write(op.out_k, |run, out_k: &mut [T]| {
        run.write(op.out_v, |run, out_v: &mut [T]| {
            let (k, v) = (Shared::new(out_k), Shared::new(out_v));
            match op.out_gate {
                Some(gate) => {
                    run.write(gate, |run, out: &mut [f32]| queries(cpu, op, run, k, v, Some(Shared::new(out))))
                }
                None => queries(cpu, op, run, k, v, None),
            }
        });
    });
}

fn queries<T: Stored>(
    cpu: &Kernels,
    op: &QkNormRope,
    run: &mut Run<'_>,
    out_k: Shared<'_, T>,
    out_v: Shared<'_, T>,
    out_gate: Option<Shared<'_, f32>>,
) {
    let (width, kv_width) = (op.shape.query_width(), op.shape.key_value_width());
    run.write(op.out_q, |run, out_q: &mut [f32]| {
        let run = &*run;
        let Team { pool, scratch, .. } = &mut *cpu.team();
        let angles = scratch.angles.of(pool, op, run.rows());
        let workers = Shared::new(&mut scratch.workers);
        for_each_part(pool, out_q, width, SERIAL_ELEMENTS, |chunk, row, q| {
            let part = |width: usize| row * width..(row + 1) * width;
            // SAFETY: no two chunks run with the same worker at the same time, and each row belongs to one call.
            let (worker, k, v, gate) = unsafe {
                (
                    &mut workers.range(chunk.worker..chunk.worker + 1)[0],
                    out_k.range(part(kv_width)),
                    out_v.range(part(kv_width)),
                    out_gate.as_ref().map(|gate| gate.range(part(width))),
                )
            };
            let (cos, sin) = angles[part(op.rope.rotary_dim())].split_at(op.rope.rotary_dim() / 2);
            T::store(&run.read::<f32>(op.v)[part(kv_width)], v);
            cpu.set.run(RotateRow { op, run, row, cos, sin, head: &mut worker.values, q, k, gate });
        });
    });
}

/// Cosines and sines of the rows of a pass: all its layers turn by the same angles, as a rule.
#[derive(Debug, Default)]
pub(super) struct Angles {
    /// What they are of: positions `[rows, axes]`, frequencies and which axis each turns with.
    positions: Vec<[u32; 3]>,
    inv_freq: Vec<f32>,
    sections: Option<[usize; 3]>,
    /// Cosines, then sines of each row: `[rows, rotary_dim]`.
    values: Vec<f32>,
}

impl Angles {
    /// Grows to what a run of `rows` rows of `op` needs.
    pub(super) fn reserve(&mut self, op: &QkNormRope, rows: usize) {
        let missing = |capacity: usize, len: usize| capacity.saturating_sub(len);
        self.positions.reserve(missing(rows, self.positions.len()));
        self.inv_freq.reserve(missing(op.rope.inv_freq.len, self.inv_freq.len()));
        self.values.reserve(missing(rows * op.rope.rotary_dim(), self.values.len()));
    }

    /// Those of `rows`; computed anew only if the last ones were of something else.
    fn of(&mut self, pool: &mut Pool, op: &QkNormRope, rows: &Rows) -> &[f32] {
        let inv_freq = param_values(&op.rope.inv_freq);
        let position = |row| [0, 1, 2].map(|axis| rows.rope_position(row, axis));
        let same_rows = self.positions.len() == rows.len()
            && self.positions.iter().enumerate().all(|(row, known)| *known == position(row));
        if !same_rows || self.inv_freq != inv_freq || self.sections != op.rope.sections {
            self.positions.clear();
            self.positions.extend((0..rows.len()).map(position));
            self.inv_freq.clear();
            self.inv_freq.extend_from_slice(inv_freq);
            self.sections = op.rope.sections;
            self.values.resize(rows.len() * op.rope.rotary_dim(), 0.0);
            for_each_part(pool, &mut self.values, op.rope.rotary_dim(), SERIAL_ANGLES, |_, row, angles| {
                turn(op, rows, row, angles);
            });
        }
        &self.values
    }
}

/// Cosine and sine of each frequency at the position of `row`; angles are products in f32, as the contract says.
fn turn(op: &QkNormRope, rows: &Rows, row: usize, angles: &mut [f32]) {
    let (cos, sin) = angles.split_at_mut(op.rope.rotary_dim() / 2);
    for (i, inv_freq) in param_values(&op.rope.inv_freq).iter().enumerate() {
        (sin[i], cos[i]) = (rows.rope_position(row, op.rope.axis(i)) as f32 * inv_freq).sin_cos();
    }
}

/// All heads of one row.
struct RotateRow<'a, T> {
    op: &'a QkNormRope,
    run: &'a Run<'a>,
    row: usize,
    cos: &'a [f32],
    sin: &'a [f32],
    /// At least one head of memory.
    head: &'a mut [f32],
    q: &'a mut [f32],
    k: &'a mut [T],
    gate: Option<&'a mut [f32]>,
}

impl<T: Stored> Kernel for RotateRow<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { op, run, row, cos, sin, head: memory, q, k, gate } = self;
        let head_dim = op.shape.head_dim;
        let pairing = op.rope.pairing;
        let per_head = op.q.width / op.shape.num_attention_heads;
        let q_row = &run.read::<f32>(op.q)[row * op.q.width..][..op.q.width];
        for (head, out) in q_row.chunks_exact(per_head).zip(q.chunks_exact_mut(head_dim)) {
            prepare_head(s, &head[..head_dim], op.q_norm.as_ref().map(param_values), op.eps, out);
            rotate(s, pairing, cos, sin, out);
        }
        if let Some(gate) = gate {
            for (head, out) in q_row.chunks_exact(per_head).zip(gate.chunks_exact_mut(head_dim)) {
                out.copy_from_slice(&head[head_dim..]);
            }
        }
        let k_row = &run.read::<f32>(op.k)[row * op.k.width..][..op.k.width];
        let memory = &mut memory[..head_dim];
        for (head, out) in k_row.chunks_exact(head_dim).zip(k.chunks_exact_mut(head_dim)) {
            prepare_head(s, head, op.k_norm.as_ref().map(param_values), op.eps, memory);
            rotate(s, pairing, cos, sin, memory);
            T::store(memory, out);
        }
    }
}

#[inline(always)]
fn prepare_head<S: Simd>(s: S, head: &[f32], norm: Option<&[f32]>, eps: f32, out: &mut [f32]) {
    match norm {
        Some(weight) => normalize(s, head, weight, eps, out),
        None => out.copy_from_slice(head),
    }
}

/// Turns each pair of `head`.
#[inline(always)]
fn rotate<S: Simd>(s: S, pairing: RopePairing, cos: &[f32], sin: &[f32], head: &mut [f32]) {
    match pairing {
        RopePairing::Halves => {
            let (first, rest) = head.split_at_mut(cos.len());
            let second = &mut rest[..cos.len()];
            let angles = cos.chunks(LANES).zip(sin.chunks(LANES));
            for ((a, b), (cos, sin)) in first.chunks_mut(LANES).zip(second.chunks_mut(LANES)).zip(angles) {
                let (cos, sin) = (load_part(s, cos), load_part(s, sin));
                let (x, y) = (load_part(s, a), load_part(s, b));
                store_part(s, s.sub(s.mul(x, cos), s.mul(y, sin)), a);
                store_part(s, s.add(s.mul(y, cos), s.mul(x, sin)), b);
            }
        }
        RopePairing::Neighbors => {
            for ([a, b], (cos, sin)) in head.as_chunks_mut().0.iter_mut().zip(cos.iter().zip(sin)) {
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
    }
}

/// A type that caches store, written a slice at a time.
trait Stored: Element + Send {
    fn store(values: &[f32], out: &mut [Self]);
}

impl Stored for f32 {
    fn store(values: &[f32], out: &mut [Self]) {
        out.copy_from_slice(values);
    }
}

impl Stored for f16 {
    fn store(values: &[f32], out: &mut [Self]) {
        out.convert_from_f32_slice(values);
    }
}

impl Stored for bf16 {
    fn store(values: &[f32], out: &mut [Self]) {
        out.convert_from_f32_slice(values);
    }
}
