//! What the cache holds.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::cache::{Repository, entries, files_below};
use crate::select::{models, select};
use crate::{Cache, Hub, ModelId, RepoId, RepoPath};

/// A model of the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedModel {
    /// What it is called.
    pub id: RepoId,
    /// Its folder.
    pub path: PathBuf,
    /// Bytes of all that it keeps, unfinished downloads included.
    pub size_bytes: u64,
    /// Bytes of unfinished downloads.
    pub incomplete_bytes: u64,
    /// Its commits that are there, in the order of their names.
    pub snapshots: Vec<CachedSnapshot>,
    /// When something of it was last written.
    pub modified: Option<SystemTime>,
}

/// A commit of a cached model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedSnapshot {
    /// The commit.
    pub commit: String,
    /// Branches and tags that stood for it when it was last fetched.
    pub refs: Vec<String>,
    /// Its files that were fetched.
    pub files: Vec<CachedFile>,
}

/// A file of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedFile {
    /// Its name.
    pub path: RepoPath,
    /// Bytes; `None` if its blob is gone.
    pub size_bytes: Option<u64>,
}

impl Cache {
    /// All models, in the order of names.
    pub fn list(&self) -> Vec<CachedModel> {
        let folders = entries(self.root());
        folders.iter().filter_map(|folder| self.model(&RepoId::of_folder(folder.file_name()?.to_str()?)?)).collect()
    }

    /// One model; `None` if it has no folder.
    pub fn model(&self, id: &RepoId) -> Option<CachedModel> {
        let repository = self.repository(id);
        fs::symlink_metadata(repository.root()).ok()?;
        let refs: Vec<(String, String)> = files_below(&repository.refs())
            .into_iter()
            .filter_map(|(name, file)| Some((name.to_string(), fs::read_to_string(file).ok()?.trim().to_owned())))
            .collect();
        let snapshots = entries(&repository.snapshots());
        let snapshots: Vec<CachedSnapshot> = snapshots.iter().map(|folder| snapshot(folder, &refs)).collect();
        let (blobs, incomplete_bytes) = blob_bytes(&repository);
        // Where links cannot be made, snapshots hold the bytes themselves.
        let held: u64 = snapshots.iter().flat_map(|snapshot| &snapshot.files).filter_map(|file| file.size_bytes).sum();
        let size_bytes = if blobs > 0 { blobs } else { held };
        let modified = [repository.blobs(), repository.snapshots(), repository.root().to_owned()];
        let modified = modified.iter().filter_map(|path| fs::metadata(path).ok()?.modified().ok()).max();
        Some(CachedModel {
            id: id.clone(),
            path: repository.root().to_owned(),
            size_bytes,
            incomplete_bytes,
            snapshots,
            modified,
        })
    }
}

impl CachedModel {
    /// What can be opened without the network, by its full name, with its bytes: the model, or each of its `.gguf` files.
    pub fn ready(&self, hub: &Hub) -> Vec<(ModelId, u64)> {
        let plain = ModelId { repo: self.id.clone(), selector: None, revision: None };
        let repository = hub.cache().repository(&self.id);
        let Some(current) = repository.snapshot(&plain) else { return Vec::new() };
        let Some(snapshot) = self.snapshots.iter().find(|snapshot| current.ends_with(&snapshot.commit)) else {
            return Vec::new();
        };
        let there: Vec<&CachedFile> = snapshot.files.iter().filter(|file| file.size_bytes.is_some()).collect();
        let paths: Vec<RepoPath> = there.iter().map(|file| file.path.clone()).collect();
        let mut ids = models(&paths).into_iter().map(|file| file.to_string()).collect::<Vec<_>>();
        let by_file = |selector: String| ModelId { selector: Some(selector), ..plain.clone() };
        let mut found = vec![plain.clone()];
        if ids.len() > 1 {
            found.extend(ids.drain(..).map(by_file));
        }
        let size = |files: &[RepoPath]| {
            let of = there.iter().filter(|file| files.contains(&file.path));
            of.filter_map(|file| file.size_bytes).sum()
        };
        let is_ready = |id: &ModelId| hub.cached(id).is_ok();
        found
            .into_iter()
            .filter(is_ready)
            .filter_map(|id| Some((id.clone(), size(&select(&id, &paths).ok()?.files))))
            .collect()
    }

    /// Files whose blobs are gone.
    pub fn broken(&self) -> usize {
        self.snapshots.iter().flat_map(|snapshot| &snapshot.files).filter(|file| file.size_bytes.is_none()).count()
    }
}

fn snapshot(folder: &Path, refs: &[(String, String)]) -> CachedSnapshot {
    let commit = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let files = files_below(folder).into_iter().map(|(path, file)| CachedFile {
        path,
        size_bytes: fs::metadata(file).ok().filter(|found| found.is_file()).map(|found| found.len()),
    });
    let refs = refs.iter().filter(|(_, at)| *at == commit).map(|(name, _)| name.clone()).collect();
    CachedSnapshot { files: files.collect(), refs, commit }
}

/// Bytes of all blobs, and of the unfinished ones among them.
fn blob_bytes(repository: &Repository) -> (u64, u64) {
    let mut bytes = (0, 0);
    for blob in entries(&repository.blobs()) {
        let size = fs::symlink_metadata(&blob).map_or(0, |found| found.len());
        bytes.0 += size;
        if blob.extension().is_some_and(|extension| extension == "incomplete") {
            bytes.1 += size;
        }
    }
    bytes
}
