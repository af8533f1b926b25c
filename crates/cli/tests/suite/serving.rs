//! A server as a process: what it says, what it writes down, how it ends.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::{bare, fixture};

/// A server with its address, which its first line tells.
fn serving(flags: &[&str]) -> (Child, String) {
    let mut command = bare();
    command.args(["serve", "--model", &fixture("tiny-llama"), "--port", "0"]).args(flags);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.strip_prefix("listening on http://").and_then(|rest| rest.split(' ').next());
    let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
    let rest = " (this machine only, no key needed); browsers find a page to chat there\n";
    assert!(line.ends_with(rest), "{line}");
    (child, address)
}

/// The whole answer, once the model is there.
fn ask(address: &str, method: &str, path: &str, body: &str) -> String {
    loop {
        let mut stream = TcpStream::connect(address).unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        if !answer.starts_with("HTTP/1.1 503 ") {
            return answer;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

fn end(child: Child, signal: Signal) -> (Option<i32>, String) {
    kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn the_log_is_an_object_a_line_and_quotes_nobody() {
    let (child, address) = serving(&["--log", "json"]);
    let chat = r#"{"messages": [{"role": "user", "content": "a heron in the reeds"}], "max_tokens": 3}"#;
    assert!(ask(&address, "POST", "/v1/chat/completions", chat).starts_with("HTTP/1.1 200 OK"));
    let wrong = r#"{"messages": [{"role": "user", "content": "a heron in the reeds"}], "stop": 5, "x": "heron"}"#;
    assert!(ask(&address, "POST", "/v1/chat/completions", wrong).starts_with("HTTP/1.1 400 "));
    assert!(ask(&address, "POST", "/heron", "{").starts_with("HTTP/1.1 404 "));
    let (code, log) = end(child, Signal::SIGTERM);
    assert_eq!(code, Some(0), "{log}");
    assert!(!log.contains("heron"), "{log}");
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let requests: Vec<&Value> = lines.iter().filter(|line| line["message"] == "request").collect();
    let last: Vec<_> = requests.iter().rev().take(3).rev().map(|line| (&line["status"], &line["route"])).collect();
    let (route, unknown) = (Value::from("/v1/chat/completions"), Value::from("unknown"));
    assert_eq!(last, [(&200.into(), &route), (&400.into(), &route), (&404.into(), &unknown)], "{log}");
    let refused = requests.iter().find(|line| line["status"] == 400).unwrap();
    assert_eq!((&refused["code"], &refused["field"]), (&"invalid_value".into(), &"stop".into()));
    assert!(lines.iter().any(|line| line["message"] == "the model is open"), "{log}");
}

#[test]
fn ctrl_c_ends_a_server_and_off_logs_nothing() {
    let (child, address) = serving(&["--log", "off"]);
    assert!(ask(&address, "GET", "/", "").contains("<title>Pleach</title>"));
    assert_eq!(end(child, Signal::SIGINT), (Some(0), String::new()));
}

#[test]
fn a_model_that_cannot_be_opened_ends_the_server() {
    let mut command = bare();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), "{}").unwrap();
    command
        .args(["serve", "--model", dir.path().to_str().unwrap(), "--port", "0", "--log", "off"])
        .stdin(Stdio::null());
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("error: cannot open the model"), "{stderr}");
}
