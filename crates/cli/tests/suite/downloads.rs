//! The real binary and a hub on this machine.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;

use crate::fake_hub::{Asked, FakeFile, FakeHub, MODEL, Reply};
#[cfg(unix)]
use crate::pty::Terminal;
use crate::support::{Run, bare, fixture, run};

/// The files of a model that runs.
fn tiny_llama() -> Vec<FakeFile> {
    let folder = fixture("tiny-llama");
    let read = |name: &str| fs::read(Path::new(&folder).join(name)).unwrap();
    let small =
        ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];
    let mut files: Vec<FakeFile> = small.iter().map(|name| FakeFile::small(name, &read(name))).collect();
    files.push(FakeFile::large("model.safetensors", read("model.safetensors")));
    files
}

fn command(fake: &FakeHub, cache: &TempDir, arguments: &[&str]) -> std::process::Command {
    let mut command = bare();
    command.args(arguments).env("HF_ENDPOINT", fake.endpoint()).env("HF_HUB_CACHE", cache.path());
    command.env("XDG_CACHE_HOME", cache.path().join("none")).stdin(Stdio::null());
    command
}

fn pleach(fake: &FakeHub, cache: &TempDir, arguments: &[&str]) -> Run {
    run(&mut assert_cmd::Command::from_std(command(fake, cache, arguments)))
}

#[test]
fn a_model_is_fetched_asked_listed_and_removed() {
    let (fake, cache) = (FakeHub::new(tiny_llama()), TempDir::new().unwrap());
    let first = pleach(&fake, &cache, &["run", MODEL, "hi", "--max-tokens", "4", "--quiet"]);
    assert_eq!((first.code, first.stderr.as_str()), (Some(0), ""));
    assert!(!first.stdout.is_empty());

    let asked = fake.log().len();
    let again = pleach(&fake, &cache, &["run", MODEL, "hi", "--max-tokens", "4", "--quiet", "--offline"]);
    assert_eq!((again, fake.log().len()), (first, asked));

    let listed = pleach(&fake, &cache, &["list"]);
    let row = listed.stdout.lines().find(|line| line.starts_with(MODEL)).unwrap_or_default();
    assert!(row.contains("KiB") && row.ends_with("ready"), "{}", listed.stdout);
    let json = pleach(&fake, &cache, &["list", "--json"]);
    assert!(json.stdout.contains("\"model\": \"org/model\""), "{}", json.stdout);

    let info = pleach(&fake, &cache, &["info", MODEL]);
    assert!(
        info.stdout.contains("has the same commit") && info.stdout.contains("model.safetensors"),
        "{}",
        info.stdout
    );

    let pulled = pleach(&fake, &cache, &["pull", MODEL]);
    assert_eq!(pulled.code, Some(0));
    assert!(pulled.stderr.contains("6 files") && pulled.stderr.ends_with("was there already\n"), "{}", pulled.stderr);
    assert!(Path::new(pulled.stdout.trim_end()).join("config.json").is_file());
    assert_eq!(fake.file_requests(), 6);

    let removed = pleach(&fake, &cache, &["rm", MODEL]);
    assert!(removed.stderr.starts_with("removed org/model: "), "{}", removed.stderr);
    let gone = pleach(&fake, &cache, &["rm", MODEL]);
    let place = cache.path().display();
    let message = format!("error: `org/model` is not in `{place}`\nhint: `pleach list` shows what is there\n");
    assert_eq!((gone.code, gone.stderr), (Some(1), message));
}

