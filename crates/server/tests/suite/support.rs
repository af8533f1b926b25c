//! A server for a test, and a client that speaks plain HTTP/1.1.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pleach_engine::{ContextLength, Engine, EngineOptions};
use pleach_server::{Server, ServerOptions};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

pub(crate) fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).join(name)
}

pub(crate) fn engine(model: &str) -> Engine {
    let options = EngineOptions { threads: NonZeroUsize::new(1), ..EngineOptions::default() };
    Engine::open(&fixture(model), &options).unwrap()
}

/// The small Llama with a context that it would take a minute to fill: what [`endless`] asks for outlasts any test, however
/// busy the machine is.
fn long_engine() -> Engine {
    let model = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixture("tiny-llama")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, model.path().join(path.file_name().unwrap())).unwrap();
    }
    let config = std::fs::read_to_string(model.path().join("config.json")).unwrap();
    let config = config.replace("\"max_position_embeddings\": 4096", "\"max_position_embeddings\": 131072");
    std::fs::write(model.path().join("config.json"), config).unwrap();
    let context = ContextLength::Tokens(NonZeroUsize::new(131_072).unwrap());
    let options = EngineOptions { threads: NonZeroUsize::new(1), context, ..EngineOptions::default() };
    Engine::open(model.path(), &options).unwrap()
}

/// A server that runs until it is dropped.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    done: Option<std::thread::JoinHandle<()>>,
}

/// An answer, or as much as came of it.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl TestServer {
    pub(crate) fn start(model: &str, options: ServerOptions) -> Self {
        let server = Server::new(options);
        server.set_engine(engine(model)).unwrap();
        Self::of(server)
    }

    /// A server for requests that must not end by themselves.
    pub(crate) fn long(options: ServerOptions) -> Self {
        let server = Server::new(options);
        server.set_engine(long_engine()).unwrap();
        Self::of(server)
    }

    pub(crate) fn llama() -> Self {
        Self::start("tiny-llama", ServerOptions::default())
    }

    pub(crate) fn qwen() -> Self {
        Self::start("tiny-qwen35", ServerOptions::default())
    }

    pub(crate) fn of(server: Server) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let done = std::thread::spawn(move || {
            let runtime = Runtime::new().unwrap();
            runtime.block_on(async move {
                let listener = server.bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
                tell.send(listener.local_addr().unwrap()).unwrap();
                server.serve(listener, async { drop(stopped.await) }).await.unwrap();
            });
        });
        Self { address: told.recv().unwrap(), stop: Some(stop), done: Some(done) }
    }

    /// Asks the server to end and waits until it has.
    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(done) = self.done.take() {
            done.join().unwrap();
        }
    }

    /// Asks the server to end, without waiting.
    pub(crate) fn begin_stop(&mut self) {
        drop(self.stop.take());
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Sends bytes as they are and reads until the server closes.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect();
        // The server may have answered and closed before all was sent.
        let _ = stream.write_all(bytes);
        read_answer(&mut stream)
    }

    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        self.raw(request(method, path, headers, body).as_bytes())
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[("content-type", "application/json")], &body.to_string())
    }

    pub(crate) fn chat(&self, body: Value) -> Answer {
        self.post("/v1/chat/completions", &with_message(body))
    }

    /// The value of a metric.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let page = self.get("/metrics").body;
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {page}")).parse::<f64>().unwrap() as u64
    }

    /// Waits until a metric has a value.
    pub(crate) fn wait_for(&self, name: &str, value: u64) {
        let started = Instant::now();
        while self.metric(name) != value {
            assert!(started.elapsed() < Duration::from_secs(30), "{name} is {}, not {value}", self.metric(name));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        drop(self.stop.take());
    }
}

/// A greedy request for a few tokens, with whatever is given over it.
pub(crate) fn with_message(body: Value) -> Value {
    let mut whole = json!({
        "messages": [{ "role": "user", "content": "Hello there" }], "max_tokens": 12, "temperature": 0, "ignore_eos": true,
    });
    whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
    whole
}

/// A request that would run to the end of the context.
pub(crate) fn endless(body: Value) -> Value {
    let mut whole = with_message(body);
    whole["max_tokens"] = Value::from(-1);
    whole
}

pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        text.push_str("host: localhost\r\n");
    }
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if method == "POST" {
        text.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    text + "\r\n" + body
}

pub(crate) fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|status| status.parse().ok());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let is_chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let body = if is_chunked { unchunk(body) } else { body.to_owned() };
    Answer { status: status.unwrap_or(0), headers, body }
}

fn unchunk(mut text: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = text.split_once("\r\n") {
        let Ok(size) = usize::from_str_radix(size.trim(), 16) else { break };
        // Sizes count bytes, and characters are never cut by this server's pieces.
        if size == 0 || rest.len() < size {
            break;
        }
        whole.push_str(&rest[..size]);
        text = rest[size..].trim_start_matches("\r\n");
    }
    whole
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// The body of an answer of this status.
    pub(crate) fn json(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// The error of an answer, which is JSON of the right form.
    pub(crate) fn error(&self, status: u16) -> Value {
        let body = self.json(status);
        assert_eq!(self.header("content-type"), Some("application/json"), "{self:?}");
        let error = body["error"].clone();
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{self:?}");
        assert!(error["type"].is_string(), "{self:?}");
        error
    }

    /// The data of each event of a stream, in order; the last `[DONE]` is checked and left out if there is one.
    pub(crate) fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{self:?}");
        assert!(self.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")), "{self:?}");
        let lines = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        lines.filter(|line| *line != "[DONE]").map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}
