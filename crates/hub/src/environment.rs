//! Where the hub and its cache are, and what is known of the user.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::HubError;

/// How models are looked for and fetched.
#[derive(Debug, Clone)]
pub struct HubOptions {
    /// Address of the hub, without a slash at its end.
    pub endpoint: String,
    /// Folder of the local cache.
    pub cache: PathBuf,
    /// What shows the hub who asks; `None` for public models only.
    pub token: Option<Token>,
    /// Never use the network.
    pub offline: bool,
    /// Files that are fetched at a time, at least 1.
    pub connections: usize,
    /// What happens after failures that may pass.
    pub retry: Retry,
    /// Longest silence of the hub before a transfer counts as cut.
    pub patience: Duration,
    /// Bytes that can still be written to the file system of a folder.
    pub free_space: fn(&Path) -> io::Result<u64>,
}

/// How often a transfer is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Failures in a row, none of which brought a byte, after which a transfer is given up. A hub that does not answer
    /// the first question is asked once more at most.
    pub attempts: u32,
    /// Pause after the first failure; it doubles with each.
    pub first_pause: Duration,
    /// Longest pause, also of those that the hub asks for.
    pub longest_pause: Duration,
}

/// A secret of the user. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

impl HubOptions {
    /// The hub and the cache that this process is told to use, by the variables that Hugging Face's own tools read:
    /// `HF_ENDPOINT`, `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_HUB_OFFLINE`.
    ///
    /// # Errors
    /// [`HubError::NoCache`] if nothing says where the cache is; [`HubError::NoFolder`], [`HubError::BadVariable`] and
    /// [`HubError::BadToken`] for values that cannot be.
    pub fn of_process() -> Result<Self, HubError> {
        Self::of_variables(&|name| env::var_os(name).filter(|value| !value.is_empty()))
    }

    /// The same with variables from anywhere.
    pub(crate) fn of_variables(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, HubError> {
        let path = |name| variable(name).map(PathBuf::from);
        let home = path("HOME").or_else(|| path("USERPROFILE"));
        let user_cache = path("XDG_CACHE_HOME").or_else(|| Some(home?.join(".cache")));
        let hf_home = path("HF_HOME").or_else(|| Some(user_cache?.join("huggingface")));
        let cache = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| Some(hf_home.as_ref()?.join("hub")))
            .ok_or(HubError::NoCache)?;
        check_folder(&cache)?;
        let token_file = path("HF_TOKEN_PATH").or_else(|| Some(hf_home?.join("token")));
        let text = |name| variable(name).map(|value| value.to_string_lossy().into_owned());
        Ok(Self {
            endpoint: endpoint(&text("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned()))?,
            token: token(text("HF_TOKEN"), token_file.as_deref())?,
            offline: text("HF_HUB_OFFLINE").map_or(Ok(false), |value| switch("HF_HUB_OFFLINE", value))?,
            ..Self::new(cache)
        })
    }

    /// The public hub, and a cache of one's own.
    pub fn new(cache: PathBuf) -> Self {
        Self {
            endpoint: DEFAULT_ENDPOINT.to_owned(),
            cache,
            token: None,
            offline: false,
            connections: 4,
            retry: Retry::default(),
            patience: Duration::from_secs(30),
            free_space: |folder| fs4::available_space(folder),
        }
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts: 5, first_pause: Duration::from_secs(1), longest_pause: Duration::from_secs(60) }
    }
}

impl Token {
    /// A token as users paste it: spaces around it are not part of it.
    ///
    /// # Errors
    /// [`HubError::BadToken`] for text that no header can carry; `source` says where it came from.
    pub fn new(text: &str, source: &str) -> Result<Self, HubError> {
        let text = text.trim();
        let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_plain.then(|| Self(text.to_owned())).ok_or_else(|| HubError::BadToken { place: source.to_owned() })
    }

