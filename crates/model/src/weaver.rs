//! Weavers: chances of a drafter's candidates given the path that leads to them.

use std::fmt;
use std::sync::Arc;

use pleach_checkpoint::{ModelConfig, TensorMap, WeaverCheckpoint, WeaverConfig};
use pleach_kernels::{Device, KernelError, Ops, Rows, SequenceRows, Tensor, Weight};

use crate::linear::{Linear, RmsNorm};
use crate::load::{LoadOptions, draft_linear, floats_of};
use crate::pass_cache::{MAX_ROWS, PassCache, RunOf};
use crate::{Model, ModelError};

mod memory;
mod token_rows;

use memory::{Memory, Rotation};
use token_rows::TokenRows;

/// Scores the tokens that a block drafter finds likeliest at each depth of a tree, given the path to them.
///
/// ```text
/// prefix   u_0 = the target's hidden state that chose the root, u_i = the drafter's hidden state of block row i
///          x_i = norm(u_i) Wproposalᵀ                       at rotary position i, each sees those before it
/// node     x = norm(embed(token)) Wtokenᵀ                   at rotary position depth + 1
///          x = x + attention(norm x);  x = x + down(silu(gate) · up)(norm x)
///                                                           sees the prefix, its ancestors and itself
/// query    q = norm(x) Wqueryᵀ
/// score    of candidate c at the next depth = logit of the drafter + ⟨q, Whead[c]⟩
/// ```
///
/// Norms are root-mean-square norms with a weight and a bias. Embedding and output head are the target's. Source: "Trees
/// from Marginals" (arXiv:2607.06763).
#[derive(Debug)]
pub struct Weaver {
    config: WeaverConfig,
    /// Where its passes run.
    device: Arc<dyn Device>,
    embed_tokens: Weight,
    head: Weight,
    embed_norm: RmsNorm,
    token_in: Linear,
    output_norm: RmsNorm,
    proposal_in: Linear,
    blocks: Vec<WeaverBlock>,
    out_norm: RmsNorm,
    lm_head_query_in: Linear,
    rotation: Rotation,
}

#[derive(Debug)]
struct WeaverBlock {
    norm_attn: RmsNorm,
    qkv_proj: Linear,
    o_proj: Linear,
    norm_mlp: RmsNorm,
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

/// A Weaver of fewer elements runs on one thread: its products take some microseconds, and between its passes is work of one
/// thread, in which the others would fall asleep.
const SERIAL_ELEMENTS: usize = 1 << 23;

/// A node of the tree that is to be expanded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeaverNode {
    /// Its token.
    pub token: u32,
    /// The node that it continues, counted from 0 in the order in which nodes were expanded; `None` for the root.
    pub parent: Option<usize>,
}

/// Runs one Weaver: round by round, each with a prefix and nodes that are expanded level by level.
pub struct WeaverRunner {
    weaver: Arc<Weaver>,
    prefix: PassCache<Entered>,
    nodes: PassCache<Entered>,
    /// One per block: from its attention to the next block's.
    blocks: Vec<PassCache<BlockTensors>>,
    heads: PassCache<Tensor>,
    memory: Memory,
    /// Stream and heads before the first attention, by token: `[d_rank]` and `[3 · d_rank]` in one row.
    entered: TokenRows,
    /// Rows of the output head, `[d_model]`.
    head_rows: TokenRows,
}

/// The residual stream before a block, and what its attention is made of.
#[derive(Clone, Copy, Debug)]
struct Entered {
    /// Of the prefix, which has no tokens.
    input: Option<Tensor>,
    stream: Tensor,
    /// `[rows, 3 · d_rank]`.
    qkv: Tensor,
}

/// A block after its attention.
#[derive(Clone, Copy, Debug)]
struct BlockTensors {
    stream: Tensor,
    attended: Tensor,
    then: Then,
}

#[derive(Clone, Copy, Debug)]
enum Then {
    Block(Entered),
    /// `[rows, d_model]`.
    Query(Tensor),
}

