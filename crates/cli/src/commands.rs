//! One file per command. A command takes its arguments and says how it ended.

mod bench;
mod chat;
mod doctor;
mod info;
mod inspect;
mod list;
mod paperwork;
mod pull;
mod rm;
mod run;
mod serve;

use std::io::{self, IsTerminal as _};

use crate::args::{Cli, Command};
use crate::error::{CliError, End};

/// Does what the arguments ask for.
pub(crate) fn execute(cli: Cli) -> Result<End, CliError> {
    match cli.command {
        Some(Command::Bench(args)) => bench::bench(&args),
        Some(Command::Chat(args)) => chat::chat(*args),
        Some(Command::Pull(args)) => pull::pull(&args),
        Some(Command::List(args)) => list::list(&args),
        Some(Command::Info(args)) => info::info(&args),
        Some(Command::Rm(args)) => rm::rm(&args),
        Some(Command::Inspect(args)) => inspect::inspect(&args),
        Some(Command::Doctor(args)) => doctor::doctor(&args),
        Some(Command::Completions { shell }) => paperwork::completions(shell),
        Some(Command::Man) => paperwork::manual(),
        Some(Command::Serve(args)) => serve::serve(*args),
        Some(Command::Run(run)) => run::run((run.first, run.second), run.flags),
        None if cli.flags.prompt.is_none() && io::stdin().is_terminal() => chat::chat(cli.flags.into_chat(cli.history)),
        None => run::run((None, None), cli.flags),
    }
}
