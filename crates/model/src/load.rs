//! The only place where a stored tensor becomes a device weight: folds and conventions are applied here, once.

use std::sync::Arc;

use pleach_checkpoint::{
    self as checkpoint, Convention, DraftConv as DraftConvSizes, LayerType, ModelConfig, RopePairing, TensorData,
    TensorFormat, TensorMap, ValueHeadOrder,
};
use pleach_kernels::ops::{self, AttentionShape, ExpertWeights, KeyHeadOrder, Rope, Sight};
use pleach_kernels::{
    Activations, DType, DeltaLayout, Device, FloatFormat, KernelError, KvLayout, Param, StateLayout, Weight,
    WeightData, WeightFormat, quantize, row_bytes,
};

use crate::ModelError;
use crate::attention::Attention;
use crate::block::{Block, FeedForward, Mixer};
use crate::delta_net::DeltaNet;
use crate::draft_conv::{DraftConv, DraftConvs};
use crate::linear::{Linear, RmsNorm};
use crate::mlp::Mlp;
use crate::moe::Moe;
use crate::mtp::MtpHead;
use crate::rope::inv_freq;
use crate::selector::Selector;

/// Choices made when a model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Type of the key-value cache: [`DType::F32`], [`DType::F16`], [`DType::BF16`] or [`DType::I8`].
    pub kv_cache: DType,
    /// How quantized weights meet their activations.
    pub activations: Activations,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { kv_cache: DType::F16, activations: Activations::Int8PerGroup }
    }
}

/// Takes tensors by name, hands them to the device, and counts the state slots as layers are built.
pub(crate) struct Loader<'a> {
    config: &'a ModelConfig,
    tensors: TensorMap,
    device: &'a dyn Device,
    options: &'a LoadOptions,
    layout: StateLayout,
    /// Frequencies are the same in every layer, so one copy serves all.
    inv_freq: Option<Param>,
    /// How matrices of floats are taken over.
    floats: Floats,
    /// Bytes of the matrices that the device has.
    loaded_bytes: usize,
    /// Told of them after each matrix.
    progress: Option<&'a mut dyn FnMut(usize)>,
}

/// What becomes of matrices that are stored in floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Floats {
    /// They stay as they are.
    Kept,
    /// They are quantized to 8 bits, unless activations stay floats as well: for drafters, which change no text and for
    /// which half the bytes and integer products are worth more than the bits; see [`draft_data`].
    Quantized,
}

impl<'a> Loader<'a> {
    pub(crate) fn new(
        config: &'a ModelConfig,
        tensors: TensorMap,
        device: &'a dyn Device,
        options: &'a LoadOptions,
    ) -> Self {
        let (layout, floats) = (StateLayout::default(), Floats::Kept);
        Self { config, tensors, device, options, layout, inv_freq: None, floats, loaded_bytes: 0, progress: None }
    }

    /// Tells how many bytes of matrices the device has, after each of them.
    pub(crate) fn with_progress(self, progress: &'a mut dyn FnMut(usize)) -> Self {
        Self { progress: Some(progress), ..self }
    }

    /// Takes matrices of floats over in another way.
    pub(crate) fn with_floats(self, floats: Floats) -> Self {
        Self { floats, ..self }
    }

    /// The layout of a sequence's state, once every tensor was used.
    pub(crate) fn finish(self) -> Result<StateLayout, ModelError> {
        match self.tensors.remaining().next() {
            None => Ok(self.layout),
            Some(first) => Err(ModelError::Unused { count: self.tensors.len(), first: first.to_owned() }),
        }
    }

    /// All blocks of the trunk.
    pub(crate) fn blocks(&mut self) -> Result<Vec<Block>, ModelError> {
        let layer_types = &self.config.layer_types;
        layer_types
            .iter()
            .enumerate()
            .map(|(layer, &kind)| self.block(&format!("layers.{layer}"), layer, kind))
            .collect()
    }

    /// The multi-token-prediction head, if the checkpoint has one. Its block counts its own state slots.
    pub(crate) fn mtp(&mut self) -> Result<Option<MtpHead>, ModelError> {
        if self.config.num_mtp_layers == 0 {
            return Ok(None);
        }
        let trunk = std::mem::take(&mut self.layout);
        let block = self.block("mtp.layers.0", self.config.num_hidden_layers, LayerType::FullAttention)?;
        let layout = std::mem::replace(&mut self.layout, trunk);
        Ok(Some(MtpHead {
            pre_fc_norm_embedding: self.norm("mtp.pre_fc_norm_embedding.weight")?,
            pre_fc_norm_hidden: self.norm("mtp.pre_fc_norm_hidden.weight")?,
            fc: self.linear("mtp.fc")?,
            block,
            norm: self.norm("mtp.norm.weight")?,
            layout,
        }))
    }

