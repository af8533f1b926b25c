//! One line on a terminal that says what is waited for, and goes away.

use std::io::{self, Write as _};

use pleach_engine::Event;

use crate::style::Style;

/// The line. It shows on terminals only.
#[derive(Debug)]
pub(crate) struct Progress {
    live: bool,
    quiet: bool,
    shown: bool,
}

/// Goes to the start of the line and empties it.
const CLEAR: &str = "\r\x1b[K";

impl Progress {
    pub(crate) fn new(style: Style, quiet: bool) -> Self {
        Self { live: style.terminal && !quiet, quiet, shown: false }
    }

    /// Whether anything shows.
    pub(crate) fn is_live(&self) -> bool {
        self.live
    }

    /// Whether nothing is to be said at all.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Leaves the line to somebody else, who takes it away.
    pub(crate) fn forget(&mut self) {
        self.shown = false;
    }

    /// Replaces the line.
    pub(crate) fn show(&mut self, note: &str) {
        if self.live {
            self.shown = true;
            print(&format!("{CLEAR}{note}"));
        }
    }

    /// Shows how much of the prompt is read, until something is written.
    pub(crate) fn event(&mut self, event: &Event) {
        match event {
            Event::Prefill(prefill) if prefill.done < prefill.total => {
                self.show(&format!("reading the prompt: {} of {} tokens", prefill.done, prefill.total));
            }
            _ => self.clear(),
        }
    }

    /// Takes the line away.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            print(CLEAR);
        }
    }
}

/// A note that cannot be shown is no reason to stop.
fn print(text: &str) {
    let mut stderr = io::stderr();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}
