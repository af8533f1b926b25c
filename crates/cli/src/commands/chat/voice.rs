//! Whom a conversation is with: people on a terminal or in a pipe, or a program that reads JSON line by line.

use pleach_engine::{Engine, Located};

use crate::answer::Pieces;
use crate::error::CliError;
use crate::json::{Collector, Line, Model};
use crate::output::{print_json_line, say_text};
use crate::render::Thoughts;

/// How everything is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Voice {
    /// Answers as text on standard output, everything else on standard error.
    People,
    /// All of it as [`Line`]s on standard output.
    Program,
}

impl Voice {
    pub(super) fn say(self, text: &str) {
        match self {
            Self::People => say_text(text),
            // Whoever no longer listens is noticed with the next answer.
            Self::Program => drop(print_json_line(&Line::Note { text })),
        }
    }

    pub(super) fn complain(self, error: &CliError) {
        if self == Self::People {
            return error.print();
        }
        let (message, causes, hint) = (error.to_string(), error.causes(), error.hint());
        drop(print_json_line(&Line::Error { message, causes, hint }));
    }

    /// Tells a program what was opened.
    pub(super) fn ready(self, engine: &Engine, located: &Located) -> Result<(), CliError> {
        match self {
            Self::People => Ok(()),
            Self::Program => print_json_line(&Line::Ready { model: Model::new(engine, located) }),
        }
    }

    /// A place for the pieces of an answer to a prompt of these tokens.
    pub(super) fn pieces(self, prompt_ids: &[u32], thoughts: Thoughts) -> Pieces {
        match self {
            Self::People => Pieces::text(thoughts),
            Self::Program => Pieces::Lines(Collector::new(prompt_ids.to_vec(), false)),
        }
    }
}
