//! Kept states in a folder, so that they survive the process.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use pleach_model::Sequence;
use sha2::{Digest as _, Sha256};
use tempfile::NamedTempFile;

use super::file::{self, FileError, Header, Saved};
use super::radix::{NodeId, Radix};
use super::{CacheOwner, Doubt, PrefixCacheOptions};
use crate::EngineError;
use crate::fingerprint::Fingerprint;

const EXTENSION: &str = "pleach-prefix";

/// Of files that are being written.
const PARTIAL: &str = "pleach-partial";

/// A partial file that was not written to for so long was left over by a process that ended.
const LEFT_OVER: Duration = Duration::from_secs(3600);

/// Of the file with the salt of a folder.
const SALT: &str = "salt";

const SALT_BYTES: usize = 32;

/// States that wait to be written at most; further ones are left out, since each holds its memory.
const MOST_WAITING: usize = 4;

/// A folder of kept states. They are written by a thread of its own, whole or not at all, and verified before use; the
/// least recently used make room.
#[derive(Debug)]
pub(super) struct Store {
    index: Arc<Mutex<Index>>,
    folder: Folder,
    /// `None` only while the store is being dropped.
    jobs: Option<Sender<Job>>,
    /// States that wait to be written.
    waiting: Arc<AtomicUsize>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Debug, Clone)]
struct Folder {
    path: PathBuf,
    fingerprint: Fingerprint,
    /// Owners are written hashed with it, so that a file tells nothing of a key that was guessed elsewhere.
    salt: [u8; 32],
    most_bytes: u64,
    /// Bytes of a file that is read.
    most_read: u64,
}

/// The files of this model, by the tokens that they stand for.
#[derive(Debug, Default)]
struct Index {
    texts: HashMap<CacheOwner, Radix<PathBuf>>,
    places: HashMap<PathBuf, (CacheOwner, NodeId)>,
    /// What is to be forgotten once the thread comes to it. States that were to be written earlier are among it.
    doubts: VecDeque<Doubt>,
}

/// What the thread does, in the order in which it was asked.
enum Job {
    Write(Write),
    /// Takes out the files of the first doubt.
    Forget,
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
    pub(super) fn open(
        path: &Path,
        fingerprint: Fingerprint,
        options: &PrefixCacheOptions,
    ) -> Result<Self, EngineError> {
        let failed = |source| EngineError::CacheDir { path: path.to_owned(), source };
        make_private(path).map_err(failed)?;
        let folder = Folder {
            path: path.to_owned(),
            fingerprint,
            salt: salt(path).map_err(failed)?,
            most_bytes: options.dir_bytes,
            most_read: options.bytes as u64,
        };
        folder.remove_left_over().map_err(failed)?;
        let index = Arc::new(Mutex::new(folder.index().map_err(failed)?));
        let (jobs, queue) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let (shared, still, of_thread) = (Arc::clone(&index), Arc::clone(&waiting), folder.clone());
        let builder = thread::Builder::new().name("prefix cache".to_owned());
        let writer = builder.spawn(move || of_thread.work(queue, &shared, &still)).map_err(failed)?;
        Ok(Self { index, folder, jobs: Some(jobs), waiting, writer: Some(writer) })
    }