/// A pipe gets lines in place of a bar.
#[test]
fn a_download_says_what_it_does() {
    let fake = FakeHub::with(tiny_llama(), |asked, reply| match asked.before {
        0 if asked.path.ends_with("tokenizer.json") => Reply::new(503, "").header("Retry-After", "0"),
        _ => reply,
    });
    let cache = TempDir::new().unwrap();
    let pulled = pleach(&fake, &cache, &["pull", MODEL]);
    assert_eq!(pulled.code, Some(0), "{}", pulled.stderr);
    let lines: Vec<&str> = pulled.stderr.lines().collect();
    assert!(lines[0].starts_with("downloading org/model: "), "{}", pulled.stderr);
    assert!(lines[1].starts_with("tokenizer.json: http://127.0.0.1:"), "{}", pulled.stderr);
    assert!(lines[1].ends_with("answers with status 503; trying again in 0 ms"), "{}", pulled.stderr);
    assert!(
        lines[2].starts_with("org/model: 6 files, ") && lines[2].ends_with("downloaded and verified"),
        "{}",
        lines[2]
    );
    assert!(!pulled.stderr.contains(['\r', '\u{1b}']));
}

/// A terminal gets a bar with rate and time left, as wide as it is, and nothing of it stays.
#[cfg(unix)]
#[test]
fn a_terminal_shows_a_bar() {
    for columns in [90, 40] {
        let fake = FakeHub::with(tiny_llama(), |asked, reply| match asked.path.starts_with("/storage/") {
            true => Reply { stall: Some(Duration::from_secs(3)), ..reply },
            _ => reply,
        });
        let cache = TempDir::new().unwrap();
        let variables = [("HF_ENDPOINT", fake.endpoint()), ("HF_HUB_CACHE", cache.path().display().to_string())];
        let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
        let mut terminal = Terminal::start_sized((24, columns), bare().get_program(), &["pull", MODEL], &variables);
        terminal.wait("the bar in one line", |screen| match columns {
            90 => screen.lines().any(|line| line.starts_with("org/model █") && line.ends_with(" left")),
            _ => screen.lines().any(|line| line.trim_end().ends_with(" left: org/model")),
        });
        terminal.see("downloaded and verified");
        assert_eq!(terminal.end(), 0);
        assert!(!terminal.text().contains(" left"), "{}", terminal.text());
    }
}

#[test]
fn what_cannot_be_had_says_what_to_do() {
    let (fake, cache) = (FakeHub::new(Vec::new()), TempDir::new().unwrap());
    let unknown = pleach(&fake, &cache, &["run", "org/unknown", "hi"]);
    let message = format!(
        "error: {} has no model `org/unknown` that everyone may read\n\
         hint: check the spelling; if it is a private model, put your token into HF_TOKEN\n",
        fake.endpoint()
    );
    assert_eq!((unknown.code, unknown.stderr), (Some(1), message));
    let bad = pleach(&fake, &cache, &["pull", "../evil"]);
    assert_eq!(bad.code, Some(2));
    assert!(bad.stderr.contains("hint: a model of the hub is called `owner/name`"), "{}", bad.stderr);
    let several = FakeHub::new(vec![FakeFile::large("b-Q4_0.gguf", vec![0]), FakeFile::large("b-Q8_0.gguf", vec![1])]);
    let several = pleach(&several, &cache, &["run", MODEL, "hi"]);
    let message = "error: `org/model` has several files: `b-Q4_0.gguf` and `b-Q8_0.gguf`\n\
                   hint: name one of them, as in `org/model:b-Q4_0.gguf`\n";
    assert_eq!((several.code, several.stderr.as_str()), (Some(1), message));
    let own = pleach(&fake, &cache, &["rm", "src"]);
    assert_eq!(own.code, Some(1));
    assert!(own.stderr.contains("files of your own are yours to remove"), "{}", own.stderr);
    let bundled = pleach(&fake, &cache, &["rm", "pleach-mini"]);
    let message = "error: `pleach-mini` is not in the Hugging Face cache: it is `/";
    assert!(bundled.code == Some(1) && bundled.stderr.starts_with(message), "{}", bundled.stderr);
}

