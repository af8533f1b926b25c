//! Keys and values of the committed tokens.

use std::sync::Arc;

use bytemuck::Pod;
use half::{bf16, f16};

use super::state::check_size;
use super::{Buffer, Element};
use crate::quantize::int8_head;
use crate::{DType, KernelError, KvLayout, KvValues, StatePart};

/// Tokens per block of a key-value cache.
///
/// Attention also sums in blocks of this many positions, so that its order of summation depends on positions only.
pub(crate) const KV_BLOCK: usize = 64;

/// Positions whose keys lie side by side: one vector gives 16 scores without a sum over its lanes.
pub(crate) const KEY_PANEL: usize = 16;

/// Keys and values of one attention layer, in blocks that snapshots share until one side writes. Blocks that lie wholly behind
/// the layer's window are let go, and read as zeros.
#[derive(Clone)]
pub(crate) struct KvCache {
    pub(super) layout: KvLayout,
    blocks: Vec<Arc<KvBlock>>,
}

/// Keys and values of [`KV_BLOCK`] positions.
#[derive(Clone, Default)]
struct KvBlock {
    /// `[kv_heads, KV_BLOCK / KEY_PANEL, head_dim, KEY_PANEL]`.
    keys: Buffer,
    /// `[kv_heads, KV_BLOCK, head_dim]`.
    values: Buffer,
    /// `[kv_heads, KV_BLOCK]`, bf16; for integers only.
    key_scales: Buffer,
    /// `[kv_heads, KV_BLOCK]`, bf16; for integers only.
    value_scales: Buffer,
}

/// Keys and values of one head in one block of positions; only committed positions hold meaning.
#[derive(Clone, Copy)]
pub(crate) struct KvView<'a> {
    block: &'a KvBlock,
    layout: KvLayout,
    head: usize,
}

impl<'a> KvView<'a> {
    /// `[KV_BLOCK / KEY_PANEL, head_dim, KEY_PANEL]`.
    pub(crate) fn keys<T: Pod>(&self) -> &'a [T] {
        self.part(&self.block.keys, KV_BLOCK * self.layout.head_dim)
    }

    /// `[KV_BLOCK, head_dim]`.
    pub(crate) fn values<T: Pod>(&self) -> &'a [T] {
        self.part(&self.block.values, KV_BLOCK * self.layout.head_dim)
    }

    /// Factor of each position's key; none for floats.
    pub(crate) fn key_scales(&self) -> Option<&'a [bf16]> {
        (self.layout.dtype == DType::I8).then(|| self.part(&self.block.key_scales, KV_BLOCK))
    }

    /// Factor of each position's value; none for floats.
    pub(crate) fn value_scales(&self) -> Option<&'a [bf16]> {
        (self.layout.dtype == DType::I8).then(|| self.part(&self.block.value_scales, KV_BLOCK))
    }

    /// Element `i` of the key at a place of the block.
    pub(crate) fn key(&self, place: usize, i: usize) -> f32 {
        if self.block.is_gone() {
            return 0.0;
        }
        let scale = self.key_scales().map_or(1.0, |scales| scales[place].to_f32());
        scale * self.element(&self.block.keys, key_index(self.layout.head_dim, place, i))
    }

    /// Element `i` of the value at a place of the block.
    pub(crate) fn value(&self, place: usize, i: usize) -> f32 {
        if self.block.is_gone() {
            return 0.0;
        }
        let scale = self.value_scales().map_or(1.0, |scales| scales[place].to_f32());
        scale * self.element(&self.block.values, place * self.layout.head_dim + i)
    }

    fn part<T: Pod>(&self, buffer: &'a Buffer, size: usize) -> &'a [T] {
        &buffer.slice((self.head + 1) * size)[self.head * size..]
    }

    fn element(&self, buffer: &'a Buffer, i: usize) -> f32 {
        let size = KV_BLOCK * self.layout.head_dim;
        match self.layout.dtype {
            DType::I8 => f32::from(self.part::<i8>(buffer, size)[i]),
            DType::F16 => self.part::<f16>(buffer, size)[i].to_f32(),
            DType::BF16 => self.part::<bf16>(buffer, size)[i].to_f32(),
            DType::F32 | DType::I32 => self.part::<f32>(buffer, size)[i],
        }
    }
}

/// Where element `i` of the key at `place` lies among the keys of its head and block.
const fn key_index(head_dim: usize, place: usize, i: usize) -> usize {
    (place / KEY_PANEL * head_dim + i) * KEY_PANEL + place % KEY_PANEL
}

impl KvBlock {
    fn new(layout: KvLayout) -> Self {
        let elements = KV_BLOCK * layout.width();
        let scales = if layout.dtype == DType::I8 { KV_BLOCK * layout.num_key_value_heads } else { 0 };
        let [keys, values] = [(); 2].map(|()| Buffer::new(elements * layout.dtype.size_bytes()));
        let [key_scales, value_scales] = [(); 2].map(|()| Buffer::new(scales * size_of::<bf16>()));
        Self { keys, values, key_scales, value_scales }
    }