impl Weaver {
    /// Whether a Weaver was made for a target with these sizes, and for a drafter of that `block_size`.
    ///
    /// # Errors
    /// [`ModelError::UnfitDrafter`] with the first field that differs.
    pub fn check_fit(weaver: &WeaverConfig, target: &ModelConfig, block_size: usize) -> Result<(), ModelError> {
        let expected = target.hidden_size;
        for (field, found) in [("d_model", weaver.d_model), ("d_embed", weaver.d_embed)] {
            if found != expected {
                let (found, expected) = (found.to_string(), expected.to_string());
                return Err(ModelError::UnfitDrafter { field, found, expected });
            }
        }
        if weaver.max_depth < block_size {
            return Ok(());
        }
        let expected = format!("a drafter that guesses {} tokens", block_size.saturating_sub(1));
        Err(ModelError::UnfitDrafter { field: "K", found: weaver.max_depth.to_string(), expected })
    }

    /// Puts a Weaver on its target's device. `block_size` is that of the drafter whose candidates it scores.
    ///
    /// # Errors
    /// [`ModelError::UnfitDrafter`] if it was made for another target or drafter; a tensor that does not fit its format.
    pub fn load(
        weaver: WeaverCheckpoint,
        target: &Model,
        block_size: usize,
        options: &LoadOptions,
    ) -> Result<Self, ModelError> {
        let WeaverCheckpoint { config, tensors, .. } = weaver;
        Self::check_fit(&config, target.config(), block_size)?;
        let device = Arc::clone(target.device());
        let num_elements: usize = tensors.iter().map(|tensor| tensor.num_elements()).sum();
        let serial = if num_elements < SERIAL_ELEMENTS { device.serial() } else { None };
        let mut loader = WeaverLoader { tensors, device: &*device, options, eps: config.eps };
        let (embed_norm, token_in) = loader.normed("embed_norm", "token_in")?;
        let (output_norm, proposal_in) = loader.normed("output_norm", "proposal_in")?;
        let blocks =
            (0..config.num_layers).map(|block| loader.block(&format!("blocks.{block}."))).collect::<Result<_, _>>()?;
        let (out_norm, lm_head_query_in) = loader.normed("out_norm", "lm_head_query_in")?;
        Ok(Self {
            rotation: Rotation::new(config.rope_base, config.head_dim(), config.max_depth + 1),
            embed_tokens: target.embed_tokens.clone(),
            head: target.lm_head.weight.clone(),
            config,
            device: serial.unwrap_or_else(|| Arc::clone(&device)),
            embed_norm,
            token_in,
            output_norm,
            proposal_in,
            blocks,
            out_norm,
            lm_head_query_in,
        })
    }

    /// Sizes.
    pub fn config(&self) -> &WeaverConfig {
        &self.config
    }

    fn record_prefix(&self, ops: &mut Ops) -> Result<Entered, KernelError> {
        let input = ops.input(self.config.d_model);
        let entered = self.record_entry(ops, input, &self.output_norm, &self.proposal_in)?;
        Ok(Entered { input: Some(input), ..entered })
    }

    fn record_nodes(&self, ops: &mut Ops) -> Result<Entered, KernelError> {
        let embedded = ops.embed(&self.embed_tokens)?;
        self.record_entry(ops, embedded, &self.embed_norm, &self.token_in)
    }

    /// From the target's width to the first block's queries, keys and values.
    fn record_entry(&self, ops: &mut Ops, x: Tensor, norm: &RmsNorm, into: &Linear) -> Result<Entered, KernelError> {
        let normed = ops.rms_norm(x, &norm.weight, norm.eps)?;
        let [stream] = ops.linear(normed, [into.parts()])?;
        let norm = &self.blocks[0].norm_attn;
        let normed = ops.rms_norm(stream, &norm.weight, norm.eps)?;
        self.record_heads(ops, 0, stream, normed)
    }

    fn record_heads(
        &self,
        ops: &mut Ops,
        block: usize,
        stream: Tensor,
        normed: Tensor,
    ) -> Result<Entered, KernelError> {
        let [qkv] = ops.linear(normed, [self.blocks[block].qkv_proj.parts()])?;
        ops.keep(stream);
        ops.keep(qkv);
        Ok(Entered { input: None, stream, qkv })
    }

