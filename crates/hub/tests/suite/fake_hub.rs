//! A hub on this machine that answers as the real one does, but for what a test changes.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The commit that every revision stands for.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The model that it has.
pub(crate) const MODEL: &str = "org/model";

/// A file of the model.
#[derive(Clone)]
pub(crate) struct FakeFile {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    /// Large files are named by SHA-256 and come from another server.
    pub(crate) large: bool,
}

/// What was asked for.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) host: String,
    pub(crate) range: Option<usize>,
    pub(crate) authorization: Option<String>,
    /// How often this path was asked for before.
    pub(crate) before: usize,
}

/// What is answered.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Bytes of the body after which the connection breaks off.
    pub(crate) cut: Option<usize>,
    /// A silence after that many bytes.
    pub(crate) stall: Option<Duration>,
}

type Change = dyn Fn(&Asked, Reply) -> Reply + Send + Sync;

/// The hub; it stops when it is dropped with its process.
pub(crate) struct FakeHub {
    port: u16,
    log: Arc<Mutex<Vec<Asked>>>,
}

impl FakeFile {
    pub(crate) fn small(name: &str, bytes: &[u8]) -> Self {
        Self { name: name.to_owned(), bytes: bytes.to_vec(), large: false }
    }

    pub(crate) fn large(name: &str, bytes: Vec<u8>) -> Self {
        Self { name: name.to_owned(), bytes, large: true }
    }

    /// The name of its blob.
    pub(crate) fn hash(&self) -> String {
        if self.large { sha256(&self.bytes) } else { git(&self.bytes) }
    }

    fn entry(&self) -> serde_json::Value {
        let mut entry =
            serde_json::json!({ "rfilename": self.name, "size": self.bytes.len(), "blobId": git(&self.bytes) });
        if self.large {
            entry["lfs"] =
                serde_json::json!({ "sha256": sha256(&self.bytes), "size": self.bytes.len(), "pointerSize": 134 });
        }
        entry
    }
}

impl Reply {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into(), cut: None, stall: None }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(found, _)| !found.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
}

impl FakeHub {
    pub(crate) fn new(files: Vec<FakeFile>) -> Self {
        Self::with(files, |_, reply| reply)
    }

    /// A hub whose answers pass through `change`.
    pub(crate) fn with(files: Vec<FakeFile>, change: impl Fn(&Asked, Reply) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (files, change): (Arc<Vec<FakeFile>>, Arc<Change>) = (Arc::new(files), Arc::new(change));
        let seen = Arc::clone(&log);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (files, change, seen) = (Arc::clone(&files), Arc::clone(&change), Arc::clone(&seen));
                // A client that goes away is none of the hub's business.
                thread::spawn(move || serve(stream, port, &files, &*change, &seen));
            }
        });
        Self { port, log }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Everything that was asked for so far.
    pub(crate) fn log(&self) -> Vec<Asked> {
        self.log.lock().unwrap().clone()
    }

    /// How often files were asked for; each counts once, whatever it was sent on to.
    pub(crate) fn file_requests(&self) -> usize {
        self.log().iter().filter(|asked| asked.path.contains("/resolve/")).count()
    }
}

fn serve(stream: TcpStream, port: u16, files: &[FakeFile], change: &Change, log: &Mutex<Vec<Asked>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut asked = Asked { path, host: String::new(), range: None, authorization: None, before: 0 };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "host" => asked.host = value.to_owned(),
            "authorization" => asked.authorization = Some(value.to_owned()),
            "range" => asked.range = value.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok(),
            _ => {}
        }
    }
    {
        let mut log = log.lock().unwrap();
        asked.before = log.iter().filter(|earlier| earlier.path == asked.path).count();
        log.push(asked.clone());
    }
    write(stream, &change(&asked, usual(&asked, port, files)))
}

/// What the real hub would answer.
fn usual(asked: &Asked, port: u16, files: &[FakeFile]) -> Reply {
    if asked.path.starts_with(&format!("/api/models/{MODEL}/revision/")) {
        let siblings: Vec<_> = files.iter().map(FakeFile::entry).collect();
        let listing = serde_json::json!({ "id": MODEL, "sha": COMMIT, "siblings": siblings });
        return Reply::new(200, listing.to_string());
    }
    if let Some(hash) = asked.path.strip_prefix("/storage/") {
        return match files.iter().find(|file| file.hash() == hash) {
            Some(file) => bytes(&file.bytes, asked.range),
            None => Reply::new(404, ""),
        };
    }
    let name = asked.path.strip_prefix(&format!("/{MODEL}/resolve/{COMMIT}/"));
    match name.and_then(|name| files.iter().find(|file| file.name == name)) {
        Some(file) if file.large => {
            let place = format!("http://localhost:{port}/storage/{}", file.hash());
            Reply::new(302, "elsewhere").header("Location", &place)
        }
        Some(file) => bytes(&file.bytes, asked.range),
        None if name.is_some() => Reply::new(404, "").header("X-Error-Code", "EntryNotFound"),
        None => Reply::new(401, "").header("X-Error-Code", "RepoNotFound"),
    }
}

fn bytes(bytes: &[u8], range: Option<usize>) -> Reply {
    match range {
        None => Reply::new(200, bytes),
        Some(from) if from >= bytes.len() => Reply::new(416, ""),
        Some(from) => {
            let range = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
            Reply::new(206, &bytes[from..]).header("Content-Range", &range)
        }
    }
}

fn write(mut stream: TcpStream, reply: &Reply) -> Option<()> {
    let mut head = format!("HTTP/1.1 {} Fake\r\nConnection: close\r\n", reply.status);
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    if !reply.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-length")) {
        head += &format!("Content-Length: {}\r\n", reply.body.len());
    }
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(b"\r\n").ok()?;
    let sent = reply.cut.unwrap_or(reply.body.len()).min(reply.body.len());
    match reply.stall {
        Some(silence) => {
            stream.write_all(&reply.body[..sent / 2]).ok()?;
            stream.flush().ok()?;
            thread::sleep(silence);
            stream.write_all(&reply.body[sent / 2..sent]).ok()
        }
        None => stream.write_all(&reply.body[..sent]).ok(),
    }
}

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn git(bytes: &[u8]) -> String {
    let mut hasher = Sha1::new();
    hasher.update(format!("blob {}\0", bytes.len()));
    hasher.update(bytes);
    hex(&hasher.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
