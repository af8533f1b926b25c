//! One file from the hub into its blob: resumed, verified, and only then given its name.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ureq::Body;
use ureq::http::{Response, StatusCode, header};

use crate::cache::{Repository, create_dir};
use crate::client::{Client, Failure, Outlook, RemoteFile};
use crate::digest::{FileHash, Hasher};
use crate::{HubError, PullEvent, Retry};

/// A file that is to be in the cache.
pub(crate) struct Transfer<'a> {
    pub(crate) client: &'a Client,
    pub(crate) repository: &'a Repository,
    pub(crate) commit: &'a str,
    /// Its number among the files of the download.
    pub(crate) index: usize,
    pub(crate) file: &'a RemoteFile,
    pub(crate) hash: &'a FileHash,
    pub(crate) check: Check,
    pub(crate) retry: Retry,
    pub(crate) events: &'a (dyn Fn(PullEvent<'_>) + Sync),
    /// Set when another file failed.
    pub(crate) stop: &'a AtomicBool,
}

/// How files that are in the cache already are looked at before they stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Their sizes are compared: they were verified when they came.
    Size,
    /// Their bytes are hashed again.
    Bytes,
}

/// How often others are asked for a lock, and how often a pause looks whether it still makes sense.
const TICK: Duration = Duration::from_millis(50);

const BUFFER_BYTES: usize = 256 << 10;

impl Transfer<'_> {
    /// Sees to it that the blob is there and right.
    pub(crate) fn run(&self) -> Result<(), HubError> {
        create_dir(&self.repository.blobs())?;
        let mut told = false;
        let _lock = self.repository.lock(self.hash, || {
            if !std::mem::replace(&mut told, true) {
                (self.events)(PullEvent::Waiting { file: &self.file.path });
            }
            self.sleep(TICK)
        })?;
        if self.is_there()? {
            self.progress(self.file.size);
            return Ok(());
        }
        let mut part = Part::open(self)?;
        let mut attempts = Attempts::new(self.retry);
        loop {
            let Err(failure) = self.attempt(&mut part) else { return Ok(()) };
            let pause = attempts.after(failure, part.len, self.file.path.as_str(), self.events)?;
            self.sleep(pause)?;
        }
    }

    fn is_there(&self) -> Result<bool, HubError> {
        let blob = self.repository.blob(self.hash);
        let is_sized = fs::metadata(&blob).is_ok_and(|found| found.is_file() && found.len() == self.file.size);
        if !is_sized || self.check == Check::Size {
            return Ok(is_sized);
        }
        let mut hasher = self.hash.hasher(self.file.size);
        let mut file = File::open(&blob).map_err(HubError::file("read", &blob))?;
        self.hash_first(self.file.size, &mut file, &mut hasher).map_err(HubError::file("read", &blob))?;
        Ok(hasher.finish() == self.hash.digits())
    }

    fn attempt(&self, part: &mut Part) -> Result<(), Failure> {
        if part.len < self.file.size {
            let response = self.client.file(&self.repository.id, self.commit, &self.file.path, part.len)?;
            self.check_range(&response, part)?;
            self.receive(response, part)?;
        }
        self.finish(part)
    }

    /// Makes sure that the bytes to come follow those that are there.
    fn check_range(&self, response: &Response<Body>, part: &mut Part) -> Result<(), Failure> {
        let text = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        match response.status() {
            StatusCode::OK => {
                let length = text(header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
                if let Some(found) = length.filter(|&length| length != self.file.size) {
                    return Err(self.wrong_size(found).into());
                }
                // A server that knows no ranges sends everything again.
                part.restart().map_err(|error| self.cannot_write(error))?;
                self.progress(0);
                Ok(())
            }
            StatusCode::PARTIAL_CONTENT if text(header::CONTENT_RANGE).and_then(range_start) == Some(part.len) => {
                Ok(())
            }
            // What is there is longer than the file, or the server gives another range than asked for.
            _ => {
                let what = format!("bytes from {} on were asked for, and others came", part.len);
                part.restart().map_err(|error| self.cannot_write(error))?;
                let url = self.client.file_url(&self.repository.id, self.commit, &self.file.path);
                Err(Failure::passing(HubError::BadAnswer { url, what }))
            }
        }
    }

    fn receive(&self, response: Response<Body>, part: &mut Part) -> Result<(), Failure> {
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            self.go_on()?;
            let read = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Failure::passing(self.cut(part.len, Some(error)))),
            };
            if part.len + read as u64 > self.file.size {
                let found = part.len + read as u64;
                part.restart().map_err(|error| self.cannot_write(error))?;
                return Err(self.wrong_size(found).into());
            }
            part.append(&buffer[..read]).map_err(|error| self.cannot_write(error))?;
            self.progress(part.len);
        }
        if part.len < self.file.size {
            return Err(Failure::passing(self.cut(part.len, None)));
        }
        Ok(())
    }

    /// Gives the file its name, if its bytes are the right ones.
    fn finish(&self, part: &mut Part) -> Result<(), Failure> {
        let found = part.hasher.clone().finish();
        if found != self.hash.digits() {
            part.restart().map_err(|error| self.cannot_write(error))?;
            self.progress(0);
            let (file, expected) = (self.file.path.to_string(), self.hash.to_string());
            let error = HubError::Corrupt { file, found, expected };
            // Once more from the start: it may have been a beginning that some other program left.
            part.rejected += 1;
            return Err(if part.rejected < 2 { Failure::passing(error) } else { error.into() });
        }
        let blob = self.repository.blob(self.hash);
        part.file.sync_all().map_err(|error| self.cannot_write(error))?;
        fs::rename(&part.path, &blob).map_err(HubError::file("write", blob))?;
        Ok(())
    }

    /// Hashes the first `bytes` of a file; returns how many there were.
    fn hash_first(&self, bytes: u64, file: &mut File, hasher: &mut Hasher) -> io::Result<u64> {
        let (mut done, mut buffer) = (0, vec![0; BUFFER_BYTES]);
        let mut file = file.take(bytes);
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(done),
                read => {
                    hasher.update(&buffer[..read]);
                    done += read as u64;
                    self.progress(done);
                }
            }
        }
    }

    fn progress(&self, done: u64) {
        (self.events)(PullEvent::Progress { index: self.index, done });
    }

    fn go_on(&self) -> Result<(), HubError> {
        if self.stop.load(Ordering::Relaxed) { Err(HubError::Stopped) } else { Ok(()) }
    }

    fn sleep(&self, pause: Duration) -> Result<(), HubError> {
        let mut left = pause;
        while !left.is_zero() {
            self.go_on()?;
            let step = left.min(TICK);
            thread::sleep(step);
            left -= step;
        }
        self.go_on()
    }

    fn cut(&self, done: u64, source: Option<io::Error>) -> HubError {
        HubError::Cut { file: self.file.path.to_string(), done, size: self.file.size, source }
    }

    fn wrong_size(&self, found: u64) -> HubError {
        HubError::WrongSize { file: self.file.path.to_string(), found, expected: self.file.size }
    }

    fn cannot_write(&self, error: io::Error) -> HubError {
        HubError::file("write", self.repository.incomplete(self.hash))(error)
    }
}

