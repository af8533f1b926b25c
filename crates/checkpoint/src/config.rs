//! What a model is: sizes, layer kinds, rotation. One description for every file format.

mod hugging_face;

use std::{ops::RangeInclusive, path::Path};

pub(crate) use hugging_face::{HuggingFaceConfig, full_every, parse as parse_hugging_face};

use crate::{CheckpointError, fields::count_range};

/// A model's architecture: which blocks it is made of and which of them have norms on queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Llama and what shares its blocks, such as SmolLM2.
    Llama,
    /// Qwen3, dense.
    Qwen3,
    /// Qwen3.5 and 3.6, dense: gated attention among Gated DeltaNet layers.
    Qwen35,
    /// Qwen3.5 and 3.6 with a mixture of experts in place of each MLP.
    Qwen35Moe,
}

/// What mixes tokens in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LayerType {
    /// Softmax attention over all earlier tokens.
    FullAttention,
    /// Gated DeltaNet.
    LinearAttention,
}

/// One model, as its config and tensors describe it.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The kind of blocks.
    pub architecture: Architecture,
    /// Rows of the embedding and of the output matrix; may exceed the tokenizer's ids by padding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of a dense MLP; 0 where every layer has experts instead.
    pub intermediate_size: usize,
    /// Layers of the trunk, without multi-token-prediction layers.
    pub num_hidden_layers: usize,
    /// Query heads of a full-attention layer.
    pub num_attention_heads: usize,
    /// Key and value heads of a full-attention layer; query head h reads key head h / (heads / key heads).
    pub num_key_value_heads: usize,
    /// Elements of a head. Not `hidden_size / num_attention_heads` in general.
    pub head_dim: usize,
    /// Added to the mean square inside every RMS norm's root.
    pub rms_norm_eps: f32,
    /// Longest sequence that the model was made for, in tokens.
    pub max_position_embeddings: usize,
    /// Whether the embedding serves as the output matrix; then there is no `lm_head.weight`.
    pub tie_word_embeddings: bool,
    /// Whether the four attention projections have biases.
    pub attention_bias: bool,
    /// Whether the three MLP projections have biases.
    pub mlp_bias: bool,
    /// The mixer of each layer: `num_hidden_layers` entries.
    pub layer_types: Vec<LayerType>,
    /// Whether `q_proj` holds, per head, `head_dim` query rows and then `head_dim` rows of an output gate.
    pub attn_output_gate: bool,
    /// Rotation of queries and keys.
    pub rope: RopeConfig,
    /// Gated DeltaNet's sizes, where any layer is [`LayerType::LinearAttention`].
    pub linear_attention: Option<LinearAttentionConfig>,
    /// The experts' sizes, where layers have experts.
    pub moe: Option<MoeConfig>,
    /// Multi-token-prediction layers whose weights are in the files; 0 where a conversion dropped them.
    pub num_mtp_layers: usize,
    /// Beginning of sequence.
    pub bos_token_id: Option<u32>,
    /// Ends of sequence, as the model's config names them; see [`GenerationConfig`](crate::GenerationConfig) for the
    /// union with other files.
    pub eos_token_ids: Vec<u32>,
    /// Padding.
    pub pad_token_id: Option<u32>,
}

/// Rotary position embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies: `inv_freq[j] = theta^(-2j / rotary_dim)`.
    pub theta: f32,
    /// Elements of a head that are rotated, from the first on; even. The rest pass unchanged.
    pub rotary_dim: usize,
    /// Change of the frequencies for long contexts.
    pub scaling: RopeScaling,
    /// Which elements form a pair.
    pub pairing: RopePairing,
}

/// Change of the rotary frequencies for long contexts.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// None.
    None,
    /// Every frequency is divided by `factor`.
    Linear {
        /// At least 1.
        factor: f32,
    },
    /// Llama 3: high frequencies stay, low ones are divided by `factor`, those between are blended.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f32,
        /// Frequencies with fewer turns than this over the original context are low.
        low_freq_factor: f32,
        /// Frequencies with more turns than this over the original context are high.
        high_freq_factor: f32,
        /// The context before extension, in tokens.
        original_max_position_embeddings: usize,
    },
    /// GGUF `rope_freqs.weight`: frequency j is divided by entry j; `rotary_dim / 2` entries.
    Factors(Vec<f32>),
}

/// Which elements of a head are rotated together, for the row order of `q_proj` and `k_proj` in the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopePairing {
    /// Elements j and j + rotary_dim / 2.
    Halves,
    /// Elements 2j and 2j + 1: GGUF files of the `llama` architecture, whose converter permuted the rows.
    Neighbors,
}

/// Gated DeltaNet's sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinearAttentionConfig {
    /// Query and key heads.
    pub num_key_heads: usize,
    /// Value heads, a multiple of the key heads.
    pub num_value_heads: usize,
    /// Elements of a query or key head.
    pub key_head_dim: usize,
    /// Elements of a value head.
    pub value_head_dim: usize,
    /// Taps of the causal convolution.
    pub conv_kernel_dim: usize,
    /// Which key head a value head uses, for the order of value heads in the files.
    pub value_head_order: ValueHeadOrder,
}

