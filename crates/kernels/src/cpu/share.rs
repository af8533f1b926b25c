//! Writing one slice from several threads.

use std::marker::PhantomData;
use std::ops::Range;

use super::pool::{Chunk, Pool};

/// A slice that several threads write, each its own elements.
#[derive(Debug)]
pub(super) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

impl<T> Clone for Shared<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<'_, T> {}

// SAFETY: it hands out only ranges that its users promise to be disjoint.
unsafe impl<T: Send> Sync for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), owner: PhantomData }
    }

    /// Elements `range`.
    ///
    /// # Safety
    /// No other reference to one of these elements is alive.
    #[allow(clippy::mut_from_ref, reason = "the caller keeps the ranges apart")]
    pub(super) unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a range lies within its slice");
        // SAFETY: in bounds, and nobody else uses these elements.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// Elements below which waking other threads costs more than it saves.
const SERIAL_ELEMENTS: usize = 8192;

/// Calls `fill(row, out)` for each row of `width` elements of `out`, in parallel if that pays.
pub(super) fn for_each_row<T: Send>(
    pool: &mut Pool,
    out: &mut [T],
    width: usize,
    fill: impl Fn(usize, &mut [T]) + Sync,
) {
    for_each_part(pool, out, width, SERIAL_ELEMENTS, |_, row, out| fill(row, out));
}

/// Calls `fill(chunk, part, out)` for each part of `width` elements of `out`; `serial_elements` or fewer stay on this
/// thread.
pub(super) fn for_each_part<T: Send>(
    pool: &mut Pool,
    out: &mut [T],
    width: usize,
    serial_elements: usize,
    fill: impl Fn(Chunk, usize, &mut [T]) + Sync,
) {
    let width = width.max(1);
    let parts = out.len() / width;
    let per_chunk = if out.len() <= serial_elements { parts } else { chunk_size(pool, parts) }.max(1);
    let shared = Shared::new(out);
    pool.run(parts.div_ceil(per_chunk), &|chunk| {
        for part in chunk.index * per_chunk..parts.min((chunk.index + 1) * per_chunk) {
            // SAFETY: parts are disjoint, and each belongs to one chunk.
            fill(chunk, part, unsafe { shared.range(part * width..(part + 1) * width) });
        }
    });
}

/// Parts per chunk: eight chunks or more for each thread, so that a slow thread delays the others by little.
pub(super) fn chunk_size(pool: &Pool, parts: usize) -> usize {
    if pool.num_threads() == 1 { parts.max(1) } else { (parts / (8 * pool.num_threads())).max(1) }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;

    #[test]
    fn every_part_is_filled() {
        let mut pool = Pool::new(NonZeroUsize::new(2).unwrap()).unwrap();
        let mut out = vec![0; 35];
        for_each_part(&mut pool, &mut out, 5, 0, |_, part, out| out.fill(part));
        assert_eq!(out, (0..35).map(|i| i / 5).collect::<Vec<_>>());
    }
}
