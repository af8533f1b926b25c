//! What can be typed at the prompt.

use crate::error::CliError;
use crate::names::closest;

/// A line of the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Command {
    Ask(String),
    Help,
    Clear,
    Undo,
    Retry,
    /// Shows the instructions, or replaces them; none if empty.
    System(Option<String>),
    /// Shows the settings, or one of them, or changes it.
    Set(Option<(String, Option<String>)>),
    Save {
        file: String,
        replace: bool,
    },
    Load(String),
    Think(Thinking),
    Stats(Switch),
    Exit,
}

/// What `/think` changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Thinking {
    Tell,
    On,
    Off,
    Show,
    Hide,
}

/// What `/stats` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Switch {
    Now,
    On,
    Off,
}

/// The names, as they are completed.
pub(super) const NAMES: [&str; 11] =
    ["/help", "/clear", "/undo", "/retry", "/system", "/set", "/save", "/load", "/think", "/stats", "/exit"];

pub(super) const HELP: &str = "\
/help               this list
/clear              forget the conversation; instructions stay
/undo               take back the last question and its answer
/retry              another answer to the last question
/system [TEXT]      show the instructions, or give others; - for none
/set [NAME [VALUE]] show the settings, or change one, as in /set temperature 0.7
/save [-f] FILE     write the conversation as JSON; -f replaces a file
/load FILE          go on with a saved conversation
/think [SWITCH]     on or off: whether to think first; show or hide: the thoughts
/stats [on|off]     statistics of the last answer, or after each
/exit               leave

Alt-Enter, or a line that ends with \\, goes on in the next line; so does text between
lines of \"\"\", and what is pasted. // at the start of a message stands for /.
Ctrl-C stops an answer, and empties the line; at an empty prompt it leaves when pressed
after another one there, or after an answer that it stopped. Ctrl-D leaves. Up and down go through what was typed before.";

impl Command {
    /// Reads a line, or several.
    pub(super) fn parse(text: &str) -> Result<Self, CliError> {
        if let Some(block) = block(text) {
            return Ok(Self::Ask(block));
        }
        let text = joined(text);
        let text = text.trim();
        let Some(command) = text.strip_prefix('/') else { return Ok(Self::Ask(text.to_owned())) };
        if let Some(question) = command.strip_prefix('/') {
            return Ok(Self::Ask(format!("/{question}")));
        }
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        Self::named(name, rest.trim())
    }

    fn named(name: &str, rest: &str) -> Result<Self, CliError> {
        let some = Some(rest).filter(|rest| !rest.is_empty()).map(str::to_owned);
        let file = || some.clone().ok_or_else(|| refuse(format!("/{name} needs the name of a file")));
        Ok(match name {
            "help" | "?" => Self::Help,
            "clear" | "new" => Self::Clear,
            "undo" => Self::Undo,
            "retry" => Self::Retry,
            "system" => Self::System(some.map(|text| if text == "-" { String::new() } else { text })),
            "set" => Self::Set(some.as_deref().map(assignment)),
            "save" => match rest.strip_prefix("-f ") {
                Some(file) => Self::Save { file: file.trim().to_owned(), replace: true },
                None => Self::Save { file: file()?, replace: false },
            },
            "load" => Self::Load(file()?),
            "think" => Self::Think(match rest {
                "" => Thinking::Tell,
                "on" => Thinking::On,
                "off" => Thinking::Off,
                "show" => Thinking::Show,
                "hide" => Thinking::Hide,
                other => return Err(refuse(format!("/think is `on`, `off`, `show` or `hide`, not `{other}`"))),
            }),
            "stats" => Self::Stats(match rest {
                "" => Switch::Now,
                "on" => Switch::On,
                "off" => Switch::Off,
                other => return Err(refuse(format!("/stats is `on` or `off`, not `{other}`"))),
            }),
            "exit" | "quit" | "bye" => Self::Exit,
            other => return Err(unknown(&format!("/{other}"))),
        })
    }
}