    fn block(&mut self, prefix: &str, layer: usize, kind: LayerType) -> Result<Block, ModelError> {
        let mixer = match kind {
            LayerType::FullAttention => Mixer::Attention(self.attention(&format!("{prefix}.self_attn"))?),
            LayerType::LinearAttention => Mixer::DeltaNet(self.delta_net(&format!("{prefix}.linear_attn"), layer)?),
        };
        let mlp = format!("{prefix}.mlp");
        let mlp = match self.config.moe {
            Some(_) => FeedForward::Moe(self.moe(&mlp, layer)?),
            None => FeedForward::Dense(self.mlp(&mlp)?),
        };
        Ok(Block {
            input_layernorm: self.norm(&format!("{prefix}.input_layernorm.weight"))?,
            mixer,
            post_attention_layernorm: self.norm(&format!("{prefix}.post_attention_layernorm.weight"))?,
            mlp,
            convs: None,
        })
    }

    /// The convolutions of a DFlash2 block.
    pub(crate) fn draft_convs(&mut self, layer: usize, sizes: DraftConvSizes) -> Result<DraftConvs, ModelError> {
        let mut conv = |name: &str| {
            let prefix = format!("layers.{layer}.{name}");
            Ok::<_, ModelError>(DraftConv {
                base_kernel: self.param(&format!("{prefix}.base_kernel"))?,
                kernel_projection: self.linear(&format!("{prefix}.kernel_projection"))?,
                sizes,
            })
        };
        Ok(DraftConvs { attention: conv("attention_conv")?, mlp: conv("mlp_conv")? })
    }

    /// DFlash2's candidate selector.
    pub(crate) fn selector(&mut self) -> Result<Selector, ModelError> {
        Ok(Selector {
            predecessors: self.codebook("candidate_selector.predecessor_codebook")?,
            successors: self.codebook("candidate_selector.successor_codebook")?,
            hidden_projection: self.linear("candidate_selector.hidden_projection")?,
        })
    }

    /// A matrix of which rows are looked up one by one, as it is stored.
    fn codebook(&mut self, name: &str) -> Result<WeightData, ModelError> {
        let data = weight_data(&self.tensors.take(name)?, Activations::Float);
        data.check().map_err(|source| ModelError::Tensor { name: name.to_owned(), source })?;
        Ok(data)
    }

    fn attention(&mut self, prefix: &str) -> Result<Attention, ModelError> {
        let config = self.config;
        let shape = AttentionShape {
            num_attention_heads: config.num_attention_heads,
            num_key_value_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
        };
        let layout = KvLayout {
            num_key_value_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            dtype: self.options.kv_cache,
            window: None,
        };
        let slot = self.layout.attention.len();
        self.layout.attention.push(layout);
        Ok(Attention {
            slot,
            layout,
            shape,
            gated: config.attn_output_gate,
            q_proj: self.linear(&format!("{prefix}.q_proj"))?,
            k_proj: self.linear(&format!("{prefix}.k_proj"))?,
            v_proj: self.linear(&format!("{prefix}.v_proj"))?,
            o_proj: self.linear(&format!("{prefix}.o_proj"))?,
            q_norm: self.optional_param(&format!("{prefix}.q_norm.weight"))?,
            k_norm: self.optional_param(&format!("{prefix}.k_norm.weight"))?,
            rms_norm_eps: config.rms_norm_eps,
            rope: self.rope()?,
            sight: Sight::ALL,
        })
    }

    fn rope(&mut self) -> Result<Rope, ModelError> {
        let inv_freq = match &self.inv_freq {
            Some(inv_freq) => inv_freq.clone(),
            None => self.device.param(inv_freq(&self.config.rope))?,
        };
        self.inv_freq = Some(inv_freq.clone());
        let pairing = match self.config.rope.pairing {
            RopePairing::Halves => ops::RopePairing::Halves,
            RopePairing::Neighbors => ops::RopePairing::Neighbors,
        };
        Ok(Rope { inv_freq, pairing, sections: None })
    }

