//! Where the user's lines come from: an editor on a terminal, plain lines anywhere else.

use std::cell::Cell;
use std::env;
use std::fs;
use std::io::{self, BufRead as _, IsTerminal as _, StdinLock};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustyline::completion::Completer;
use rustyline::config::Configurer as _;
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Cmd, Context, Editor, Event, EventHandler, Helper, KeyCode, KeyEvent, Modifiers};

use super::keys::KeyFilter;
use super::{command, settings};
use crate::error::CliError;

/// What the user did.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Text(String),
    Interrupted {
        was_empty: bool,
    },
    /// Something was typed or pasted that is not UTF-8.
    NotText,
    End,
}

/// The source of lines.
pub(super) enum Input {
    Terminal { editor: Box<Editor<Typing, FileHistory>>, history: Option<PathBuf>, is_empty: Rc<Cell<bool>> },
    Lines(StdinLock<'static>),
}

const PROMPT: &str = ">>> ";

/// Lines that are remembered from one conversation to the next.
const HISTORY_LINES: usize = 1000;

impl Input {
    /// The terminal, with the lines of earlier conversations; an empty name keeps none.
    pub(super) fn open(history: Option<PathBuf>) -> Result<Self, CliError> {
        if !io::stdin().is_terminal() {
            return Ok(Self::Lines(io::stdin().lock()));
        }
        let mut editor = Editor::new().map_err(terminal_error)?;
        editor.set_auto_add_history(true);
        editor.set_max_history_size(HISTORY_LINES).map_err(terminal_error)?;
        editor.bind_sequence(KeyEvent(KeyCode::Enter, Modifiers::ALT), Cmd::Newline);
        editor.bind_sequence(Event::Any, EventHandler::Conditional(Box::new(KeyFilter::new())));
        let is_empty = Rc::new(Cell::new(true));
        editor.set_helper(Some(Typing { is_empty: Rc::clone(&is_empty) }));
        let history = history.or_else(usual_history).filter(|file| !file.as_os_str().is_empty());
        if let Some(folder) = history.as_deref().and_then(Path::parent) {
            // What cannot be remembered is no reason not to talk.
            let _ = fs::create_dir_all(folder);
        }
        if let Some(file) = &history {
            let _ = editor.load_history(file);
        }
        Ok(Self::Terminal { editor: Box::new(editor), history, is_empty })
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal { .. })
    }

    /// Waits for the user.
    pub(super) fn line(&mut self) -> Result<Line, CliError> {
        match self {
            Self::Terminal { editor, history, is_empty } => {
                is_empty.set(true);
                let line = editor.readline(PROMPT);
                if let (Ok(_), Some(file)) = (&line, history) {
                    let _ = editor.append_history(file);
                }
                match line {
                    Ok(text) => Ok(Line::Text(text)),
                    Err(ReadlineError::Interrupted) => Ok(Line::Interrupted { was_empty: is_empty.get() }),
                    Err(ReadlineError::Eof) => Ok(Line::End),
                    Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => Ok(Line::NotText),
                    Err(error) => Err(terminal_error(error)),
                }
            }
            Self::Lines(stdin) => piped_line(stdin),
        }
    }
}

/// In the user's folder for what programs remember.
fn usual_history() -> Option<PathBuf> {
    let folder = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")))?;
    Some(state.join("pleach/history"))
}

/// A line, or as many as belong together.
fn piped_line(stdin: &mut StdinLock<'static>) -> Result<Line, CliError> {
    let mut text = String::new();
    loop {
        let what = || "standard input".to_owned();
        let read = stdin.read_line(&mut text).map_err(|source| CliError::Read { what: what(), source })?;
        if read == 0 {
            return Ok(if text.is_empty() { Line::End } else { Line::Text(text) });
        }
        let line = text.trim_end_matches(['\r', '\n']);
        if !command::is_open(line) {
            return Ok(Line::Text(line.to_owned()));
        }
    }
}

fn terminal_error(error: ReadlineError) -> CliError {
    let source = match error {
        ReadlineError::Io(error) => error,
        other => io::Error::other(other.to_string()),
    };
    CliError::Read { what: "the terminal".to_owned(), source }
}

/// What the editor asks while the user types.
pub(super) struct Typing {
    /// Whether there is nothing in the line: Ctrl-C means something else then.
    is_empty: Rc<Cell<bool>>,
}

impl Helper for Typing {}

impl Hinter for Typing {
    type Hint = String;

    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        self.is_empty.set(line.is_empty());
        None
    }
}

impl Highlighter for Typing {
    fn highlight_char(&self, line: &str, _: usize, _: CmdKind) -> bool {
        self.is_empty.set(line.is_empty());
        false
    }
}

impl Validator for Typing {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let is_open = command::is_open(context.input());
        Ok(if is_open { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

impl Completer for Typing {
    type Candidate = String;

    /// Commands, and what follows some of them.
    fn complete(&self, line: &str, position: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = &line[..position];
        let start = typed.rfind(char::is_whitespace).map_or(0, |space| space + 1);
        let words: &[&str] = match typed.split_whitespace().next() {
            _ if start == 0 => &command::NAMES,
            Some("/set") => &settings::NAMES,
            Some("/think") => &["on", "off", "show", "hide"],
            Some("/stats") => &["on", "off"],
            _ => &[],
        };
        let fitting = words.iter().filter(|word| !typed[start..].is_empty() && word.starts_with(&typed[start..]));
        Ok((start, fitting.map(|word| format!("{word} ")).collect()))
    }
}
