//! The one table of tensors that a config asks for: name, shape, and how stored values are meant.

use std::path::Path;

use crate::{
    Architecture, CheckpointError, Convention, DraftConv, DraftSelector, DrafterConfig, LayerType,
    LinearAttentionConfig, ModelConfig, MoeConfig, SkippedTensor, Tensor, TensorMap, WeaverConfig,
    fields::shorten,
    pool::{Pool, Stored},
};

/// One line of the table.
struct Expected {
    /// The canonical name.
    name: String,
    /// The canonical shape.
    shape: Vec<usize>,
    /// The shape in the config's fields.
    rule: &'static str,
    /// What the tensor is.
    role: Role,
}

/// What a tensor is, as far as its storage depends on it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A linear layer's weight or the embedding: any format.
    Matrix,
    /// The weight of a norm that Qwen3.5 stores around zero.
    Norm,
    /// `A_log`.
    Decay,
    /// Other small float tensors: biases, convolution, the gated norm.
    Float,
}

/// How a kind of file stores the two tensors that are not stored as they are used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Conventions {
    /// Of norms, but for the gated norm of Gated DeltaNet.
    pub(crate) norm: Convention,
    /// Of `A_log`.
    pub(crate) decay: Convention,
}

/// Where tensors and config come from, for errors.
pub(crate) struct Origin<'a> {
    /// The folder or file of the weights.
    pub(crate) weights: &'a Path,
    /// The file of the config.
    pub(crate) config: &'a Path,
}

/// Takes every tensor that `model` asks for out of `pool`, checked; lists the rest.
pub(crate) fn assemble(
    model: &ModelConfig,
    conventions: Conventions,
    mut pool: Pool,
    origin: &Origin<'_>,
) -> Result<(TensorMap, Vec<SkippedTensor>), CheckpointError> {
    let tensors = take_all(&mut pool, conventions, origin, |take| visit(model, take))?;
    refuse_more_layers(model, &pool, origin)?;
    let skipped = pool.into_skipped(|name| skip_reason(name, model));
    Ok((tensors, skipped))
}

/// Takes every tensor of a DFlash drafter out of `pool`, checked. What is left in the pool belongs to something else.
pub(crate) fn assemble_drafter(
    drafter: &DrafterConfig,
    pool: &mut Pool,
    origin: &Origin<'_>,
) -> Result<TensorMap, CheckpointError> {
    let conventions = Conventions { norm: Convention::AsIs, decay: Convention::AsIs };
    take_all(pool, conventions, origin, |take| visit_drafter(drafter, take))
}

/// Takes every tensor of a Weaver out of `pool`, checked.
pub(crate) fn assemble_weaver(
    weaver: &WeaverConfig,
    pool: &mut Pool,
    origin: &Origin<'_>,
) -> Result<TensorMap, CheckpointError> {
    let conventions = Conventions { norm: Convention::AsIs, decay: Convention::AsIs };
    take_all(pool, conventions, origin, |take| visit_weaver(weaver, take))
}

