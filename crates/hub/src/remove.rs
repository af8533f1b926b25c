//! Takes models out of the cache, whole ones and what is left of broken ones.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::cache::{Repository, entries, files_below};
use crate::select::select;
use crate::{Cache, HubError, ModelId, RepoPath};

/// What was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// Bytes that are free now.
    pub bytes: u64,
}

impl Cache {
    /// Removes a model; with a file or quantization in the name only that, with a revision only that one.
    ///
    /// Nothing outside the model's own folders is touched: links are removed, not followed. Files that another process
    /// has open stay readable for it.
    ///
    /// # Errors
    /// [`HubError::NotCached`]; [`HubError::Busy`] while another process fetches the model; what the file system refuses.
    pub fn remove(&self, id: &ModelId) -> Result<Removed, HubError> {
        let repository = self.repository(&id.repo);
        let missing = || HubError::NotCached { id: id.to_string(), cache: self.root().to_owned() };
        let metadata = fs::symlink_metadata(repository.root()).map_err(|_| missing())?;
        if is_busy(repository.locks()) {
            return Err(HubError::Busy { id: id.repo.clone() });
        }
        let before = disk_bytes(repository.root());
        if !metadata.is_dir() {
            fs::remove_file(repository.root()).map_err(HubError::file("remove", repository.root()))?;
        } else if id.selector.is_none() && id.revision.is_none() {
            remove_all(&repository)?;
        } else {
            remove_some(&repository, id, missing)?;
        }
        Ok(Removed { bytes: before.saturating_sub(disk_bytes(repository.root())) })
    }
}

/// Snapshots first: what is left of an interrupted removal is never taken for a model.
fn remove_all(repository: &Repository) -> Result<(), HubError> {
    remove_folder(&repository.snapshots())?;
    remove_folder(repository.root())?;
    remove_folder(repository.locks())
}

fn remove_some(repository: &Repository, id: &ModelId, missing: impl Fn() -> HubError) -> Result<(), HubError> {
    let snapshots = match &id.revision {
        Some(_) => vec![repository.snapshot(id).ok_or_else(&missing)?],
        None => entries(&repository.snapshots()),
    };
    let mut removed = 0;
    let mut first_error = None;
    for snapshot in snapshots {
        let files = files_below(&snapshot);
        let paths: Vec<RepoPath> = files.iter().map(|(path, _)| path.clone()).collect();
        let wanted = match &id.selector {
            None => paths,
            Some(_) => select(id, &paths).map(|selection| selection.files).unwrap_or_else(|error| {
                first_error.get_or_insert(error);
                Vec::new()
            }),
        };
        for (_, file) in files.iter().filter(|(path, _)| wanted.contains(path)) {
            fs::remove_file(file).map_err(HubError::file("remove", file))?;
            removed += 1;
        }
        if id.selector.is_none() {
            remove_folder(&snapshot)?;
        }
    }
    if removed == 0 && id.selector.is_some() {
        return Err(first_error.unwrap_or_else(missing));
    }
    sweep(repository)
}

/// Removes blobs that no snapshot links to any more; unfinished ones stay.
fn sweep(repository: &Repository) -> Result<(), HubError> {
    let links = files_below(&repository.snapshots());
    let used: HashSet<OsString> =
        links.iter().filter_map(|(_, link)| Some(fs::read_link(link).ok()?.file_name()?.to_owned())).collect();
    let is_used =
        |blob: &PathBuf| blob.extension().is_some() || blob.file_name().is_some_and(|name| used.contains(name));
    for blob in entries(&repository.blobs()).into_iter().filter(|blob| !is_used(blob)) {
        fs::remove_file(&blob).map_err(HubError::file("remove", &blob))?;
    }
    Ok(())
}

/// Removes a folder with all in it, or the link that stands in its place; it may be gone already.
fn remove_folder(folder: &Path) -> Result<(), HubError> {
    let result = match fs::symlink_metadata(folder) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(folder),
        Ok(_) => fs::remove_file(folder),
        Err(error) => Err(error),
    };
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(HubError::file("remove", folder)),
    }
}

/// Whether one of the locks is held.
fn is_busy(locks: &Path) -> bool {
    entries(locks).into_iter().any(|path| {
        let file = OpenOptions::new().write(true).open(path);
        file.is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
    })
}

/// Bytes of a file or of all files below a folder; links count for themselves.
fn disk_bytes(path: &Path) -> u64 {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => entries(path).iter().map(|entry| disk_bytes(entry)).sum(),
        Ok(found) => found.len(),
        Err(_) => 0,
    }
}
