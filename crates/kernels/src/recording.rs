//! Recording a pass: each call checks its shapes and appends one op.

use std::sync::Arc;

use crate::ops::{
    Add, AddGated, AddRmsNorm, Attention, AttentionShape, CacheRows, CausalConv, Concat, DeltaGates, Embed,
    ExpertWeights, Experts, GatedDelta, GatedRmsNorm, GatherOutputs, GroupedConv, Hadamard, KeyHeadOrder, Linear,
    Projection, QkNormRope, RmsNorm, Rope, Route, Sight, SwiGlu,
};
use crate::{DType, DeltaLayout, Extent, KernelError, KvLayout, Op, Param, Tensor, Weight};

/// The largest run a recording must serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Capacity {
    /// Rows of one run.
    pub rows: usize,
    /// Rows of one run whose logits are wanted.
    pub outputs: usize,
}

impl Capacity {
    /// Length of a tensor's first dimension at most.
    pub const fn of(&self, extent: Extent) -> usize {
        match extent {
            Extent::Rows => self.rows,
            Extent::Outputs => self.outputs,
        }
    }
}

/// What a commit appends to one layer's state; filled in by the ops that read that state.
#[derive(Clone, Debug)]
pub enum Commit {
    /// Key and value rows of an attention layer.
    Attention(CacheRows),
    /// The window of a convolution moves over the inputs of the path.
    Window(CausalConv),
    /// What the rows of the path write to the recurrent state is written.
    Delta(GatedDelta),
}

/// A recorded pass: ops in order, the tensors they use, and what a commit appends.
#[derive(Clone, Debug)]
pub struct Recording {
    pub(crate) capacity: Capacity,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) kept: Vec<Tensor>,
    pub(crate) ops: Vec<Op>,
    pub(crate) commits: Vec<Commit>,
}

impl Recording {
    /// The largest run it serves.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }
}

/// Inputs of [`Ops::qk_norm_rope`].
#[derive(Clone, Debug)]
pub struct HeadRows<'a> {
    /// `[rows, heads · head_dim]`, or twice that with a gate, f32.
    pub q: Tensor,
    /// `[rows, kv_heads · head_dim]`, f32.
    pub k: Tensor,
    /// `[rows, kv_heads · head_dim]`, f32.
    pub v: Tensor,
    /// Head counts and sizes.
    pub shape: AttentionShape,
    /// Whether `q` carries an output gate.
    pub gated: bool,
    /// `[head_dim]`.
    pub q_norm: Option<&'a Param>,
    /// `[head_dim]`.
    pub k_norm: Option<&'a Param>,
    /// Added to the mean square of a head.
    pub eps: f32,
    /// Rotation.
    pub rope: &'a Rope,
    /// Type of the cache.
    pub cache: DType,
}

/// Results of [`Ops::qk_norm_rope`].
#[derive(Clone, Copy, Debug)]
pub struct RotatedHeads {
    /// `[rows, heads · head_dim]`, f32.
    pub q: Tensor,
    /// `[rows, heads · head_dim]`, f32.
    pub gate: Option<Tensor>,
    /// `[rows, kv_heads · head_dim]`, type of candidates of the cache.
    pub k: Tensor,
    /// `[rows, kv_heads · head_dim]`, type of candidates of the cache.
    pub v: Tensor,
}

/// Inputs of [`Ops::gated_delta`].
#[derive(Clone, Copy, Debug)]
pub struct DeltaHeads {
    /// Which DeltaNet layer of the state.
    pub slot: usize,
    /// Shape of that layer's state.
    pub layout: DeltaLayout,
    /// All q heads, all k heads, all v heads: `[rows, channels]`, f32.
    pub qkv: Tensor,
    /// Log decay: `[rows, value_heads]`, f32.
    pub g: Tensor,
    /// Write strength: `[rows, value_heads]`, f32.
    pub beta: Tensor,
    /// Which key head a value head reads.
    pub key_head_order: KeyHeadOrder,
}