    /// The value of the header that carries it.
    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The variable goes before the file, which may be missing.
fn token(variable: Option<String>, file: Option<&Path>) -> Result<Option<Token>, HubError> {
    if let Some(text) = variable {
        return Token::new(&text, "HF_TOKEN").map(Some);
    }
    let Some(file) = file else { return Ok(None) };
    match fs::read_to_string(file) {
        Ok(text) if text.trim().is_empty() => Ok(None),
        Ok(text) => Token::new(&text, &file.display().to_string()).map(Some),
        // A token that cannot be read is as good as none: most models need none.
        Err(_) => Ok(None),
    }
}

fn endpoint(text: &str) -> Result<String, HubError> {
    let address = text.trim().trim_end_matches('/');
    let host = address.strip_prefix("https://").or_else(|| address.strip_prefix("http://"));
    let is_plain = address.bytes().all(|byte| byte.is_ascii_graphic());
    match host {
        Some(host) if !host.is_empty() && !host.starts_with('/') && is_plain => Ok(address.to_owned()),
        _ => {
            let (allowed, unset) = ("an address such as `https://huggingface.co`", "the public hub");
            Err(HubError::BadVariable { name: "HF_ENDPOINT", found: text.to_owned(), allowed, unset })
        }
    }
}

/// The values that Hugging Face's tools take for on, their first letters, and the opposites. Those tools take everything else for off as well: who
/// mistypes a switch that keeps from the network would be on it.
fn switch(name: &'static str, value: String) -> Result<bool, HubError> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" | "t" | "yes" | "y" | "on" => Ok(true),
        "0" | "false" | "f" | "no" | "n" | "off" => Ok(false),
        _ => {
            let allowed = "`1`, `true`, `yes` or `on`, or else `0`, `false`, `no`, `off` or empty";
            Err(HubError::BadVariable { name, found: value, allowed, unset: "`off`" })
        }
    }
}

/// A cache need not exist, but it must be possible to make it.
fn check_folder(cache: &Path) -> Result<(), HubError> {
    match cache.ancestors().find(|path| path.exists()) {
        Some(file) if !file.is_dir() => Err(HubError::NoFolder { cache: cache.to_owned(), file: file.to_owned() }),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]
mod tests {
    use super::*;

    fn options(variables: &[(&str, &str)]) -> Result<HubOptions, HubError> {
        HubOptions::of_variables(&|name| Some(variables.iter().find(|(key, _)| *key == name)?.1.into()))
    }

    #[test]
    fn the_cache_is_where_hugging_face_keeps_it() {
        let cache = |variables| options(variables).unwrap().cache;
        let all = [("HF_HUB_CACHE", "hub"), ("HF_HOME", "hf"), ("XDG_CACHE_HOME", "cache"), ("HOME", "home")];
        assert_eq!(cache(&all), Path::new("hub"));
        assert_eq!(cache(&all[1..]), Path::new("hf/hub"));
        assert_eq!(cache(&all[2..]), Path::new("cache/huggingface/hub"));
        assert_eq!(cache(&all[3..]), Path::new("home/.cache/huggingface/hub"));
        assert!(matches!(options(&[]), Err(HubError::NoCache)));
    }

    #[test]
    fn a_token_is_read_and_never_shown() {
        let found = options(&[("HOME", "h"), ("HF_TOKEN", " hf_secret\n")]).unwrap();
        assert_eq!(found.token.as_ref().unwrap().header(), "Bearer hf_secret");
        assert!(!format!("{found:?}").contains("secret"));
        let error = options(&[("HOME", "h"), ("HF_TOKEN", "hf_se\ncret")]).unwrap_err().to_string();
        assert_eq!(error, "`HF_TOKEN` holds no token: one is a line of letters, digits and signs");

        let folder = tempfile::TempDir::new().unwrap();
        fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        let home = folder.path().to_str().unwrap();
        assert_eq!(options(&[("HF_HOME", home)]).unwrap().token.unwrap().header(), "Bearer hf_file");
    }

    #[test]
    fn an_endpoint_is_an_address() {
        let endpoint = |value| options(&[("HOME", "h"), ("HF_ENDPOINT", value)]).map(|options| options.endpoint);
        assert_eq!(endpoint("http://127.0.0.1:8000/").unwrap(), "http://127.0.0.1:8000");
        for bad in ["hub.example", "ftp://x", "https://", "http:///x", "https://a b"] {
            let message = format!("`HF_ENDPOINT` is `{bad}`, but must be an address such as `https://huggingface.co`");
            assert_eq!(endpoint(bad).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn offline_is_a_switch() {
        let offline = |value| options(&[("HOME", "h"), ("HF_HUB_OFFLINE", value)]).unwrap().offline;
        assert!(["1", "true", "T", "Yes", "y", "on"].into_iter().all(offline));
        assert!(!["0", "False", "f", "no", "N", "off"].into_iter().any(offline));
        let error = options(&[("HOME", "h"), ("HF_HUB_OFFLINE", "zz")]).unwrap_err();
        let message = "`HF_HUB_OFFLINE` is `zz`, but must be `1`, `true`, `yes` or `on`, or else `0`, `false`, `no`, `off` or \
                       empty";
        assert_eq!(error.to_string(), message);
    }

    #[test]
    fn a_cache_that_cannot_be_a_folder_is_refused_at_once() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        for cache in [file.clone(), file.join("hub")] {
            let error = options(&[("HF_HUB_CACHE", cache.to_str().unwrap())]).unwrap_err();
            let (cache, file) = (cache.display(), file.display());
            let message = format!("models of the hub cannot be kept in `{cache}`: `{file}` is no folder");
            assert_eq!(error.to_string(), message);
        }
        assert!(options(&[("HF_HUB_CACHE", folder.path().join("a/b").to_str().unwrap())]).is_ok());
    }
}
