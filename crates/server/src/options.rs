//! What a server allows, and how it behaves.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use pleach_engine::{PrefixCacheOptions, SpecBudget};

use crate::ServeError;

/// How a server behaves. The default suits one person on one machine.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Texts that are written at the same time; at least 1.
    pub parallel: usize,
    /// Requests that may wait for their turn; further ones are refused with 429.
    pub queue: usize,
    /// Rows that guesses get in a pass of any request.
    pub spec_budget: SpecBudget,
    /// What is kept for prompts that begin as earlier ones did.
    pub prefix_cache: PrefixCacheOptions,
    /// Keys that clients may show; without any, everybody who can connect may ask.
    pub api_keys: Vec<String>,
    /// Origins of web pages that may ask from a browser, such as `https://example.org`; none by default.
    pub allowed_origins: Vec<String>,
    /// Names beside `localhost` and loopback addresses by which a loopback server may be addressed.
    pub allowed_hosts: Vec<String>,
    /// Name of the model in answers; `None` for the engine's.
    pub model_name: Option<String>,
    /// Largest body of a request.
    pub max_body_bytes: usize,
    /// Most choices of one request, over all its prompts.
    pub max_choices: usize,
    /// Connections that may be open at the same time; further ones wait to be accepted.
    pub max_connections: usize,
    /// Time for the head of a request, and between two requests of a connection.
    pub header_timeout: Duration,
    /// Time between two pieces of a request's body; the whole may take ten times as long.
    pub body_timeout: Duration,
    /// Time that a client may take nothing of an answer that waits to be sent.
    pub send_timeout: Duration,
    /// Time between comments in a stream that has nothing else to say.
    pub keep_alive: Duration,
    /// Time that running requests have to finish once the server is asked to end.
    pub drain: Duration,
    /// Leaves out the line that Claude Code puts before its instructions. It changes with every conversation, and a prompt
    /// is only known as far as it is the same.
    pub drop_billing_line: bool,
    /// Repeats reasoning under the name `reasoning`, which some clients read in place of `reasoning_content`.
    pub reasoning_alias: bool,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            parallel: 4,
            queue: 64,
            spec_budget: SpecBudget::Automatic,
            prefix_cache: PrefixCacheOptions::default(),
            api_keys: Vec::new(),
            allowed_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            model_name: None,
            max_body_bytes: 64 << 20,
            max_choices: 16,
            max_connections: 512,
            header_timeout: Duration::from_secs(15),
            body_timeout: Duration::from_secs(30),
            send_timeout: Duration::from_secs(120),
            keep_alive: Duration::from_secs(15),
            drain: Duration::from_secs(60),
            drop_billing_line: true,
            reasoning_alias: true,
        }
    }
}

impl ServerOptions {
    /// # Errors
    /// [`ServeError::InvalidOrigin`] and [`ServeError::InvalidHost`] for what no request could match.
    pub(crate) fn check(&self) -> Result<(), ServeError> {
        let is_name = |name: &str| {
            !name.is_empty() && !name.contains(['/', '?', '#', '@']) && name.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let is_origin = |origin: &str| {
            let parts = origin.trim_end_matches('/').split_once("://");
            // Browsers send `null` for pages from files.
            ["*", "null"].contains(&origin) || parts.is_some_and(|(scheme, name)| !scheme.is_empty() && is_name(name))
        };
        if let Some(found) = self.allowed_origins.iter().find(|origin| !is_origin(origin)) {
            return Err(ServeError::InvalidOrigin { found: found.clone() });
        }
        let is_host = |host: &str| is_name(host) && (!host.contains(':') || host.parse::<IpAddr>().is_ok());
        match self.allowed_hosts.iter().find(|host| !is_host(host)) {
            Some(found) => Err(ServeError::InvalidHost { found: found.clone() }),
            None => Ok(()),
        }
    }
}

/// Shortest key that is taken: a shorter one can be guessed.
const MIN_KEY_BYTES: usize = 8;

/// Reads keys from a file, one a line; blank lines and lines that start with `#` are left out.
///
/// # Errors
/// [`ServeError::KeyFile`] if it cannot be read, [`ServeError::NoKeys`] if it holds none, [`ServeError::WeakKey`] for one
/// of fewer than 8 characters or with characters that no header can carry.
pub fn read_api_keys(path: &Path) -> Result<Vec<String>, ServeError> {
    let failed = |source: io::Error| ServeError::KeyFile { path: path.to_owned(), source };
    let text = fs::read_to_string(path).map_err(failed)?;
    let lines = text.lines().map(str::trim).enumerate();
    let keys: Vec<(usize, &str)> = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).collect();
    if keys.is_empty() {
        return Err(ServeError::NoKeys { path: path.to_owned() });
    }
    let is_usable = |key: &str| key.len() >= MIN_KEY_BYTES && key.bytes().all(|byte| byte.is_ascii_graphic());
    match keys.iter().find(|(_, key)| !is_usable(key)) {
        Some(&(line, _)) => Err(ServeError::WeakKey { path: path.to_owned(), line: line + 1 }),
        None => Ok(keys.into_iter().map(|(_, key)| key.to_owned()).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<String>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        fs::write(&path, text).unwrap();
        read_api_keys(&path).map_err(|error| error.to_string().replace(&path.display().to_string(), "keys"))
    }

    #[test]
    fn names_that_no_request_can_match_are_refused() {
        let check = |origins: &[&str], hosts: &[&str]| {
            let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
            let options = ServerOptions {
                allowed_origins: owned(origins),
                allowed_hosts: owned(hosts),
                ..ServerOptions::default()
            };
            options.check().map_err(|error| error.to_string())
        };
        assert_eq!(
            check(&["*", "null", "https://app.example:8080/", "http://[::1]:3000"], &["box.lan", "::1", "10.0.0.1"]),
            Ok(())
        );
        for origin in ["", "app.example", "https://", "://app.example", "https://app.example/page", "https://a b"] {
            let expected = format!(
                "`--cors-origin` is `{origin}`, but must be a scheme and a name such as `https://example.org`, or `*` for all"
            );
            assert_eq!(check(&[origin], &[]), Err(expected));
        }
        for host in ["", "a b", "http://box.lan", "box.lan:8000", "box/lan"] {
            let expected = format!(
                "`--allowed-host` is `{host}`, but must be a name or an address such as `box.lan`, without scheme and port"
            );
            assert_eq!(check(&[], &[host]), Err(expected));
        }
    }

    #[test]
    fn keys_are_lines() {
        assert_eq!(read("# mine\nabcdefgh\n\n  hgfedcba \n"), Ok(vec!["abcdefgh".to_owned(), "hgfedcba".to_owned()]));
    }

    #[test]
    fn unusable_keys_are_named_by_line_and_never_shown() {
        assert_eq!(read("# none\n"), Err("`keys` holds no key: put one on a line of its own".to_owned()));
        let weak = "line 2 of `keys` is no usable key: take 8 or more visible ASCII characters without spaces";
        assert_eq!(read("abcdefgh\nshort\n"), Err(weak.to_owned()));
        assert_eq!(read("abcdefgh\nabcdefgh é\n"), Err(weak.to_owned()));
    }
}
