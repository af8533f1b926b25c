//! Rotation, normalization and attention over caches and trees.

use half::{bf16, f16};
use pleach_kernels::ops::{AttentionShape, Rope, RopePairing, Sight};
use pleach_kernels::quantize::int8_head;
use pleach_kernels::{DType, HeadRows, KernelError, KvLayout, Ops, Param, Rows, StateLayout, StateValues, Tensor};

use super::pointwise::{normalized, sigmoid};
use crate::support::case::{Case, Record};
use crate::support::random::{Random, SHAPES, Shape, Tree, forest};
use crate::support::{Tolerance, wide};

/// Sums over some hundred positions, exponentials, and a division.
const ATTENTION: Tolerance = Tolerance { absolute: 1e-6, relative: 5e-6 };

/// A head as a cache of type `dtype` keeps it.
fn rounded(head: &[f32], dtype: DType) -> Vec<f64> {
    let each = |round: fn(f32) -> f32| head.iter().map(|&x| f64::from(round(x))).collect();
    match dtype {
        DType::F16 => each(|x| f16::from_f32(x).to_f32()),
        DType::BF16 => each(|x| bf16::from_f32(x).to_f32()),
        DType::F32 | DType::I32 => each(|x| x),
        DType::I8 => {
            let mut codes = vec![0; head.len()];
            let scale = int8_head(head, &mut codes).to_f64();
            codes.into_iter().map(|code| scale * f64::from(code)).collect()
        }
    }
}

pub(super) fn layout(shape: AttentionShape, dtype: DType) -> KvLayout {
    KvLayout { num_key_value_heads: shape.num_key_value_heads, head_dim: shape.head_dim, dtype, window: None }
}

/// Heads neither normalized nor rotated: attention alone.
pub(super) fn bare_heads(
    ops: &mut Ops,
    [q, k, v]: [Tensor; 3],
    shape: AttentionShape,
    gated: bool,
    inv_freq: &Param,
    cache: DType,
) -> Result<pleach_kernels::RotatedHeads, KernelError> {
    let rope = Rope { inv_freq: inv_freq.clone(), pairing: RopePairing::Halves, sections: None };
    ops.qk_norm_rope(&HeadRows { q, k, v, shape, gated, q_norm: None, k_norm: None, eps: 0.0, rope: &rope, cache })
}

struct Attend<'a> {
    shape: AttentionShape,
    dtype: DType,
    gated: bool,
    sight: Sight,
    rows: &'a Rows,
    states: &'a [StateValues],
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    scale: f64,
}

impl Attend<'_> {
    fn expected(&self) -> Vec<f64> {
        let rows = 0..self.rows.len();
        rows.flat_map(|row| (0..self.shape.num_attention_heads).flat_map(move |head| self.head(row, head))).collect()
    }

    /// One head of one row, the formula word for word.
    fn head(&self, row: usize, head: usize) -> Vec<f64> {
        let dim = self.shape.head_dim;
        let stride = if self.gated { 2 * dim } else { dim };
        let start = (row * self.shape.num_attention_heads + head) * stride;
        let (q, gate) = (&self.q[start..start + dim], &self.q[start + dim..start + stride]);
        let kv_head = head / (self.shape.num_attention_heads / self.shape.num_key_value_heads);
        let seen = self.seen(row, kv_head);
        let score = |(key, _): &(Vec<f64>, Vec<f64>)| {
            self.scale * q.iter().zip(key).map(|(&q, k)| f64::from(q) * k).sum::<f64>()
        };
        let exponentials: Vec<f64> = seen.iter().map(|pair| score(pair).exp()).collect();
        let sum: f64 = exponentials.iter().sum();
        let mut out = vec![0.0; dim];
        for ((_, value), e) in seen.iter().zip(&exponentials) {
            out.iter_mut().zip(value).for_each(|(out, value)| *out += e / sum * value);
        }
        out.iter_mut().zip(gate).for_each(|(out, &gate)| *out *= sigmoid(f64::from(gate)));
        out
    }

    /// Keys and values by position.
    fn seen(&self, row: usize, kv_head: usize) -> Vec<(Vec<f64>, Vec<f64>)> {
        let dim = self.shape.head_dim;
        let pair = |keys: &[f32], values: &[f32], token: usize| {
            let start = (token * self.shape.num_key_value_heads + kv_head) * dim;
            let cut = |all: &[f32]| rounded(&all[start..start + dim], self.dtype);
            (cut(keys), cut(values))
        };
        let state = &self.states[self.rows.sequence(row)];
        let cache = &state.attention[0];
        let mut path = Vec::new();
        self.rows.path_into(row, &mut path);
        let committed = (0..state.len).map(|position| pair(&cache.keys, &cache.values, position));
        let all = committed.chain(path.iter().map(|&row| pair(self.k, self.v, row)));
        let seen = self.sight.positions(self.rows.position(row), state.len + path.len());
        all.skip(seen.start).take(seen.len()).collect()
    }

    fn check(&self, name: String) {
        // A cache that keeps no more than is seen.
        let layout = KvLayout { window: self.sight.window, ..layout(self.shape, self.dtype) };
        let record: &Record<'_> = &|device, ops, inputs| {
            let inv_freq = device.param(vec![])?;
            let heads =
                bare_heads(ops, [inputs[0], inputs[1], inputs[2]], self.shape, self.gated, &inv_freq, self.dtype)?;
            Ok(vec![ops.attention_within(self.sight, 0, layout, self.shape, self.scale as f32, heads)?])
        };
        Case {
            name,
            rows: self.rows.clone(),
            outputs: vec![],
            inputs: vec![self.q.to_vec(), self.k.to_vec(), self.v.to_vec()],
            states: Some((StateLayout { attention: vec![layout], delta: vec![] }, self.states.to_vec())),
            record,
            expected: vec![self.expected()],
            tolerance: ATTENTION,
        }
        .check();
    }
}