    /// What follows the attention of block `index`.
    fn record_block(&self, ops: &mut Ops, index: usize) -> Result<BlockTensors, KernelError> {
        let block = &self.blocks[index];
        let (stream, attended) = (ops.input(self.config.d_rank), ops.input(self.config.d_rank));
        let [mixed] = ops.linear(attended, [block.o_proj.parts()])?;
        let (h, normed) = ops.add_rms_norm(stream, mixed, &block.norm_mlp.weight, block.norm_mlp.eps)?;
        let [gate, up] = ops.linear(normed, [block.gate_proj.parts(), block.up_proj.parts()])?;
        let gated = ops.swiglu(gate, up)?;
        let [expanded] = ops.linear(gated, [block.down_proj.parts()])?;
        let next = self.blocks.get(index + 1);
        let norm = next.map_or(&self.out_norm, |next| &next.norm_attn);
        let (x, normed) = ops.add_rms_norm(h, expanded, &norm.weight, norm.eps)?;
        let then = match next {
            Some(_) => Then::Block(self.record_heads(ops, index + 1, x, normed)?),
            None => {
                let [query] = ops.linear(normed, [self.lm_head_query_in.parts()])?;
                ops.keep(query);
                Then::Query(query)
            }
        };
        Ok(BlockTensors { stream, attended, then })
    }

    fn record_head_rows(&self, ops: &mut Ops) -> Result<Tensor, KernelError> {
        let rows = ops.embed(&self.head)?;
        ops.keep(rows);
        Ok(rows)
    }
}

/// Takes the tensors of a Weaver by name.
struct WeaverLoader<'a> {
    tensors: TensorMap,
    device: &'a dyn Device,
    options: &'a LoadOptions,
    eps: f32,
}

impl WeaverLoader<'_> {
    fn block(&mut self, prefix: &str) -> Result<WeaverBlock, ModelError> {
        let name = |part: &str| format!("{prefix}{part}");
        let (norm_attn, qkv_proj) = self.normed(&name("norm_attn"), &name("qkv_proj"))?;
        let (_, gate_proj) = self.normed(&name("norm_mlp"), &name("gate_proj"))?;
        let (norm_mlp, up_proj) = self.normed(&name("norm_mlp"), &name("up_proj"))?;
        Ok(WeaverBlock {
            norm_attn,
            qkv_proj,
            o_proj: self.linear(&name("o_proj"), &[])?,
            norm_mlp,
            gate_proj,
            up_proj,
            down_proj: self.linear(&name("down_proj"), &[])?,
        })
    }

    /// A norm and a matrix that reads it. What the norm adds, the matrix makes a constant of: it goes into its bias.
    fn normed(&mut self, norm: &str, linear: &str) -> Result<(RmsNorm, Linear), ModelError> {
        let values = |loader: &Self, leaf: &str| -> Result<Vec<f32>, ModelError> {
            let name = format!("{norm}.{leaf}");
            let missing = || pleach_checkpoint::CheckpointError::NoSuchTensor { name: name.clone() };
            floats_of(loader.tensors.get(&name).ok_or_else(missing)?)
        };
        let (weight, added) = (values(self, "weight")?, values(self, "bias")?);
        let linear = self.linear(linear, &added)?;
        Ok((RmsNorm { weight: self.device.param(weight)?, eps: self.eps }, linear))
    }

    /// The matrix `name`, which reads `x + added`.
    fn linear(&mut self, name: &str, added: &[f32]) -> Result<Linear, ModelError> {
        let weight = self.tensors.take(&format!("{name}.weight"))?;
        let bias = self.tensors.take_optional(&format!("{name}.bias"));
        draft_linear(&weight, bias.as_ref(), added, self.device, self.options)
    }
}