/// Takes the tensors that `visit` asks for.
fn take_all(
    pool: &mut Pool,
    conventions: Conventions,
    origin: &Origin<'_>,
    visit: impl FnOnce(&mut Visit<'_>) -> Result<(), CheckpointError>,
) -> Result<TensorMap, CheckpointError> {
    let mut tensors = TensorMap::default();
    // One line at a time, ended by the first tensor that is missing: the table is never longer than the files.
    visit(&mut |expected| {
        let stored = pool.remove(&expected.name).ok_or_else(|| CheckpointError::MissingTensor {
            name: expected.name.clone(),
            file: origin.weights.to_owned(),
            config: origin.config.to_owned(),
            rule: expected.rule,
            expected: expected.shape.clone(),
        })?;
        tensors.insert(check(expected, stored, conventions, origin)?);
        Ok(())
    })?;
    Ok(tensors)
}

/// Refuses tensors of layers that the config does not count, which nothing took out of `pool`. A whole
/// multi-token-prediction head, told by its `mtp.fc`, may be there without being announced.
fn refuse_more_layers(model: &ModelConfig, pool: &Pool, origin: &Origin<'_>) -> Result<(), CheckpointError> {
    let heads = model.num_mtp_layers.max(usize::from(pool.get("mtp.fc.weight").is_some()));
    let is_past = |name: &str| {
        let head = name.strip_prefix("mtp.");
        let layers = if head.is_some() { heads } else { model.num_hidden_layers };
        let layer = head.unwrap_or(name).strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
        layer.and_then(|(index, _)| index.parse().ok()).is_some_and(|index: usize| index >= layers)
    };
    let Some(stored) = pool.names().find(|name| is_past(name)).and_then(|name| pool.get(name)) else { return Ok(()) };
    Err(CheckpointError::MoreLayers {
        name: shorten(&stored.source_name),
        file: stored.file.to_path_buf(),
        config: origin.config.to_owned(),
        layers: model.num_hidden_layers,
    })
}

fn skip_reason(name: &str, model: &ModelConfig) -> &'static str {
    if name.starts_with("lm_head.") && model.tie_word_embeddings {
        "the config ties the output matrix to the embedding"
    } else if name.starts_with("mtp.") {
        "part of a multi-token-prediction layer that the config does not announce"
    } else {
        "no part of this architecture reads it"
    }
}

fn check(
    expected: Expected,
    stored: Stored,
    conventions: Conventions,
    origin: &Origin<'_>,
) -> Result<Tensor, CheckpointError> {
    // Axes of length one do not change the order of elements, and files differ in them: `conv1d` is [C, 1, 4], [C, 4, 1]
    // or [C, 4], a shared expert's gate [1, H] or [H].
    let axes = |shape: &[usize]| -> Vec<usize> { shape.iter().copied().filter(|&axis| axis != 1).collect() };
    if axes(&stored.shape) != axes(&expected.shape) {
        return Err(CheckpointError::Shape {
            name: shorten(&stored.source_name),
            file: stored.file.to_path_buf(),
            config: origin.config.to_owned(),
            rule: expected.rule,
            found: stored.shape,
            expected: expected.shape,
        });
    }
    let format = stored.format()?;
    if expected.role != Role::Matrix && format.as_float().is_none() {
        return Err(
            stored.unsupported(format.to_string(), "only matrices may be quantized; this one must be F32, F16 or BF16")
        );
    }
    let convention = match expected.role {
        Role::Matrix | Role::Float => Convention::AsIs,
        Role::Norm => conventions.norm,
        Role::Decay => conventions.decay,
    };
    let Stored { source_name, data, .. } = stored;
    Ok(Tensor { name: expected.name, source_name, shape: expected.shape, format, data, convention })
}

type Visit<'a> = dyn FnMut(Expected) -> Result<(), CheckpointError> + 'a;

/// Calls `f` with each expected tensor, in the order of the model.
fn visit(model: &ModelConfig, f: &mut Visit<'_>) -> Result<(), CheckpointError> {
    let (vocab, hidden) = (model.vocab_size, model.hidden_size);
    let mut root = Lines { prefix: "", f };
    root.line("embed_tokens.weight", &[vocab, hidden], "[vocab_size, hidden_size]", Role::Matrix)?;
    for (index, &layer_type) in model.layer_types.iter().enumerate() {
        visit_layer(&format!("layers.{index}."), model, layer_type, f)?;
    }
    let mut root = Lines { prefix: "", f };
    root.line("norm.weight", &[hidden], "[hidden_size]", Role::Norm)?;
    if !model.tie_word_embeddings {
        root.line(
            "lm_head.weight",
            &[vocab, hidden],
            "[vocab_size, hidden_size], tie_word_embeddings false",
            Role::Matrix,
        )?;
    }
    if model.num_mtp_layers > 0 { visit_mtp(model, f) } else { Ok(()) }
}