impl LinearAttentionConfig {
    /// Channels of the convolution: queries, keys and values one after the other.
    pub fn conv_dim(&self) -> usize {
        2 * self.num_key_heads * self.key_head_dim + self.num_value_heads * self.value_head_dim
    }
}

/// The order of value heads in every tensor of a Gated DeltaNet layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ValueHeadOrder {
    /// Value head h uses key head h / (value heads / key heads).
    Grouped,
    /// Value head h uses key head h % key heads: GGUF files with more value heads than key heads.
    RoundRobin,
}

/// The experts' sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoeConfig {
    /// Experts of a layer.
    pub num_experts: usize,
    /// Experts that a token passes through.
    pub num_experts_per_tok: usize,
    /// Width of an expert.
    pub moe_intermediate_size: usize,
    /// Width of the expert that every token passes through.
    pub shared_expert_intermediate_size: usize,
    /// Whether the chosen experts' weights are divided by their sum.
    pub norm_topk_prob: bool,
}

/// Bounds far above every published model. They keep products of sizes inside 64 bits, and they keep a hostile config
/// from asking for much memory before the tensors that would back it are seen.
pub(crate) mod limits {
    use super::RangeInclusive;

    pub(crate) const VOCAB: RangeInclusive<usize> = 1..=1 << 24;
    pub(crate) const WIDTH: RangeInclusive<usize> = 1..=1 << 20;
    pub(crate) const LAYERS: RangeInclusive<usize> = 1..=1024;
    pub(crate) const HEADS: RangeInclusive<usize> = 1..=4096;
    pub(crate) const HEAD_DIM: RangeInclusive<usize> = 1..=4096;
    pub(crate) const POSITIONS: RangeInclusive<usize> = 1..=1 << 30;
    pub(crate) const KERNEL: RangeInclusive<usize> = 1..=64;
    pub(crate) const EXPERTS: RangeInclusive<usize> = 1..=1024;
    pub(crate) const MTP_LAYERS: RangeInclusive<usize> = 0..=16;
    pub(crate) const EPSILON: RangeInclusive<f32> = 1e-12..=1e-1;
    pub(crate) const THETA: RangeInclusive<f32> = 1.0..=1e12;
    pub(crate) const FACTOR: RangeInclusive<f32> = 1e-3..=1e6;
}

impl ModelConfig {
    /// Reads the text of a Hugging Face `config.json`, flat or with the text model under `text_config`.
    ///
    /// `file` is the name that errors give. What only the tensors can tell is filled in by
    /// [`Checkpoint::open`](crate::Checkpoint::open): here `num_mtp_layers` is what the config announces, and an
    /// unclear `tie_word_embeddings` reads as false.
    ///
    /// # Errors
    ///
    /// A missing field, a value that no model can have, or an architecture this engine does not run.
    pub fn from_json(json: &[u8], file: &Path) -> Result<Self, CheckpointError> {
        parse_hugging_face(json, file).map(|parsed| parsed.model)
    }

    /// Whether queries and keys pass an RMS norm over the head before rotation.
    pub fn has_qk_norm(&self) -> bool {
        self.architecture != Architecture::Llama
    }

    /// Whether Hugging Face checkpoints of this architecture store norms around zero.
    pub(crate) fn is_qwen35(&self) -> bool {
        matches!(self.architecture, Architecture::Qwen35 | Architecture::Qwen35Moe)
    }

    /// Checks what holds between fields. `spell` gives a field's name in the file, from its name here.
    pub(crate) fn check(&self, file: &Path, spell: &dyn Fn(&str) -> String) -> Result<(), CheckpointError> {
        let wrong = |field: &str, found: usize, expected: String| CheckpointError::Field {
            file: file.to_owned(),
            field: spell(field),
            found: found.to_string(),
            expected,
        };
        let heads = self.num_attention_heads;
        if !heads.is_multiple_of(self.num_key_value_heads) {
            let expected = format!("a divisor of the {heads} heads of `{}`", spell("num_attention_heads"));
            return Err(wrong("num_key_value_heads", self.num_key_value_heads, expected));
        }
        let rotary = self.rope.rotary_dim;
        if rotary == 0 || !rotary.is_multiple_of(2) || rotary > self.head_dim {
            let expected = format!("an even number from 2 to the head size {}", self.head_dim);
            return Err(wrong("rotary_dim", rotary, expected));
        }
        if self.layer_types.len() != self.num_hidden_layers {
            let expected = format!("one entry for each of the {} layers", self.num_hidden_layers);
            return Err(wrong("layer_types", self.layer_types.len(), expected));
        }
        if let Some(linear) = &self.linear_attention
            && !linear.num_value_heads.is_multiple_of(linear.num_key_heads)
        {
            let expected =
                format!("a multiple of the {} heads of `{}`", linear.num_key_heads, spell("linear_num_key_heads"));
            return Err(wrong("linear_num_value_heads", linear.num_value_heads, expected));
        }
        if let Some(moe) = &self.moe
            && moe.num_experts_per_tok > moe.num_experts
        {
            return Err(wrong("num_experts_per_tok", moe.num_experts_per_tok, count_range(&(1..=moe.num_experts))));
        }
        Ok(())
    }
}