impl WeaverRunner {
    /// A runner for a Weaver.
    pub fn new(weaver: Arc<Weaver>) -> Self {
        let blocks = weaver.blocks.iter().map(|_| PassCache::new()).collect();
        let memory = Memory::new(weaver.config.num_heads, weaver.config.head_dim(), weaver.config.num_layers);
        Self {
            entered: TokenRows::new(4 * weaver.config.d_rank),
            head_rows: TokenRows::new(weaver.config.d_model),
            weaver,
            prefix: PassCache::new(),
            nodes: PassCache::new(),
            blocks,
            heads: PassCache::new(),
            memory,
        }
    }

    /// The Weaver that it runs.
    pub fn weaver(&self) -> &Arc<Weaver> {
        &self.weaver
    }

    /// Begins a round. `prefix`: the target's hidden state that chose the root, then the drafter's hidden states of the
    /// block's rows 1, 2, ..., all after the final norm: `[rows, d_model]`. Rows beyond `max_depth + 1` are left out.
    ///
    /// # Errors
    /// What a pass meets.
    pub fn begin(&mut self, prefix: &[f32]) -> Result<(), ModelError> {
        let weaver = Arc::clone(&self.weaver);
        let WeaverConfig { d_model, max_depth, .. } = weaver.config;
        let count = (prefix.len() / d_model).min(max_depth + 1);
        let prefix = &prefix[..count * d_model];
        self.memory.clear();
        let tokens = vec![0; count];
        let rows = Rows::new(&[SequenceRows::chain(0, &tokens)])?;
        let inputs = |entered: &Entered| entered.input.map(|input| vec![(input, prefix)]).unwrap_or_default();
        self.prefix.run(&*weaver.device, run_of(&rows), |ops| weaver.record_prefix(ops), inputs)?;
        let (pass, entered) = self.prefix.last()?;
        let (mut stream, mut qkv) = (pass.read(entered.stream)?.to_vec(), pass.read(entered.qkv)?.to_vec());
        let seen: Vec<Vec<usize>> = (0..count).map(|row| (0..=row).collect()).collect();
        let positions: Vec<usize> = (0..count).collect();
        for block in 0..weaver.blocks.len() {
            let attended = self.memory.attend(block, &mut qkv, &weaver.rotation, &positions, &seen);
            // Nothing reads the stream of the prefix after the last attention.
            if block + 1 < weaver.blocks.len() {
                self.run_block(block, &rows, &mut stream, attended, &mut qkv)?;
            }
        }
        self.memory.end_prefix();
        Ok(())
    }

    /// Expands nodes of one depth, whose parents were expanded before in this round. Returns their queries:
    /// `[nodes, d_model]`.
    ///
    /// # Errors
    /// A token outside the vocabulary, and what a pass meets; a new round must be begun then.
    pub fn expand(&mut self, nodes: &[WeaverNode]) -> Result<Vec<f32>, ModelError> {
        let weaver = Arc::clone(&self.weaver);
        let tokens: Vec<u32> = nodes.iter().map(|node| node.token).collect();
        self.enter(&tokens)?;
        let d_rank = weaver.config.d_rank;
        let (mut stream, mut qkv) = (Vec::new(), Vec::new());
        for &token in &tokens {
            let (x, heads) = self.entered.get(token).split_at(d_rank);
            stream.extend_from_slice(x);
            qkv.extend_from_slice(heads);
        }
        let rows = Rows::new(&[SequenceRows::chain(0, &tokens)])?;
        let seen: Vec<Vec<usize>> = nodes.iter().map(|node| self.memory.add_node(node.parent)).collect();
        let prefix = self.memory.prefix_len();
        let positions: Vec<usize> =
            seen.iter().map(|seen| (seen.len() - prefix).min(weaver.config.max_depth)).collect();
        for block in 0..weaver.blocks.len() {
            let attended = self.memory.attend(block, &mut qkv, &weaver.rotation, &positions, &seen);
            self.run_block(block, &rows, &mut stream, attended, &mut qkv)?;
        }
        // The last block leaves the queries in place of the stream.
        Ok(stream)
    }