/// Records a pass op by op.
#[derive(Debug)]
pub struct Ops {
    recording: Recording,
    /// Whether a tensor has values: an input, or written by an op so far.
    filled: Vec<bool>,
}

impl Ops {
    /// Starts a recording that serves runs up to `capacity`.
    pub fn new(capacity: Capacity) -> Self {
        let recording = Recording {
            capacity,
            tensors: Vec::new(),
            inputs: Vec::new(),
            kept: Vec::new(),
            ops: Vec::new(),
            commits: Vec::new(),
        };
        Self { recording, filled: Vec::new() }
    }

    /// Ends the recording.
    pub fn finish(self) -> Recording {
        self.recording
    }

    /// A tensor whose values each run brings along: `[rows, width]`, f32.
    pub fn input(&mut self, width: usize) -> Tensor {
        let tensor = self.tensor(Extent::Rows, width, DType::F32);
        self.recording.inputs.push(tensor);
        self.filled[tensor.index()] = true;
        tensor
    }

    /// Keeps a tensor's values after the run, so that [`Pass::read`](crate::Pass::read) finds them.
    ///
    /// A tensor of another recording is not kept, and not found.
    pub fn keep(&mut self, tensor: Tensor) {
        if self.exists(tensor) {
            self.recording.kept.push(tensor);
        }
    }

    /// See [`Embed`].
    ///
    /// # Errors
    /// A table without columns.
    pub fn embed(&mut self, table: &Weight) -> Result<Tensor, KernelError> {
        let out = self.tensor(Extent::Rows, table.columns, DType::F32);
        self.push(Op::Embed(Embed { table: table.clone(), out }))?;
        Ok(out)
    }

    /// See [`RmsNorm`].
    ///
    /// # Errors
    /// Shapes that break the op's contract.
    pub fn rms_norm(&mut self, x: Tensor, weight: &Param, eps: f32) -> Result<Tensor, KernelError> {
        let out = self.like(x);
        let op = RmsNorm { x, weight: weight.clone(), eps, out };
        op.check()?;
        self.push(Op::RmsNorm(op))?;
        Ok(out)
    }

    /// See [`AddRmsNorm`]; returns the sum and the normalized sum.
    ///
    /// # Errors
    /// Shapes that break the op's contract.
    pub fn add_rms_norm(
        &mut self,
        x: Tensor,
        y: Tensor,
        weight: &Param,
        eps: f32,
    ) -> Result<(Tensor, Tensor), KernelError> {
        let (sum, out) = (self.like(x), self.like(x));
        let op = AddRmsNorm { x, y, weight: weight.clone(), eps, sum, out };
        op.check()?;
        self.push(Op::AddRmsNorm(op))?;
        Ok((sum, out))
    }

    /// See [`Add`].
    ///
    /// # Errors
    /// Shapes that break the op's contract.
    pub fn add(&mut self, x: Tensor, y: Tensor) -> Result<Tensor, KernelError> {
        let out = self.like(x);
        let op = Add { x, y, out };
        op.check()?;
        self.push(Op::Add(op))?;
        Ok(out)
    }

    /// See [`Linear`]: one product of `x` per weight, each with its bias.
    ///
    /// # Errors
    /// Shapes that break the op's contract.
    pub fn linear<const N: usize>(
        &mut self,
        x: Tensor,
        weights: [(&Weight, Option<&Param>); N],
    ) -> Result<[Tensor; N], KernelError> {
        let outs = weights.map(|(weight, _)| self.tensor(x.extent, weight.rows, DType::F32));
        let projections = weights
            .iter()
            .zip(outs)
            .map(|(&(weight, bias), out)| Projection { weight: weight.clone(), bias: bias.cloned(), out })
            .collect();
        let op = Linear { x, projections };
        op.check()?;
        self.push(Op::Linear(op))?;
        Ok(outs)
    }