    fn delta_net(&mut self, prefix: &str, layer: usize) -> Result<DeltaNet, ModelError> {
        let kind = "linear attention";
        let missing = ModelError::Settings { layer, kind, missing: "linear attention" };
        let sizes = self.config.linear_attention.as_ref().ok_or(missing)?;
        let layout = DeltaLayout {
            num_key_heads: sizes.num_key_heads,
            num_value_heads: sizes.num_value_heads,
            key_head_dim: sizes.key_head_dim,
            value_head_dim: sizes.value_head_dim,
            conv_kernel_dim: sizes.conv_kernel_dim,
        };
        let key_head_order = match sizes.value_head_order {
            ValueHeadOrder::Grouped => KeyHeadOrder::Grouped,
            ValueHeadOrder::RoundRobin => KeyHeadOrder::RoundRobin,
        };
        let slot = self.layout.delta.len();
        self.layout.delta.push(layout);
        Ok(DeltaNet {
            slot,
            layout,
            key_head_order,
            in_proj_qkv: self.linear(&format!("{prefix}.in_proj_qkv"))?,
            in_proj_z: self.linear(&format!("{prefix}.in_proj_z"))?,
            in_proj_a: self.linear(&format!("{prefix}.in_proj_a"))?,
            in_proj_b: self.linear(&format!("{prefix}.in_proj_b"))?,
            conv1d: self.param(&format!("{prefix}.conv1d.weight"))?,
            neg_exp_a: self.param(&format!("{prefix}.A_log"))?,
            dt_bias: self.param(&format!("{prefix}.dt_bias"))?,
            norm: self.norm(&format!("{prefix}.norm.weight"))?,
            out_proj: self.linear(&format!("{prefix}.out_proj"))?,
        })
    }

    fn mlp(&mut self, prefix: &str) -> Result<Mlp, ModelError> {
        Ok(Mlp {
            gate_proj: self.linear(&format!("{prefix}.gate_proj"))?,
            up_proj: self.linear(&format!("{prefix}.up_proj"))?,
            down_proj: self.linear(&format!("{prefix}.down_proj"))?,
        })
    }

    fn moe(&mut self, prefix: &str, layer: usize) -> Result<Moe, ModelError> {
        let missing = ModelError::Settings { layer, kind: "mixture-of-experts", missing: "expert" };
        let sizes = self.config.moe.as_ref().ok_or(missing)?;
        let experts: Result<Vec<_>, ModelError> =
            (0..sizes.num_experts).map(|expert| self.expert(&format!("{prefix}.experts.{expert}"))).collect();
        Ok(Moe {
            gate: self.linear(&format!("{prefix}.gate"))?,
            num_experts_per_tok: sizes.num_experts_per_tok,
            norm_topk_prob: sizes.norm_topk_prob,
            experts: Arc::from(experts?),
            shared_expert: self.mlp(&format!("{prefix}.shared_expert"))?,
            shared_expert_gate: self.linear(&format!("{prefix}.shared_expert_gate"))?,
        })
    }

    fn expert(&mut self, prefix: &str) -> Result<ExpertWeights, ModelError> {
        Ok(ExpertWeights {
            gate: self.weight(&format!("{prefix}.gate_proj.weight"))?,
            up: self.weight(&format!("{prefix}.up_proj.weight"))?,
            down: self.weight(&format!("{prefix}.down_proj.weight"))?,
        })
    }

    /// The norm stored as `name`.
    pub(crate) fn norm(&mut self, name: &str) -> Result<RmsNorm, ModelError> {
        Ok(RmsNorm { weight: self.param(name)?, eps: self.config.rms_norm_eps })
    }

    /// The weight `{prefix}.weight` with the bias `{prefix}.bias`, if the checkpoint has one.
    pub(crate) fn linear(&mut self, prefix: &str) -> Result<Linear, ModelError> {
        let weight = self.weight(&format!("{prefix}.weight"))?;
        let bias = self.optional_param(&format!("{prefix}.bias"))?;
        Ok(Linear { weight, bias })
    }

    /// The matrix stored as `name`.
    pub(crate) fn weight(&mut self, name: &str) -> Result<Weight, ModelError> {
        self.device_weight(name, |device, data| device.weight(data))
    }