/// A blob on its way.
struct Part {
    path: PathBuf,
    file: File,
    hasher: Hasher,
    fresh: Hasher,
    len: u64,
    /// Bytes that were there at first.
    found: u64,
    /// Times that all its bytes were there and were the wrong ones.
    rejected: u32,
}

impl Part {
    /// Takes up what an earlier transfer left.
    fn open(transfer: &Transfer<'_>) -> Result<Self, HubError> {
        let path = transfer.repository.incomplete(transfer.hash);
        let file = OpenOptions::new().read(true).append(true).create(true).open(&path);
        let file = file.map_err(HubError::file("write", &path))?;
        let fresh = transfer.hash.hasher(transfer.file.size);
        let mut part = Self { path, file, hasher: fresh.clone(), fresh, len: 0, found: 0, rejected: 0 };
        let found = part.file.metadata().map(|metadata| metadata.len()).map_err(HubError::file("read", &part.path))?;
        part.found = found;
        if found > transfer.file.size {
            part.restart().map_err(|error| transfer.cannot_write(error))?;
        } else {
            let hashed = transfer.hash_first(found, &mut part.file, &mut part.hasher);
            part.len = hashed.map_err(HubError::file("read", &part.path))?;
        }
        Ok(part)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn restart(&mut self) -> io::Result<()> {
        if self.len == 0 && self.found == 0 {
            return Ok(());
        }
        self.found = 0;
        self.file.set_len(0)?;
        self.hasher = self.fresh.clone();
        self.len = 0;
        Ok(())
    }
}

/// Counts failures until there were too many.
#[derive(Debug)]
pub(crate) struct Attempts {
    retry: Retry,
    /// Failures in a row after which a hub that does not answer is given up.
    unanswered: u32,
    failures: u32,
    best: u64,
}

impl Attempts {
    pub(crate) fn new(retry: Retry) -> Self {
        Self { retry, unanswered: retry.attempts, failures: 0, best: 0 }
    }

    /// The same for a hub that was not heard of yet. If it does not answer twice, it is most likely not there, and waiting
    /// for it would only delay the news.
    pub(crate) fn of_first_contact(retry: Retry) -> Self {
        Self { unanswered: retry.attempts.min(2), ..Self::new(retry) }
    }

    /// The pause before the next try; the error if there is to be none. Whoever has got further than ever, to byte
    /// `done`, starts counting again.
    pub(crate) fn after(
        &mut self,
        failure: Failure,
        done: u64,
        what: &str,
        events: &(dyn Fn(PullEvent<'_>) + Sync),
    ) -> Result<Duration, HubError> {
        if done > self.best {
            (self.best, self.failures) = (done, 0);
        }
        self.failures += 1;
        let most = match failure.outlook {
            Outlook::Lasting => 1,
            Outlook::Unanswered => self.unanswered,
            Outlook::Passing => self.retry.attempts,
        };
        if self.failures >= most {
            return Err(failure.error);
        }
        let doubled = self.retry.first_pause.saturating_mul(1 << (self.failures - 1).min(16));
        let pause = failure.pause.unwrap_or(doubled).min(self.retry.longest_pause);
        events(PullEvent::Retrying { what, error: &failure.error, pause });
        Ok(pause)
    }
}

/// The first byte of `bytes 100-199/1000`.
fn range_start(text: &str) -> Option<u64> {
    text.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok()
}
