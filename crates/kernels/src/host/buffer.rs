//! Aligned memory that is cast to the element type an op needs.

use bytemuck::{Pod, Zeroable};

/// One cache line: the unit of allocation, so that every buffer is aligned for the widest vectors.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Zeroed memory, aligned to 64 bytes.
#[derive(Clone, Default)]
pub(crate) struct Buffer {
    lines: Vec<Line>,
}

impl Buffer {
    /// At least `bytes` bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { lines: vec![Line::zeroed(); bytes.div_ceil(64)] }
    }

    /// Bytes held.
    pub(crate) fn size_bytes(&self) -> usize {
        self.lines.len() * 64
    }

    /// The first `len` elements.
    pub(crate) fn slice<T: Pod>(&self, len: usize) -> &[T] {
        &bytemuck::cast_slice(&self.lines)[..len]
    }

    /// The first `len` elements.
    pub(crate) fn slice_mut<T: Pod>(&mut self, len: usize) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..len]
    }
}