    /// The matrix stored as `name`, of which only single rows will be looked up.
    pub(crate) fn table(&mut self, name: &str) -> Result<Weight, ModelError> {
        self.device_weight(name, |device, data| device.table(data))
    }

    fn device_weight(
        &mut self,
        name: &str,
        take_over: impl Fn(&dyn Device, WeightData) -> Result<Weight, KernelError>,
    ) -> Result<Weight, ModelError> {
        let tensor = self.tensors.take(name)?;
        let data = match self.floats {
            Floats::Kept => weight_data(&tensor, self.options.activations),
            Floats::Quantized => draft_data(&tensor, DraftBits::Eight, self.options),
        };
        let failed = |source| ModelError::Tensor { name: name.to_owned(), source };
        let weight = take_over(self.device, data).map_err(failed)?;
        // A device that keeps the file's bytes has them read again; most repack and never look back.
        self.tensors.release(&tensor);
        self.loaded_bytes += tensor.size_bytes();
        if let Some(progress) = &mut self.progress {
            progress(self.loaded_bytes);
        }
        Ok(weight)
    }

    fn param(&mut self, name: &str) -> Result<Param, ModelError> {
        let tensor = self.tensors.take(name)?;
        self.device_param(&tensor)
    }

    fn optional_param(&mut self, name: &str) -> Result<Option<Param>, ModelError> {
        let tensor = self.tensors.take_optional(name);
        tensor.map(|tensor| self.device_param(&tensor)).transpose()
    }

    fn device_param(&self, tensor: &checkpoint::Tensor) -> Result<Param, ModelError> {
        let failed = |source| ModelError::Tensor { name: tensor.name.clone(), source };
        self.device.param(floats_of(tensor)?).map_err(failed)
    }
}

/// The values that the formulas use, row after row.
pub(crate) fn floats_of(tensor: &checkpoint::Tensor) -> Result<Vec<f32>, ModelError> {
    let failed = |source| ModelError::Tensor { name: tensor.name.clone(), source };
    let stored = weight_data(tensor, Activations::Float);
    stored.check().map_err(failed)?;
    let mut values = vec![0.0; stored.columns * stored.rows];
    for (row, values) in values.chunks_exact_mut(stored.columns).enumerate() {
        stored.row(row).dequantize(values);
    }
    apply(tensor.convention, &mut values);
    Ok(values)
}

/// A drafter's matrix with its bias, which also has what the matrix makes of `added`: so the product of `x` is
/// `(x + added) Wᵀ + bias`. An empty `added` adds nothing.
pub(crate) fn draft_linear(
    weight: &checkpoint::Tensor,
    bias: Option<&checkpoint::Tensor>,
    added: &[f32],
    device: &dyn Device,
    options: &LoadOptions,
) -> Result<Linear, ModelError> {
    let failed = |source| ModelError::Tensor { name: weight.name.clone(), source };
    let mut bias = bias.map(floats_of).transpose()?;
    if !added.is_empty() {
        let values = floats_of(weight)?;
        let products =
            values.chunks_exact(added.len()).map(|row| row.iter().zip(added).map(|(w, x)| w * x).sum::<f32>());
        let stored = bias.unwrap_or_else(|| vec![0.0; values.len() / added.len()]);
        bias = Some(stored.iter().zip(products).map(|(bias, product)| bias + product).collect());
    }
    Ok(Linear {
        weight: device.weight(draft_data(weight, DraftBits::Eight, options)).map_err(failed)?,
        bias: bias.map(|bias| device.param(bias)).transpose()?,
    })
}

/// Bits that a drafter's matrix is quantized to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DraftBits {
    /// For layers: with 4 bits in them SmolLM2's drafter takes 3 % more passes.
    Eight,
    /// For output heads: tokens per pass are the same as with 8 bits.
    Four,
}

/// A drafter's matrix: quantized where that saves at least a quarter of its bytes, and as stored otherwise or if activations
/// stay floats.
pub(crate) fn draft_data(tensor: &checkpoint::Tensor, bits: DraftBits, options: &LoadOptions) -> WeightData {
    draft_weight(weight_data(tensor, options.activations), bits)
}

