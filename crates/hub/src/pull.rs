//! A model of the hub, from its name to its files in the cache.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::cache::{Repository, create_dir, files_below};
use crate::client::{Client, Listing, RemoteFile};
use crate::digest::FileHash;
use crate::select::{Selection, is_whole, select};
use crate::transfer::{Attempts, Transfer};
use crate::{Cache, Check, HubError, HubOptions, ModelId, RepoPath};

/// A hub and its local cache.
#[derive(Debug)]
pub struct Hub {
    options: HubOptions,
    cache: Cache,
    client: Client,
}

/// A model in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// The folder or `.gguf` file to open.
    pub path: PathBuf,
    /// The commit that it is of.
    pub commit: String,
}

/// What a download did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// The model.
    pub model: Resolved,
    /// Files of the model.
    pub files: usize,
    /// Bytes of all of them.
    pub total_bytes: u64,
    /// Bytes that were not in the cache before.
    pub new_bytes: u64,
}

/// A model as the hub has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteModel {
    /// The commit that the revision stands for.
    pub commit: String,
    /// All files of the repository with their sizes in bytes.
    pub files: Vec<(RepoPath, u64)>,
    /// The files that would be fetched; empty if that is not clear without naming one.
    pub needed: Vec<RepoPath>,
}

/// A file of a download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedFile {
    /// Its name.
    pub path: RepoPath,
    /// Bytes that it has.
    pub size_bytes: u64,
    /// Bytes of it that are there already.
    pub present_bytes: u64,
}

/// Something that happened in a download.
#[derive(Debug)]
#[non_exhaustive]
pub enum PullEvent<'a> {
    /// It is known what is to come.
    Planned {
        /// The files of the model, by the numbers that [`PullEvent::Progress`] gives them.
        files: &'a [PlannedFile],
    },
    /// File `index` has `done` bytes now, which can be fewer than before.
    Progress {
        /// Number of the file, from 0.
        index: usize,
        /// Bytes that are there.
        done: u64,
    },
    /// Another process is fetching the file.
    Waiting {
        /// The file.
        file: &'a RepoPath,
    },
    /// Something failed and is tried again.
    Retrying {
        /// The file, or the hub's address.
        what: &'a str,
        /// What happened.
        error: &'a HubError,
        /// The time until the next try.
        pause: Duration,
    },
}

/// The files of a download.
struct Plan {
    commit: String,
    files: Vec<(RemoteFile, FileHash)>,
    open: Option<RepoPath>,
}

impl Hub {
    /// A hub with these options. Nothing is asked or written yet.
    pub fn new(options: HubOptions) -> Self {
        Self { cache: Cache::new(options.cache.clone()), client: Client::new(&options), options }
    }

    /// The options.
    pub fn options(&self) -> &HubOptions {
        &self.options
    }

    /// Name and port of the proxy on the way to the hub, as the variables `ALL_PROXY`, `HTTPS_PROXY`, `HTTP_PROXY` and
    /// `NO_PROXY` say; `None` if there is none.
    pub fn proxy(&self) -> Option<String> {
        self.client.proxy()
    }

    /// The local cache.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The model, if all of it is in the cache. The network is not asked.
    ///
    /// # Errors
    /// [`HubError::Offline`] if it is not there, or not all of it; [`HubError::SeveralFiles`] and
    /// [`HubError::NoSuchFile`] by what is there.
    pub fn cached(&self, id: &ModelId) -> Result<Resolved, HubError> {
        let missing = || HubError::Offline { id: id.to_string(), cache: self.cache.root().to_owned() };
        let repository = self.cache.repository(&id.repo);
        let snapshot = repository.snapshot(id).ok_or_else(missing)?;
        // A link whose blob is gone is not there.
        let found =
            files_below(&snapshot).into_iter().filter(|(_, file)| fs::metadata(file).is_ok_and(|it| it.is_file()));
        let files: Vec<RepoPath> = found.map(|(path, _)| path).collect();
        let selection = select(id, &files).map_err(|error| match error {
            HubError::NoWeights { .. } => missing(),
            other => other,
        })?;
        if !is_whole(&selection, &files, || indexed(&snapshot)) {
            return Err(missing());
        }
        let commit = snapshot.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = selection.open.map_or_else(|| snapshot.clone(), |file| file.under(&snapshot));
        Ok(Resolved { path, commit })
    }

