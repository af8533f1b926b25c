//! Files mapped into memory. The only unsafe code of this crate.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use bytes::Bytes;
use memmap2::Mmap;
#[cfg(unix)]
use memmap2::UncheckedAdvice;

use crate::CheckpointError;

/// A file of the checkpoint: what a cache can compare to tell one model from another without reading it whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// The path it was opened by.
    pub path: PathBuf,
    /// Its size.
    pub size_bytes: u64,
    /// Its time of last change, where the file system keeps one.
    pub modified: Option<SystemTime>,
}

/// A mapped file.
#[derive(Debug, Clone)]
pub(crate) struct MappedFile {
    /// What is known about the file.
    pub(crate) source: SourceFile,
    /// The whole file. Slices of it keep the mapping alive.
    pub(crate) bytes: Bytes,
    /// What the bytes are part of; an empty file has none.
    pub(crate) mapping: Option<Mapping>,
}

/// The mapping of a file.
#[derive(Debug, Clone)]
pub(crate) struct Mapping(Arc<Mmap>);

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Mapping {
    /// Takes the pages of `part` out of the resident set, if it lies in this mapping: whoever touches them again reads
    /// them from the file, or from the system's cache of it.
    #[cfg(unix)]
    pub(crate) fn release(&self, part: &[u8]) {
        let all = self.0.as_ptr_range();
        let part = part.as_ptr_range();
        if part.is_empty() || part.start < all.start || part.end > all.end {
            return;
        }
        let offset = part.start.addr() - all.start.addr();
        // SAFETY: the mapping is read only and private, so no page holds anything but the file's bytes, and the page that
        // takes its place on the next touch holds the same ones: references into the mapping see no change. That the
        // file itself does not change is what `map` relies on as well.
        let advised = unsafe {
            self.0.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, part.end.addr() - part.start.addr())
        };
        // Advice that is not taken costs memory, nothing else.
        advised.ok();
    }

    #[cfg(not(unix))]
    pub(crate) fn release(&self, _: &[u8]) {}
}

impl MappedFile {
    /// Maps a whole file for reading.
    pub(crate) fn open(path: &Path) -> Result<Self, CheckpointError> {
        let read_error = |source| CheckpointError::Read { path: path.to_owned(), source };
        // Asked before opening: opening a pipe would wait for its writer.
        let metadata = fs::metadata(path).map_err(read_error)?;
        if !metadata.is_file() {
            return Err(CheckpointError::NotAFile { path: path.to_owned() });
        }
        let file = File::open(path).map_err(read_error)?;
        let mapping = match metadata.len() {
            0 => None,
            _ => Some(Mapping(Arc::new(map(&file).map_err(read_error)?))),
        };
        let bytes = mapping.clone().map_or_else(Bytes::new, Bytes::from_owner);
        let source =
            SourceFile { path: path.to_owned(), size_bytes: bytes.len() as u64, modified: metadata.modified().ok() };
        Ok(Self { source, bytes, mapping })
    }

    /// The path it was opened by.
    pub(crate) fn path(&self) -> &Path {
        &self.source.path
    }
}

fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the mapping is private and read only, and every reader sees it as plain bytes for which all values are
    // valid. What the type system cannot rule out is another process changing or cutting the file while it is mapped:
    // changed bytes give wrong numbers but no undefined layout (lengths are checked against the mapping's own size, and
    // headers are parsed into owned values), and a cut file ends the process by signal, as it does for every program
    // that maps its weights. Model files are not written in place: downloads write aside and rename.
    unsafe { Mmap::map(file) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let error = MappedFile::open(dir.path()).unwrap_err();
        assert!(matches!(error, CheckpointError::NotAFile { .. }));
    }

    #[test]
    fn released_bytes_are_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weights");
        let expected: Vec<u8> = (0..100_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        fs::write(&path, &expected).unwrap();
        let file = MappedFile::open(&path).unwrap();
        let mapping = file.mapping.clone().unwrap();
        for part in [5..5, 0..100_000, 4095..8193, 99_999..100_000] {
            mapping.release(&file.bytes[part]);
            assert_eq!(file.bytes[..], expected[..]);
        }
        // Bytes of another owner are left alone.
        mapping.release(&expected);
        assert_eq!(file.bytes[..], expected[..]);
    }

    #[test]
    fn an_empty_file_maps_to_no_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("empty");
        fs::write(&path, []).unwrap();
        assert!(MappedFile::open(&path).unwrap().bytes.is_empty());
    }
}
