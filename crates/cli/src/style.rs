//! Whether people are looking, and whether they like color.

use std::env;
use std::io::{self, IsTerminal as _};

use terminal_size::{Height, Width, terminal_size_of};

/// What an output stream can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Style {
    /// A person reads it, so it may be redrawn and must not be taken over by control characters of a text.
    pub(crate) terminal: bool,
    /// It shows color and intensity.
    pub(crate) color: bool,
}

/// Faint, strong and slanted text, and code in cyan.
pub(crate) const DIM: &str = "\x1b[2m";
pub(crate) const BOLD: &str = "\x1b[1m";
pub(crate) const ITALIC: &str = "\x1b[3m";
pub(crate) const CODE: &str = "\x1b[36m";
/// The end of them all.
pub(crate) const RESET: &str = "\x1b[0m";

impl Style {
    pub(crate) fn of_stdout() -> Self {
        Self::of(io::stdout().is_terminal())
    }

    pub(crate) fn of_stderr() -> Self {
        Self::of(io::stderr().is_terminal())
    }

    fn of(terminal: bool) -> Self {
        let value = |name| env::var_os(name).and_then(|value| value.into_string().ok());
        Self::decide(terminal, value("NO_COLOR").as_deref(), value("TERM").as_deref())
    }

    /// `NO_COLOR` counts if it is not empty, as <https://no-color.org> says.
    fn decide(terminal: bool, no_color: Option<&str>, term: Option<&str>) -> Self {
        let dumb = term == Some("dumb");
        let unwanted = no_color.is_some_and(|value| !value.is_empty());
        Self { terminal: terminal && !dumb, color: terminal && !dumb && !unwanted }
    }

    /// The text, faint where that shows.
    pub(crate) fn dim(self, text: &str) -> String {
        if self.color { format!("{DIM}{text}{RESET}") } else { text.to_owned() }
    }
}

/// Columns of the terminal behind standard output.
pub(crate) fn stdout_columns() -> usize {
    columns(terminal_size_of(io::stdout()))
}

/// Columns of the terminal behind standard error.
pub(crate) fn stderr_columns() -> usize {
    columns(terminal_size_of(io::stderr()))
}

/// Those of the oldest terminals where one does not say.
fn columns(size: Option<(Width, Height)>) -> usize {
    size.map_or(80, |(Width(columns), _)| usize::from(columns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn color_needs_a_terminal_that_can_and_a_user_who_wants() {
        let color = |terminal, no_color, term| Style::decide(terminal, no_color, term).color;
        assert!(color(true, None, Some("xterm")));
        assert!(color(true, Some(""), None));
        assert!(!color(true, Some("1"), Some("xterm")));
        assert!(!color(true, None, Some("dumb")));
        assert!(!color(false, None, Some("xterm")));
    }
}
