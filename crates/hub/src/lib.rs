//! Models of the Hugging Face hub: named, downloaded, and kept in the hub's own local cache.
//!
//! ```no_run
//! use pleach_hub::{Hub, HubOptions, ModelId};
//!
//! let hub = Hub::new(HubOptions::of_process()?);
//! let id = ModelId::parse("Qwen/Qwen3-0.6B")?;
//! let model = hub.resolve(&id, &|_event| {})?;
//! println!("{} is at {}", id, model.path.display());
//! # Ok::<(), pleach_hub::HubError>(())
//! ```
//!
//! The cache has the layout of Hugging Face's own tools, so a model that one of them fetched is not fetched again:
//!
//! ```text
//! models--OWNER--NAME/
//!     blobs/HASH                    a file by the hash of its bytes; HASH.incomplete while it comes
//!     refs/main                     the commit that a branch was at when it was last asked for
//!     snapshots/COMMIT/config.json  a link to a blob, for every file of the commit that was fetched
//! .locks/models--OWNER--NAME/HASH.lock
//! ```
//!
//! **A blob gets its name after its bytes were verified, and a snapshot its links after all its blobs have theirs.** So
//! a transfer may be cut at any moment, by the network, a full disk or the end of the process: nothing partial is ever
//! taken for whole, and what has come is used when it goes on.

mod cache;
mod client;
mod digest;
mod environment;
mod error;
mod id;
mod list;
mod pull;
mod remove;
mod repo_path;
mod select;
mod transfer;

pub use cache::Cache;
pub use environment::{HubOptions, Retry, Token};
pub use error::HubError;
pub use id::{ModelId, RepoId};
pub use list::{CachedFile, CachedModel, CachedSnapshot};
pub use pull::{Hub, PlannedFile, PullEvent, Pulled, RemoteModel, Resolved};
pub use remove::Removed;
pub use repo_path::RepoPath;
pub use transfer::Check;