    /// Whether its memory was let go.
    fn is_gone(&self) -> bool {
        self.values.size_bytes() == 0
    }

    fn size_bytes(&self) -> usize {
        let Self { keys, values, key_scales, value_scales } = self;
        [keys, values, key_scales, value_scales].iter().map(|buffer| buffer.size_bytes()).sum()
    }

    /// Stores one head of one token in its own type.
    fn put<T: Pod>(&mut self, head_dim: usize, head: usize, place: usize, key: &[T], value: &[T]) {
        let (start, end) = (head * KV_BLOCK * head_dim, (head + 1) * KV_BLOCK * head_dim);
        let panel = key_index(head_dim, place, 0);
        let keys = &mut self.keys.slice_mut::<T>(end)[start + panel..];
        for (out, &element) in keys.iter_mut().step_by(KEY_PANEL).zip(key) {
            *out = element;
        }
        let start = start + place * head_dim;
        self.values.slice_mut::<T>(end)[start..start + head_dim].copy_from_slice(value);
    }

    fn put_scales(&mut self, head: usize, place: usize, [key, value]: [bf16; 2]) {
        let i = head * KV_BLOCK + place;
        self.key_scales.slice_mut(i + 1)[i] = key;
        self.value_scales.slice_mut(i + 1)[i] = value;
    }
}

impl KvCache {
    pub(super) fn new(layout: KvLayout) -> Self {
        Self { layout, blocks: Vec::new() }
    }

    /// One head's keys and values at positions `block · KV_BLOCK ..`.
    pub(crate) fn view(&self, block: usize, head: usize) -> KvView<'_> {
        KvView { block: &self.blocks[block], layout: self.layout, head }
    }

    /// Appends the keys and values of one token, each `[kv_heads, head_dim]` in the type of the cache, at `position`.
    pub(super) fn append<T: Pod>(&mut self, position: usize, keys: &[T], values: &[T]) {
        let head_dim = self.layout.head_dim;
        let (block, place) = self.place(position);
        for (head, (key, value)) in keys.chunks_exact(head_dim).zip(values.chunks_exact(head_dim)).enumerate() {
            block.put(head_dim, head, place, key, value);
        }
    }

    /// Appends floats of one token to a cache of any type.
    pub(super) fn append_floats(&mut self, position: usize, keys: &[f32], values: &[f32]) {
        match self.layout.dtype {
            DType::F32 | DType::I32 => self.append(position, keys, values),
            DType::F16 => self.append(position, &stored::<f16>(keys), &stored::<f16>(values)),
            DType::BF16 => self.append(position, &stored::<bf16>(keys), &stored::<bf16>(values)),
            DType::I8 => self.append_codes(position, keys, values),
        }
    }

    fn append_codes(&mut self, position: usize, keys: &[f32], values: &[f32]) {
        let head_dim = self.layout.head_dim;
        let mut codes = [vec![0; head_dim], vec![0; head_dim]];
        let (block, place) = self.place(position);
        for (head, (key, value)) in keys.chunks_exact(head_dim).zip(values.chunks_exact(head_dim)).enumerate() {
            let scales = [int8_head(key, &mut codes[0]), int8_head(value, &mut codes[1])];
            block.put(head_dim, head, place, &codes[0], &codes[1]);
            block.put_scales(head, place, scales);
        }
    }

    /// The block of a position, which may be the one after the last, and the place in it.
    fn place(&mut self, position: usize) -> (&mut KvBlock, usize) {
        let (block, place) = (position / KV_BLOCK, position % KV_BLOCK);
        if block == self.blocks.len() {
            self.blocks.push(Arc::new(KvBlock::new(self.layout)));
            self.let_go(position);
        }
        (Arc::make_mut(&mut self.blocks[block]), place)
    }

    /// Lets go of what no row after `position` sees.
    fn let_go(&mut self, position: usize) {
        let Some(window) = self.layout.window else { return };
        let first_kept = (position + 1).saturating_sub(window.get()) / KV_BLOCK;
        let behind = self.blocks[..first_kept].iter_mut().rev();
        behind.take_while(|block| !block.is_gone()).for_each(|block| *block = Arc::default());
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.blocks.iter().map(|block| block.size_bytes()).sum()
    }

    /// Its blocks.
    pub(super) fn parts(&self) -> impl Iterator<Item = StatePart> + '_ {
        self.blocks.iter().map(|block| StatePart { id: Arc::as_ptr(block).addr(), bytes: block.size_bytes() })
    }

    /// The first `len` tokens as floats, which is exact for every type.
    pub(super) fn values(&self, len: usize) -> KvValues {
        let read = |element: fn(KvView<'_>, usize, usize) -> f32| {
            let mut all = Vec::with_capacity(len * self.layout.width());
            for position in 0..len {
                for head in 0..self.layout.num_key_value_heads {
                    let view = self.view(position / KV_BLOCK, head);
                    all.extend((0..self.layout.head_dim).map(|i| element(view, position % KV_BLOCK, i)));
                }
            }
            all
        };
        KvValues {
            keys: read(|view, place, i| view.key(place, i)),
            values: read(|view, place, i| view.value(place, i)),
        }
    }

    pub(super) fn check(&self, len: usize, values: &KvValues) -> Result<(), KernelError> {
        let expected = len.saturating_mul(self.layout.width());
        check_size("keys", values.keys.len(), expected)?;
        check_size("values", values.values.len(), expected)
    }

    pub(super) fn restore(&mut self, values: &KvValues) {
        self.blocks.clear();
        let width = self.layout.width().max(1);
        let tokens = values.keys.chunks_exact(width).zip(values.values.chunks_exact(width));
        for (position, (keys, values)) in tokens.enumerate() {
            self.append_floats(position, keys, values);
        }
    }
}

