use half::{bf16, f16};

use super::rms_norm::normalize;
use crate::host::{Element, Run, param_values};
use crate::ops::{QkNormRope, Rope, RopePairing};
use crate::{DType, Param, Rows, Tensor};

pub(super) fn qk_norm_rope(op: &QkNormRope, run: &mut Run<'_>) {
    let head_dim = op.shape.head_dim;
    let (heads, kv_heads) = (op.shape.num_attention_heads, op.shape.num_key_value_heads);
    let q_stride = if op.out_gate.is_some() { 2 * head_dim } else { head_dim };
    run.write(op.out_q, |run, out: &mut [f32]| {
        let q = run.read::<f32>(op.q);
        for (i, out) in out.chunks_exact_mut(head_dim).enumerate() {
            let head = norm(&q[i * q_stride..][..head_dim], op.q_norm.as_ref(), op.eps);
            out.copy_from_slice(&rotate(head, &op.rope, run.rows(), i / heads));
        }
    });
    if let Some(out_gate) = op.out_gate {
        run.write(out_gate, |run, out: &mut [f32]| {
            let q = run.read::<f32>(op.q);
            for (i, out) in out.chunks_exact_mut(head_dim).enumerate() {
                out.copy_from_slice(&q[i * q_stride + head_dim..][..head_dim]);
            }
        });
    }
    let keys: Vec<f32> = run
        .read::<f32>(op.k)
        .chunks_exact(head_dim)
        .enumerate()
        .flat_map(|(i, k)| rotate(norm(k, op.k_norm.as_ref(), op.eps), &op.rope, run.rows(), i / kv_heads))
        .collect();
    let values = run.read::<f32>(op.v).to_vec();
    cast(run, op.out_k, &keys);
    cast(run, op.out_v, &values);
}

fn norm(head: &[f32], weight: Option<&Param>, eps: f32) -> Vec<f32> {
    let mut out = head.to_vec();
    if let Some(weight) = weight {
        normalize(head, param_values(weight), eps, &mut out);
    }
    out
}

/// Turns each pair of `head` by the angle of `row`'s position.
fn rotate(mut head: Vec<f32>, rope: &Rope, rows: &Rows, row: usize) -> Vec<f32> {
    for (i, inv_freq) in param_values(&rope.inv_freq).iter().enumerate() {
        let (first, second) = match rope.pairing {
            RopePairing::Halves => (i, i + rope.rotary_dim() / 2),
            RopePairing::Neighbors => (2 * i, 2 * i + 1),
        };
        let (sin, cos) = (rows.rope_position(row, rope.axis(i)) as f32 * inv_freq).sin_cos();
        let (a, b) = (head[first], head[second]);
        head[first] = a * cos - b * sin;
        head[second] = b * cos + a * sin;
    }
    head
}

/// Stores `values` in the type of the cache.
fn cast(run: &mut Run<'_>, out: Tensor, values: &[f32]) {
    match out.dtype {
        DType::F32 => store::<f32>(run, out, values),
        DType::F16 => store::<f16>(run, out, values),
        DType::BF16 => store::<bf16>(run, out, values),
        DType::I32 | DType::I8 => unreachable!("a recording refuses integer candidates"),
    }
}

fn store<T: Element>(run: &mut Run<'_>, out: Tensor, values: &[f32]) {
    run.write(out, |_, out: &mut [T]| {
        for (out, &value) in out.iter_mut().zip(values) {
            *out = T::from_f32(value);
        }
    });
}
