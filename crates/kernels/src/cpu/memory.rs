//! Memory of repacked weights, on huge pages where the system has them.
//!
//! A pass reads every weight once, so nothing amortizes the translation of an address. One thread of a virtual machine
//! read 30 GB/s from pages of 2 MiB and 15 to 19 GB/s from pages of 4 KiB. A single matrix is often smaller than a huge
//! page, so weights share slabs.

use std::ptr::NonNull;
use std::sync::Arc;

/// Size of a slab: many huge pages, of which only those in use are resident.
const SLAB_BYTES: usize = 64 << 20;

/// Unit of allocation: one cache line.
const LINE: usize = 64;

/// Hands out weight memory.
#[derive(Default)]
pub(super) struct Arena {
    /// The slab at work, and how much of it is given away.
    slab: Option<(Arc<Region>, usize)>,
}

/// Zeroed memory of one weight, aligned to a cache line; its slab is freed with the last weight in it.
pub(super) struct WeightMemory {
    region: Arc<Region>,
    offset: usize,
    len: usize,
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arena").finish_non_exhaustive()
    }
}

impl Arena {
    /// `len` bytes; what is larger than a slab gets a region of its own.
    pub(super) fn take(&mut self, len: usize) -> WeightMemory {
        if len >= SLAB_BYTES {
            return WeightMemory { region: Arc::new(Region::new(len)), offset: 0, len };
        }
        let (region, offset) = match self.slab.take() {
            Some((region, used)) if len <= SLAB_BYTES - used => (region, used),
            _ => (Arc::new(Region::new(SLAB_BYTES)), 0),
        };
        self.slab = Some((Arc::clone(&region), offset + len.next_multiple_of(LINE)));
        WeightMemory { region, offset, len }
    }
}

impl WeightMemory {
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: `take` gives each place of a region away once, within its length, and the region lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.region.start().add(self.offset).as_ptr(), self.len) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.region.start().add(self.offset).as_ptr(), self.len) }
    }
}

#[cfg(target_os = "linux")]
use mapping::Region;

/// Anonymous mappings that ask for huge pages.
#[cfg(target_os = "linux")]
mod mapping {
    use super::{LINE, NonNull};
    use crate::host::Buffer;

    /// Size of a huge page on the machines that matter; elsewhere the advice is only less useful.
    const HUGE: usize = 2 << 20;

    pub(in crate::cpu) struct Region {
        /// At a multiple of [`HUGE`].
        start: NonNull<u8>,
        /// The whole mapping, for the system; `None` where it refused and a buffer serves.
        mapping: Option<(NonNull<u8>, usize)>,
        _buffer: Buffer,
    }

    // SAFETY: a region only owns its memory; who may touch which part is the matter of `WeightMemory`.
    unsafe impl Send for Region {}
    // SAFETY: as above.
    unsafe impl Sync for Region {}

    impl Region {
        pub(in crate::cpu) fn new(len: usize) -> Self {
            Self::mapped(len).unwrap_or_else(|| Self::buffered(len))
        }

        fn mapped(len: usize) -> Option<Self> {
            let all = len.checked_add(HUGE)?;
            let (read_write, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: a new anonymous mapping touches no memory in use.
            let found = unsafe { libc::mmap(std::ptr::null_mut(), all, read_write, private, -1, 0) };
            if found == libc::MAP_FAILED {
                return None;
            }
            let found: NonNull<u8> = NonNull::new(found.cast())?;
            // SAFETY: the distance is below `HUGE`, so `len` bytes follow within the mapping. What is never touched is
            // never resident.
            let start = unsafe { found.add(found.addr().get().wrapping_neg() % HUGE) };
            // SAFETY: advice on our own mapping; without huge pages it fails, and small ones serve.
            unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
            Some(Self { start, mapping: Some((found, all)), _buffer: Buffer::new(0) })
        }

        fn buffered(len: usize) -> Self {
            let mut buffer = Buffer::new(len.max(LINE));
            let len = buffer.size_bytes();
            let start = NonNull::from(buffer.slice_mut::<u8>(len)).cast();
            Self { start, mapping: None, _buffer: buffer }
        }

        pub(in crate::cpu) fn start(&self) -> NonNull<u8> {
            self.start
        }
    }

    impl Drop for Region {
        fn drop(&mut self) {
            if let Some((start, len)) = self.mapping {
                // SAFETY: our own mapping, and nobody can hold a part of it any more.
                unsafe { libc::munmap(start.as_ptr().cast(), len) };
            }
        }
    }
}

/// Plain memory.
#[cfg(not(target_os = "linux"))]
struct Region {
    start: NonNull<u8>,
    _buffer: crate::host::Buffer,
}

// SAFETY: a region only owns its memory; who may touch which part is the matter of `WeightMemory`.
#[cfg(not(target_os = "linux"))]
unsafe impl Send for Region {}
// SAFETY: as above.
#[cfg(not(target_os = "linux"))]
unsafe impl Sync for Region {}

#[cfg(not(target_os = "linux"))]
impl Region {
    fn new(len: usize) -> Self {
        let mut buffer = crate::host::Buffer::new(len.max(LINE));
        let len = buffer.size_bytes();
        let start = NonNull::from(buffer.slice_mut::<u8>(len)).cast();
        Self { start, _buffer: buffer }
    }

    fn start(&self) -> NonNull<u8> {
        self.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_share_slabs_and_nothing_else() {
        let mut arena = Arena::default();
        let sizes = [0, 1, 4097, 5 << 20, SLAB_BYTES - 1, SLAB_BYTES + 1, 7];
        let mut all: Vec<_> = sizes.iter().map(|&len| arena.take(len)).collect();
        for (i, memory) in all.iter_mut().enumerate() {
            assert!(memory.bytes().as_ptr().addr().is_multiple_of(LINE));
            assert!(memory.bytes().iter().step_by(997).all(|&byte| byte == 0));
            memory.bytes_mut().fill(i as u8 + 1);
        }
        for (i, memory) in all.iter().enumerate() {
            assert_eq!(memory.bytes().len(), sizes[i]);
            assert!(memory.bytes().iter().step_by(997).all(|&byte| byte == i as u8 + 1));
        }
    }
}