fn check_attention(seed: u64, shape: AttentionShape, dtype: DType, gated: bool, trees: &[(usize, usize, Shape)]) {
    let mut random = Random::new(seed);
    let trees: Vec<_> =
        trees.iter().map(|&(len, n, shape)| Tree { len, tokens: vec![0; n], parents: random.tree(shape, n) }).collect();
    check_rows(random, shape, dtype, gated, Sight::ALL, &forest(&trees));
}

/// Attention of rows with random values over random states.
pub(super) fn check_rows(
    mut random: Random,
    shape: AttentionShape,
    dtype: DType,
    gated: bool,
    sight: Sight,
    rows: &Rows,
) {
    let state_layout = StateLayout { attention: vec![layout(shape, dtype)], delta: vec![] };
    let lens = (0..rows.num_sequences()).map(|sequence| rows.sequence_len(sequence));
    let states: Vec<_> = lens.clone().map(|len| random.state(&state_layout, len)).collect();
    let per_head = if gated { 2 } else { 1 };
    let q = random.normals(rows.len() * per_head * shape.query_width());
    let k = random.normals(rows.len() * shape.key_value_width());
    let v = random.normals(rows.len() * shape.key_value_width());
    let lens: Vec<_> = lens.collect();
    let name = format!("attention {shape:?} {dtype:?} gated {gated}, {sight:?}, {} rows after {lens:?}", rows.len());
    let scale = 1.0 / (shape.head_dim as f64).sqrt();
    // The scale is handed over in f32.
    let scale = f64::from(scale as f32);
    Attend { shape, dtype, gated, sight, rows, states: &states, q: &q, k: &k, v: &v, scale }.check(name);
}

pub(super) const SMALL: AttentionShape =
    AttentionShape { num_attention_heads: 4, num_key_value_heads: 2, head_dim: 16 };

#[test]
fn trees_of_every_shape() {
    for (seed, tree) in SHAPES.into_iter().enumerate() {
        check_attention(seed as u64, SMALL, DType::F32, false, &[(5, 13, tree)]);
    }
}

#[test]
fn caches_of_every_type() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I8] {
        check_attention(20, SMALL, dtype, true, &[(70, 6, Shape::Random)]);
        // One row reads the cache as it is stored, many convert it first.
        check_attention(21, SMALL, dtype, false, &[(150, 1, Shape::Chain)]);
        check_attention(22, SMALL, dtype, false, &[(75, 40, Shape::Chain), (3, 9, Shape::Binary)]);
    }
}

/// Around the ends of the cache's blocks, the pass standing across them.
#[test]
fn caches_around_block_ends() {
    for len in [0, 1, 63, 64, 65, 127, 128, 200] {
        check_attention(30 + len as u64, SMALL, DType::F16, false, &[(len, 3, Shape::Chain)]);
    }
    check_attention(40, SMALL, DType::BF16, false, &[(60, 64, Shape::Random)]);
}

/// Long enough for the blocks of one row to be shared out among threads, in several waves.
#[test]
fn long_contexts() {
    for (dtype, shape) in [(DType::F16, Shape::Chain), (DType::I8, Shape::Binary)] {
        check_attention(45, SMALL, dtype, true, &[(1000, 1, shape)]);
        check_attention(46, SMALL, dtype, true, &[(700, 5, shape), (10, 2, shape)]);
    }
    let wide = AttentionShape { num_attention_heads: 20, num_key_value_heads: 1, head_dim: 256 };
    check_attention(47, wide, DType::F16, false, &[(2500, 3, Shape::Star)]);
}

#[test]
fn several_sequences_do_not_see_each_other() {
    let trees = [(3, 5, Shape::Star), (0, 1, Shape::Chain), (90, 9, Shape::Random), (64, 4, Shape::Binary)];
    check_attention(50, SMALL, DType::F32, true, &trees);
}