/// A process that ends in the middle leaves what the next one goes on with.
#[cfg(unix)]
#[test]
fn a_download_that_was_ended_is_resumed() {
    use nix::sys::signal::{Signal, kill};
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let fake = FakeHub::with(tiny_llama(), |asked, reply| match asked.path.starts_with("/storage/") {
            true if asked.before == 0 => Reply { stall: Some(Duration::from_secs(30)), ..reply },
            _ => reply,
        });
        let cache = TempDir::new().unwrap();
        let mut child = command(&fake, &cache, &["pull", MODEL]).stderr(Stdio::null()).spawn().unwrap();
        let blobs = || fs::read_dir(cache.path().join("models--org--model/blobs")).into_iter().flatten().flatten();
        let has_grown = |blob: fs::DirEntry| {
            let is_part = blob.path().extension().is_some();
            is_part && blob.metadata().is_ok_and(|found| found.len() > 100_000)
        };
        while !blobs().any(has_grown) {
            std::thread::sleep(Duration::from_millis(5));
        }
        kill(nix::unistd::Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), (signal == Signal::SIGINT).then_some(130));

        let listed = pleach(&fake, &cache, &["list"]);
        assert!(listed.stdout.contains("unfinished download"), "{}", listed.stdout);
        let offline = pleach(&fake, &cache, &["run", MODEL, "hi", "--offline"]);
        assert_eq!(offline.code, Some(1));
        let pulled = pleach(&fake, &cache, &["pull", MODEL]);
        assert_eq!(pulled.code, Some(0), "{}", pulled.stderr);
        assert!(fake.log().iter().any(|asked| asked.path.starts_with("/storage/") && asked.range.is_some()));
        let asked = pleach(&fake, &cache, &["run", MODEL, "hi", "--max-tokens", "2", "--offline", "--quiet"]);
        assert_eq!(asked.code, Some(0), "{}", asked.stderr);
    }
}

/// The system lets no file grow beyond a length here, which needs no disk of its own and looks the same.
#[cfg(unix)]
#[test]
fn a_full_disk_is_said_and_survived() {
    let (fake, cache) = (FakeHub::new(tiny_llama()), TempDir::new().unwrap());
    let pull = command(&fake, &cache, &["pull", MODEL]);
    // In blocks of 512 or of 1024 bytes, as the shell likes.
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -f 200 && exec \"$0\" \"$@\""]).arg(pull.get_program());
    limited.args(pull.get_args()).stdin(Stdio::null());
    for (name, value) in pull.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    let filled = limited.output().unwrap();
    let stderr = String::from_utf8(filled.stderr).unwrap();
    assert_eq!(filled.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("error: the disk is full: `"), "{stderr}");
    assert!(stderr.contains("\nhint: make room (`pleach list` shows models, "), "{stderr}");

    let listed = pleach(&fake, &cache, &["list"]);
    assert!(listed.stdout.contains("unfinished download"), "{}", listed.stdout);
    assert_eq!(pleach(&fake, &cache, &["run", MODEL, "hi", "--offline"]).code, Some(1));
    let pulled = pleach(&fake, &cache, &["pull", MODEL]);
    assert_eq!(pulled.code, Some(0), "{}", pulled.stderr);
    let is_rest = |asked: &Asked| asked.range.is_some_and(|from| from > 0);
    assert!(fake.log().iter().any(|asked| asked.path.starts_with("/storage/") && is_rest(asked)));
    let asked = pleach(&fake, &cache, &["run", MODEL, "hi", "--max-tokens", "2", "--offline", "--quiet"]);
    assert_eq!(asked.code, Some(0), "{}", asked.stderr);
}

#[test]
fn two_processes_pull_one_model() {
    let fake = FakeHub::with(tiny_llama(), |asked, reply| match asked.path.starts_with("/storage/") {
        true => Reply { stall: Some(Duration::from_millis(400)), ..reply },
        _ => reply,
    });
    let cache = TempDir::new().unwrap();
    let spawn =
        || command(&fake, &cache, &["pull", MODEL]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let outputs = [spawn(), spawn()].map(|child| child.wait_with_output().unwrap());
    assert!(outputs.iter().all(|output| output.status.success()), "{outputs:?}");
    assert_eq!(fake.log().iter().filter(|asked| asked.path.starts_with("/storage/")).count(), 1);
    assert_eq!(pleach(&fake, &cache, &["run", MODEL, "hi", "--max-tokens", "2", "--offline", "--quiet"]).code, Some(0));
}
