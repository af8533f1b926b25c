//! Lines on standard output and standard error.

use std::borrow::Cow;
use std::io::{self, IsTerminal as _, Write as _};

use serde::Serialize;

use crate::error::CliError;
use crate::style::Style;

/// What a command was asked for. A terminal gets it without control characters, which names of files may have.
pub(crate) fn print_text(text: &str) -> Result<(), CliError> {
    let text = if io::stdout().is_terminal() { printable(text) } else { Cow::Borrowed(text) };
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(CliError::Write)
}

/// The same, as a line.
pub(crate) fn print_line(line: &str) -> Result<(), CliError> {
    print_text(&format!("{line}\n"))
}

/// The same, for programs.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(value).map_err(|error| CliError::Write(error.into()))?;
    print_line(&text)
}

/// The same, for programs that read line by line.
pub(crate) fn print_json_line(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string(value).map_err(|error| CliError::Write(error.into()))?;
    print_line(&text)
}

/// A file that reaches the limit of `ulimit -f` gives an error from now on, where the signal would end the process.
#[cfg(unix)]
pub(crate) fn outlive_full_files() -> Result<(), CliError> {
    let nobody_asks = std::sync::Arc::default();
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, nobody_asks).map(drop).map_err(CliError::Signals)
}

#[cfg(not(unix))]
pub(crate) fn outlive_full_files() -> Result<(), CliError> {
    Ok(())
}

/// A line on standard error. That it cannot be written is no reason to fail: what was asked for was done.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{}", one_line(line));
}

/// The same for a text that has lines of its own.
pub(crate) fn say_text(text: &str) {
    let _ = writeln!(io::stderr(), "{}", printable(text));
}

/// The same, faint where that shows.
pub(crate) fn say_dim(line: &str) {
    let _ = writeln!(io::stderr(), "{}", Style::of_stderr().dim(&one_line(line)));
}

/// The text as a part of one line: [`printable`], its line breaks are symbols as well, and nothing in it turns the
/// direction of what follows.
pub(crate) fn one_line(text: &str) -> String {
    let turns = |character| matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    printable(text).replace('\n', "\u{240a}").replace('\t', " ").replace(turns, "\u{fffd}")
}

/// The text with control characters shown as symbols, so that neither a model nor a file's name can move the cursor,
/// recolor the terminal or write to its clipboard.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let is_harmful = |character: char| character.is_control() && !matches!(character, '\n' | '\t');
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let symbol = |character: char| match u32::from(character) {
        _ if !is_harmful(character) => character,
        0x7f => '\u{2421}',
        code @ 0..0x20 => char::from_u32(0x2400 + code).unwrap_or(char::REPLACEMENT_CHARACTER),
        _ => char::REPLACEMENT_CHARACTER,
    };
    Cow::Owned(text.chars().map(symbol).collect())
}
