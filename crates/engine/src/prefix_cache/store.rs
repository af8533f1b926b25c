//! Kept states in a folder, so that they survive the process.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use pleach_model::Sequence;
use sha2::{Digest as _, Sha256};

use super::CacheOwner;
use super::file::{self, FileError, Header, Saved};
use super::radix::{NodeId, Radix};
use crate::EngineError;
use crate::fingerprint::Fingerprint;

const EXTENSION: &str = "pleach-prefix";

/// States that wait to be written at most; further ones are left out, since each holds its memory.
const MOST_WAITING: usize = 4;

/// A folder of kept states. They are written by a thread of its own, whole or not at all, and verified before use; the
/// least recently used make room.
#[derive(Debug)]
pub(super) struct Store {
    index: Arc<Mutex<Index>>,
    folder: Folder,
    /// `None` only while the store is being dropped.
    writes: Option<SyncSender<Write>>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Debug, Clone)]
struct Folder {
    path: PathBuf,
    fingerprint: Fingerprint,
    most_bytes: u64,
}

/// The files of this model, by the tokens that they stand for.
#[derive(Debug, Default)]
struct Index {
    texts: HashMap<CacheOwner, Radix<PathBuf>>,
    places: HashMap<PathBuf, (CacheOwner, NodeId)>,
}

/// A state on its way to the folder.
struct Write {
    owner: CacheOwner,
    tokens: Vec<u32>,
    sequence: Sequence,
}

impl Store {
    /// Opens a folder, made if need be, and looks at what is in it. Files that are of no use are left alone.
    ///
    /// # Errors
    /// [`EngineError::CacheDir`] if the folder cannot be made or read; no thread.
    pub(super) fn open(path: &Path, fingerprint: Fingerprint, most_bytes: u64) -> Result<Self, EngineError> {
        let failed = |source| EngineError::CacheDir { path: path.to_owned(), source };
        let folder = Folder { path: path.to_owned(), fingerprint, most_bytes };
        make_private(path).map_err(failed)?;
        let index = Arc::new(Mutex::new(folder.index().map_err(failed)?));
        let (writes, queue) = sync_channel(MOST_WAITING);
        let (shared, of_thread) = (Arc::clone(&index), folder.clone());
        let builder = thread::Builder::new().name("prefix cache".to_owned());
        let writer = builder.spawn(move || of_thread.write_all(queue, &shared)).map_err(failed)?;
        Ok(Self { index, folder, writes: Some(writes), writer: Some(writer) })
    }

    /// Reads the longest state that `prompt` can go on from, if it stands for at least `least` tokens. A file that cannot be
    /// used is named in the log and not asked again.
    pub(super) fn load(&self, owner: CacheOwner, prompt: &[u32], least: usize) -> Option<Saved> {
        let (len, path) = lock(&self.index).longest(owner, prompt).filter(|(len, _)| *len >= least)?;
        match self.folder.read(&path) {
            Ok(saved) if saved.header.owner == owner && saved.header.tokens[..] == prompt[..len] => {
                // Files that are used are kept longest.
                let _ = File::options().append(true).open(&path).and_then(|file| file.set_modified(SystemTime::now()));
                return Some(saved);
            }
            Ok(_) => tracing::warn!(file = %path.display(), "a kept state stands for other tokens than it did"),
            Err(error) => tracing::warn!(file = %path.display(), %error, "a kept state cannot be used"),
        }
        lock(&self.index).remove(&path);
        None
    }

    /// Whether there is a file for exactly these tokens.
    pub(super) fn has(&self, owner: CacheOwner, tokens: &[u32]) -> bool {
        lock(&self.index).places.contains_key(&self.folder.file(owner, tokens))
    }

    /// Has a state written soon, unless too many wait.
    pub(super) fn save(&self, owner: CacheOwner, tokens: &[u32], sequence: Sequence) {
        let write = Write { owner, tokens: tokens.to_vec(), sequence };
        if let Some(Err(_)) = self.writes.as_ref().map(|writes| writes.try_send(write)) {
            tracing::debug!("a state is not written: too many wait");
        }
    }

    /// Takes out the file of a state that was found wrong.
    pub(super) fn forget(&self, owner: CacheOwner, tokens: &[u32]) {
        let path = self.folder.file(owner, tokens);
        lock(&self.index).remove(&path);
        let _ = fs::remove_file(path);
    }
}

