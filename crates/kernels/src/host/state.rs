//! The memory of one sequence in main memory.

use std::any::Any;
use std::sync::Arc;

use half::{bf16, f16};

use super::{Buffer, Element};
use crate::{DType, DeltaLayout, DeltaValues, KernelError, KvLayout, KvValues, State, StateLayout, StateValues};

/// Tokens per block of a key-value cache.
///
/// Attention also sums in blocks of this many positions, so that its order of summation depends on positions only.
pub(crate) const KV_BLOCK: usize = 64;

/// What a sequence remembers, in main memory.
#[derive(Clone)]
pub(crate) struct HostState {
    pub(super) len: usize,
    pub(super) attention: Vec<KvCache>,
    pub(super) delta: Vec<DeltaState>,
}

/// Keys and values of one attention layer, in blocks that snapshots share until one side writes.
#[derive(Clone)]
pub(crate) struct KvCache {
    pub(super) layout: KvLayout,
    blocks: Vec<Arc<KvBlock>>,
}

/// Keys and values of [`KV_BLOCK`] positions, each `[kv_heads, KV_BLOCK, head_dim]`.
#[derive(Clone)]
struct KvBlock {
    keys: Buffer,
    values: Buffer,
}

/// State of one DeltaNet layer.
#[derive(Clone)]
pub(crate) struct DeltaState {
    pub(super) layout: DeltaLayout,
    /// `[value_heads, key_dim, value_dim]`.
    pub(crate) recurrent: Vec<f32>,
    /// Last inputs of the convolution, oldest first: `[kernel − 1, channels]`.
    pub(crate) window: Vec<f32>,
}

/// Keys and values of one head in one block of positions.
#[derive(Clone, Copy)]
pub(crate) struct KvView<'a> {
    keys: &'a Buffer,
    values: &'a Buffer,
    head: usize,
    head_dim: usize,
}

impl<'a> KvView<'a> {
    /// `[KV_BLOCK, head_dim]`; only committed positions hold meaning.
    pub(crate) fn keys<T: bytemuck::Pod>(&self) -> &'a [T] {
        self.part(self.keys)
    }

    /// `[KV_BLOCK, head_dim]`; only committed positions hold meaning.
    pub(crate) fn values<T: bytemuck::Pod>(&self) -> &'a [T] {
        self.part(self.values)
    }

    fn part<T: bytemuck::Pod>(&self, buffer: &'a Buffer) -> &'a [T] {
        let size = KV_BLOCK * self.head_dim;
        &buffer.slice((self.head + 1) * size)[self.head * size..]
    }
}

impl KvCache {
    /// One head's keys and values at positions `block · KV_BLOCK ..`.
    pub(crate) fn view(&self, block: usize, head: usize) -> KvView<'_> {
        let KvBlock { keys, values } = &*self.blocks[block];
        KvView { keys, values, head, head_dim: self.layout.head_dim }
    }

    /// Appends the key and value bytes of one token, `[kv_heads, head_dim]`, at position `position`.
    pub(super) fn append(&mut self, position: usize, keys: &[u8], values: &[u8]) {
        let (block, place) = (position / KV_BLOCK, position % KV_BLOCK);
        if block == self.blocks.len() {
            let bytes = KV_BLOCK * self.layout.width() * self.layout.dtype.size_bytes();
            let block = KvBlock { keys: Buffer::new(bytes), values: Buffer::new(bytes) };
            self.blocks.push(Arc::new(block));
        }
        let block = Arc::make_mut(&mut self.blocks[block]);
        let head_bytes = self.layout.head_dim * self.layout.dtype.size_bytes();
        for (buffer, token) in [(&mut block.keys, keys), (&mut block.values, values)] {
            let bytes = buffer.slice_mut::<u8>(KV_BLOCK * token.len());
            for (head, row) in token.chunks_exact(head_bytes).enumerate() {
                let start = (head * KV_BLOCK + place) * head_bytes;
                bytes[start..start + head_bytes].copy_from_slice(row);
            }
        }
    }

    fn size_bytes(&self) -> usize {
        self.blocks.iter().map(|block| block.keys.size_bytes() + block.values.size_bytes()).sum()
    }

    fn values(&self, len: usize) -> KvValues {
        KvValues { keys: self.read(len, |block| &block.keys), values: self.read(len, |block| &block.values) }
    }

    fn check(&self, len: usize, values: &KvValues) -> Result<(), KernelError> {
        let expected = len.saturating_mul(self.layout.width());
        check_size("keys", values.keys.len(), expected)?;
        check_size("values", values.values.len(), expected)
    }

    fn restore(&mut self, values: &KvValues) {
        self.blocks.clear();
        let width = self.layout.width().max(1);
        let tokens = values.keys.chunks_exact(width).zip(values.values.chunks_exact(width));
        for (position, (keys, values)) in tokens.enumerate() {
            let dtype = self.layout.dtype;
            self.append(position, &stored(keys, dtype), &stored(values, dtype));
        }
    }

    /// `[len, kv_heads, head_dim]` of the buffer that `part` picks.
    fn read(&self, len: usize, part: impl Fn(&KvBlock) -> &Buffer) -> Vec<f32> {
        let KvLayout { num_key_value_heads: heads, head_dim, dtype } = self.layout;
        let mut all = Vec::with_capacity(len * self.layout.width());
        for position in 0..len {
            let buffer = part(&self.blocks[position / KV_BLOCK]);
            for head in 0..heads {
                let start = (head * KV_BLOCK + position % KV_BLOCK) * head_dim;
                all.extend((start..start + head_dim).map(|i| element(buffer, dtype, i)));
            }
        }
        all
    }
}

