//! DFlash drafters: a whole block of guesses in one pass, from hidden states of the target.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use pleach_checkpoint::{
    self as checkpoint, DraftAttention, DrafterCheckpoint, DrafterConfig, ModelConfig, TensorData,
};
use pleach_kernels::ops::Sight;
use pleach_kernels::{Device, KernelError, Ops, Rows, SequenceRows, State, StateLayout, Tensor, Weight};

use crate::block::{Block, Mixer, Stack, Wanted};
use crate::linear::{Linear, RmsNorm};
use crate::load::{DraftBits, Floats, LoadOptions, Loader, draft_data};
use crate::pass_cache::{PassCache, RunOf};
use crate::selector::Selector;
use crate::state::{DFlashSequence, Sequence};
use crate::{Model, ModelError, Tap};

/// ```text
/// c_t = norm_h( [ taps of token t ] Wfcᵀ )                   once per committed token
/// k, v of a layer = c_t Wkᵀ, c_t Wvᵀ                         appended to that layer's cache
/// h = norm( blocks( embed [ last token, mask, mask, … ] ) )  each row sees the cache and the rows of the block, or
///                                                            those in a layer's window
/// logits of row i = h_i Wheadᵀ, for the token at the row's own position
/// ```
///
/// Embedding and output head are the target's. Source: DFlash (arXiv:2602.06036).
#[derive(Debug)]
pub struct DFlash {
    config: DrafterConfig,
    device: Arc<dyn Device>,
    embed_tokens: Weight,
    fc: Linear,
    hidden_norm: RmsNorm,
    blocks: Vec<Block>,
    norm: RmsNorm,
    head: Linear,
    selector: Option<Selector>,
    layout: StateLayout,
}

/// Runs one drafter.
pub struct DFlashRunner {
    drafter: Arc<DFlash>,
    features: PassCache<Tensor>,
    blocks: PassCache<BlockTensors>,
}

/// Tensors of a recorded pass over a block.
#[derive(Clone, Copy, Debug)]
struct BlockTensors {
    /// `[outputs, hidden_size]`, after the final norm.
    hidden: Tensor,
    /// `[outputs, draft vocabulary]`.
    logits: Tensor,
    /// What a selector reads of each guess: `[outputs, rank]`.
    gate: Option<Tensor>,
}

impl DFlash {
    /// Puts a drafter on its target's device. `head` is the target's stored output matrix, of which the drafter may use a
    /// part.
    ///
    /// # Errors
    /// [`ModelError::UnfitDrafter`] if it was made for another target; a tensor that does not fit its format.
    pub fn load(
        drafter: DrafterCheckpoint,
        target: &Model,
        head: &checkpoint::Tensor,
        options: &LoadOptions,
    ) -> Result<Self, ModelError> {
        let DrafterCheckpoint { config, tensors, .. } = drafter;
        Self::check_fit(&config, target.config())?;
        let device = Arc::clone(target.device());
        let mut loader = Loader::new(&config.model, tensors, &*device, options).with_floats(Floats::Quantized);
        let fc = loader.linear("fc")?;
        let hidden_norm = loader.norm("hidden_norm.weight")?;
        let mut blocks = loader.blocks()?;
        for (layer, (block, seen)) in blocks.iter_mut().zip(&config.attention).enumerate() {
            if let Mixer::Attention(attention) = &mut block.mixer {
                attention.sight = sight(*seen);
                attention.layout.window = attention.sight.window;
            }
            block.convs = config.conv.map(|sizes| loader.draft_convs(layer, sizes)).transpose()?;
        }
        let norm = loader.norm("norm.weight")?;
        let selector = config.selector.map(|_| loader.selector()).transpose()?;
        let mut layout = loader.finish()?;
        for (cache, seen) in layout.attention.iter_mut().zip(&config.attention) {
            cache.window = sight(*seen).window;
        }
        let head = match &config.draft_to_target {
            Some(tokens) => Linear { weight: part_of(head, tokens, &*device, options)?, bias: None },
            None => target.lm_head.clone(),
        };
        let embed_tokens = target.embed_tokens.clone();
        Ok(Self { config, device, embed_tokens, fc, hidden_norm, blocks, norm, head, selector, layout })
    }