/// What waits is written before the process ends.
impl Drop for Store {
    fn drop(&mut self) {
        self.writes = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl Folder {
    fn index(&self) -> io::Result<Index> {
        let mut index = Index::default();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != EXTENSION) {
                continue;
            }
            match File::open(&path).map_err(FileError::from).and_then(file::read_header) {
                Ok(header) if header.fingerprint == self.fingerprint => index.add(header.owner, &header.tokens, path),
                Ok(_) => {}
                Err(error) => tracing::warn!(file = %path.display(), %error, "a kept state cannot be used"),
            }
        }
        Ok(index)
    }

    fn read(&self, path: &Path) -> Result<Saved, FileError> {
        let saved = file::decode(&fs::read(path)?)?;
        if saved.header.fingerprint == self.fingerprint { Ok(saved) } else { Err(FileError::Magic) }
    }

    /// The file of a state is named by what it stands for.
    fn file(&self, owner: CacheOwner, tokens: &[u32]) -> PathBuf {
        let mut hash = Sha256::new();
        hash.update(self.fingerprint.0);
        hash.update(owner.0);
        tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
        let name: String = hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        self.path.join(name).with_extension(EXTENSION)
    }

    /// What the thread does all its life.
    fn write_all(&self, queue: Receiver<Write>, index: &Mutex<Index>) {
        for write in queue {
            let (owner, path) = (write.owner, self.file(write.owner, &write.tokens));
            if lock(index).places.contains_key(&path) {
                continue;
            }
            let tokens = write.tokens.clone();
            match self.write(&path, write) {
                Ok(true) => lock(index).add(owner, &tokens, path),
                Ok(false) => {}
                Err(error) => tracing::warn!(file = %path.display(), %error, "a state cannot be written"),
            }
            self.make_room(index);
        }
    }

    /// Writes a file whole or not at all; `false` if it would not fit.
    fn write(&self, path: &Path, write: Write) -> io::Result<bool> {
        let Write { owner, tokens, sequence } = write;
        let header = Header { fingerprint: self.fingerprint, owner, tokens };
        let partial = path.with_extension("partial");
        let outcome = File::create(&partial).and_then(|file| {
            let mut out = BufWriter::new(file);
            let bytes = file::write(&mut out, &header, sequence.state())?;
            out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_data()?;
            let fits = bytes <= self.most_bytes;
            if fits {
                fs::rename(&partial, path)?;
            }
            Ok(fits)
        });
        if !matches!(outcome, Ok(true)) {
            let _ = fs::remove_file(&partial);
        }
        outcome
    }

    /// Removes the files that were not used for longest, until the rest fits.
    fn make_room(&self, index: &Mutex<Index>) {
        let Ok(entries) = fs::read_dir(&self.path) else { return };
        let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let path = entry.path();
                let about = entry.metadata().ok()?;
                (path.extension()? == EXTENSION).then_some((about.modified().ok()?, about.len(), path))
            })
            .collect();
        files.sort();
        let mut total: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, bytes, path) in files {
            if total <= self.most_bytes {
                return;
            }
            lock(index).remove(&path);
            if fs::remove_file(&path).is_ok() {
                total -= bytes;
            }
        }
    }
}

impl Index {
    fn add(&mut self, owner: CacheOwner, tokens: &[u32], path: PathBuf) {
        let (id, before) = self.texts.entry(owner).or_insert_with(Radix::new).insert(tokens, path.clone());
        if let Some(before) = before {
            self.places.remove(&before);
        }
        self.places.insert(path, (owner, id));
    }

    fn remove(&mut self, path: &Path) {
        let Some((owner, id)) = self.places.remove(path) else { return };
        let Some(text) = self.texts.get_mut(&owner) else { return };
        text.remove(id);
        if text.is_empty() {
            self.texts.remove(&owner);
        }
    }

    /// The longest that leaves something of the prompt to run, with its tokens.
    fn longest(&self, owner: CacheOwner, prompt: &[u32]) -> Option<(usize, PathBuf)> {
        let text = self.texts.get(&owner)?;
        let walk = text.walk(prompt);
        let &(len, id) = walk.found.iter().rev().find(|(len, _)| *len < prompt.len())?;
        Some((len, text.get(id)?.clone()))
    }
}

fn lock(index: &Mutex<Index>) -> MutexGuard<'_, Index> {
    index.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder that nobody else may read: states can be turned back into the texts that they stand for.
fn make_private(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt as _;
        builder.mode(0o700);
    }
    builder.create(path)
}
