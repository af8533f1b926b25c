//! What users call a model of the hub.

use std::fmt;

use crate::{HubError, RepoPath};

/// A repository of the hub: `owner/name`, or only `name` as some of the first ones are called.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepoId {
    owner: Option<String>,
    name: String,
}

/// A model, or one file of it: `owner/name[:file|:quantization][@revision]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelId {
    /// The repository.
    pub repo: RepoId,
    /// A `.gguf` file of it, by its name or a word in its name such as `Q4_K_M`.
    pub selector: Option<String>,
    /// A branch, tag or commit; `main` if none is given.
    pub revision: Option<String>,
}

/// The branch that is meant where none is named.
pub(crate) const MAIN: &str = "main";

/// The hub's own limit.
const LONGEST_NAME: usize = 96;

impl RepoId {
    /// Reads `owner/name` or `name`. Names become folders, so nothing that could leave the cache passes.
    ///
    /// # Errors
    /// [`HubError::BadId`] says which rule of the hub the text breaks.
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let refuse = |reason| HubError::BadId { text: text.to_owned(), reason };
        let (owner, name) = match text.split_once('/') {
            Some((owner, name)) => (Some(owner), name),
            None => (None, text),
        };
        for part in owner.into_iter().chain([name]) {
            check_part(part).map_err(refuse)?;
        }
        if text.len() > LONGEST_NAME {
            return Err(refuse("has more than 96 characters"));
        }
        Ok(Self { owner: owner.map(str::to_owned), name: name.to_owned() })
    }

    /// The folder's name in the cache.
    pub(crate) fn folder(&self) -> String {
        match &self.owner {
            Some(owner) => format!("models--{owner}--{}", self.name),
            None => format!("models--{}", self.name),
        }
    }

    /// The other way; `None` for folders that hold no model.
    pub(crate) fn of_folder(folder: &str) -> Option<Self> {
        Self::parse(&folder.strip_prefix("models--")?.replacen("--", "/", 1)).ok()
    }
}

fn check_part(part: &str) -> Result<(), &'static str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match part {
        "" => Err("has an empty part"),
        _ if !part.bytes().all(is_plain) => Err("may have letters, digits, `-`, `_` and `.`, and one `/`"),
        _ if part.starts_with(['.', '-']) || part.ends_with(['.', '-']) => {
            Err("has a part that begins or ends with `.` or `-`")
        }
        _ if part.contains("--") || part.contains("..") => Err("has `--` or `..` in it"),
        _ => Ok(()),
    }
}

impl ModelId {
    /// Reads `owner/name`, optionally with `:file` or `:quantization`, optionally with `@revision`. The address of a model's
    /// page on the public hub, as browsers show it, will do as well.
    ///
    /// # Errors
    /// [`HubError::BadId`] says what is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let refuse = |reason| HubError::BadId { text: text.to_owned(), reason };
        let page = page(text);
        let text = page.as_deref().unwrap_or(text);
        let end = text.find([':', '@']).unwrap_or(text.len());
        let repo = RepoId::parse(&text[..end]).map_err(|error| match error {
            HubError::BadId { reason, .. } => refuse(reason),
            other => other,
        })?;
        let (selector, revision) = match text[end..].split_at_checked(1) {
            Some((":", rest)) => match rest.rsplit_once('@') {
                Some((selector, revision)) => (Some(selector), Some(revision)),
                None => (Some(rest), None),
            },
            Some((_, rest)) => match rest.split_once(':') {
                Some((revision, selector)) => (Some(selector), Some(revision)),
                None => (None, Some(rest)),
            },
            None => (None, None),
        };
        // A second `@` would make it unclear where the revision begins.
        let is_bad = |part: &str| RepoPath::parse(part).is_err() || part.contains('@');
        if selector.is_some_and(is_bad) {
            return Err(refuse("needs the name of a file or a quantization after the `:`"));
        }
        if revision.is_some_and(is_bad) {
            return Err(refuse("needs a branch, tag or commit after the `@`"));
        }
        Ok(Self { repo, selector: selector.map(str::to_owned), revision: revision.map(str::to_owned) })
    }

    /// The branch, tag or commit.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(MAIN)
    }
}

