//! What is asked of the hub over HTTP, and what its refusals mean.

use std::io;
use std::time::Duration;

use serde::Deserialize;
use ureq::config::RedirectAuthHeaders;
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body, Proxy};

use crate::digest::{FileHash, is_hex};
use crate::{HubError, HubOptions, ModelId, RepoId, RepoPath};

/// Speaks with one hub.
#[derive(Debug)]
pub(crate) struct Client {
    agent: Agent,
    proxy: Option<Proxy>,
    endpoint: String,
    authorization: Option<String>,
}

/// A repository at one commit.
#[derive(Debug, Clone)]
pub(crate) struct Listing {
    pub(crate) commit: String,
    pub(crate) files: Vec<RemoteFile>,
}

impl Listing {
    pub(crate) fn paths(&self) -> Vec<RepoPath> {
        self.files.iter().map(|file| file.path.clone()).collect()
    }
}

/// A file as the hub announces it.
#[derive(Debug, Clone)]
pub(crate) struct RemoteFile {
    pub(crate) path: RepoPath,
    pub(crate) size: u64,
    /// `None` if the hub does not tell.
    pub(crate) hash: Option<FileHash>,
}

/// Why something did not work this time.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: HubError,
    pub(crate) outlook: Outlook,
    /// The pause that the hub asks for.
    pub(crate) pause: Option<Duration>,
}

/// Whether it may work the next time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outlook {
    /// It will not.
    Lasting,
    /// Nobody answered at all: the name is unknown, nobody listens, or there is no network.
    Unanswered,
    /// It may.
    Passing,
}

impl Failure {
    /// One that may pass.
    pub(crate) fn passing(error: HubError) -> Self {
        Self { error, outlook: Outlook::Passing, pause: None }
    }
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        Self { error, outlook: Outlook::Lasting, pause: None }
    }
}

/// Largest list of files that is read; the largest repositories have lists of a few MiB.
const MOST_LIST_BYTES: u64 = 64 << 20;

/// Longest time to a connection.
const CONNECT: Duration = Duration::from_secs(20);

