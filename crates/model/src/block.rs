//! Decoder blocks: a mixer and a feed-forward block around the residual stream, one after the other.

use pleach_kernels::{KernelError, Ops, Tensor};

use crate::attention::Attention;
use crate::delta_net::DeltaNet;
use crate::draft_conv::DraftConvs;
use crate::linear::RmsNorm;
use crate::mlp::Mlp;
use crate::moe::Moe;

/// ```text
/// h = x + mixer(norm x)        y = h + mlp(norm h)
/// ```
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) input_layernorm: RmsNorm,
    pub(crate) mixer: Mixer,
    pub(crate) post_attention_layernorm: RmsNorm,
    pub(crate) mlp: FeedForward,
    /// Around mixer and MLP, in DFlash2's blocks.
    pub(crate) convs: Option<DraftConvs>,
}

/// What mixes tokens in a block.
#[derive(Debug)]
pub(crate) enum Mixer {
    Attention(Attention),
    DeltaNet(DeltaNet),
}

/// What follows the mixer.
#[derive(Debug)]
pub(crate) enum FeedForward {
    Dense(Mlp),
    Moe(Moe),
}

/// What is read of the last block of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// All rows.
    Rows,
    /// The outputs of the pass: other rows leave their keys, values and states, and go no further than the mixer.
    Outputs,
}

/// Blocks one after the other, and the norm after the last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stack<'a> {
    pub(crate) blocks: &'a [Block],
    pub(crate) norm: &'a RmsNorm,
}

/// Tensors of a recorded [`Stack`]. What comes after the last block has the rows that were wanted of it.
#[derive(Debug)]
pub(crate) struct Stacked {
    /// The stream before the first block, and after each: `[rows, hidden_size]`.
    pub(crate) streams: Vec<Tensor>,
    /// After the final norm: `[rows, hidden_size]`.
    pub(crate) normed: Tensor,
}

/// The residual stream between two blocks, and its normalization for whatever comes next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Residual {
    /// `[rows, hidden_size]`, f32.
    pub(crate) stream: Tensor,
    /// `[rows, hidden_size]`, f32.
    pub(crate) normed: Tensor,
}

impl Stack<'_> {
    /// Takes the stream through the blocks.
    pub(crate) fn record(self, ops: &mut Ops, stream: Tensor, wanted: Wanted) -> Result<Stacked, KernelError> {
        let norm_before = |layer: usize| self.blocks.get(layer).map_or(self.norm, |block| &block.input_layernorm);
        let normed = ops.rms_norm(stream, &norm_before(0).weight, norm_before(0).eps)?;
        let (mut x, mut streams) = (Residual { stream, normed }, vec![stream]);
        for (layer, block) in self.blocks.iter().enumerate() {
            let wanted = if layer + 1 == self.blocks.len() { wanted } else { Wanted::Rows };
            x = block.record(ops, x, norm_before(layer + 1), wanted)?;
            streams.push(x.stream);
        }
        Ok(Stacked { streams, normed: x.normed })
    }
}

impl Residual {
    fn outputs(self, ops: &mut Ops) -> Result<Self, KernelError> {
        Ok(Self { stream: ops.gather_outputs(self.stream)?, normed: ops.gather_outputs(self.normed)? })
    }
}

impl Block {
    /// Takes the stream through the block; `next_norm` is the norm that reads the result: the next block's first, or the
    /// final one. So each residual addition and the norm after it are one op.
    pub(crate) fn record(
        &self,
        ops: &mut Ops,
        x: Residual,
        next_norm: &RmsNorm,
        wanted: Wanted,
    ) -> Result<Residual, KernelError> {
        let mixed = match &self.convs {
            Some(convs) => convs.attention.around(ops, x.normed, |ops, x| self.mixer.record(ops, x))?,
            None => self.mixer.record(ops, x.normed)?,
        };
        // The convolution around an MLP reads neighboring rows.
        let (stream, mixed) = match (wanted, &self.convs) {
            (Wanted::Outputs, None) => (ops.gather_outputs(x.stream)?, ops.gather_outputs(mixed)?),
            _ => (x.stream, mixed),
        };
        let post = &self.post_attention_layernorm;
        let (h, normed) = ops.add_rms_norm(stream, mixed, &post.weight, post.eps)?;

        let expanded = match &self.convs {
            Some(convs) => convs.mlp.around(ops, normed, |ops, x| self.mlp.record(ops, x))?,
            None => self.mlp.record(ops, normed)?,
        };
        let (stream, normed) = ops.add_rms_norm(h, expanded, &next_norm.weight, next_norm.eps)?;
        let after = Residual { stream, normed };
        if wanted == Wanted::Outputs && self.convs.is_some() { after.outputs(ops) } else { Ok(after) }
    }
}

impl Mixer {
    fn record(&self, ops: &mut Ops, x: Tensor) -> Result<Tensor, KernelError> {
        match self {
            Self::Attention(attention) => attention.record(ops, x),
            Self::DeltaNet(delta_net) => delta_net.record(ops, x),
        }
    }
}

impl FeedForward {
    fn record(&self, ops: &mut Ops, x: Tensor) -> Result<Tensor, KernelError> {
        match self {
            Self::Dense(mlp) => mlp.record(ops, x),
            Self::Moe(moe) => moe.record(ops, x),
        }
    }
}
