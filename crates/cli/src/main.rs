//! The `pleach` command line: arguments to requests, events to text, and a footer that says what it took.

mod args;
mod commands;
mod error;
mod footer;
mod interrupt;
mod json;
mod measure;
mod progress;
mod prompt;
mod render;
mod style;

use std::process::ExitCode;

fn main() -> ExitCode {
    match args::parse().and_then(commands::execute) {
        Ok(end) => end.exit_code(),
        Err(error) => error.report(),
    }
}