impl Client {
    pub(crate) fn new(options: &HubOptions) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // A token is for the hub alone, not for the servers that it sends to for large files.
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .https_only(options.endpoint.starts_with("https://"))
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(options.patience))
            .timeout_per_read(Some(options.patience))
            .user_agent(concat!("pleach/", env!("CARGO_PKG_VERSION")));
        // A hub on this machine is never behind a proxy.
        let proxy = Proxy::try_from_env().filter(|_| !is_loopback(&options.endpoint));
        Self {
            agent: config.proxy(proxy.clone()).build().new_agent(),
            proxy,
            endpoint: options.endpoint.clone(),
            authorization: options.token.as_ref().map(|token| token.header()),
        }
    }

    /// Name and port of the proxy on the way to the hub.
    pub(crate) fn proxy(&self) -> Option<String> {
        let is_left_out = |proxy: &&Proxy| self.endpoint.parse().is_ok_and(|uri| proxy.is_no_proxy(&uri));
        let proxy = self.proxy.as_ref().filter(|proxy| !is_left_out(proxy))?;
        Some(format!("{}:{}", proxy.host(), proxy.port()))
    }

    /// The files of a model with their sizes and hashes.
    pub(crate) fn listing(&self, id: &ModelId) -> Result<Listing, Failure> {
        let revision = encode(id.revision(), Slashes::Encoded);
        let url = format!("{}/api/models/{}/revision/{revision}?blobs=true", self.endpoint, id.repo);
        let mut response = self.get(&url, 0)?;
        if response.status() != StatusCode::OK {
            return Err(self.refusal(&response, &id.repo, &url, Some(id.revision())));
        }
        let body = response.body_mut().with_config().limit(MOST_LIST_BYTES).read_to_vec();
        let body = body.map_err(|source| unreachable(&url, source))?;
        let answer: Answer = serde_json::from_slice(&body).map_err(|error| bad_answer(&url, error.to_string()))?;
        answer.listing(&id.repo, &url)
    }

    /// A file from byte `from` on: status 200 with the whole, or 206 with the rest.
    pub(crate) fn file(
        &self,
        id: &RepoId,
        commit: &str,
        path: &RepoPath,
        from: u64,
    ) -> Result<Response<Body>, Failure> {
        let url = self.file_url(id, commit, path);
        let response = self.get(&url, from)?;
        match response.status() {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => Ok(response),
            _ => Err(self.refusal(&response, id, &url, None)),
        }
    }

    pub(crate) fn file_url(&self, id: &RepoId, commit: &str, path: &RepoPath) -> String {
        format!("{}/{id}/resolve/{commit}/{}", self.endpoint, encode(path.as_str(), Slashes::Kept))
    }

    fn get(&self, url: &str, from: u64) -> Result<Response<Body>, Failure> {
        let mut request = self.agent.get(url);
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        if from > 0 {
            request = request.header("Range", format!("bytes={from}-"));
        }
        request.call().map_err(|source| unreachable(url, source))
    }

    /// What a status that is no success means. `revision` is given where it is the thing asked for.
    fn refusal(&self, response: &Response<Body>, id: &RepoId, url: &str, revision: Option<&str>) -> Failure {
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let (code, with_token) = (header("x-error-code").unwrap_or_default(), self.authorization.is_some());
        let status = response.status().as_u16();
        let id = id.clone();
        match (status, code) {
            (401 | 403, "GatedRepo") | (403, "") => {
                HubError::Gated { page: format!("{}/{id}", self.endpoint), id, with_token }.into()
            }
            (404, "RevisionNotFound") => {
                HubError::NoSuchRevision { id, revision: revision.unwrap_or_default().to_owned() }.into()
            }
            (401, "") if with_token => HubError::TokenRefused { endpoint: self.endpoint.clone() }.into(),
            // The hub answers 401 for what does not exist as well, so that nobody learns what does.
            (401 | 403 | 404, _) if revision.is_some() || code == "RepoNotFound" => {
                HubError::NoSuchModel { id, endpoint: self.endpoint.clone(), with_token }.into()
            }
            _ => Failure {
                error: HubError::Status { url: url.to_owned(), status },
                outlook: if matches!(status, 408 | 429 | 500..) { Outlook::Passing } else { Outlook::Lasting },
                pause: header("retry-after").and_then(|seconds| seconds.trim().parse().ok()).map(Duration::from_secs),
            },
        }
    }
}

/// The list of files as the hub writes it.
#[derive(Debug, Deserialize)]
struct Answer {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Debug, Deserialize)]
struct Lfs {
    sha256: String,
    size: Option<u64>,
}

impl Answer {
    fn listing(self, id: &RepoId, url: &str) -> Result<Listing, Failure> {
        if !is_hex(&self.sha, 40) {
            return Err(bad_answer(
                url,
                format!("`sha` is `{}`, expected 40 hexadecimal digits", self.sha.escape_debug()),
            ));
        }
        let files = self.siblings.into_iter().map(|sibling| sibling.file(id, url)).collect::<Result<_, _>>()?;
        Ok(Listing { commit: self.sha, files })
    }
}

impl Sibling {
    fn file(self, id: &RepoId, url: &str) -> Result<RemoteFile, Failure> {
        let path = RepoPath::parse(&self.rfilename).map_err(|reason| {
            let name = self.rfilename.chars().take(200).collect();
            HubError::BadName { id: id.clone(), name, reason }
        })?;
        let size = self.lfs.as_ref().and_then(|lfs| lfs.size).or(self.size);
        let size = size.ok_or_else(|| bad_answer(url, format!("`{path}` has no `size`")))?;
        let hash = match &self.lfs {
            Some(lfs) => Some(FileHash::sha256(&lfs.sha256).ok_or_else(|| bad_hash(url, &path, &lfs.sha256))?),
            None => {
                let parse = |digits: &String| FileHash::git(digits).ok_or_else(|| bad_hash(url, &path, digits));
                self.blob_id.as_ref().map(parse).transpose()?
            }
        };
        Ok(RemoteFile { path, size, hash })
    }
}

