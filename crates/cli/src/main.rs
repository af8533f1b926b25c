//! The `pleach` command line: arguments to requests, events to text, and a footer that says what it took.

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

use std::process::ExitCode;

fn main() -> ExitCode {
    match args::parse().and_then(commands::execute) {
        Ok(end) => end.exit_code(),
        Err(error) => error.report(),
    }
}