    /// Reads the longest state that `prompt` can go on from, if it stands for at least `least` tokens. A file that cannot be
    /// used is named in the log and not asked again.
    pub(super) fn load(&self, owner: CacheOwner, prompt: &[u32], least: usize) -> Option<Saved> {
        let owner = self.folder.salted(owner);
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

    /// Asks the file of these tokens not again.
    pub(super) fn skip(&self, owner: CacheOwner, tokens: &[u32]) {
        lock(&self.index).remove(&self.folder.file(self.folder.salted(owner), tokens));
    }

    /// Whether there is a file for exactly these tokens.
    pub(super) fn has(&self, owner: CacheOwner, tokens: &[u32]) -> bool {
        lock(&self.index).places.contains_key(&self.folder.file(self.folder.salted(owner), tokens))
    }

    /// Has a state written soon, unless too many wait.
    pub(super) fn save(&self, owner: CacheOwner, tokens: &[u32], sequence: Sequence) {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= MOST_WAITING {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            tracing::debug!("a state is not written: too many wait");
            return;
        }
        let owner = self.folder.salted(owner);
        self.ask(Job::Write(Write { owner, tokens: tokens.to_vec(), sequence }));
    }

    /// Uses none of these states any more, be they in the folder or on their way there, and has their files taken out.
    pub(super) fn forget(&self, doubt: Doubt) {
        let doubt = match doubt {
            Doubt::Along(owner, tokens) => Doubt::Along(self.folder.salted(owner), tokens),
            Doubt::All(owner) => Doubt::All(self.folder.salted(owner)),
        };
        // Under one lock, so that doubts and jobs have the same order.
        let mut index = lock(&self.index);
        index.forget(&doubt);
        index.doubts.push_back(doubt);
        self.ask(Job::Forget);
    }

    fn ask(&self, job: Job) {
        // The thread is there as long as the store is.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
    }
}

/// What waits is written before the process ends.
impl Drop for Store {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl Folder {
    fn index(&self) -> io::Result<Index> {
        let mut index = Index::default();
        self.of_this_model(|path, header| index.add(header.owner, &header.tokens, path))?;
        Ok(index)
    }

