//! A model's description out of metadata, and of what only its tensors tell.

use super::{
    Header, TensorInfo, Value,
    metadata::{Metadata, whole},
};
use crate::{
    Architecture, CheckpointError, LayerType, LinearAttentionConfig, ModelConfig, MoeConfig, RopeConfig, RopePairing,
    RopeScaling, ValueHeadOrder,
    config::{full_every, limits},
    fields::shorten,
};

/// Reads the description of the model that `metadata` and the tensors of `headers` make up.
pub(super) fn read(metadata: &Metadata<'_>, headers: &[Header<'_>]) -> Result<ModelConfig, CheckpointError> {
    let name = metadata.text("general.architecture")?;
    let architecture = match name {
        "llama" => Architecture::Llama,
        "qwen3" => Architecture::Qwen3,
        "qwen35" => Architecture::Qwen35,
        "qwen35moe" => Architecture::Qwen35Moe,
        other => {
            return Err(CheckpointError::UnsupportedArchitecture {
                file: metadata.file().to_owned(),
                found: shorten(other),
                supported: "llama, qwen3, qwen35, qwen35moe",
            });
        }
    };
    let model = Reader { metadata, headers, architecture, prefix: name }.model()?;
    model.check(metadata.file(), &|field| format!("{name}.{}", spell(field)))?;
    Ok(model)
}

/// The key under which a field of ours stands.
fn spell(field: &str) -> &str {
    match field {
        "num_attention_heads" => "attention.head_count",
        "num_key_value_heads" => "attention.head_count_kv",
        "rotary_dim" => "rope.dimension_count",
        "layer_types" => "attention.recurrent_layers",
        "linear_num_key_heads" => "ssm.group_count",
        "linear_num_value_heads" => "ssm.time_step_rank",
        "num_experts_per_tok" => "expert_used_count",
        same => same,
    }
}

struct Reader<'a> {
    metadata: &'a Metadata<'a>,
    headers: &'a [Header<'a>],
    architecture: Architecture,
    prefix: &'a str,
}

