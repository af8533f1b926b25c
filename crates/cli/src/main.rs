//! The `pleach` command line: arguments to requests, events to text, and a footer that says what it took.

mod answer;
mod args;
mod commands;
mod description;
mod download;
mod error;
mod footer;
mod interrupt;
mod json;
mod keyboard;
mod loaded;
mod markdown;
mod measure;
mod models;
mod names;
mod output;
mod progress;
mod prompt;
mod render;
mod style;
mod table;
mod wrap;

use std::panic::resume_unwind;
use std::process::ExitCode;
use std::thread;

use error::CliError;

/// As most systems give a process. A smaller one, as `ulimit -s` sets, would end it before it could say so.
const STACK_BYTES: usize = 8 << 20;

fn main() -> ExitCode {
    match thread::Builder::new().name("main".to_owned()).stack_size(STACK_BYTES).spawn(run) {
        Ok(work) => work.join().unwrap_or_else(|panic| resume_unwind(panic)),
        Err(error) => CliError::Thread(error).report(),
    }
}

fn run() -> ExitCode {
    let done = output::outlive_full_files().and_then(|()| args::parse()).and_then(commands::execute);
    match done {
        Ok(end) => end.exit_code(),
        Err(error) => error.report(),
    }
}
