//! Whom a conversation is with: people on a terminal or in a pipe, or a program that reads JSON line by line.

use std::io::{self, StdoutLock};

use pleach_engine::{Engine, Event, Located};
use serde::Serialize;

use crate::error::CliError;
use crate::json::{Collector, Model, Object};
use crate::measure::Measured;
use crate::output::{print_json_line, say_text};
use crate::render::{AnswerWriter, Thoughts};
use crate::style::Style;

/// How everything is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Voice {
    /// Answers as text on standard output, everything else on standard error.
    People,
    /// All of it as [`Message`]s on standard output.
    Program,
}

/// One line for a program. `docs/cli.md` describes the fields; new kinds and new fields may come.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Message<'a> {
    /// The model is open; questions may come.
    Ready { model: Model },
    /// A piece of a thought.
    Reasoning { text: &'a str },
    /// A piece of an answer.
    Text { text: &'a str },
    /// The end of an answer, with everything that `run --json` prints.
    Answer(Box<Object>),
    /// What a command says, or a warning.
    Note { text: &'a str },
    /// A question or a command that failed.
    Error { message: String, causes: Vec<String>, hint: Option<String> },
}

/// Where the pieces of one answer go.
pub(super) enum Pieces {
    People(AnswerWriter<StdoutLock<'static>>),
    Program(Collector),
}

impl Voice {
    pub(super) fn say(self, text: &str) {
        match self {
            Self::People => say_text(text),
            // Whoever no longer listens is noticed with the next answer.
            Self::Program => drop(print_json_line(&Message::Note { text })),
        }
    }

    pub(super) fn complain(self, error: &CliError) {
        if self == Self::People {
            return error.print();
        }
        let (message, causes, hint) = (error.to_string(), error.causes(), error.hint());
        drop(print_json_line(&Message::Error { message, causes, hint }));
    }

    /// Tells a program what was opened.
    pub(super) fn ready(self, engine: &Engine, located: &Located) -> Result<(), CliError> {
        match self {
            Self::People => Ok(()),
            Self::Program => print_json_line(&Message::Ready { model: Model::new(engine, located) }),
        }
    }

    /// A place for the pieces of an answer to a prompt of these tokens.
    pub(super) fn pieces(self, prompt_ids: &[u32], thoughts: Thoughts) -> Pieces {
        match self {
            Self::People => Pieces::People(AnswerWriter::new(io::stdout().lock(), Style::of_stdout(), thoughts)),
            Self::Program => Pieces::Program(Collector::new(prompt_ids.to_vec(), false)),
        }
    }
}

impl Pieces {
    pub(super) fn event(&mut self, event: Event) -> Result<(), CliError> {
        match self {
            Self::People(writer) => writer.event(&event).map_err(CliError::Write),
            Self::Program(collector) => {
                match &event {
                    Event::Reasoning(text) => print_json_line(&Message::Reasoning { text })?,
                    Event::Text(text) => print_json_line(&Message::Text { text })?,
                    _ => {}
                }
                collector.event(event);
                Ok(())
            }
        }
    }

    /// Ends the last line, also of an answer that failed.
    pub(super) fn end_line(&mut self) -> Result<(), CliError> {
        match self {
            Self::People(writer) => writer.finish().map_err(CliError::Write),
            Self::Program(_) => Ok(()),
        }
    }

    /// Tells a program that the answer is complete.
    pub(super) fn finish(self, engine: &Engine, located: &Located, measured: &Measured) -> Result<(), CliError> {
        let Self::Program(collector) = self else { return Ok(()) };
        print_json_line(&Message::Answer(Box::new(collector.object(engine, located, measured))))
    }
}