    /// Whether a drafter was made for a target with these sizes.
    ///
    /// # Errors
    /// [`ModelError::UnfitDrafter`] with the first field that differs.
    pub fn check_fit(drafter: &DrafterConfig, target: &ModelConfig) -> Result<(), ModelError> {
        for (field, found, expected) in [
            ("hidden_size", drafter.model.hidden_size, target.hidden_size),
            ("vocab_size", drafter.model.vocab_size, target.vocab_size),
            ("num_target_layers", drafter.num_target_layers, target.num_hidden_layers),
        ] {
            if found != expected {
                let (found, expected) = (found.to_string(), expected.to_string());
                return Err(ModelError::UnfitDrafter { field, found, expected });
            }
        }
        let layers = target.num_hidden_layers;
        if let Some(beyond) = drafter.target_layer_ids.iter().find(|&&layer| layer >= layers) {
            let (found, expected) = (beyond.to_string(), format!("layers below {layers}"));
            return Err(ModelError::UnfitDrafter { field: "target_layer_ids", found, expected });
        }
        Ok(())
    }

    /// Sizes and settings.
    pub fn config(&self) -> &DrafterConfig {
        &self.config
    }

    /// What a runner of the target must keep for it, in this order.
    pub fn taps(&self) -> Vec<Tap> {
        self.config.target_layer_ids.iter().map(|&layer| Tap::Layer(layer)).collect()
    }

    /// The memory of a new, empty sequence.
    ///
    /// # Errors
    /// What the device says when its memory is full.
    pub fn new_sequence(&self) -> Result<DFlashSequence, ModelError> {
        Ok(DFlashSequence(Sequence { state: self.device.state(&self.layout)? }))
    }

    /// Keys and values of committed tokens, from their taps.
    fn record_features(&self, ops: &mut Ops) -> Result<Tensor, KernelError> {
        let taps = ops.input(self.fc.weight.columns);
        let [joined] = ops.linear(taps, [self.fc.parts()])?;
        let context = ops.rms_norm(joined, &self.hidden_norm.weight, self.hidden_norm.eps)?;
        for block in &self.blocks {
            if let Mixer::Attention(attention) = &block.mixer {
                attention.record_cache(ops, context)?;
            }
        }
        Ok(taps)
    }

    fn record_block(&self, ops: &mut Ops) -> Result<BlockTensors, KernelError> {
        let stream = ops.embed(&self.embed_tokens)?;
        let stack = Stack { blocks: &self.blocks, norm: &self.norm };
        let hidden = stack.record(ops, stream, Wanted::Outputs)?.normed;
        let [logits] = ops.linear(hidden, [self.head.parts()])?;
        let gate = match &self.selector {
            Some(selector) => {
                let [gate] = ops.linear(hidden, [selector.hidden_projection.parts()])?;
                ops.keep(gate);
                Some(gate)
            }
            None => None,
        };
        ops.keep(hidden);
        ops.keep(logits);
        Ok(BlockTensors { hidden, logits, gate })
    }
}

fn sight(attention: DraftAttention) -> Sight {
    Sight { window: attention.window.and_then(NonZeroUsize::new), causal: attention.causal }
}

/// The rows `tokens` of a stored matrix as a weight of their own.
fn part_of(
    stored: &checkpoint::Tensor,
    tokens: &[u32],
    device: &dyn Device,
    options: &LoadOptions,
) -> Result<Weight, ModelError> {
    let rows = stored.shape.first().copied().unwrap_or(1).max(1);
    let gather = |bytes: &[u8]| -> Vec<u8> {
        let row_bytes = bytes.len() / rows;
        tokens.iter().flat_map(|&token| &bytes[token as usize * row_bytes..][..row_bytes]).copied().collect()
    };
    let data = match &stored.data {
        TensorData::Plain(bytes) => TensorData::Plain(gather(bytes).into()),
        TensorData::Affine { codes, scales, biases } => TensorData::Affine {
            codes: gather(codes).into(),
            scales: gather(scales).into(),
            biases: gather(biases).into(),
        },
    };
    let shape = std::iter::once(tokens.len()).chain(stored.shape.iter().skip(1).copied()).collect();
    let part = checkpoint::Tensor { data, shape, ..stored.clone() };
    let failed = |source| ModelError::Tensor { name: stored.name.clone(), source };
    device.weight(draft_data(&part, DraftBits::Four, options)).map_err(failed)
}