fn bad_hash(url: &str, path: &RepoPath, found: &str) -> Failure {
    let found: String = found.chars().take(80).collect();
    bad_answer(url, format!("the hash of `{path}` is `{}`, expected hexadecimal digits", found.escape_debug()))
}

fn bad_answer(url: &str, what: String) -> Failure {
    HubError::BadAnswer { url: url.to_owned(), what }.into()
}

fn unreachable(url: &str, source: ureq::Error) -> Failure {
    let outlook = outlook(&source);
    Failure { error: HubError::Unreachable { url: url.to_owned(), source: Box::new(source) }, outlook, pause: None }
}

/// Whether a failure of the network may pass: broken addresses and certificates do not.
fn outlook(error: &ureq::Error) -> Outlook {
    use ureq::{Error, Timeout};
    match error {
        Error::BadUri(_)
        | Error::Tls(_)
        | Error::RequireHttpsOnly(_)
        | Error::InvalidProxyUrl
        | Error::TooManyRedirects => Outlook::Lasting,
        Error::HostNotFound | Error::ConnectionFailed | Error::Timeout(Timeout::Resolve | Timeout::Connect) => {
            Outlook::Unanswered
        }
        Error::Io(error) if !is_cut(error.kind()) => Outlook::Unanswered,
        _ => Outlook::Passing,
    }
}

/// Whether an error is of a connection that stood. Of the others, that of a name that nobody knows has no kind.
fn is_cut(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, Interrupted, TimedOut, UnexpectedEof, WouldBlock,
    };
    matches!(
        kind,
        BrokenPipe | ConnectionAborted | ConnectionReset | Interrupted | TimedOut | UnexpectedEof | WouldBlock
    )
}

fn is_loopback(endpoint: &str) -> bool {
    let host = endpoint.split_once("://").map_or(endpoint, |(_, host)| host);
    let end = host.find('/').unwrap_or(host.len());
    let name = host[..end].rsplit_once(':').map_or(&host[..end], |(name, _)| name);
    name == "localhost" || name == "[::1]" || name.starts_with("127.")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Slashes {
    Kept,
    Encoded,
}

/// A text as part of an address's path.
fn encode(text: &str, slashes: Slashes) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'/' if slashes == Slashes::Kept => encoded.push('/'),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => encoded.push(char::from(byte)),
            _ => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_encoded() {
        assert_eq!(encode("Q8_0/a b#?é.gguf", Slashes::Kept), "Q8_0/a%20b%23%3F%C3%A9.gguf");
        assert_eq!(encode("refs/pr/1", Slashes::Encoded), "refs%2Fpr%2F1");
    }

    #[test]
    fn nobody_who_answers_is_told_from_a_cut() {
        let io = |kind: io::ErrorKind| outlook(&ureq::Error::Io(kind.into()));
        assert_eq!(outlook(&ureq::Error::HostNotFound), Outlook::Unanswered);
        assert_eq!(outlook(&ureq::Error::Io(io::Error::other("failed to lookup address"))), Outlook::Unanswered);
        assert_eq!(io(io::ErrorKind::ConnectionRefused), Outlook::Unanswered);
        assert_eq!(io(io::ErrorKind::ConnectionReset), Outlook::Passing);
        assert_eq!(outlook(&ureq::Error::TooManyRedirects), Outlook::Lasting);
    }

    #[test]
    fn this_machine_is_told_from_others() {
        assert!(
            is_loopback("http://127.0.0.1:8000/hub")
                && is_loopback("http://localhost")
                && is_loopback("http://[::1]:1")
        );
        assert!(!is_loopback("https://huggingface.co") && !is_loopback("https://localhost.example"));
    }
}