    /// See [`SwiGlu`].
    ///
    /// # Errors
    /// Shapes that break the op's contract.
    pub fn swiglu(&mut self, gate: Tensor, up: Tensor) -> Result<Tensor, KernelError> {
        let out = self.like(gate);
        let op = SwiGlu { gate, up, out };
        op.check()?;
        self.push(Op::SwiGlu(op))?;
        Ok(out)
    }

    /// See [`QkNormRope`].
    ///
    /// # Errors
    /// Shapes that break the op's contract.
    pub fn qk_norm_rope(&mut self, heads: &HeadRows<'_>) -> Result<RotatedHeads, KernelError> {
        let shape = heads.shape;
        let out_q = self.tensor(Extent::Rows, shape.query_width(), DType::F32);
        let out_gate = heads.gated.then(|| self.like(out_q));
        let out_k = self.tensor(Extent::Rows, shape.key_value_width(), heads.cache.of_candidates());
        let out_v = self.like(out_k);
        let op = QkNormRope {
            q: heads.q,
            k: heads.k,
            v: heads.v,
            shape,
            q_norm: heads.q_norm.cloned(),
            k_norm: heads.k_norm.cloned(),
            eps: heads.eps,
            rope: heads.rope.clone(),
            out_q,
            out_gate,
            out_k,
            out_v,
        };
        op.check()?;
        self.push(Op::QkNormRope(op))?;
        Ok(RotatedHeads { q: out_q, gate: out_gate, k: out_k, v: out_v })
    }

    /// See [`Attention`], where rows see all that they could. A commit appends the key and value rows to the cache of
    /// `slot`.
    ///
    /// # Errors
    /// Shapes that break the op's contract.
    pub fn attention(
        &mut self,
        slot: usize,
        layout: KvLayout,
        shape: AttentionShape,
        scale: f32,
        heads: RotatedHeads,
    ) -> Result<Tensor, KernelError> {
        self.attention_within(Sight::ALL, slot, layout, shape, scale, heads)
    }

    /// As [`attention`](Self::attention), of rows that see as much as `sight` says.
    ///
    /// # Errors
    /// Shapes that break the op's contract.
    pub fn attention_within(
        &mut self,
        sight: Sight,
        slot: usize,
        layout: KvLayout,
        shape: AttentionShape,
        scale: f32,
        heads: RotatedHeads,
    ) -> Result<Tensor, KernelError> {
        let out = self.like(heads.q);
        let RotatedHeads { q, gate, k, v } = heads;
        let op = Attention { slot, layout, shape, scale, sight, q, k, v, gate, out };
        op.check()?;
        self.push(Op::Attention(op))?;
        self.recording.commits.push(Commit::Attention(CacheRows { slot, layout, k, v }));
        Ok(out)
    }

    /// Lets a commit append key and value rows that nothing in the pass attends to.
    ///
    /// # Errors
    /// Rows that do not fit the cache or have no values yet.
    pub fn cache(&mut self, rows: CacheRows) -> Result<(), KernelError> {
        rows.check()?;
        if let Some(tensor) = [rows.k, rows.v].into_iter().find(|&tensor| !self.exists(tensor)) {
            let available = self.recording.tensors.len();
            return Err(KernelError::Missing { what: "tensor", found: tensor.index(), available });
        }
        self.recording.commits.push(Commit::Attention(rows));
        Ok(())
    }

    /// See [`DeltaGates`]; returns log decay and write strength.
    ///
    /// # Errors
    /// Shapes that break the op's contract.
    pub fn delta_gates(
        &mut self,
        a: Tensor,
        b: Tensor,
        neg_exp_a: &Param,
        dt_bias: &Param,
    ) -> Result<(Tensor, Tensor), KernelError> {
        let (g, beta) = (self.like(a), self.like(b));
        let op = DeltaGates { a, b, neg_exp_a: neg_exp_a.clone(), dt_bias: dt_bias.clone(), g, beta };
        op.check()?;
        self.push(Op::DeltaGates(op))?;
        Ok((g, beta))
    }