/// Calls `f` with each tensor of a drafter, which has neither embedding nor output matrix.
fn visit_drafter(drafter: &DrafterConfig, f: &mut Visit<'_>) -> Result<(), CheckpointError> {
    let (model, num_taps) = (&drafter.model, drafter.target_layer_ids.len());
    let hidden = model.hidden_size;
    let mut root = Lines { prefix: "", f };
    let rule = "[hidden_size, number of target_layer_ids * hidden_size]";
    root.line("fc.weight", &[hidden, num_taps * hidden], rule, Role::Matrix)?;
    root.line("hidden_norm.weight", &[hidden], "[hidden_size]", Role::Norm)?;
    for (index, &layer_type) in model.layer_types.iter().enumerate() {
        let prefix = format!("layers.{index}.");
        visit_layer(&prefix, model, layer_type, f)?;
        if let Some(conv) = drafter.conv {
            Lines { prefix: &prefix, f }.draft_convs(hidden, conv)?;
        }
    }
    let mut root = Lines { prefix: "", f };
    root.line("norm.weight", &[hidden], "[hidden_size]", Role::Norm)?;
    match drafter.selector {
        Some(selector) => root.selector(model, selector),
        None => Ok(()),
    }
}

fn visit_weaver(weaver: &WeaverConfig, f: &mut Visit<'_>) -> Result<(), CheckpointError> {
    let WeaverConfig { d_model, d_embed, d_rank, mlp_dim, .. } = *weaver;
    let mut root = Lines { prefix: "", f };
    root.biased_norm("embed_norm", d_embed, "[d_embed]")?;
    root.biased_norm("output_norm", d_model, "[d_model]")?;
    root.linear("token_in", [d_rank, d_embed], "[d_rank, d_embed]", Some("[d_rank]"))?;
    root.linear("proposal_in", [d_rank, d_model], "[d_rank, d_model]", Some("[d_rank]"))?;
    for index in 0..weaver.num_layers {
        let mut block = Lines { prefix: &format!("blocks.{index}."), f };
        block.biased_norm("norm_attn", d_rank, "[d_rank]")?;
        block.linear("qkv_proj", [3 * d_rank, d_rank], "[3 * d_rank, d_rank]", None)?;
        block.linear("o_proj", [d_rank, d_rank], "[d_rank, d_rank]", None)?;
        block.biased_norm("norm_mlp", d_rank, "[d_rank]")?;
        block.linear("gate_proj", [mlp_dim, d_rank], "[mlp_dim, d_rank]", Some("[mlp_dim]"))?;
        block.linear("up_proj", [mlp_dim, d_rank], "[mlp_dim, d_rank]", Some("[mlp_dim]"))?;
        block.linear("down_proj", [d_rank, mlp_dim], "[d_rank, mlp_dim]", Some("[d_rank]"))?;
    }
    let mut root = Lines { prefix: "", f };
    root.biased_norm("out_norm", d_rank, "[d_rank]")?;
    root.linear("lm_head_query_in", [d_model, d_rank], "[d_model, d_rank]", None)
}

fn visit_mtp(model: &ModelConfig, f: &mut Visit<'_>) -> Result<(), CheckpointError> {
    let hidden = model.hidden_size;
    let mut head = Lines { prefix: "mtp.", f };
    head.line("fc.weight", &[hidden, 2 * hidden], "[hidden_size, 2 * hidden_size]", Role::Matrix)?;
    head.line("pre_fc_norm_embedding.weight", &[hidden], "[hidden_size]", Role::Norm)?;
    head.line("pre_fc_norm_hidden.weight", &[hidden], "[hidden_size]", Role::Norm)?;
    for index in 0..model.num_mtp_layers {
        visit_layer(&format!("mtp.layers.{index}."), model, LayerType::FullAttention, f)?;
    }
    Lines { prefix: "mtp.", f }.line("norm.weight", &[hidden], "[hidden_size]", Role::Norm)
}

fn visit_layer(
    prefix: &str,
    model: &ModelConfig,
    layer_type: LayerType,
    f: &mut Visit<'_>,
) -> Result<(), CheckpointError> {
    let mut layer = Lines { prefix, f };
    layer.line("input_layernorm.weight", &[model.hidden_size], "[hidden_size]", Role::Norm)?;
    match (layer_type, &model.linear_attention) {
        (LayerType::LinearAttention, Some(linear)) => layer.linear_attention(model.hidden_size, linear)?,
        _ => layer.full_attention(model)?,
    }
    layer.line("post_attention_layernorm.weight", &[model.hidden_size], "[hidden_size]", Role::Norm)?;
    match &model.moe {
        Some(moe) => layer.experts(model.hidden_size, moe),
        None => layer.mlp(model),
    }
}

