//! Lines on standard output and standard error.

use std::borrow::Cow;
use std::io::{self, Write as _};

use serde::Serialize;

use crate::error::CliError;

/// What a command was asked for.
pub(crate) fn print_text(text: &str) -> Result<(), CliError> {
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

/// A line on standard error. That it cannot be written is no reason to fail: what was asked for was done.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
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