fn draft_weight(data: WeightData, bits: DraftBits) -> WeightData {
    let (format, quantize): (_, fn(&WeightData) -> _) = match bits {
        DraftBits::Eight => (WeightFormat::Q8_0, quantize::q8_0),
        DraftBits::Four => (WeightFormat::Q4_1, quantize::q4_1),
    };
    // Rounded down where rows are no whole blocks, which `quantize` then refuses.
    let bytes = |format| row_bytes(format, data.columns);
    if data.activations == Activations::Float || 3 * bytes(data.format) < 4 * bytes(format) {
        return data;
    }
    // Rows that are no whole blocks stay as they are.
    quantize(&data).unwrap_or(data)
}

/// The values that the formulas use, from the values that the file stores.
fn apply(convention: Convention, values: &mut [f32]) {
    match convention {
        Convention::AsIs => {}
        Convention::ZeroCenteredNorm => values.iter_mut().for_each(|value| *value += 1.0),
        Convention::NegExpLog => values.iter_mut().for_each(|value| *value = -value.exp()),
    }
}

/// A stored tensor as a matrix: the last axis is a row, a vector is one row.
pub(crate) fn weight_data(tensor: &checkpoint::Tensor, activations: Activations) -> WeightData {
    let columns = tensor.shape.last().copied().unwrap_or(1);
    let rows = tensor.shape.iter().rev().skip(1).product();
    let (data, scales, biases) = match &tensor.data {
        TensorData::Plain(data) => (data.clone(), Default::default(), Default::default()),
        TensorData::Affine { codes, scales, biases } => (codes.clone(), scales.clone(), biases.clone()),
    };
    WeightData { format: weight_format(tensor.format), rows, columns, data, scales, biases, activations }
}

fn weight_format(format: TensorFormat) -> WeightFormat {
    match format {
        TensorFormat::F32 => WeightFormat::Float(FloatFormat::F32),
        TensorFormat::F16 => WeightFormat::Float(FloatFormat::F16),
        TensorFormat::BF16 => WeightFormat::Float(FloatFormat::BF16),
        TensorFormat::Q4_0 => WeightFormat::Q4_0,
        TensorFormat::Q4_1 => WeightFormat::Q4_1,
        TensorFormat::Q5_0 => WeightFormat::Q5_0,
        TensorFormat::Q5_1 => WeightFormat::Q5_1,
        TensorFormat::Q8_0 => WeightFormat::Q8_0,
        TensorFormat::Q2_K => WeightFormat::Q2_K,
        TensorFormat::Q3_K => WeightFormat::Q3_K,
        TensorFormat::Q4_K => WeightFormat::Q4_K,
        TensorFormat::Q5_K => WeightFormat::Q5_K,
        TensorFormat::Q6_K => WeightFormat::Q6_K,
        TensorFormat::IQ4_NL => WeightFormat::IQ4_NL,
        TensorFormat::IQ4_XS => WeightFormat::IQ4_XS,
        TensorFormat::Affine { bits, group_size, scales } => {
            WeightFormat::Affine { bits, group_size, scales: float_format(scales) }
        }
    }
}

fn float_format(format: checkpoint::FloatFormat) -> FloatFormat {
    match format {
        checkpoint::FloatFormat::F32 => FloatFormat::F32,
        checkpoint::FloatFormat::F16 => FloatFormat::F16,
        checkpoint::FloatFormat::BF16 => FloatFormat::BF16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafters_are_quantized_where_that_saves_a_quarter() {
        let quantized = |format, columns, activations, bits| {
            let data = vec![0; 2 * row_bytes(format, columns)].into();
            let [scales, biases] = [Default::default(), Default::default()];
            draft_weight(WeightData { format, rows: 2, columns, data, scales, biases, activations }, bits).format
        };
        let (int8, bf16) = (Activations::Int8PerGroup, WeightFormat::Float(FloatFormat::BF16));
        use DraftBits::{Eight, Four};
        use WeightFormat::{Q4_0, Q4_1, Q6_K, Q8_0};
        for (stored, eight, four) in [(bf16, Q8_0, Q4_1), (Q8_0, Q8_0, Q4_1), (Q6_K, Q6_K, Q6_K), (Q4_0, Q4_0, Q4_0)] {
            assert_eq!(quantized(stored, 256, int8, Eight), eight, "{stored}");
            assert_eq!(quantized(stored, 256, int8, Four), four, "{stored}");
            assert_eq!(quantized(stored, 256, Activations::Float, Four), stored, "{stored}");
        }
        assert_eq!(quantized(bf16, 40, int8, Eight), bf16, "no whole blocks");
    }
}
