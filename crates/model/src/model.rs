//! The whole decoder.

use std::sync::Arc;

use pleach_checkpoint::{LayerType, ModelConfig, TensorMap};
use pleach_kernels::{
    Capacity, Device, KernelError, KvLayout, Ops, PassWork, StateLayout, StateValues, Tensor, Weight,
};

use crate::block::{Block, Stack, Stacked, Wanted};
use crate::linear::{Linear, RmsNorm};
use crate::load::{LoadOptions, Loader};
use crate::mtp::MtpHead;
use crate::state::{MtpSequence, Sequence};
use crate::{ModelError, Tap};

/// A loaded model: weights on one device, immutable from here on and shared by all sequences.
#[derive(Debug)]
pub struct Model {
    pub(crate) config: ModelConfig,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) embed_tokens: Weight,
    pub(crate) blocks: Vec<Block>,
    pub(crate) norm: RmsNorm,
    pub(crate) lm_head: Linear,
    pub(crate) mtp: Option<MtpHead>,
    pub(crate) layout: StateLayout,
    weight_bytes: usize,
}

/// What a model needs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights as stored in the files.
    pub weights_bytes: usize,
    /// Per sequence, whatever its length: recurrent and convolution states.
    pub state_bytes: usize,
    /// Per committed token: keys and values of all attention layers.
    pub token_bytes: usize,
}

impl MemoryPlan {
    /// What a model will need, by its config alone: [`Model::memory_plan`] before there is a model.
    pub fn of(config: &ModelConfig, weights_bytes: usize, options: &LoadOptions) -> Self {
        let attention = config.layer_types.iter().filter(|layer| **layer == LayerType::FullAttention).count();
        let (num_key_value_heads, head_dim) = (config.num_key_value_heads, config.head_dim);
        let layer = KvLayout { num_key_value_heads, head_dim, dtype: options.kv_cache, window: None };
        let delta = config.linear_attention.as_ref().map_or(0, |delta| {
            let state = delta.num_value_heads * delta.key_head_dim * delta.value_head_dim;
            4 * (state + (delta.conv_kernel_dim - 1) * delta.conv_dim())
        });
        Self {
            weights_bytes,
            state_bytes: (config.layer_types.len() - attention) * delta,
            token_bytes: attention * layer.token_bytes(),
        }
    }

    /// Weights and one sequence of `tokens`.
    pub fn total_bytes(&self, tokens: usize) -> usize {
        self.weights_bytes + self.state_bytes + self.token_bytes.saturating_mul(tokens)
    }
}

/// Tensors of a recorded pass that are read after a run.
#[derive(Clone, Debug)]
pub(crate) struct Outputs {
    /// `[outputs, vocab_size]`.
    pub(crate) logits: Tensor,
    /// One per tap: `[rows, hidden_size]`.
    pub(crate) taps: Vec<Tensor>,
}

impl Model {
    /// Puts the weights of a checkpoint on a device.
    ///
    /// # Errors
    /// A tensor that is missing, is used by nothing, or does not fit its format.
    pub fn load(
        config: ModelConfig,
        tensors: TensorMap,
        device: Arc<dyn Device>,
        options: &LoadOptions,
    ) -> Result<Self, ModelError> {
        Self::load_watched(config, tensors, device, options, &mut |_| {})
    }

    /// The same; `progress` is told after each matrix how many bytes of matrices, as stored, are on the device.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_watched(
        config: ModelConfig,
        tensors: TensorMap,
        device: Arc<dyn Device>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Self, ModelError> {
        let weight_bytes = tensors.iter().map(|tensor| tensor.size_bytes()).sum();
        let mut loader = Loader::new(&config, tensors, &*device, options).with_progress(progress);
        let embed_tokens = match config.tie_word_embeddings {
            true => loader.weight("embed_tokens.weight")?,
            false => loader.table("embed_tokens.weight")?,
        };
        let blocks = loader.blocks()?;
        let norm = loader.norm("norm.weight")?;
        let lm_head = match config.tie_word_embeddings {
            true => Linear { weight: embed_tokens.clone(), bias: None },
            false => loader.linear("lm_head")?,
        };
        let mtp = loader.mtp()?;
        let layout = loader.finish()?;
        Ok(Self { config, device, embed_tokens, blocks, norm, lm_head, mtp, layout, weight_bytes })
    }

    /// Sizes and settings.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Where the model lives.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Whether the model carries a multi-token-prediction head.
    pub fn has_mtp(&self) -> bool {
        self.mtp.is_some()
    }

    /// The memory of a new, empty sequence.
    ///
    /// # Errors
    /// What the device says when its memory is full.
    pub fn new_sequence(&self) -> Result<Sequence, ModelError> {
        Ok(Sequence { state: self.device.state(&self.layout)? })
    }

    /// A sequence with the memory of an earlier one, bit for bit: `values` are those that its state gave.
    ///
    /// # Errors
    /// Values of another model; what the device says when its memory is full.
    pub fn restore_sequence(&self, values: &StateValues) -> Result<Sequence, ModelError> {
        let mut sequence = self.new_sequence()?;
        sequence.state.restore(values)?;
        Ok(sequence)
    }

    /// The head's memory for a new, empty sequence.
    ///
    /// # Errors
    /// [`ModelError::NoMtpHead`] if there is no head.
    pub fn new_mtp_sequence(&self) -> Result<MtpSequence, ModelError> {
        let head = self.mtp.as_ref().ok_or(ModelError::NoMtpHead)?;
        Ok(MtpSequence(Sequence { state: self.device.state(&head.layout)? }))
    }

    /// What the model needs, in bytes.
    pub fn memory_plan(&self) -> MemoryPlan {
        let delta = self
            .layout
            .delta
            .iter()
            .map(|layer| 4 * (layer.state_elements() + (layer.conv_kernel_dim - 1) * layer.conv_channels()));
        let token = self.layout.attention.iter().map(KvLayout::token_bytes);
        MemoryPlan { weights_bytes: self.weight_bytes, state_bytes: delta.sum(), token_bytes: token.sum() }
    }

    /// What a pass reads and multiplies at least.
    ///
    /// # Errors
    /// Those of recording a pass.
    pub fn pass_work(&self) -> Result<PassWork, ModelError> {
        let mut ops = Ops::new(Capacity { rows: 1, outputs: 1 });
        self.record(&mut ops, &[])?;
        Ok(ops.finish().work())
    }

    /// Records the pass from token ids to logits.
    pub(crate) fn record(&self, ops: &mut Ops, taps: &[Tap]) -> Result<Outputs, KernelError> {
        let stream = ops.embed(&self.embed_tokens)?;
        // Taps are of all rows; without one at the end, rows of a prompt leave nothing but states there.
        let last = Tap::Layer(self.blocks.len().saturating_sub(1));
        let wanted =
            if taps.iter().any(|&tap| tap == Tap::Final || tap == last) { Wanted::Rows } else { Wanted::Outputs };
        let Stacked { streams, normed } =
            Stack { blocks: &self.blocks, norm: &self.norm }.record(ops, stream, wanted)?;
        let read = if wanted == Wanted::Rows { ops.gather_outputs(normed)? } else { normed };
        let [logits] = ops.linear(read, [self.lm_head.parts()])?;
        ops.keep(logits);

        let taps: Vec<_> = taps.iter().map(|tap| tap.pick(&streams, normed)).collect();
        taps.iter().for_each(|&tap| ops.keep(tap));
        Ok(Outputs { logits, taps })
    }
}
