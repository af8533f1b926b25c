//! The hub's local cache on disk, in the layout of Hugging Face's own tools.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::digest::{FileHash, is_hex};
use crate::{HubError, ModelId, RepoId, RepoPath};

/// The folder that holds all cached models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    root: PathBuf,
}

/// The folder of one model.
#[derive(Debug, Clone)]
pub(crate) struct Repository {
    pub(crate) id: RepoId,
    root: PathBuf,
    locks: PathBuf,
}

impl Cache {
    /// The cache in a folder, which need not exist.
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn repository(&self, id: &RepoId) -> Repository {
        let folder = id.folder();
        Repository { id: id.clone(), root: self.root.join(&folder), locks: self.root.join(".locks").join(folder) }
    }
}

impl Repository {
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn locks(&self) -> &Path {
        &self.locks
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.root.join("blobs")
    }

    pub(crate) fn refs(&self) -> PathBuf {
        self.root.join("refs")
    }

    pub(crate) fn snapshots(&self) -> PathBuf {
        self.root.join("snapshots")
    }

    pub(crate) fn blob(&self, hash: &FileHash) -> PathBuf {
        self.blobs().join(hash.digits())
    }

    /// Where a blob grows until it is verified.
    pub(crate) fn incomplete(&self, hash: &FileHash) -> PathBuf {
        self.blobs().join(format!("{}.incomplete", hash.digits()))
    }

    /// The snapshot that a revision stood for when it was last fetched; without a known `main`, the only snapshot.
    pub(crate) fn snapshot(&self, id: &ModelId) -> Option<PathBuf> {
        let snapshots = self.snapshots();
        let revision = RepoPath::parse(id.revision()).ok()?;
        let commit = fs::read_to_string(revision.under(&self.refs())).unwrap_or_default();
        let commit = if is_hex(id.revision(), 40) { id.revision() } else { commit.trim() };
        if RepoPath::parse(commit).is_ok_and(|commit| commit.depth() == 0) && snapshots.join(commit).is_dir() {
            return Some(snapshots.join(commit));
        }
        match entries(&snapshots).as_slice() {
            [only] if id.revision.is_none() && only.is_dir() => Some(only.clone()),
            _ => None,
        }
    }

    /// Takes the lock of a blob, which other processes, Hugging Face's own tools among them, take as well. `waits` is
    /// asked before every further try, and may end the waiting with an error.
    pub(crate) fn lock(
        &self,
        hash: &FileHash,
        mut waits: impl FnMut() -> Result<(), HubError>,
    ) -> Result<File, HubError> {
        create_dir(&self.locks)?;
        let path = self.locks.join(format!("{}.lock", hash.digits()));
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(HubError::file("open", &path))?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) => waits()?,
                // A network drive without locks: what is written is verified all the same.
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => return Ok(file),
                Err(TryLockError::Error(error)) => return Err(HubError::file("lock", path)(error)),
            }
        }
    }

    /// Puts a verified blob into a snapshot under its name.
    pub(crate) fn link(&self, commit: &str, path: &RepoPath, hash: &FileHash) -> Result<(), HubError> {
        let link = path.under(&self.snapshots().join(commit));
        create_dir(link.parent().expect("a file of a snapshot has a folder"))?;
        let target = relative_blob(path, hash);
        if fs::read_link(&link).is_ok_and(|found| found == target) {
            return Ok(());
        }
        // A new name, then a rename: whoever reads meanwhile sees the old file or the new one.
        let fresh = unused_name(&link);
        let made = symlink(&target, &self.blob(hash), &fresh).and_then(|()| fs::rename(&fresh, &link));
        made.map_err(HubError::file("write", link))
    }

    /// Notes which commit a revision stands for.
    pub(crate) fn set_ref(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        // A commit needs no note of where it is.
        if is_hex(revision, 40) {
            return Ok(());
        }
        let Ok(revision) = RepoPath::parse(revision) else { return Ok(()) };
        let path = revision.under(&self.refs());
        create_dir(path.parent().expect("a reference has a folder"))?;
        write_whole(&path, commit.as_bytes()).map_err(HubError::file("write", path))
    }
}

/// `../../blobs/HASH` from a file of a snapshot; one `../` more for each folder that the file is in.
fn relative_blob(path: &RepoPath, hash: &FileHash) -> PathBuf {
    let up: PathBuf = std::iter::repeat_n("..", path.depth() + 2).collect();
    up.join("blobs").join(hash.digits())
}

#[cfg(unix)]
fn symlink(target: &Path, _blob: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

/// Without the right to make links, the snapshot gets the bytes a second time by a hard link, or by a copy.
#[cfg(not(unix))]
fn symlink(_target: &Path, blob: &Path, link: &Path) -> io::Result<()> {
    fs::hard_link(blob, link).or_else(|_| fs::copy(blob, link).map(drop))
}

/// A name beside `path` that no other thread of any process takes.
fn unused_name(path: &Path) -> PathBuf {
    let thread = format!("{:?}", std::thread::current().id());
    let number: String = thread.chars().filter(char::is_ascii_digit).collect();
    path.with_file_name(format!(".new-{}-{number}", std::process::id()))
}

/// Writes a small file so that readers see all of it or the old one.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = unused_name(path);
    let mut file = File::create(&fresh)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&fresh, path))
}

pub(crate) fn create_dir(folder: &Path) -> Result<(), HubError> {
    fs::create_dir_all(folder).map_err(HubError::file("make the folder", folder))
}

/// What a folder holds, in the order of names; nothing if it cannot be read.
pub(crate) fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    entries
}

/// All files below a folder by their paths from there; links count as files. Nothing that is linked to is entered.
pub(crate) fn files_below(folder: &Path) -> Vec<(RepoPath, PathBuf)> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(inner) = folders.pop() {
        for entry in entries(&inner) {
            let is_folder = fs::symlink_metadata(&entry).is_ok_and(|metadata| metadata.is_dir());
            let relative = entry.strip_prefix(folder).ok().and_then(Path::to_str).map(|path| path.replace('\\', "/"));
            match relative.as_deref().map(RepoPath::parse) {
                _ if is_folder => folders.push(entry),
                Some(Ok(path)) => files.push((path, entry)),
                _ => {}
            }
        }
    }
    files.sort();
    files
}