fn element(buffer: &Buffer, dtype: DType, i: usize) -> f32 {
    match dtype {
        DType::F16 => buffer.slice::<f16>(i + 1)[i].to_f32(),
        DType::BF16 => buffer.slice::<bf16>(i + 1)[i].to_f32(),
        DType::F32 | DType::I32 => buffer.slice::<f32>(i + 1)[i],
    }
}

/// The bytes of `values` in the type of a cache.
fn stored(values: &[f32], dtype: DType) -> Vec<u8> {
    fn cast<T: Element>(values: &[f32]) -> Vec<u8> {
        let stored: Vec<T> = values.iter().map(|&value| T::from_f32(value)).collect();
        bytemuck::cast_slice(&stored).to_vec()
    }
    match dtype {
        DType::F16 => cast::<f16>(values),
        DType::BF16 => cast::<bf16>(values),
        DType::F32 | DType::I32 => cast::<f32>(values),
    }
}

fn check_size(argument: &'static str, found: usize, expected: usize) -> Result<(), KernelError> {
    if found == expected { Ok(()) } else { Err(KernelError::Shape { op: "restore", argument, found, expected }) }
}

impl DeltaState {
    /// The window is stored token by token and given out channel by channel.
    fn values(&self) -> DeltaValues {
        let channels = self.layout.conv_channels();
        let taps = self.window.len() / channels.max(1);
        let by_channel = (0..channels).flat_map(|c| (0..taps).map(move |tap| (c, tap)));
        let window = by_channel.map(|(c, tap)| self.window[tap * channels + c]).collect();
        DeltaValues { recurrent: self.recurrent.clone(), window }
    }

    fn check(&self, values: &DeltaValues) -> Result<(), KernelError> {
        check_size("recurrent", values.recurrent.len(), self.recurrent.len())?;
        check_size("window", values.window.len(), self.window.len())
    }

    fn restore(&mut self, values: &DeltaValues) {
        self.recurrent.copy_from_slice(&values.recurrent);
        let channels = self.layout.conv_channels();
        let taps = self.window.len() / channels.max(1);
        for (i, &value) in values.window.iter().enumerate() {
            self.window[i % taps * channels + i / taps] = value;
        }
    }

    /// Moves the window over `inputs` of one more token: `[channels]`.
    pub(super) fn push_window(&mut self, inputs: &[f32]) {
        let keep = self.window.len().saturating_sub(inputs.len());
        if keep < self.window.len() {
            self.window.copy_within(inputs.len().., 0);
            self.window[keep..].copy_from_slice(inputs);
        }
    }
}

impl HostState {
    pub(crate) fn new(layout: &StateLayout) -> Self {
        let attention = layout.attention.iter().map(|&layout| KvCache { layout, blocks: Vec::new() }).collect();
        let delta = layout.delta.iter().map(|&layout| DeltaState {
            layout,
            recurrent: vec![0.0; layout.state_elements()],
            window: vec![0.0; layout.conv_kernel_dim.saturating_sub(1) * layout.conv_channels()],
        });
        Self { len: 0, attention, delta: delta.collect() }
    }