    /// See [`CausalConv`]. A commit moves the window of `slot` over the accepted rows.
    ///
    /// # Errors
    /// Shapes that break the op's contract.
    pub fn causal_conv(
        &mut self,
        slot: usize,
        layout: DeltaLayout,
        x: Tensor,
        weight: &Param,
    ) -> Result<Tensor, KernelError> {
        let out = self.like(x);
        let op = CausalConv { slot, layout, x, weight: weight.clone(), out };
        op.check()?;
        self.push(Op::CausalConv(op.clone()))?;
        self.recording.commits.push(Commit::Window(op));
        Ok(out)
    }

    /// See [`GatedDelta`]; returns `[rows, value_heads · value_dim]`. A commit moves the recurrent state of the slot along
    /// the accepted path.
    ///
    /// # Errors
    /// Shapes that break the op's contract.
    pub fn gated_delta(&mut self, heads: &DeltaHeads) -> Result<Tensor, KernelError> {
        let DeltaHeads { slot, layout, qkv, g, beta, key_head_order } = *heads;
        let out = self.tensor(Extent::Rows, layout.num_value_heads * layout.value_head_dim, DType::F32);
        let terms = self.tensor(Extent::Rows, layout.term_width(), DType::F32);
        let op = GatedDelta { slot, layout, qkv, g, beta, key_head_order, terms, out };
        op.check()?;
        self.push(Op::GatedDelta(op.clone()))?;
        self.recording.commits.push(Commit::Delta(op));
        Ok(out)
    }

    /// See [`GatedRmsNorm`].
    ///
    /// # Errors
    /// Shapes that break the op's contract.
    pub fn gated_rms_norm(&mut self, x: Tensor, gate: Tensor, weight: &Param, eps: f32) -> Result<Tensor, KernelError> {
        let out = self.like(x);
        let op = GatedRmsNorm { x, gate, weight: weight.clone(), eps, out };
        op.check()?;
        self.push(Op::GatedRmsNorm(op))?;
        Ok(out)
    }

    /// See [`Route`]; returns the chosen experts and their weights.
    ///
    /// # Errors
    /// Shapes that break the op's contract.
    pub fn route(&mut self, logits: Tensor, top_k: usize, normalize: bool) -> Result<(Tensor, Tensor), KernelError> {
        let chosen = self.tensor(logits.extent, top_k, DType::I32);
        let weights = self.tensor(logits.extent, top_k, DType::F32);
        let op = Route { logits, normalize, chosen, weights };
        op.check()?;
        self.push(Op::Route(op))?;
        Ok((chosen, weights))
    }

    /// See [`Experts`]. `chosen` comes from [`route`](Self::route), over as many logits as there are experts.
    ///
    /// # Errors
    /// Shapes that break the op's contract.
    pub fn experts(
        &mut self,
        x: Tensor,
        experts: &Arc<[ExpertWeights]>,
        chosen: Tensor,
        weights: Tensor,
    ) -> Result<Tensor, KernelError> {
        let out = self.like(x);
        let op = Experts { x, experts: Arc::clone(experts), chosen, weights, out };
        op.check()?;
        self.check_choice(chosen, experts.len())?;
        self.push(Op::Experts(op))?;
        Ok(out)
    }

    /// See [`AddGated`].
    ///
    /// # Errors
    /// Shapes that break the op's contract.
    pub fn add_gated(&mut self, x: Tensor, y: Tensor, gate: Tensor) -> Result<Tensor, KernelError> {
        let out = self.like(x);
        let op = AddGated { x, y, gate, out };
        op.check()?;
        self.push(Op::AddGated(op))?;
        Ok(out)
    }

    /// See [`GatherOutputs`].
    ///
    /// # Errors
    /// Shapes that break the op's contract.
    pub fn gather_outputs(&mut self, x: Tensor) -> Result<Tensor, KernelError> {
        let out = self.tensor(Extent::Outputs, x.width, DType::F32);
        let op = GatherOutputs { x, out };
        op.check()?;
        self.push(Op::GatherOutputs(op))?;
        Ok(out)
    }