    /// Looks at all files of this model.
    fn of_this_model(&self, mut look: impl FnMut(PathBuf, Header)) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != EXTENSION) {
                continue;
            }
            match open(&path).and_then(|(file, _)| file::read_header(file)) {
                Ok(header) if header.fingerprint == self.fingerprint => look(path, header),
                Ok(_) => {}
                Err(error) => tracing::warn!(file = %path.display(), %error, "a kept state cannot be used"),
            }
        }
        Ok(())
    }

    /// Takes out what processes that ended have left half-written.
    fn remove_left_over(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let is_partial = entry.path().extension().is_some_and(|extension| extension == PARTIAL);
            let age = entry.metadata().and_then(|about| about.modified()).ok().and_then(|time| time.elapsed().ok());
            if is_partial && age.is_some_and(|age| age > LEFT_OVER) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    fn read(&self, path: &Path) -> Result<Saved, FileError> {
        let (file, found) = open(path)?;
        if found > self.most_read {
            return Err(FileError::Length { field: "file", found, allowed: self.most_read });
        }
        let mut bytes = Vec::with_capacity(found as usize);
        file.take(found).read_to_end(&mut bytes)?;
        let saved = file::decode(&bytes)?;
        if saved.header.fingerprint == self.fingerprint { Ok(saved) } else { Err(FileError::Magic) }
    }

    /// An owner as files name it.
    fn salted(&self, owner: CacheOwner) -> CacheOwner {
        CacheOwner(Sha256::new().chain_update(self.salt).chain_update(owner.0).finalize().into())
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
    fn work(&self, queue: Receiver<Job>, index: &Mutex<Index>, waiting: &AtomicUsize) {
        for job in queue {
            match job {
                Job::Write(write) => {
                    waiting.fetch_sub(1, Ordering::Relaxed);
                    self.write(write, index);
                    self.make_room(index);
                }
                Job::Forget => self.forget(index),
            }
        }
    }

    /// Writes a state, unless it is there or was forgotten meanwhile.
    fn write(&self, write: Write, index: &Mutex<Index>) {
        let Write { owner, tokens, sequence } = write;
        let path = self.file(owner, &tokens);
        if lock(index).places.contains_key(&path) {
            return;
        }
        let header = Header { fingerprint: self.fingerprint, owner, tokens };
        let placed = self.partial(&header, &sequence).and_then(|partial| {
            let Some(partial) = partial else { return Ok(()) };
            let mut index = lock(index);
            // All doubts that are left came after this write.
            if !index.doubts.iter().any(|doubt| doubt.includes(owner, &header.tokens)) {
                partial.persist(&path).map_err(|error| error.error)?;
                index.add(owner, &header.tokens, path.clone());
            }
            Ok(())
        });
        if let Err(error) = placed {
            tracing::warn!(file = %path.display(), %error, "a state cannot be written");
        }
    }

    /// Writes a file that nobody else can read and that is gone unless it is given its name; `None` if it would not fit.
    fn partial(&self, header: &Header, sequence: &Sequence) -> io::Result<Option<NamedTempFile>> {
        let mut builder = tempfile::Builder::new();
        let mut partial = builder.prefix("").suffix(&format!(".{PARTIAL}")).tempfile_in(&self.path)?;
        let mut out = BufWriter::new(partial.as_file_mut());
        let bytes = file::write(&mut out, header, sequence.state())?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_data()?;
        Ok((bytes <= self.most_bytes).then_some(partial))
    }

    /// Takes out the files that the first doubt includes, those that another process has written too.
    fn forget(&self, index: &Mutex<Index>) {
        let Some(doubt) = lock(index).doubts.pop_front() else { return };
        let mut doubtful = Vec::new();
        let looked = self.of_this_model(|path, header| {
            if doubt.includes(header.owner, &header.tokens) {
                doubtful.push(path);
            }
        });
        let removed = looked.and_then(|()| doubtful.iter().try_for_each(fs::remove_file));
        if let Err(error) = removed {
            tracing::warn!(folder = %self.path.display(), %error, "a state that may be wrong cannot be taken out");
        }
    }

    /// Removes the files that were not used for longest, until the rest fits.
    fn make_room(&self, index: &Mutex<Index>) {
        let Ok(entries) = fs::read_dir(&self.path) else { return };
        let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let path = entry.path();
                let about = entry.metadata().ok()?;
                let is_ours = path.extension().is_some_and(|extension| extension == EXTENSION || extension == PARTIAL);
                is_ours.then_some((about.modified().ok()?, about.len(), path))
            })
            .collect();
        files.sort();
        let mut total: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        // What is being written by another process takes room, and is left to it.
        files.retain(|(.., path)| path.extension().is_some_and(|extension| extension == EXTENSION));
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

    fn forget(&mut self, doubt: &Doubt) {
        let Some(text) = self.texts.get(&doubt.owner()) else { return };
        let paths: Vec<PathBuf> = match doubt {
            Doubt::Along(_, tokens) => {
                text.walk(tokens).found.into_iter().filter_map(|(_, id)| text.get(id).cloned()).collect()
            }
            Doubt::All(owner) => {
                let of_owner = self.places.iter().filter(|(_, (found, _))| found == owner);
                of_owner.map(|(path, _)| path.clone()).collect()
            }
        };
        paths.iter().for_each(|path| self.remove(path));
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

/// The salt of a folder, which the first who opens it makes.
fn salt(folder: &Path) -> io::Result<[u8; SALT_BYTES]> {
    let path = folder.join(SALT);
    let read = || {
        let (file, _) = open(&path).map_err(|error| match error {
            FileError::Read(error) => error,
            other => io::Error::new(io::ErrorKind::InvalidData, format!("the file `{SALT}` is unfit: {other}")),
        })?;
        let mut bytes = Vec::new();
        file.take(SALT_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        io::Result::Ok(<[u8; SALT_BYTES]>::try_from(bytes).ok())
    };
    match read() {
        Ok(Some(salt)) => return Ok(salt),
        // Half a salt is none, and what was written with it cannot be found any more.
        Ok(None) => fs::remove_file(&path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut file = NamedTempFile::new_in(folder)?;
    let mut salt = [0; SALT_BYTES];
    getrandom::fill(&mut salt)?;
    file.write_all(&salt)?;
    file.as_file().sync_data()?;
    match file.persist_noclobber(&path) {
        Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => Err(error.error),
        // Whoever was first has made it.
        _ => read()?.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the file `salt` has not 32 bytes")),
    }
}

/// A file and its length. A device has neither length nor end, and opening a pipe waits for whoever writes to it.
fn open(path: &Path) -> Result<(File, u64), FileError> {
    let about = fs::metadata(path)?;
    if !about.is_file() {
        return Err(FileError::Irregular);
    }
    Ok((File::open(path)?, about.len()))
}

/// A folder that nobody else may read, if there is none yet: states can be turned back into the texts that they stand for.
/// One that was there stays as its owner made it; the files in it can be read by nobody else.
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