#[test]
fn heads_of_real_sizes() {
    for (heads, kv_heads, head_dim) in
        [(1, 1, 64), (9, 3, 64), (8, 1, 128), (4, 4, 256), (2, 1, 5), (40, 1, 80), (6, 1, 24)]
    {
        let shape = AttentionShape { num_attention_heads: heads, num_key_value_heads: kv_heads, head_dim };
        check_attention(60, shape, DType::F16, false, &[(33, 4, Shape::Random)]);
        check_attention(61, shape, DType::I8, false, &[(65, 6, Shape::Chain)]);
    }
}

struct Rotate {
    shape: AttentionShape,
    rotary_dim: usize,
    pairing: RopePairing,
    gated: bool,
    norm: bool,
}

/// One head normalized and turned, in f64 but with the angle in f32 as the contract says.
fn rotated(head: &[f32], norm: Option<&[f32]>, inv_freq: &[f32], pairing: RopePairing, position: usize) -> Vec<f64> {
    let mut head = match norm {
        Some(weight) => normalized(&wide(head), weight, f64::from(1e-6_f32)),
        None => wide(head),
    };
    for i in 0..inv_freq.len() {
        let (first, second) = match pairing {
            RopePairing::Halves => (i, i + inv_freq.len()),
            RopePairing::Neighbors => (2 * i, 2 * i + 1),
        };
        let angle = f64::from(position as f32 * inv_freq[i]);
        let (a, b) = (head[first], head[second]);
        head[first] = a * angle.cos() - b * angle.sin();
        head[second] = b * angle.cos() + a * angle.sin();
    }
    head
}

fn check_rotation(case: &Rotate) {
    let Rotate { shape, rotary_dim, pairing, gated, norm } = *case;
    let mut random = Random::new((shape.head_dim + rotary_dim) as u64);
    // Positions 1000 and on, deep in a sequence.
    let rows = forest(&[Tree { len: 1000, tokens: vec![0; 9], parents: random.tree(Shape::Random, 9) }]);
    let dim = shape.head_dim;
    let stride = if gated { 2 * dim } else { dim };
    let inv_freq: Vec<f32> = (0..rotary_dim / 2).map(|i| 0.5_f32.powi(i as i32)).collect();
    let norms = [random.around(1.0, 0.2, dim), random.around(1.0, 0.2, dim)];
    let q = random.normals(rows.len() * shape.num_attention_heads * stride);
    let k = random.normals(rows.len() * shape.key_value_width());
    let v = random.normals(rows.len() * shape.key_value_width());

    let record: &Record<'_> = &|device, ops, inputs| {
        let [q_norm, k_norm] = [device.param(norms[0].clone())?, device.param(norms[1].clone())?];
        let rope = Rope { inv_freq: device.param(inv_freq.clone())?, pairing, sections: None };
        let heads = ops.qk_norm_rope(&HeadRows {
            q: inputs[0],
            k: inputs[1],
            v: inputs[2],
            shape,
            gated,
            q_norm: norm.then_some(&q_norm),
            k_norm: norm.then_some(&k_norm),
            eps: 1e-6,
            rope: &rope,
            cache: DType::F32,
        })?;
        Ok([heads.q, heads.k, heads.v].into_iter().chain(heads.gate).collect())
    };
    let turn = |i: usize, head: &[f32], heads: usize, weight: &[f32]| {
        rotated(head, norm.then_some(weight), &inv_freq, pairing, rows.position(i / heads))
    };
    let q_heads = q.chunks_exact(stride).enumerate();
    let turned_q = q_heads.flat_map(|(i, head)| turn(i, &head[..dim], shape.num_attention_heads, &norms[0])).collect();
    let k_heads = k.chunks_exact(dim).enumerate();
    let turned_k = k_heads.flat_map(|(i, head)| turn(i, head, shape.num_key_value_heads, &norms[1])).collect();
    let mut expected = vec![turned_q, turned_k, wide(&v)];
    if gated {
        expected.push(q.chunks_exact(stride).flat_map(|head| wide(&head[dim..])).collect());
    }
    Case {
        name: format!("qk_norm_rope {shape:?}, {rotary_dim} rotated by {pairing:?}, gated {gated}, norm {norm}"),
        rows: rows.clone(),
        outputs: vec![],
        inputs: vec![q.clone(), k.clone(), v.clone()],
        states: None,
        record,
        expected,
        // Sine and cosine of an f32 angle: a few units of the last place of 1.
        tolerance: Tolerance { absolute: 1e-6, relative: 2e-6 },
    }
    .check();
}

#[test]
fn qk_norm_rope() {
    let small = SMALL;
    let wide = AttentionShape { num_attention_heads: 3, num_key_value_heads: 1, head_dim: 128 };
    for (shape, rotary_dim) in [(small, 16), (small, 8), (small, 0), (wide, 32), (wide, 128)] {
        for pairing in [RopePairing::Halves, RopePairing::Neighbors] {
            for (gated, norm) in [(false, false), (true, true), (false, true)] {
                check_rotation(&Rotate { shape, rotary_dim, pairing, gated, norm });
            }
        }
    }
}
