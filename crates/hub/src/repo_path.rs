//! The path of a file inside a repository, as far as it can be trusted.

use std::fmt;
use std::path::{Path, PathBuf};

/// A relative path of plain components, which cannot leave the folder that it is joined to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepoPath(String);

/// Longest path that is believed; the hub's own files have far shorter ones.
const LONGEST: usize = 1024;

impl RepoPath {
    /// Checks a path as the hub names it.
    ///
    /// # Errors
    /// What is wrong with it, to be read after "the name".
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if text.is_empty() {
            return Err("is empty");
        }
        if text.len() > LONGEST {
            return Err("is longer than 1024 bytes");
        }
        if text.contains(char::is_control) {
            return Err("has control characters");
        }
        // Both mean something in Windows' paths: a separator, a drive or a stream.
        if text.contains(['\\', ':']) {
            return Err("has `\\` or `:` in it");
        }
        if text.starts_with('/') {
            return Err("is an absolute path");
        }
        if text.split('/').any(|component| matches!(component, "" | "." | "..")) {
            return Err("leaves its folder or has an empty part");
        }
        Ok(Self(text.to_owned()))
    }

    /// The path with `/` between components.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last component.
    pub fn file_name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// Components before the file name.
    pub(crate) fn depth(&self) -> usize {
        self.0.matches('/').count()
    }

    /// The file under `folder`.
    pub(crate) fn under(&self, folder: &Path) -> PathBuf {
        folder.join(self.0.split('/').collect::<PathBuf>())
    }
}

impl fmt::Display for RepoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_that_leave_their_folder_are_refused() {
        let cases = [
            ("", "is empty"),
            ("../x", "leaves its folder or has an empty part"),
            ("a/../../x", "leaves its folder or has an empty part"),
            ("a//x", "leaves its folder or has an empty part"),
            ("./x", "leaves its folder or has an empty part"),
            ("/etc/passwd", "is an absolute path"),
            ("C:\\x", "has `\\` or `:` in it"),
            ("a\u{1b}[31m", "has control characters"),
            ("a\nb", "has control characters"),
            ("a\0b", "has control characters"),
        ];
        for (text, reason) in cases {
            assert_eq!(RepoPath::parse(text), Err(reason), "{text:?}");
        }
        assert_eq!(RepoPath::parse(&"x".repeat(1025)), Err("is longer than 1024 bytes"));
        assert_eq!(RepoPath::parse("Q8_0/model.gguf").unwrap().file_name(), "model.gguf");
    }

    proptest! {
        #[test]
        fn what_is_accepted_stays_inside(text in "[a./\\\\:]{0,10}") {
            if let Ok(path) = RepoPath::parse(&text) {
                let full = path.under(Path::new("/cache"));
                prop_assert!(full.components().all(|part| !matches!(part, std::path::Component::ParentDir)));
                prop_assert!(full.starts_with("/cache") && full != Path::new("/cache"));
            }
        }
    }
}
