//! A small model with every op in it, for tests of what must hold over a whole pass.

use std::sync::Arc;

use pleach_kernels::ops::{AttentionShape, ExpertWeights, KeyHeadOrder, Rope, RopePairing};
use pleach_kernels::{
    Activations, Capacity, DType, DeltaHeads, DeltaLayout, Device, FloatFormat, HeadRows, KernelError, KvLayout, Ops,
    Param, Pass, PassInputs, Rows, State, StateLayout, Tensor, Weight, WeightFormat,
};

use super::random::Random;

pub(crate) const VOCAB: usize = 40;
const HIDDEN: usize = 64;
const EPS: f32 = 1e-6;
const SHAPE: AttentionShape = AttentionShape { num_attention_heads: 4, num_key_value_heads: 2, head_dim: 16 };
const DELTA: DeltaLayout =
    DeltaLayout { num_key_heads: 2, num_value_heads: 4, key_head_dim: 8, value_head_dim: 8, conv_kernel_dim: 4 };

/// What varies from model to model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) cache: DType,
    pub(crate) weights: WeightFormat,
    pub(crate) activations: Activations,
}

/// A quantized model with a half-precision cache, the kind that people run.
pub(crate) const USUAL: Kind = Kind {
    cache: DType::F16,
    weights: WeightFormat::Affine { bits: 4, group_size: 32, scales: FloatFormat::BF16 },
    activations: Activations::Int8PerGroup,
};

/// One attention layer, one DeltaNet layer, experts and a head, with random weights of a fixed seed.
pub(crate) struct Model {
    pub(crate) layout: StateLayout,
    pub(crate) pass: Box<dyn Pass>,
    /// The normalized last hidden state: `[rows, width]`.
    pub(crate) hidden: Tensor,
    /// `[outputs, VOCAB]`.
    pub(crate) logits: Tensor,
}

impl Model {
    pub(crate) fn new(device: &dyn Device, kind: Kind, capacity: Capacity) -> Self {
        let layout = StateLayout {
            attention: vec![KvLayout {
                num_key_value_heads: SHAPE.num_key_value_heads,
                head_dim: SHAPE.head_dim,
                dtype: kind.cache,
                window: None,
            }],
            delta: vec![DELTA],
        };
        let mut builder = Builder { device, kind, random: Random::new(7), ops: Ops::new(capacity) };
        let (hidden, logits) = builder.record(&layout).unwrap();
        builder.ops.keep(hidden);
        builder.ops.keep(logits);
        let pass = device.prepare(builder.ops.finish()).unwrap();
        Self { layout, pass, hidden, logits }
    }

    /// Hidden states of all rows.
    pub(crate) fn run(&mut self, rows: &Rows, states: &[&dyn State]) -> Vec<Vec<f32>> {
        let outputs = [rows.len() - 1];
        self.pass.run(&PassInputs { rows, outputs: &outputs, inputs: &[] }, states).unwrap();
        self.pass.read(self.hidden).unwrap().chunks_exact(self.hidden.width).map(<[f32]>::to_vec).collect()
    }
}

struct Builder<'a> {
    device: &'a dyn Device,
    kind: Kind,
    random: Random,
    ops: Ops,
}

