//! What can go wrong, said so that the reader can act on it.

use std::io;
use std::path::PathBuf;

use crate::RepoId;

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// A text that no model of the hub can be called.
    #[error("`{}` is no model of the hub: it {reason}", text.escape_debug())]
    BadId {
        /// The text.
        text: String,
        /// The rule that it breaks, to be read after "it".
        reason: &'static str,
    },
    /// Nothing says where the cache is.
    #[error("there is no folder for the models of the hub: neither HF_HUB_CACHE nor HF_HOME nor HOME is set")]
    NoCache,
    /// A variable that is not what it may be.
    #[error("`{name}` is `{}`, but must be {allowed}", found.escape_debug())]
    BadVariable {
        /// The variable.
        name: &'static str,
        /// The value.
        found: String,
        /// What it may be, to be read after "must be".
        allowed: &'static str,
        /// What leaving it out stands for.
        unset: &'static str,
    },
    /// The cache cannot be where it should be.
    #[error("models of the hub cannot be kept in `{cache}`: `{file}` is no folder")]
    NoFolder {
        /// The cache.
        cache: PathBuf,
        /// The cache, or what stands in the way to it.
        file: PathBuf,
    },
    /// A token that cannot be one.
    #[error("`{place}` holds no token: one is a line of letters, digits and signs")]
    BadToken {
        /// The variable or file.
        place: String,
    },
    /// The network may not be used, and the cache does not have the whole model.
    #[error("`{id}` is not in `{cache}`, or not all of it, and the network is not used")]
    Offline {
        /// The model.
        id: String,
        /// The cache.
        cache: PathBuf,
    },
    /// The cache has no such model.
    #[error("`{id}` is not in `{cache}`")]
    NotCached {
        /// The model.
        id: String,
        /// The cache.
        cache: PathBuf,
    },
    /// The hub knows no such model, or hides it.
    #[error("{endpoint} has no model `{id}`{}", if *with_token { "" } else { " that everyone may read" })]
    NoSuchModel {
        /// The model.
        id: RepoId,
        /// The hub.
        endpoint: String,
        /// Whether the hub was told who asks.
        with_token: bool,
    },
    /// The hub does not accept the token.
    #[error("{endpoint} does not accept the token")]
    TokenRefused {
        /// The hub.
        endpoint: String,
    },
    /// A model whose makers want something first.
    #[error("`{id}` is not given to everyone: its makers ask to accept their terms first")]
    Gated {
        /// The model.
        id: RepoId,
        /// Where the terms are.
        page: String,
        /// Whether the hub was told who asks.
        with_token: bool,
    },
    /// The model has no such branch, tag or commit.
    #[error("`{id}` has no branch, tag or commit `{revision}`")]
    NoSuchRevision {
        /// The model.
        id: RepoId,
        /// The revision asked for.
        revision: String,
    },
    /// No `.gguf` file fits the name.
    #[error("`{id}` has no file for `{wanted}`: it has {}", names(found))]
    NoSuchFile {
        /// The model.
        id: RepoId,
        /// The file or quantization asked for.
        wanted: String,
        /// The `.gguf` files that it has.
        found: Vec<String>,
    },
    /// Several `.gguf` files fit the name.
    #[error("{} several files: {}", several(id, wanted.as_deref()), names(found))]
    SeveralFiles {
        /// The model.
        id: RepoId,
        /// The file or quantization asked for, if any was.
        wanted: Option<String>,
        /// The files that fit.
        found: Vec<String>,
        /// A name that would fit one of them.
        example: String,
    },
    /// A repository without weights in a format that opens.
    #[error("`{id}` has no weights as `.safetensors` beside a `config.json`, nor as `.gguf`: it has {}", names(found))]
    NoWeights {
        /// The model.
        id: RepoId,
        /// The first few of its files.
        found: Vec<String>,
    },
    /// The hub cannot be reached.
    #[error("cannot reach {url}")]
    Unreachable {
        /// The address.
        url: String,
        /// What the network says.
        source: Box<ureq::Error>,
    },
    /// The hub answers with a status that means failure.
    #[error("{url} answers with status {status}")]
    Status {
        /// The address.
        url: String,
        /// The status of HTTP.
        status: u16,
    },
    /// The hub says what makes no sense.
    #[error("the answer of {url} makes no sense: {what}")]
    BadAnswer {
        /// The address.
        url: String,
        /// What is wrong with it.
        what: String,
    },
    /// The hub lists a file whose name cannot be used.
    #[error("`{id}` lists a file `{}`, whose name {reason}: nothing of it was written", name.escape_debug())]
    BadName {
        /// The model.
        id: RepoId,
        /// The name.
        name: String,
        /// What is wrong with it, to be read after "whose name".
        reason: &'static str,
    },
    /// The hub does not say which hash a file has.
    #[error("the hub does not say which hash `{file}` has, so it could not be verified")]
    NoHash {
        /// The file.
        file: String,
    },
    /// A transfer that broke off again and again.
    #[error("the transfer of `{file}` broke off at {done} of {size} bytes")]
    Cut {
        /// The file.
        file: String,
        /// Bytes that are there.
        done: u64,
        /// Bytes that the file has.
        size: u64,
        /// What the network says, if it says anything.
        source: Option<io::Error>,
    },
    /// What came has another length than announced.
    #[error("`{file}` should have {expected} bytes, but {found} are offered")]
    WrongSize {
        /// The file.
        file: String,
        /// Bytes offered.
        found: u64,
        /// Bytes announced.
        expected: u64,
    },
    /// What came has another hash than announced.
    #[error("`{file}` came with hash {found}, but must have {expected}: it was thrown away")]
    Corrupt {
        /// The file.
        file: String,
        /// Hash of the bytes that came.
        found: String,
        /// Hash announced.
        expected: String,
    },
    /// The disk has no room for the model.
    #[error("the download takes {needed} bytes, but `{folder}` has room for {free}")]
    NoSpace {
        /// The cache.
        folder: PathBuf,
        /// Bytes to come.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The disk is full.
    #[error("the disk is full: `{path}` cannot grow")]
    DiskFull {
        /// The file being written.
        path: PathBuf,
    },
    /// A file of the cache that cannot be read or written.
    #[error("cannot {action} `{path}`")]
    File {
        /// What was to be done.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Another process is fetching the model.
    #[error("another process is fetching `{id}`")]
    Busy {
        /// The model.
        id: RepoId,
    },
    /// Another file of the same download failed.
    #[error("the download was stopped")]
    Stopped,
}

impl HubError {
    /// What the user can do about it, in one sentence.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::BadId { .. } => "a model of the hub is called `owner/name`, as in `Qwen/Qwen3-0.6B`",
            Self::NoCache | Self::NoFolder { .. } => "set HF_HUB_CACHE to a folder for models",
            Self::BadVariable { name, unset, .. } => return Some(format!("leave {name} out for {unset}")),
            Self::BadToken { .. } => "copy the token again, or leave it out: most models need none",
            Self::Offline { .. } => "`pleach pull` fetches it when the network may be used",
            Self::NotCached { .. } => "`pleach list` shows what is there",
            Self::NoSuchModel { with_token: false, .. } => {
                "check the spelling; if it is a private model, put your token into HF_TOKEN"
            }
            Self::NoSuchModel { .. } => "check the spelling, and that your token may read the model",
            Self::TokenRefused { .. } => "make a new token, or leave HF_TOKEN and the token file out",
            Self::Gated { page, with_token: true, .. } => {
                return Some(format!("accept them at {page}, then try again"));
            }
            Self::Gated { page, .. } => {
                return Some(format!("accept them at {page}, then put your token into HF_TOKEN"));
            }
            Self::NoSuchRevision { .. } => "leave `@...` out for the main branch",
            Self::NoSuchFile { .. } => "give one of these names, or a word of it, after the `:`",
            Self::SeveralFiles { example, .. } => return Some(format!("name one of them, as in `{example}`")),
            Self::NoWeights { .. } => {
                "docs/formats.md lists what opens; look for a GGUF or MLX conversion of the model"
            }
            Self::Unreachable { .. } | Self::Cut { .. } => {
                "check the network; the same command goes on where this one stopped"
            }
            Self::Status { status: 429, .. } => "too many requests: wait a few minutes, or put a token into HF_TOKEN",
            Self::Status { .. } => "the hub has a problem: try again later; what has come is kept",
            Self::BadAnswer { .. } | Self::WrongSize { .. } => {
                "something between here and the hub may answer in its place, such as a login page: check HF_ENDPOINT and \
                 the network"
            }
            Self::BadName { .. } => "do not use this model: such a name is an attack or an accident",
            Self::NoHash { .. } => "the address in HF_ENDPOINT must be a hub that tells hashes",
            Self::Corrupt { .. } => "try again; if it stays, something between here and the hub changes files",
            Self::NoSpace { .. } | Self::DiskFull { .. } => {
                "make room (`pleach list` shows models, `pleach rm` removes one), or set HF_HUB_CACHE to another disk"
            }
            Self::File { .. } => "check the rights of the folder, or set HF_HUB_CACHE to another one",
            Self::Busy { .. } => "wait until it is done, or end it",
            Self::Stopped => return None,
        };
        Some(hint.to_owned())
    }

    /// For `map_err` of what the file system refuses.
    pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::DiskFull { path }
            }
            _ => Self::File { action, path, source },
        }
    }
}

fn several(id: &RepoId, wanted: Option<&str>) -> String {
    match wanted {
        Some(wanted) => format!("`{wanted}` fits, of `{id}`,"),
        None => format!("`{id}` has"),
    }
}

/// `` `a`, `b` and `c` ``, or `nothing`.
fn names(names: &[String]) -> String {
    match names {
        [] => "nothing".to_owned(),
        [only] => format!("`{only}`"),
        [first @ .., last] => {
            let first: Vec<_> = first.iter().map(|name| format!("`{name}`")).collect();
            format!("{} and `{last}`", first.join(", "))
        }
    }
}