/// `NAME VALUE`, `NAME=VALUE`, or a name alone.
fn assignment(text: &str) -> (String, Option<String>) {
    let (name, value) = text.split_once(|c: char| c.is_whitespace() || c == '=').unwrap_or((text, ""));
    (name.to_owned(), Some(value.trim().to_owned()).filter(|value| !value.is_empty()))
}

const QUOTES: &str = "\"\"\"";

/// Whether more lines belong to the text.
pub(super) fn is_open(text: &str) -> bool {
    match text.trim_start().strip_prefix(QUOTES) {
        Some(rest) => !rest.contains(QUOTES),
        None => text.ends_with('\\'),
    }
}

/// What stands between lines of `"""`.
fn block(text: &str) -> Option<String> {
    let rest = text.trim_start().strip_prefix(QUOTES)?;
    let inner = rest.split_once(QUOTES).map_or(rest, |(inner, _)| inner);
    Some(inner.strip_prefix('\n').unwrap_or(inner).trim_end_matches('\n').to_owned())
}

/// Lines that end with a backslash go on without it.
fn joined(text: &str) -> String {
    text.replace("\\\n", "\n")
}

fn refuse(message: String) -> CliError {
    CliError::Typed(message)
}

fn unknown(command: &str) -> CliError {
    refuse(format!("there is no command `{command}`")).or_close(closest(command, NAMES))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Command, String> {
        Command::parse(text).map_err(|error| error.to_string())
    }

    #[test]
    fn lines_are_questions_or_commands() {
        assert_eq!(parse(" why? "), Ok(Command::Ask("why?".to_owned())));
        assert_eq!(parse("//etc is what?"), Ok(Command::Ask("/etc is what?".to_owned())));
        assert_eq!(parse("/system Be short."), Ok(Command::System(Some("Be short.".to_owned()))));
        assert_eq!(parse("/system -"), Ok(Command::System(Some(String::new()))));
        assert_eq!(parse("/system"), Ok(Command::System(None)));
        let pair = Some(("top-k".to_owned(), Some("40".to_owned())));
        assert_eq!(parse("/set top-k 40"), Ok(Command::Set(pair.clone())));
        assert_eq!(parse("/set top-k=40"), Ok(Command::Set(pair)));
        assert_eq!(parse("/save -f a b.json"), Ok(Command::Save { file: "a b.json".to_owned(), replace: true }));
        assert_eq!(parse("/think hide"), Ok(Command::Think(Thinking::Hide)));
        assert_eq!(parse("/bye"), Ok(Command::Exit));
        assert_eq!(parse("/fly"), Err("there is no command `/fly`".to_owned()));
        assert_eq!(parse("/save"), Err("/save needs the name of a file".to_owned()));
        assert_eq!(parse("/set x"), Ok(Command::Set(Some(("x".to_owned(), None)))));
        assert_eq!(parse("/stats maybe"), Err("/stats is `on` or `off`, not `maybe`".to_owned()));
    }

    #[test]
    fn a_slip_is_met_with_the_command_that_was_meant() {
        let hint = |text| Command::parse(text).unwrap_err().hint().unwrap();
        assert_eq!(hint("/hel"), "did you mean `/help`?");
        assert_eq!(hint("/fly"), "/help lists commands");
    }

    #[test]
    fn several_lines_are_one_question() {
        assert!(is_open("\"\"\"a") && is_open("a\\") && !is_open("a") && !is_open("\"\"\"a\n\"\"\""));
        assert_eq!(parse("\"\"\"\n/help\nb\n\"\"\""), Ok(Command::Ask("/help\nb".to_owned())));
        assert_eq!(parse("a \\\nb"), Ok(Command::Ask("a \nb".to_owned())));
        assert_eq!(parse("a\nb"), Ok(Command::Ask("a\nb".to_owned())));
    }

    #[test]
    fn every_command_is_explained() {
        for name in NAMES {
            assert!(HELP.lines().any(|line| line.split(' ').next() == Some(name)), "{name}");
            assert_ne!(parse(name), Err(format!("there is no command `{name}`")));
        }
    }
}
