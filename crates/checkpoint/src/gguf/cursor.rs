//! Reading a header from its first byte on, never past its end.

use std::{fmt::Arguments, path::Path};

use crate::{CheckpointError, fields::shorten};

/// A place in a file's first bytes.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    file: &'a Path,
}

impl<'a> Cursor<'a> {
    /// The start of `bytes`, which are the first bytes of `file`.
    pub(super) fn new(bytes: &'a [u8], file: &'a Path) -> Self {
        Self { bytes, at: 0, file }
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// A second reader from here on.
    pub(super) fn fork(&self) -> Self {
        Self { bytes: self.bytes, at: self.at, file: self.file }
    }

    /// Bytes left.
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Checks that `count` things of at least `least` bytes each can still follow.
    pub(super) fn check_count(&self, count: u64, least: u64, what: Arguments<'_>) -> Result<(), CheckpointError> {
        let needed = count.saturating_mul(least);
        if needed <= self.left() as u64 { Ok(()) } else { Err(self.truncated(needed, what)) }
    }

    /// The next `len` bytes.
    pub(super) fn take(&mut self, len: u64, what: Arguments<'_>) -> Result<&'a [u8], CheckpointError> {
        self.check_count(len, 1, what)?;
        let begin = self.at;
        // Fits: `len` is at most the length of a slice in memory.
        self.at += len as usize;
        Ok(&self.bytes[begin..self.at])
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self, what: Arguments<'_>) -> Result<[u8; N], CheckpointError> {
        match self.bytes[self.at..].first_chunk::<N>() {
            Some(bytes) => {
                self.at += N;
                Ok(*bytes)
            }
            None => Err(self.truncated(N as u64, what)),
        }
    }

    /// A little-endian 32-bit number.
    pub(super) fn u32(&mut self, what: Arguments<'_>) -> Result<u32, CheckpointError> {
        self.array(what).map(u32::from_le_bytes)
    }

    /// A little-endian 64-bit number.
    pub(super) fn u64(&mut self, what: Arguments<'_>) -> Result<u64, CheckpointError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// The bytes of a string: a 64-bit length, then that many.
    pub(super) fn string_bytes(&mut self, what: Arguments<'_>) -> Result<&'a [u8], CheckpointError> {
        let len = self.u64(what)?;
        self.take(len, what)
    }

    /// A string.
    pub(super) fn string(&mut self, what: Arguments<'_>) -> Result<&'a str, CheckpointError> {
        let begin = self.at;
        let bytes = self.string_bytes(what)?;
        std::str::from_utf8(bytes).map_err(|_| {
            self.malformed(
                format_args!("{what} at byte {begin}"),
                format_args!("`{}`", shorten(&String::from_utf8_lossy(&bytes[..bytes.len().min(100)]))),
                "UTF-8",
            )
        })
    }

    /// The error for bytes that contradict the format.
    pub(super) fn malformed(&self, what: Arguments<'_>, found: Arguments<'_>, expected: &str) -> CheckpointError {
        CheckpointError::Malformed {
            file: self.file.to_owned(),
            what: what.to_string(),
            found: found.to_string(),
            expected: expected.to_owned(),
        }
    }

    fn truncated(&self, needed: u64, what: Arguments<'_>) -> CheckpointError {
        CheckpointError::Truncated {
            file: self.file.to_owned(),
            what: what.to_string(),
            offset: self.at as u64,
            needed,
            left: self.left() as u64,
        }
    }
}
