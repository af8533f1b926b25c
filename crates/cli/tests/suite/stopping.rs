//! Ctrl-C, and readers that go away.

use std::io::Read as _;
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{bare, fixture};

/// An answer that takes seconds, of which the first byte has come.
fn answering(model: &str, flags: &[&str]) -> Child {
    let mut command = bare();
    command.args(["run", &fixture(model), "--raw", "-m", "The quick brown fox", "--ignore-eos", "--temperature", "0"]);
    command.args(flags).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    child
}

fn interrupt(child: &Child) {
    kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGINT).unwrap();
}

#[test]
fn ctrl_c_ends_the_answer_with_its_footer() {
    let child = answering("tiny-qwen35", &[]);
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(output.stdout.ends_with(b"\n"));
    assert_eq!(stderr.lines().count(), 9, "{stderr}");
    assert!(stderr.starts_with("time to first token:"), "{stderr}");
    assert!(!stderr.contains("not available: no token was written"), "{stderr}");
}

#[test]
fn ctrl_c_leaves_a_whole_json_object() {
    let mut command = bare();
    command.args(["run", &fixture("tiny-qwen35"), "--raw", "-m", "fox", "--ignore-eos", "--json", "--verbose"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The first word about the model: by then the handler is there.
    child.stderr.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["finish_reason"], "cancelled");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = answering("tiny-qwen35", &[]);
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap()), (Some(0), String::new()));
}
