//! One file per command. A command takes its arguments and says how it ended.

mod bench;
mod run;

use std::io::IsTerminal as _;
use std::{env, io};

use clap::CommandFactory as _;

use crate::args::{Cli, Command};
use crate::error::{CliError, End};

/// Does what the arguments ask for.
pub(crate) fn execute(cli: Cli) -> Result<End, CliError> {
    match cli.command {
        Some(Command::Bench(args)) => bench::bench(&args),
        Some(Command::Run(run)) => run::run((run.first, run.second), run.flags),
        None if env::args_os().len() < 2 && io::stdin().is_terminal() => show_help(),
        None => run::run((None, None), cli.flags),
    }
}

/// What somebody wants who types the name of a program and nothing else.
fn show_help() -> Result<End, CliError> {
    Cli::command().print_help().map_err(CliError::Write)?;
    Ok(End::Done)
}