fn stored<T: Element>(values: &[f32]) -> Vec<T> {
    values.iter().map(|&value| T::from_f32(value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DTYPES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::I8];

    fn cache(dtype: DType) -> KvCache {
        KvCache::new(KvLayout { num_key_value_heads: 2, head_dim: 3, dtype, window: None })
    }

    #[test]
    fn a_window_bounds_the_memory() {
        for dtype in DTYPES {
            let window = std::num::NonZeroUsize::new(100);
            let mut cache = KvCache::new(KvLayout { window, ..cache(dtype).layout });
            let mut most = 0;
            for position in 0..1000 {
                cache.append_floats(position, &token(position as i32 % 100), &token(1));
                most = most.max(cache.size_bytes());
                let first_kept = (position + 1usize).saturating_sub(100);
                let KvValues { keys, values } = cache.values(position + 1);
                assert_eq!(keys[6 * first_kept..][..6], token(first_kept as i32 % 100), "{dtype:?} {position}");
                assert_eq!(values[6 * first_kept..][..6], token(1), "{dtype:?} {position}");
            }
            assert_eq!(most, 3 * KvBlock::new(cache.layout).size_bytes(), "{dtype:?}");
            assert_eq!(cache.values(1).keys, [0.0; 6], "what was let go reads as zeros");
        }
    }

    #[test]
    fn a_snapshot_keeps_what_the_original_lets_go() {
        let window = std::num::NonZeroUsize::new(1);
        let mut cache = KvCache::new(KvLayout { window, ..cache(DType::F16).layout });
        cache.append_floats(0, &token(7), &token(7));
        let before = cache.clone();
        (1..200).for_each(|position| cache.append_floats(position, &token(1), &token(1)));
        assert_eq!(before.values(1).keys, token(7));
        assert_eq!(cache.values(1).keys, [0.0; 6]);
    }

    /// Small integers, which every type holds exactly if one of each head is 127.
    fn token(value: i32) -> Vec<f32> {
        [127, value, 1, -127, 2, value].map(|x| x as f32).to_vec()
    }

    #[test]
    fn a_cache_grows_block_by_block() {
        for dtype in DTYPES {
            let mut cache = cache(dtype);
            for position in 0..2 * KV_BLOCK + 1 {
                cache.append_floats(position, &token(position as i32 % 100), &token(-(position as i32) % 100));
            }
            let KvValues { keys, values } = cache.values(129);
            for position in 0..129 {
                assert_eq!(keys[6 * position..][..6], token(position as i32 % 100), "{dtype:?} {position}");
                assert_eq!(values[6 * position..][..6], token(-(position as i32) % 100), "{dtype:?} {position}");
            }
            assert_eq!(cache.blocks.len(), 3);
        }
    }

    #[test]
    fn copies_share_the_blocks_that_neither_has_written() {
        let mut cache = cache(DType::F16);
        (0..KV_BLOCK + 1).for_each(|position| cache.append_floats(position, &token(1), &token(1)));
        let before = cache.clone();
        cache.append_floats(KV_BLOCK + 1, &token(2), &token(2));
        let [before, after] = [&before, &cache].map(|cache| cache.parts().collect::<Vec<_>>());
        assert_eq!((before[0], before.len(), after.len()), (after[0], 2, 2));
        assert_ne!(before[1].id, after[1].id);
        assert_eq!(after.iter().map(|part| part.bytes).sum::<usize>(), cache.size_bytes());
    }

    #[test]
    fn a_snapshot_does_not_see_later_tokens() {
        for dtype in DTYPES {
            let mut cache = cache(dtype);
            cache.append_floats(0, &token(1), &token(1));
            let before = cache.clone();
            cache.append_floats(0, &token(9), &token(9));
            assert_eq!(before.values(1).keys, token(1), "{dtype:?}");
            assert_eq!(cache.values(1).keys, token(9), "{dtype:?}");
        }
    }
}