    /// See [`Concat`].
    ///
    /// # Errors
    /// Shapes that break the op's contract.
    pub fn concat(&mut self, x: Tensor, y: Tensor) -> Result<Tensor, KernelError> {
        let out = self.tensor(x.extent, x.width + y.width, DType::F32);
        let op = Concat { x, y, out };
        op.check()?;
        self.push(Op::Concat(op))?;
        Ok(out)
    }

    /// See [`Hadamard`].
    ///
    /// # Errors
    /// Shapes that break the op's contract.
    pub fn hadamard(&mut self, x: Tensor, signs: &Param, block: usize) -> Result<Tensor, KernelError> {
        let out = self.like(x);
        let op = Hadamard { x, signs: signs.clone(), block, out };
        op.check()?;
        self.push(Op::Hadamard(op))?;
        Ok(out)
    }

    /// See [`GroupedConv`]; `side` 0 is before and 1 after what the two kernels of `base` are around.
    ///
    /// # Errors
    /// Shapes that break the op's contract.
    pub fn grouped_conv(
        &mut self,
        x: Tensor,
        base: &Param,
        dynamic: Tensor,
        side: usize,
        [taps, group_size]: [usize; 2],
    ) -> Result<Tensor, KernelError> {
        let out = self.like(x);
        let op = GroupedConv { x, base: base.clone(), dynamic, side, taps, group_size, out };
        op.check()?;
        self.push(Op::GroupedConv(op))?;
        Ok(out)
    }

    /// Expert indices are trusted in a run, so they must come from a choice among `num_experts`.
    fn check_choice(&self, chosen: Tensor, num_experts: usize) -> Result<(), KernelError> {
        let choice = self.recording.ops.iter().find_map(|op| match op {
            Op::Route(route) if route.chosen == chosen => Some(route.logits.width),
            _ => None,
        });
        if choice == Some(num_experts) {
            return Ok(());
        }
        let expected = "as many as the logits that `route` chose from";
        Err(KernelError::Argument { op: "experts", argument: "experts", found: num_experts, expected })
    }

    fn tensor(&mut self, extent: Extent, width: usize, dtype: DType) -> Tensor {
        let id = u32::try_from(self.recording.tensors.len()).expect("a pass has far fewer than 2^32 tensors");
        let tensor = Tensor { id, extent, width, dtype };
        self.recording.tensors.push(tensor);
        self.filled.push(false);
        tensor
    }

    /// Whether the tensor is of this recording and has values at this point of it.
    fn exists(&self, tensor: Tensor) -> bool {
        self.recording.tensors.get(tensor.index()) == Some(&tensor) && self.filled[tensor.index()]
    }

    fn like(&mut self, tensor: Tensor) -> Tensor {
        self.tensor(tensor.extent, tensor.width, tensor.dtype)
    }

    /// Appends an op whose own contract holds; every tensor it reads must exist here and count the same thing.
    fn push(&mut self, op: Op) -> Result<(), KernelError> {
        let reads = op.reads();
        for &tensor in &reads {
            if !self.exists(tensor) {
                let available = self.filled.iter().filter(|&&filled| filled).count();
                return Err(KernelError::Missing { what: "tensor", found: tensor.index(), available });
            }
            if tensor.extent != reads[0].extent {
                let expected = "a tensor over the same rows as the op's first argument";
                return Err(KernelError::Argument {
                    op: op.name(),
                    argument: "tensor",
                    found: tensor.index(),
                    expected,
                });
            }
        }
        let writes = op.writes();
        if writes.iter().chain(&reads).any(|tensor| tensor.width == 0) {
            return Err(KernelError::Argument { op: op.name(), argument: "width", found: 0, expected: "at least 1" });
        }
        writes.iter().for_each(|tensor| self.filled[tensor.index()] = true);
        self.recording.ops.push(op);
        Ok(())
    }
}