impl Reader<'_> {
    fn model(&self) -> Result<ModelConfig, CheckpointError> {
        let is_qwen35 = matches!(self.architecture, Architecture::Qwen35 | Architecture::Qwen35Moe);
        let is_moe = self.architecture == Architecture::Qwen35Moe;
        self.refuse_experts(is_moe)?;
        let (num_hidden_layers, num_mtp_layers) = self.num_layers(is_qwen35)?;
        let hidden_size = self.count("embedding_length", limits::WIDTH)?;
        let num_attention_heads = self.count("attention.head_count", limits::HEADS)?;
        let head_dim = self.head_dim(hidden_size, num_attention_heads)?;
        let width = if is_moe { 0 } else { self.count("feed_forward_length", limits::WIDTH)? };
        Ok(ModelConfig {
            architecture: self.architecture,
            vocab_size: self.vocab_size()?,
            hidden_size,
            intermediate_size: width,
            num_hidden_layers,
            num_attention_heads,
            // Left out where every query head has its own key head.
            num_key_value_heads: self
                .optional_count("attention.head_count_kv", limits::HEADS)?
                .unwrap_or(num_attention_heads),
            head_dim,
            rms_norm_eps: self.metadata.number(&self.key("attention.layer_norm_rms_epsilon"), limits::EPSILON)?,
            max_position_embeddings: self.count("context_length", limits::POSITIONS)?,
            tie_word_embeddings: self.tensor("output.weight").is_none(),
            attention_bias: self.has_tensor_ending(".attn_q.bias"),
            mlp_bias: self.has_tensor_ending(".ffn_gate.bias"),
            layer_types: self.layer_types(is_qwen35, num_hidden_layers)?,
            attn_output_gate: is_qwen35,
            rope: self.rope(is_qwen35, head_dim)?,
            linear_attention: if is_qwen35 { Some(self.linear_attention()?) } else { None },
            moe: if is_moe { Some(self.moe()?) } else { None },
            num_mtp_layers,
            bos_token_id: self.token_id("tokenizer.ggml.bos_token_id")?,
            eos_token_ids: self.token_id("tokenizer.ggml.eos_token_id")?.into_iter().collect(),
            pad_token_id: self.token_id("tokenizer.ggml.padding_token_id")?,
        })
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    fn count(&self, name: &str, allowed: std::ops::RangeInclusive<usize>) -> Result<usize, CheckpointError> {
        self.metadata.count(&self.key(name), allowed)
    }

    fn optional_count(
        &self,
        name: &str,
        allowed: std::ops::RangeInclusive<usize>,
    ) -> Result<Option<usize>, CheckpointError> {
        self.metadata.optional_count(&self.key(name), allowed)
    }

    fn token_id(&self, key: &str) -> Result<Option<u32>, CheckpointError> {
        let id = self.metadata.optional_count(key, 0..=*limits::VOCAB.end())?;
        Ok(id.and_then(|id| u32::try_from(id).ok()))
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo<'_>> {
        self.headers.iter().flat_map(|header| &header.tensors).find(|tensor| tensor.name == name)
    }

    fn has_tensor_ending(&self, suffix: &str) -> bool {
        self.headers.iter().flat_map(|header| &header.tensors).any(|tensor| tensor.name.ends_with(suffix))
    }

    /// `llama` also names mixtures of experts, whose tensors are others.
    fn refuse_experts(&self, is_moe: bool) -> Result<(), CheckpointError> {
        let key = self.key("expert_count");
        match self.metadata.get(&key) {
            Some(value) if !is_moe && whole(value) != Some(0) => {
                Err(self.metadata.wrong(&key, value, "0: only `qwen35moe` has experts here"))
            }
            _ => Ok(()),
        }
    }

    /// Layers of the trunk and of the prediction head, which `block_count` counts together.
    fn num_layers(&self, is_qwen35: bool) -> Result<(usize, usize), CheckpointError> {
        let blocks = self.count("block_count", limits::LAYERS)?;
        let predict = if is_qwen35 { self.optional_count("nextn_predict_layers", 0..=1)?.unwrap_or(0) } else { 0 };
        match blocks - predict {
            0 => Err(self.metadata.wrong(
                &self.key("block_count"),
                &Value::Unsigned(blocks as u64),
                "more than `nextn_predict_layers`",
            )),
            trunk => Ok((trunk, predict)),
        }
    }

    /// The embedding has the last word: `vocab_size` is left out by some converters and stale in other files.
    fn vocab_size(&self) -> Result<usize, CheckpointError> {
        match self.tensor("token_embd.weight").map(|tensor| tensor.shape.as_slice()) {
            Some(&[rows, _]) if limits::VOCAB.contains(&rows) => Ok(rows),
            _ => self.count("vocab_size", limits::VOCAB),
        }
    }

    /// Llama's definition of the head is a share of the hidden size; for the others the two are independent.
    fn head_dim(&self, hidden_size: usize, num_attention_heads: usize) -> Result<usize, CheckpointError> {
        let head_dim = match self.optional_count("attention.key_length", limits::HEAD_DIM)? {
            Some(head_dim) => head_dim,
            None if self.architecture != Architecture::Llama => {
                return Err(self.metadata.missing(&self.key("attention.key_length")));
            }
            None if hidden_size.is_multiple_of(num_attention_heads) => hidden_size / num_attention_heads,
            None => {
                let expected = format!("a divisor of the embedding length {hidden_size}");
                let found = Value::Unsigned(num_attention_heads as u64);
                return Err(self.metadata.wrong(&self.key("attention.head_count"), &found, expected));
            }
        };
        self.optional_count("attention.value_length", head_dim..=head_dim)?;
        Ok(head_dim)
    }

    fn layer_types(&self, is_qwen35: bool, num_layers: usize) -> Result<Vec<LayerType>, CheckpointError> {
        if !is_qwen35 {
            return Ok(vec![LayerType::FullAttention; num_layers]);
        }
        let decode = |value: Value<'_>| match value {
            Value::Bool(recurrent) => Some(recurrent),
            other => whole(&other).map(|number| number != 0),
        };
        let recurrent = self.metadata.list(&self.key("attention.recurrent_layers"), "bools", decode)?;
        let Some(mut recurrent) = recurrent else {
            let interval = self.count("full_attention_interval", limits::LAYERS)?;
            return Ok((1..=num_layers).map(|layer| full_every(interval, layer)).collect());
        };
        // The list may go on over the prediction head's blocks, which are full attention by definition.
        recurrent.truncate(num_layers);
        let layer_type = |recurrent| if recurrent { LayerType::LinearAttention } else { LayerType::FullAttention };
        Ok(recurrent.into_iter().map(layer_type).collect())
    }

    fn rope(&self, is_qwen35: bool, head_dim: usize) -> Result<RopeConfig, CheckpointError> {
        // Left out where the whole head is rotated, which Qwen3.5 never does.
        let rotary_dim = match self.optional_count("rope.dimension_count", limits::HEAD_DIM)? {
            Some(rotary_dim) => rotary_dim,
            None if is_qwen35 => return Err(self.metadata.missing(&self.key("rope.dimension_count"))),
            None => head_dim,
        };
        let is_permuted = self.architecture == Architecture::Llama;
        Ok(RopeConfig {
            theta: self.metadata.number(&self.key("rope.freq_base"), limits::THETA)?,
            rotary_dim,
            scaling: self.rope_scaling()?,
            pairing: if is_permuted { RopePairing::Neighbors } else { RopePairing::Halves },
        })
    }

    fn rope_scaling(&self) -> Result<RopeScaling, CheckpointError> {
        let key = self.key("rope.scaling.type");
        let factor = |name: &str| self.metadata.optional_number(&self.key(name), limits::FACTOR);
        match self.metadata.optional_text(&key)? {
            Some("linear") => {
                let factor = factor("rope.scaling.factor")?;
                let factor = factor.ok_or_else(|| self.metadata.missing(&self.key("rope.scaling.factor")))?;
                Ok(RopeScaling::Linear { factor })
            }
            Some("none") => Ok(RopeScaling::None),
            // The key that files had before scaling had types.
            None => match factor("rope.scale_linear")? {
                Some(factor) if factor != 1.0 => Ok(RopeScaling::Linear { factor }),
                _ => Ok(RopeScaling::None),
            },
            Some(other) => Err(self.metadata.wrong(&key, &Value::String(other), "\"none\" or \"linear\"")),
        }
    }

    fn linear_attention(&self) -> Result<LinearAttentionConfig, CheckpointError> {
        let num_key_heads = self.count("ssm.group_count", limits::HEADS)?;
        let num_value_heads = self.count("ssm.time_step_rank", limits::HEADS)?;
        let inner = self.count("ssm.inner_size", limits::WIDTH)?;
        if !inner.is_multiple_of(num_value_heads) {
            let expected = format!("a multiple of the {num_value_heads} value heads");
            return Err(self.metadata.wrong(&self.key("ssm.inner_size"), &Value::Unsigned(inner as u64), expected));
        }
        let is_permuted = num_key_heads != num_value_heads;
        Ok(LinearAttentionConfig {
            num_key_heads,
            num_value_heads,
            key_head_dim: self.count("ssm.state_size", limits::HEAD_DIM)?,
            value_head_dim: inner / num_value_heads,
            conv_kernel_dim: self.count("ssm.conv_kernel", limits::KERNEL)?,
            value_head_order: if is_permuted { ValueHeadOrder::RoundRobin } else { ValueHeadOrder::Grouped },
        })
    }

    fn moe(&self) -> Result<MoeConfig, CheckpointError> {
        Ok(MoeConfig {
            num_experts: self.count("expert_count", limits::EXPERTS)?,
            num_experts_per_tok: self.count("expert_used_count", limits::EXPERTS)?,
            moe_intermediate_size: self.count("expert_feed_forward_length", limits::WIDTH)?,
            shared_expert_intermediate_size: self.count("expert_shared_feed_forward_length", limits::WIDTH)?,
            // The family always divides by the sum, and converters leave the key out.
            norm_topk_prob: self.metadata.optional_flag(&self.key("expert_weights_norm"))?.unwrap_or(true),
        })
    }
}
