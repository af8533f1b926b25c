//! The binary, the fixtures, and what a run of it left behind.

use std::path::PathBuf;

use assert_cmd::Command;
use serde_json::Value;

/// Devices that every answer is tried on.
pub(crate) const DEVICES: [&str; 2] = ["reference", "cpu"];

/// What a run printed, and how it ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

pub(crate) fn fixture(name: &str) -> String {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "..", "fixtures", name].iter().collect();
    path.to_str().unwrap().to_owned()
}

pub(crate) fn expected(model: &str) -> Value {
    let text = std::fs::read_to_string(fixture(model) + "/expected.json").unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The binary with nothing in its environment that could change what it does, and nothing on standard input.
pub(crate) fn pleach<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::from_std(bare());
    command.args(arguments);
    command
}

/// The same for tests that need its pipes.
pub(crate) fn bare() -> std::process::Command {
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("pleach"));
    let names = std::env::vars_os().map(|(name, _)| name);
    for name in names.filter(|name| ["PLEACH_", "HF_"].iter().any(|start| name.to_string_lossy().starts_with(start))) {
        command.env_remove(name);
    }
    command.env_remove("NO_COLOR").env_remove("HUGGINGFACE_HUB_CACHE").env("TERM", "xterm");
    command.env("PLEACH_CONFIG", "");
    command
}

pub(crate) fn run(command: &mut Command) -> Run {
    let output = command.output().unwrap();
    Run {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs with `--json` and reads the object; the run must succeed.
pub(crate) fn json<'a>(arguments: impl IntoIterator<Item = &'a str>, stdin: &str) -> Value {
    let run = run(pleach(arguments).arg("--json").write_stdin(stdin));
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(run.stderr, "");
    serde_json::from_str(&run.stdout).unwrap()
}