    /// The model from the cache, or from the hub if it is not there and the network may be used.
    ///
    /// # Errors
    /// As [`cached`](Self::cached) and [`pull`](Self::pull).
    pub fn resolve(&self, id: &ModelId, events: &(dyn Fn(PullEvent<'_>) + Sync)) -> Result<Resolved, HubError> {
        match self.cached(id) {
            Err(_) if !self.options.offline => Ok(self.pull(id, Check::Size, events)?.model),
            cached => cached,
        }
    }

    /// What the hub has.
    ///
    /// # Errors
    /// What keeps the hub from telling.
    pub fn look(&self, id: &ModelId, events: &(dyn Fn(PullEvent<'_>) + Sync)) -> Result<RemoteModel, HubError> {
        let listing = self.listing(id, events)?;
        let needed = match select(id, &listing.paths()) {
            Ok(selection) => selection.files,
            Err(HubError::SeveralFiles { wanted: None, .. } | HubError::NoWeights { .. }) => Vec::new(),
            Err(error) => return Err(error),
        };
        let files = listing.files.into_iter().map(|file| (file.path, file.size)).collect();
        Ok(RemoteModel { commit: listing.commit, files, needed })
    }

    /// Brings the model's files into the cache, as the hub has them now.
    ///
    /// Files that are there and pass the check stay; what an earlier download left unfinished is continued. `events` is called from several
    /// threads.
    ///
    /// # Errors
    /// Whatever keeps one file from coming; what has come is kept, and the model stays as it was before.
    pub fn pull(
        &self,
        id: &ModelId,
        check: Check,
        events: &(dyn Fn(PullEvent<'_>) + Sync),
    ) -> Result<Pulled, HubError> {
        let plan = Plan::new(id, self.listing(id, events)?)?;
        let repository = self.cache.repository(&id.repo);
        create_dir(repository.root())?;
        let planned = plan.files.iter().map(|(file, hash)| PlannedFile {
            path: file.path.clone(),
            size_bytes: file.size,
            present_bytes: present(&repository, file, hash),
        });
        let planned: Vec<PlannedFile> = planned.collect();
        let total: u64 = planned.iter().map(|file| file.size_bytes).sum();
        let new_bytes = total - planned.iter().map(|file| file.present_bytes).sum::<u64>();
        self.check_space(new_bytes)?;
        events(PullEvent::Planned { files: &planned });
        self.transfer_all(&repository, &plan, check, events)?;

        for (file, hash) in &plan.files {
            repository.link(&plan.commit, &file.path, hash)?;
        }
        repository.set_ref(id.revision(), &plan.commit)?;
        let snapshot = repository.snapshots().join(&plan.commit);
        let path = plan.open.map_or_else(|| snapshot.clone(), |file| file.under(&snapshot));
        let model = Resolved { path, commit: plan.commit };
        Ok(Pulled { model, files: plan.files.len(), total_bytes: total, new_bytes })
    }

    fn listing(&self, id: &ModelId, events: &(dyn Fn(PullEvent<'_>) + Sync)) -> Result<Listing, HubError> {
        if self.options.offline {
            return Err(HubError::Offline { id: id.to_string(), cache: self.cache.root().to_owned() });
        }
        let mut attempts = Attempts::of_first_contact(self.options.retry);
        loop {
            let failure = match self.client.listing(id) {
                Ok(listing) => return Ok(listing),
                Err(failure) => failure,
            };
            thread::sleep(attempts.after(failure, 0, &self.options.endpoint, events)?);
        }
    }

    /// Refuses a download that cannot end well. A file system that does not say how full it is gets the benefit of the
    /// doubt.
    fn check_space(&self, needed: u64) -> Result<(), HubError> {
        match (self.options.free_space)(self.cache.root()) {
            Ok(free) if free < needed => Err(HubError::NoSpace { folder: self.cache.root().to_owned(), needed, free }),
            _ => Ok(()),
        }
    }

    /// Fetches several files at a time, the largest first, until all are there or one fails.
    fn transfer_all(
        &self,
        repository: &Repository,
        plan: &Plan,
        check: Check,
        events: &(dyn Fn(PullEvent<'_>) + Sync),
    ) -> Result<(), HubError> {
        let mut order: Vec<usize> = (0..plan.files.len()).collect();
        order.sort_by_key(|&index| std::cmp::Reverse(plan.files[index].0.size));
        let (next, stop, failed) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(None));
        let work = || {
            while let Some(&index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                let (file, hash) = &plan.files[index];
                let (client, commit, retry, stop) = (&self.client, plan.commit.as_str(), self.options.retry, &stop);
                let transfer = Transfer { client, repository, commit, index, file, hash, check, retry, events, stop };
                if let Err(error) = transfer.run() {
                    stop.store(true, Ordering::Relaxed);
                    // The first failure is the cause; the others were told to stop.
                    failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    return;
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..self.options.connections.clamp(1, order.len().max(1)) {
                scope.spawn(work);
            }
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

impl Plan {
    fn new(id: &ModelId, listing: Listing) -> Result<Self, HubError> {
        let Selection { files: needed, open } = select(id, &listing.paths())?;
        let mut files = Vec::with_capacity(needed.len());
        for file in listing.files.into_iter().filter(|file| needed.contains(&file.path)) {
            let hash = file.hash.clone().ok_or_else(|| HubError::NoHash { file: file.path.to_string() })?;
            files.push((file, hash));
        }
        Ok(Self { commit: listing.commit, files, open })
    }
}

/// Bytes of a file that need not come.
fn present(repository: &Repository, file: &RemoteFile, hash: &FileHash) -> u64 {
    let size = |path| fs::metadata(path).map_or(0, |metadata| metadata.len());
    match size(repository.blob(hash)) {
        whole if whole == file.size => whole,
        _ => Some(size(repository.incomplete(hash))).filter(|&part| part <= file.size).unwrap_or(0),
    }
}

/// The files that the index of a snapshot's weights lists.
fn indexed(snapshot: &std::path::Path) -> Option<Vec<String>> {
    let index: Value = serde_json::from_slice(&fs::read(snapshot.join("model.safetensors.index.json")).ok()?).ok()?;
    let parts = index.get("weight_map")?.as_object()?.values();
    parts.map(|part| part.as_str().map(str::to_owned)).collect()
}
