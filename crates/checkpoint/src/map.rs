//! Files mapped into memory. The only unsafe code of this crate.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::SystemTime,
};

use bytes::Bytes;
use memmap2::Mmap;

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
        let bytes = if metadata.len() == 0 { Bytes::new() } else { Bytes::from_owner(map(&file).map_err(read_error)?) };
        let source =
            SourceFile { path: path.to_owned(), size_bytes: bytes.len() as u64, modified: metadata.modified().ok() };
        Ok(Self { source, bytes })
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
    fn an_empty_file_maps_to_no_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("empty");
        fs::write(&path, []).unwrap();
        assert!(MappedFile::open(&path).unwrap().bytes.is_empty());
    }
}
