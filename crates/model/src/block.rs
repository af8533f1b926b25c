//! One decoder block: a mixer and a feed-forward block around the residual stream.

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

/// The residual stream between two blocks, and its normalization for whatever comes next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Residual {
    /// `[rows, hidden_size]`, f32.
    pub(crate) stream: Tensor,
    /// `[rows, hidden_size]`, f32.
    pub(crate) normed: Tensor,
}

impl Block {
    /// Takes the stream through the block; `next_norm` is the norm that reads the result: the next block's first, or the
    /// final one. So each residual addition and the norm after it are one op.
    pub(crate) fn record(&self, ops: &mut Ops, x: Residual, next_norm: &RmsNorm) -> Result<Residual, KernelError> {
        let mixed = match &self.convs {
            Some(convs) => convs.attention.around(ops, x.normed, |ops, x| self.mixer.record(ops, x))?,
            None => self.mixer.record(ops, x.normed)?,
        };
        let post = &self.post_attention_layernorm;
        let (h, normed) = ops.add_rms_norm(x.stream, mixed, &post.weight, post.eps)?;

        let expanded = match &self.convs {
            Some(convs) => convs.mlp.around(ops, normed, |ops, x| self.mlp.record(ops, x))?,
            None => self.mlp.record(ops, normed)?,
        };
        let (stream, normed) = ops.add_rms_norm(h, expanded, &next_norm.weight, next_norm.eps)?;
        Ok(Residual { stream, normed })
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