/// The lines of one layer.
struct Lines<'a, 'f> {
    prefix: &'a str,
    f: &'a mut Visit<'f>,
}

impl Lines<'_, '_> {
    fn line(&mut self, name: &str, shape: &[usize], rule: &'static str, role: Role) -> Result<(), CheckpointError> {
        (self.f)(Expected { name: format!("{}{name}", self.prefix), shape: shape.to_vec(), rule, role })
    }

    /// A linear layer's weight, and its bias where `bias` names the config's field for it.
    fn linear(
        &mut self,
        name: &str,
        [out, input]: [usize; 2],
        rule: &'static str,
        bias: Option<&'static str>,
    ) -> Result<(), CheckpointError> {
        self.line(&format!("{name}.weight"), &[out, input], rule, Role::Matrix)?;
        match bias {
            Some(field) => self.line(&format!("{name}.bias"), &[out], field, Role::Float),
            None => Ok(()),
        }
    }

    /// A norm that adds a bias to what it scales.
    fn biased_norm(&mut self, name: &str, size: usize, rule: &'static str) -> Result<(), CheckpointError> {
        self.line(&format!("{name}.weight"), &[size], rule, Role::Float)?;
        self.line(&format!("{name}.bias"), &[size], rule, Role::Float)
    }

    fn full_attention(&mut self, model: &ModelConfig) -> Result<(), CheckpointError> {
        let hidden = model.hidden_size;
        let queries = model.num_attention_heads * model.head_dim;
        let keys = model.num_key_value_heads * model.head_dim;
        let bias = model.attention_bias.then_some("attention_bias true");
        let (q_rows, q_rule) = if model.attn_output_gate {
            (2 * queries, "[2 * num_attention_heads * head_dim, hidden_size], attn_output_gate true")
        } else {
            (queries, "[num_attention_heads * head_dim, hidden_size]")
        };
        let kv_rule = "[num_key_value_heads * head_dim, hidden_size]";
        self.linear("self_attn.q_proj", [q_rows, hidden], q_rule, bias)?;
        self.linear("self_attn.k_proj", [keys, hidden], kv_rule, bias)?;
        self.linear("self_attn.v_proj", [keys, hidden], kv_rule, bias)?;
        self.linear("self_attn.o_proj", [hidden, queries], "[hidden_size, num_attention_heads * head_dim]", bias)?;
        if model.architecture != Architecture::Llama {
            self.line("self_attn.q_norm.weight", &[model.head_dim], "[head_dim]", Role::Norm)?;
            self.line("self_attn.k_norm.weight", &[model.head_dim], "[head_dim]", Role::Norm)?;
        }
        Ok(())
    }

    fn linear_attention(&mut self, hidden: usize, linear: &LinearAttentionConfig) -> Result<(), CheckpointError> {
        let (channels, heads) = (linear.conv_dim(), linear.num_value_heads);
        let values = heads * linear.value_head_dim;
        let qkv_rule = "[2 * linear_num_key_heads * linear_key_head_dim + linear_num_value_heads * linear_value_head_dim, hidden_size]";
        let z_rule = "[linear_num_value_heads * linear_value_head_dim, hidden_size]";
        let head_rule = "[linear_num_value_heads, hidden_size]";
        let out_rule = "[hidden_size, linear_num_value_heads * linear_value_head_dim]";
        self.line("linear_attn.in_proj_qkv.weight", &[channels, hidden], qkv_rule, Role::Matrix)?;
        self.line("linear_attn.in_proj_z.weight", &[values, hidden], z_rule, Role::Matrix)?;
        self.line("linear_attn.in_proj_a.weight", &[heads, hidden], head_rule, Role::Matrix)?;
        self.line("linear_attn.in_proj_b.weight", &[heads, hidden], head_rule, Role::Matrix)?;
        self.line(
            "linear_attn.conv1d.weight",
            &[channels, linear.conv_kernel_dim],
            "[rows of in_proj_qkv, linear_conv_kernel_dim]",
            Role::Float,
        )?;
        self.line("linear_attn.A_log", &[heads], "[linear_num_value_heads]", Role::Decay)?;
        self.line("linear_attn.dt_bias", &[heads], "[linear_num_value_heads]", Role::Float)?;
        self.line("linear_attn.norm.weight", &[linear.value_head_dim], "[linear_value_head_dim]", Role::Float)?;
        self.line("linear_attn.out_proj.weight", &[hidden, values], out_rule, Role::Matrix)
    }