impl Builder<'_> {
    fn record(&mut self, layout: &StateLayout) -> Result<(Tensor, Tensor), KernelError> {
        let table = self.weight(VOCAB, HIDDEN)?;
        let x = self.ops.embed(&table)?;
        let norm = self.norm(HIDDEN)?;
        let normed = self.ops.rms_norm(x, &norm, EPS)?;
        let mixed = self.attention(normed, layout.attention[0])?;
        let (x, normed) = self.ops.add_rms_norm(x, mixed, &norm, EPS)?;
        let mixed = self.delta_net(normed, layout.delta[0])?;
        let (x, normed) = self.ops.add_rms_norm(x, mixed, &norm, EPS)?;
        let expanded = self.experts(normed)?;
        let x = self.ops.add(x, expanded)?;
        let normed = self.ops.rms_norm(x, &norm, EPS)?;
        let both = self.ops.concat(normed, expanded)?;
        let signs = (0..2 * HIDDEN).map(|i| if i % 3 == 0 { -1.0 } else { 1.0 }).collect();
        let signs = self.device.param(signs)?;
        let hidden = self.ops.hadamard(both, &signs, 32)?;
        let last = self.ops.gather_outputs(hidden)?;
        let head = self.weight(VOCAB, 2 * HIDDEN)?;
        let [logits] = self.ops.linear(last, [(&head, None)])?;
        Ok((hidden, logits))
    }

    fn attention(&mut self, x: Tensor, layout: KvLayout) -> Result<Tensor, KernelError> {
        let q = self.weight(2 * SHAPE.query_width(), HIDDEN)?;
        let k = self.weight(SHAPE.key_value_width(), HIDDEN)?;
        let v = self.weight(SHAPE.key_value_width(), HIDDEN)?;
        let out = self.weight(HIDDEN, SHAPE.query_width())?;
        let bias = self.device.param(self.random.normals(SHAPE.key_value_width()))?;
        let (q_norm, k_norm) = (self.norm(SHAPE.head_dim)?, self.norm(SHAPE.head_dim)?);
        let inv_freq = self.device.param(vec![1.0, 0.1, 0.01, 0.001])?;
        let [q, k, v] = self.ops.linear(x, [(&q, None), (&k, None), (&v, Some(&bias))])?;
        let heads = self.ops.qk_norm_rope(&HeadRows {
            q,
            k,
            v,
            shape: SHAPE,
            gated: true,
            q_norm: Some(&q_norm),
            k_norm: Some(&k_norm),
            eps: EPS,
            rope: &Rope { inv_freq, pairing: RopePairing::Halves, sections: None },
            cache: layout.dtype,
        })?;
        let mixed = self.ops.attention(0, layout, SHAPE, 0.25, heads)?;
        let [mixed] = self.ops.linear(mixed, [(&out, None)])?;
        Ok(mixed)
    }

    fn delta_net(&mut self, x: Tensor, layout: DeltaLayout) -> Result<Tensor, KernelError> {
        let heads = layout.num_value_heads;
        let width = heads * layout.value_head_dim;
        let qkv = self.weight(layout.conv_channels(), HIDDEN)?;
        let z = self.weight(width, HIDDEN)?;
        let (a, b) = (self.weight(heads, HIDDEN)?, self.weight(heads, HIDDEN)?);
        let out = self.weight(HIDDEN, width)?;
        let conv_weight = self.device.param(self.random.around(0.3, 0.2, 4 * layout.conv_channels()))?;
        let neg_exp_a = self.device.param(self.random.around(-0.5, 0.1, heads))?;
        let dt_bias = self.device.param(self.random.normals(heads))?;
        let norm = self.norm(layout.value_head_dim)?;
        let [qkv, z, a, b] = self.ops.linear(x, [(&qkv, None), (&z, None), (&a, None), (&b, None)])?;
        let (g, beta) = self.ops.delta_gates(a, b, &neg_exp_a, &dt_bias)?;
        let qkv = self.ops.causal_conv(0, layout, qkv, &conv_weight)?;
        let heads = DeltaHeads { slot: 0, layout, qkv, g, beta, key_head_order: KeyHeadOrder::Grouped };
        let core = self.ops.gated_delta(&heads)?;
        let gated = self.ops.gated_rms_norm(core, z, &norm, EPS)?;
        let [mixed] = self.ops.linear(gated, [(&out, None)])?;
        Ok(mixed)
    }

    fn experts(&mut self, x: Tensor) -> Result<Tensor, KernelError> {
        let experts: Result<Arc<[_]>, _> = (0..5).map(|_| self.expert()).collect();
        let (router, shared_gate, shared) = (self.weight(5, HIDDEN)?, self.weight(1, HIDDEN)?, self.expert()?);
        let [logits, shared_gate] = self.ops.linear(x, [(&router, None), (&shared_gate, None)])?;
        let (chosen, weights) = self.ops.route(logits, 2, true)?;
        let routed = self.ops.experts(x, &experts?, chosen, weights)?;
        let [gate, up] = self.ops.linear(x, [(&shared.gate, None), (&shared.up, None)])?;
        let expanded = self.ops.swiglu(gate, up)?;
        let [shared] = self.ops.linear(expanded, [(&shared.down, None)])?;
        self.ops.add_gated(routed, shared, shared_gate)
    }

    fn expert(&mut self) -> Result<ExpertWeights, KernelError> {
        Ok(ExpertWeights {
            gate: self.weight(32, HIDDEN)?,
            up: self.weight(32, HIDDEN)?,
            down: self.weight(HIDDEN, 32)?,
        })
    }

    fn weight(&mut self, rows: usize, columns: usize) -> Result<Weight, KernelError> {
        self.device.weight(self.random.weight(self.kind.weights, rows, columns, self.kind.activations))
    }

    fn norm(&mut self, len: usize) -> Result<Param, KernelError> {
        self.device.param(self.random.around(1.0, 0.1, len))
    }
}
