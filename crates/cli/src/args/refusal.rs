//! What clap refuses, said in this project's way: one line, then a hint.

use std::env;
use std::error::Error as _;
use std::io::{self, Write as _};
use std::process;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use pleach_engine::EngineError;

use super::values::Allowed;
use crate::error::CliError;

/// Turns clap's error into ours. Help and version are printed by clap, and end the process.
pub(super) fn translate(error: clap::Error) -> CliError {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => match error.print().and_then(|()| io::stdout().flush()) {
            Ok(()) => process::exit(0),
            Err(error) => CliError::Write(error),
        },
        ErrorKind::InvalidUtf8 => not_text().unwrap_or_else(|| refused(&error)),
        ErrorKind::UnknownArgument => extra_word(&error).unwrap_or_else(|| refused(&error)),
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => bad_value(&error).unwrap_or_else(|| refused(&error)),
        _ => refused(&error),
    }
}

/// The argument, or else the variable, that is not UTF-8.
fn not_text() -> Option<CliError> {
    if let Some(argument) = env::args_os().find(|argument| argument.to_str().is_none()) {
        return Some(CliError::ArgumentNotText { argument: argument.to_string_lossy().into_owned() });
    }
    let is_ours = |name: &str| name.starts_with("PLEACH_");
    let (name, value) =
        env::vars_os().find(|(name, value)| name.to_str().is_some_and(is_ours) && value.to_str().is_none())?;
    let (name, found) = (name.to_string_lossy().into_owned(), format!("`{}`", value.to_string_lossy()));
    Some(CliError::BadValue { name, found, allowed: "UTF-8 text".to_owned() })
}

/// The error with the variable's name in place of the flag's, if the value came from there. Values of the settings file
/// are checked before.
pub(super) fn name_variable(error: CliError) -> CliError {
    match error {
        CliError::BadValue { name, found, allowed } => {
            let name = variable_of(&name).filter(|variable| env::var_os(variable).is_some()).unwrap_or(name);
            CliError::BadValue { name, found, allowed }
        }
        other => other,
    }
}

/// What follows model and prompt and is no flag.
fn extra_word(error: &clap::Error) -> Option<CliError> {
    let word = text(error, ContextKind::InvalidArg)?;
    (!word.starts_with('-')).then_some(CliError::ExtraWord { word })
}

fn bad_value(error: &clap::Error) -> Option<CliError> {
    let flag = text(error, ContextKind::InvalidArg)?;
    let found = text(error, ContextKind::InvalidValue)?;
    let allowed = match error.source() {
        Some(source) => allowed_by(source)?,
        None => one_of(error)?,
    };
    // `--ctx <TOKENS>`
    let flag = flag.split(' ').next().unwrap_or_default();
    let name = variable_behind(flag, &found).unwrap_or_else(|| flag.to_owned());
    Some(CliError::BadValue { name, found: format!("`{found}`"), allowed })
}

fn allowed_by(source: &(dyn std::error::Error + 'static)) -> Option<String> {
    if let Some(Allowed(allowed)) = source.downcast_ref() {
        return Some(allowed.clone());
    }
    match source.downcast_ref()? {
        EngineError::InvalidField { allowed, .. } => Some(allowed.clone()),
        _ => None,
    }
}

/// `` `a`, `b` or `c` ``
fn one_of(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::Strings(values)) = error.get(ContextKind::ValidValue) else { return None };
    let quoted: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
    let (last, first) = quoted.split_last()?;
    Some(if first.is_empty() { last.clone() } else { format!("{} or {last}", first.join(", ")) })
}

/// The environment variable that gave a flag's value, if no argument did.
fn variable_behind(flag: &str, found: &str) -> Option<String> {
    let variable = variable_of(flag)?;
    env::var(&variable).is_ok_and(|value| value == found).then_some(variable)
}

/// The environment variable of a flag that no argument gives.
fn variable_of(flag: &str) -> Option<String> {
    let is_flag = |argument: &str| argument == flag || argument.starts_with(&format!("{flag}="));
    if env::args_os().any(|argument| is_flag(&argument.to_string_lossy())) {
        return None;
    }
    Some(format!("PLEACH_{}", flag.strip_prefix("--")?.replace('-', "_").to_ascii_uppercase()))
}

/// Everything else: clap's own first line.
fn refused(error: &clap::Error) -> CliError {
    let rendered = error.render().to_string();
    let mut lines = rendered.lines().map(str::trim);
    let first = lines.next().unwrap_or_default().trim_start_matches("error: ");
    // Clap lists missing or clashing arguments in indented lines up to the first blank one.
    let listed: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    let message = [&[first], listed.as_slice()].concat().join(" ").replace('\'', "`");
    let suggested = text(error, ContextKind::SuggestedArg).or_else(|| text(error, ContextKind::SuggestedSubcommand));
    // Prompts may begin with a word such as `hello`.
    let suggested = suggested.filter(|suggested| suggested != "help");
    match text(error, ContextKind::InvalidSubcommand) {
        // Most likely a prompt of somebody who meets the command for the first time.
        Some(word) if suggested.is_none() => CliError::NoCommand { word },
        _ => CliError::Arguments { message, suggested },
    }
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::Strings(texts) => texts.first().cloned(),
        _ => None,
    }
}