    /// Cache of attention layer `slot`.
    pub(crate) fn attention(&self, slot: usize) -> &KvCache {
        &self.attention[slot]
    }

    /// State of DeltaNet layer `slot`.
    pub(crate) fn delta(&self, slot: usize) -> &DeltaState {
        &self.delta[slot]
    }
}

impl State for HostState {
    fn len(&self) -> usize {
        self.len
    }

    fn size_bytes(&self) -> usize {
        let delta = self.delta.iter().map(|delta| 4 * (delta.recurrent.len() + delta.window.len()));
        self.attention.iter().map(KvCache::size_bytes).chain(delta).sum()
    }

    fn snapshot(&self) -> Box<dyn State> {
        Box::new(self.clone())
    }

    fn values(&self) -> StateValues {
        StateValues {
            len: self.len,
            attention: self.attention.iter().map(|cache| cache.values(self.len)).collect(),
            delta: self.delta.iter().map(DeltaState::values).collect(),
        }
    }

    fn restore(&mut self, values: &StateValues) -> Result<(), KernelError> {
        for (kind, found, expected) in [
            ("attention", values.attention.len(), self.attention.len()),
            ("DeltaNet", values.delta.len(), self.delta.len()),
        ] {
            if found != expected {
                return Err(KernelError::Layers { kind, found, expected });
            }
        }
        for (cache, values_of_layer) in self.attention.iter().zip(&values.attention) {
            cache.check(values.len, values_of_layer)?;
        }
        for (state, values_of_layer) in self.delta.iter().zip(&values.delta) {
            state.check(values_of_layer)?;
        }
        self.len = values.len;
        for (cache, values) in self.attention.iter_mut().zip(&values.attention) {
            cache.restore(values);
        }
        for (state, values) in self.delta.iter_mut().zip(&values.delta) {
            state.restore(values);
        }
        Ok(())
    }

    fn read_kv(&self, slot: usize) -> Result<(Vec<f32>, Vec<f32>), KernelError> {
        let available = self.attention.len();
        let missing = KernelError::Missing { what: "attention layer", found: slot, available };
        let cache = self.attention.get(slot).ok_or(missing)?;
        let KvValues { keys, values } = cache.values(self.len);
        Ok((keys, values))
    }

    fn read_delta(&self, slot: usize) -> Result<(Vec<f32>, Vec<f32>), KernelError> {
        let available = self.delta.len();
        let missing = KernelError::Missing { what: "DeltaNet layer", found: slot, available };
        let DeltaValues { recurrent, window } = self.delta.get(slot).ok_or(missing)?.values();
        Ok((recurrent, window))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> StateLayout {
        StateLayout {
            attention: vec![KvLayout { num_key_value_heads: 2, head_dim: 3, dtype: DType::F16 }],
            delta: vec![],
        }
    }

    fn token(value: f32) -> Vec<u8> {
        (0..6).flat_map(|i| f16::from_f32(value + i as f32).to_le_bytes()).collect()
    }

    #[test]
    fn a_cache_grows_block_by_block() {
        let mut state = HostState::new(&layout());
        for position in 0..2 * KV_BLOCK + 1 {
            state.attention[0].append(position, &token(position as f32), &token(-1.0));
            state.len += 1;
        }
        let (keys, values) = state.read_kv(0).unwrap();
        assert_eq!(keys[6 * 70..6 * 71], [70.0, 71.0, 72.0, 73.0, 74.0, 75.0]);
        assert_eq!(values.len(), 6 * 129);
        assert_eq!(state.attention[0].blocks.len(), 3);
    }

    #[test]
    fn a_snapshot_does_not_see_later_tokens() {
        let mut state = HostState::new(&layout());
        state.attention[0].append(0, &token(1.0), &token(1.0));
        state.len = 1;
        let before = state.snapshot();
        state.attention[0].append(0, &token(9.0), &token(9.0));
        assert_eq!(before.read_kv(0).unwrap().0[0], 1.0);
        assert_eq!(state.read_kv(0).unwrap().0[0], 9.0);
    }
}