    /// Scores of candidates after each node: `logits` of the drafter, corrected by the nodes' queries. `[nodes, candidates]`.
    ///
    /// # Errors
    /// A token outside the vocabulary, and what a pass meets.
    pub fn score(&mut self, queries: &[f32], tokens: &[u32], logits: &[f32]) -> Result<Vec<f32>, ModelError> {
        let d_model = self.weaver.config.d_model;
        let mut scores = vec![0.0; queries.len() / d_model * tokens.len()];
        for (chunk, tokens_of) in tokens.chunks(MAX_ROWS).enumerate() {
            self.look_up(tokens_of)?;
            for (query, scores) in queries.chunks_exact(d_model).zip(scores.chunks_exact_mut(tokens.len())) {
                let places = chunk * MAX_ROWS..chunk * MAX_ROWS + tokens_of.len();
                for ((&token, logit), score) in tokens_of.iter().zip(&logits[places.clone()]).zip(&mut scores[places]) {
                    *score = logit + memory::dot(query, self.head_rows.get(token));
                }
            }
        }
        Ok(scores)
    }

    /// Makes sure that [`entered`](Self::entered) has these tokens.
    fn enter(&mut self, tokens: &[u32]) -> Result<(), ModelError> {
        let weaver = &self.weaver;
        let missing = self.entered.missing(tokens);
        if missing.is_empty() {
            return Ok(());
        }
        let rows = Rows::new(&[SequenceRows::chain(0, &missing)])?;
        self.nodes.run(&*weaver.device, run_of(&rows), |ops| weaver.record_nodes(ops), |_| Vec::new())?;
        let (pass, entered) = self.nodes.last()?;
        let streams = pass.read(entered.stream)?.chunks_exact(weaver.config.d_rank);
        let heads = pass.read(entered.qkv)?.chunks_exact(3 * weaver.config.d_rank);
        for ((&token, stream), heads) in missing.iter().zip(streams).zip(heads) {
            self.entered.insert(token, &[stream, heads]);
        }
        Ok(())
    }

    /// Makes sure that [`head_rows`](Self::head_rows) has these tokens.
    fn look_up(&mut self, tokens: &[u32]) -> Result<(), ModelError> {
        let weaver = &self.weaver;
        let missing = self.head_rows.missing(tokens);
        if missing.is_empty() {
            return Ok(());
        }
        let rows = Rows::new(&[SequenceRows::chain(0, &missing)])?;
        self.heads.run(&*weaver.device, run_of(&rows), |ops| weaver.record_head_rows(ops), |_| Vec::new())?;
        let (pass, &heads) = self.heads.last()?;
        for (&token, row) in missing.iter().zip(pass.read(heads)?.chunks_exact(weaver.config.d_model)) {
            self.head_rows.insert(token, &[row]);
        }
        Ok(())
    }

    /// Goes on from the attention of a block: to the next block's queries, keys and values, or to the query in `stream`.
    fn run_block(
        &mut self,
        block: usize,
        rows: &Rows,
        stream: &mut Vec<f32>,
        attended: Vec<f32>,
        qkv: &mut Vec<f32>,
    ) -> Result<(), ModelError> {
        let weaver = &self.weaver;
        let cache = &mut self.blocks[block];
        let (before, attended) = (std::mem::take(stream), &attended[..]);
        let inputs = |tensors: &BlockTensors| vec![(tensors.stream, &before[..]), (tensors.attended, attended)];
        cache.run(&*weaver.device, run_of(rows), |ops| weaver.record_block(ops, block), inputs)?;
        let (pass, tensors) = cache.last()?;
        let into = |out: &mut Vec<f32>, values: &[f32]| {
            out.clear();
            out.extend_from_slice(values);
        };
        match tensors.then {
            Then::Block(entered) => {
                into(stream, pass.read(entered.stream)?);
                into(qkv, pass.read(entered.qkv)?);
            }
            Then::Query(query) => into(stream, pass.read(query)?),
        }
        Ok(())
    }
}

fn run_of(rows: &Rows) -> RunOf<'_> {
    RunOf { rows, outputs: &[], states: &[], profile: None }
}

impl fmt::Debug for WeaverRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeaverRunner").finish_non_exhaustive()
    }
}
