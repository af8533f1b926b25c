//! What a terminal is shown.

use std::fs::File;
use std::io::Read as _;
use std::process::Stdio;

use nix::pty::openpty;

use crate::support::{bare, fixture};

/// Everything that a terminal receives while a model with thoughts answers on it.
fn shown(variables: &[(&str, &str)]) -> String {
    let pty = openpty(None, None).unwrap();
    let mut command = bare();
    command.args(["run", &fixture("tiny-qwen35"), "hi", "--max-tokens", "6", "--temperature", "0"]);
    command.envs(variables.iter().copied()).stdin(Stdio::null());
    command.stdout(pty.slave.try_clone().unwrap()).stderr(pty.slave);
    let mut child = command.spawn().unwrap();
    // Both ends of the slave that this process holds must be closed, or reading never ends.
    drop(command);
    let mut bytes = Vec::new();
    // A terminal without a process behind it gives an error in place of an end.
    let _ = File::from(pty.master).read_to_end(&mut bytes);
    assert!(child.wait().unwrap().success());
    String::from_utf8(bytes).unwrap().replace("\r\n", "\n")
}

#[test]
fn thoughts_and_statistics_are_dimmed() {
    let shown = shown(&[]);
    assert!(shown.contains("\x1b[2m"), "{shown:?}");
    assert!(!shown.contains("<think>"), "{shown:?}");
    assert!(shown.contains("\n\x1b[0m\n\x1b[2mtime to first token:"), "{shown:?}");
    assert!(shown.starts_with("\r\x1b[Kloading tiny-qwen35\r\x1b[K"), "{shown:?}");
    assert!(shown.contains("\r\x1b[Kreading the prompt: 0 of 18 tokens\r\x1b[K"), "{shown:?}");
}

#[test]
fn no_color_is_honored() {
    let shown = shown(&[("NO_COLOR", "1")]);
    assert!(!shown.contains("\x1b[2m") && !shown.contains("\x1b[0m"), "{shown:?}");
    assert!(shown.contains("<think>\n"), "{shown:?}");
}

#[test]
fn a_dumb_terminal_gets_plain_text() {
    let shown = shown(&[("TERM", "dumb")]);
    assert!(!shown.contains('\x1b'), "{shown:?}");
    assert!(shown.starts_with("<think>\n"), "{shown:?}");
}