    fn mlp(&mut self, model: &ModelConfig) -> Result<(), CheckpointError> {
        let (hidden, width) = (model.hidden_size, model.intermediate_size);
        let bias = model.mlp_bias.then_some("mlp_bias true");
        self.linear("mlp.gate_proj", [width, hidden], "[intermediate_size, hidden_size]", bias)?;
        self.linear("mlp.up_proj", [width, hidden], "[intermediate_size, hidden_size]", bias)?;
        self.linear("mlp.down_proj", [hidden, width], "[hidden_size, intermediate_size]", bias)
    }

    /// DFlash2's convolutions, each with a kernel for the input and one for the output of what it is around.
    fn draft_convs(&mut self, hidden: usize, conv: DraftConv) -> Result<(), CheckpointError> {
        let DraftConv { kernel_size, group_size } = conv;
        let rows = 2 * kernel_size * (hidden / group_size);
        for conv in ["attention_conv", "mlp_conv"] {
            let base = "[2, conv_kernel_size, hidden_size]";
            self.line(&format!("{conv}.base_kernel"), &[2, kernel_size, hidden], base, Role::Float)?;
            let rule = "[2 * conv_kernel_size * hidden_size / conv_group_size, hidden_size]";
            self.linear(&format!("{conv}.kernel_projection"), [rows, hidden], rule, None)?;
        }
        Ok(())
    }

    fn selector(&mut self, model: &ModelConfig, selector: DraftSelector) -> Result<(), CheckpointError> {
        let (vocab, hidden, rank) = (model.vocab_size, model.hidden_size, selector.rank);
        for name in ["predecessor_codebook", "successor_codebook"] {
            let name = format!("candidate_selector.{name}");
            self.line(&name, &[vocab, rank], "[vocab_size, selector_rank]", Role::Matrix)?;
        }
        self.linear("candidate_selector.hidden_projection", [rank, hidden], "[selector_rank, hidden_size]", None)
    }

    fn experts(&mut self, hidden: usize, moe: &MoeConfig) -> Result<(), CheckpointError> {
        let (width, shared) = (moe.moe_intermediate_size, moe.shared_expert_intermediate_size);
        self.linear("mlp.gate", [moe.num_experts, hidden], "[num_experts, hidden_size]", None)?;
        for expert in 0..moe.num_experts {
            let up = "[moe_intermediate_size, hidden_size]";
            let down = "[hidden_size, moe_intermediate_size]";
            self.linear(&format!("mlp.experts.{expert}.gate_proj"), [width, hidden], up, None)?;
            self.linear(&format!("mlp.experts.{expert}.up_proj"), [width, hidden], up, None)?;
            self.linear(&format!("mlp.experts.{expert}.down_proj"), [hidden, width], down, None)?;
        }
        let up = "[shared_expert_intermediate_size, hidden_size]";
        let down = "[hidden_size, shared_expert_intermediate_size]";
        self.linear("mlp.shared_expert.gate_proj", [shared, hidden], up, None)?;
        self.linear("mlp.shared_expert.up_proj", [shared, hidden], up, None)?;
        self.linear("mlp.shared_expert.down_proj", [hidden, shared], down, None)?;
        self.linear("mlp.shared_expert_gate", [1, hidden], "[1, hidden_size]", None)
    }
}
