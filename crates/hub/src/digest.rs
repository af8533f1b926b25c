//! The hashes by which the hub names files.

use std::fmt::{self, Write as _};

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

/// The hash that a file must have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum FileHash {
    /// SHA-256 of the bytes: large files.
    Sha256(String),
    /// Git's hash of a blob, SHA-1 over a header with the length and the bytes: small files.
    Git(String),
}

impl FileHash {
    /// 64 hexadecimal digits.
    pub(crate) fn sha256(text: &str) -> Option<Self> {
        is_hex(text, 64).then(|| Self::Sha256(text.to_ascii_lowercase()))
    }

    /// 40 hexadecimal digits.
    pub(crate) fn git(text: &str) -> Option<Self> {
        is_hex(text, 40).then(|| Self::Git(text.to_ascii_lowercase()))
    }

    /// The digits: the name of the blob, which can be nothing but a file name.
    pub(crate) fn digits(&self) -> &str {
        match self {
            Self::Sha256(digits) | Self::Git(digits) => digits,
        }
    }

    /// A hasher for a file of `size` bytes.
    pub(crate) fn hasher(&self, size: u64) -> Hasher {
        match self {
            Self::Sha256(_) => Hasher::Sha256(Sha256::new()),
            Self::Git(_) => {
                let mut hasher = Sha1::new();
                hasher.update(format!("blob {size}\0"));
                Hasher::Git(hasher)
            }
        }
    }
}

impl fmt::Display for FileHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.digits())
    }
}

/// Whether a text is `digits` hexadecimal digits.
pub(crate) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Takes the bytes of a file as they come.
#[derive(Debug, Clone)]
pub(crate) enum Hasher {
    Sha256(Sha256),
    Git(Sha1),
}

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Git(hasher) => hasher.update(bytes),
        }
    }

    /// The digits of the hash.
    pub(crate) fn finish(self) -> String {
        match self {
            Self::Sha256(hasher) => hex(&hasher.finalize()),
            Self::Git(hasher) => hex(&hasher.finalize()),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all that is written");
        text
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]
mod tests {
    use super::*;

    fn hash_of(hash: &FileHash, bytes: &[u8]) -> String {
        let mut hasher = hash.hasher(bytes.len() as u64);
        bytes.chunks(3).for_each(|chunk| hasher.update(chunk));
        hasher.finish()
    }

    /// `printf hello | sha256sum` and `printf hello | git hash-object --stdin`.
    #[test]
    fn hashes_are_those_of_the_usual_tools() {
        let sha256 = FileHash::sha256("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824").unwrap();
        assert_eq!(hash_of(&sha256, b"hello"), sha256.digits());
        let git = FileHash::git("b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0").unwrap();
        assert_eq!(hash_of(&git, b"hello"), git.digits());
    }

    /// A hash from the hub becomes a file name.
    #[test]
    fn a_hash_is_nothing_but_digits() {
        for text in ["", "../../x", "/etc/passwd", "sha256:../x", &"0".repeat(63), &"0".repeat(10_000), &"g".repeat(64)]
        {
            assert_eq!(FileHash::sha256(text), None, "{text:?}");
            assert_eq!(FileHash::git(text), None, "{text:?}");
        }
        assert_eq!(FileHash::sha256(&"A".repeat(64)).unwrap().digits(), "a".repeat(64));
    }
}