impl DFlashRunner {
    /// A runner for a drafter.
    pub fn new(drafter: Arc<DFlash>) -> Self {
        Self { drafter, features: PassCache::new(), blocks: PassCache::new() }
    }

    /// The drafter that it runs.
    pub fn drafter(&self) -> &Arc<DFlash> {
        &self.drafter
    }

    /// Appends committed tokens to `sequence`. `taps`: the target's values at [`DFlash::taps`], joined per token:
    /// `[tokens, taps · hidden_size]`.
    ///
    /// # Errors
    /// Values that do not fit the drafter; nothing is changed then.
    pub fn read(&mut self, taps: &[f32], sequence: &mut DFlashSequence) -> Result<(), ModelError> {
        let drafter = &self.drafter;
        let tokens = vec![0; taps.len() / drafter.fc.weight.columns];
        let rows = Rows::new(&[SequenceRows::chain(sequence.len(), &tokens)])?;
        let states: [&dyn State; 1] = [sequence.0.state()];
        let run = RunOf { rows: &rows, outputs: &[], states: &states, profile: None };
        self.features.run(&*drafter.device, run, |ops| drafter.record_features(ops), |&input| vec![(input, taps)])?;
        let path: Vec<usize> = (0..tokens.len()).collect();
        Ok(self.features.last_mut()?.commit(&path, &mut *sequence.0.state)?)
    }

    /// Guesses a block after the text whose last token is `last` and whose other tokens are committed to `sequence`,
    /// which stays as it is. Returns logits, `[guesses, draft vocabulary]`: of the token after `last` first.
    ///
    /// # Errors
    /// A token or a sequence that does not fit the drafter.
    pub fn draft(&mut self, last: u32, guesses: usize, sequence: &DFlashSequence) -> Result<&[f32], ModelError> {
        let drafter = &self.drafter;
        let guesses = guesses.min(drafter.config.block_size - 1);
        let mut tokens = vec![drafter.config.mask_token_id; drafter.config.block_size];
        tokens[0] = last;
        let rows = Rows::new(&[SequenceRows::block(sequence.len(), &tokens)])?;
        let outputs: Vec<usize> = (1..=guesses).collect();
        let states: [&dyn State; 1] = [sequence.0.state()];
        let run = RunOf { rows: &rows, outputs: &outputs, states: &states, profile: None };
        self.blocks.run(&*drafter.device, run, |ops| drafter.record_block(ops), |_| Vec::new())?;
        self.logits()
    }

    /// What the last [`draft`](Self::draft) returned.
    ///
    /// # Errors
    /// [`ModelError::NotRun`] if nothing was drafted.
    pub fn logits(&self) -> Result<&[f32], ModelError> {
        let (pass, tensors) = self.blocks.last()?;
        Ok(pass.read(tensors.logits)?)
    }

    /// What comes to the logits of `candidates` at place `place` of the last draft, if the token before it is `before`: the
    /// scores of DFlash2's candidate selector, nothing without one.
    ///
    /// # Errors
    /// [`ModelError::NotRun`] if nothing was drafted.
    pub fn transitions(&self, place: usize, before: u32, candidates: &[u32]) -> Result<Vec<f32>, ModelError> {
        let (pass, tensors) = self.blocks.last()?;
        let (Some(selector), Some(gate)) = (&self.drafter.selector, tensors.gate) else {
            return Ok(vec![0.0; candidates.len()]);
        };
        let gates = pass.read(gate)?;
        let gate = gates.chunks_exact(gate.width).nth(place).ok_or(ModelError::NotRun)?;
        Ok(selector.transitions(before, gate, candidates))
    }

    /// Hidden states of the guesses of the last block after the final norm: `[guesses, hidden_size]`.
    ///
    /// # Errors
    /// [`ModelError::NotRun`] if nothing was drafted.
    pub fn hidden(&self) -> Result<&[f32], ModelError> {
        let (pass, tensors) = self.blocks.last()?;
        Ok(pass.read(tensors.hidden)?)
    }
}

impl fmt::Debug for DFlashRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DFlashRunner").finish_non_exhaustive()
    }
}