/// The model of `https://huggingface.co/owner/name` and `.../owner/name/tree/revision`.
fn page(address: &str) -> Option<String> {
    let address = address.strip_prefix("https://").unwrap_or(address);
    let path = address.strip_prefix("huggingface.co/").or_else(|| address.strip_prefix("hf.co/"))?;
    Some(path.trim_end_matches('/').replacen("/tree/", "@", 1))
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.owner {
            Some(owner) => write!(f, "{owner}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.repo.fmt(f)?;
        self.selector.iter().try_for_each(|selector| write!(f, ":{selector}"))?;
        self.revision.iter().try_for_each(|revision| write!(f, "@{revision}"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(text: &str) -> (String, Option<String>, Option<String>) {
        let id = ModelId::parse(text).unwrap();
        (id.repo.to_string(), id.selector, id.revision)
    }

    #[test]
    fn file_and_revision_may_follow_in_any_order() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(parts("a/b"), ("a/b".to_owned(), None, None));
        assert_eq!(parts("a/b:Q4_K_M"), ("a/b".to_owned(), some("Q4_K_M"), None));
        assert_eq!(parts("a/b:Q8_0/b.gguf@v1"), ("a/b".to_owned(), some("Q8_0/b.gguf"), some("v1")));
        assert_eq!(parts("a/b@refs/pr/1"), ("a/b".to_owned(), None, some("refs/pr/1")));
        assert_eq!(parts("a/b@v1:Q4_0"), ("a/b".to_owned(), some("Q4_0"), some("v1")));
        assert_eq!(parts("gpt2").0, "gpt2");
        assert_eq!(parts("https://huggingface.co/a/b"), parts("a/b"));
        assert_eq!(parts("hf.co/a/b:Q4_0"), parts("a/b:Q4_0"));
        assert_eq!(parts("https://huggingface.co/a/b/tree/v1/"), parts("a/b@v1"));
        assert_eq!(ModelId::parse("a/b@v1:Q4_0").unwrap().to_string(), "a/b:Q4_0@v1");
    }

    /// A name that could leave the cache is no name.
    #[test]
    fn names_that_could_leave_the_cache_are_refused() {
        let bad = [
            "",
            "/",
            "a/",
            "/b",
            "../b",
            "a/..",
            "a/b/c",
            "a\\b/c",
            "a/b c",
            "a/b\n",
            "a/b\0",
            "~/b",
            "a--b/c",
            "a/.b",
            "C:/b",
            "a/b:",
            "a/b@",
            "a/b:../x",
            "a/b@../x",
            "a/b:/etc/passwd",
            "a/b@/x",
            "a/b:x\u{1b}",
            "a/b@@",
            "a/b:x@y@z",
            "a/b@x@y:z",
        ];
        for text in bad {
            assert!(matches!(ModelId::parse(text), Err(HubError::BadId { .. })), "{text:?}");
        }
        assert!(ModelId::parse(&"a".repeat(97)).is_err());
        assert_eq!(
            ModelId::parse("a/b c").unwrap_err().to_string(),
            "`a/b c` is no model of the hub: it may have letters, digits, `-`, `_` and `.`, and one `/`"
        );
    }

    proptest! {
        #[test]
        fn what_is_accepted_is_one_folder(text in "[a-z./:@\\-_]{1,12}") {
            if let Ok(id) = ModelId::parse(&text) {
                let folder = id.repo.folder();
                prop_assert!(!folder.contains('/') && !folder.contains(".."));
                prop_assert_eq!(RepoId::of_folder(&folder), Some(id.repo.clone()));
                prop_assert_eq!(ModelId::parse(&id.to_string()).unwrap(), id);
            }
        }
    }
}
