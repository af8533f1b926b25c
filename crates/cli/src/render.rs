//! The answer as people see it, piece by piece.
//!
//! A thought comes before the answer. On a terminal with color it is dimmed; anywhere else it stands between the lines
//! `<think>` and `</think>`. A blank line follows it in both cases. It may be left out as well. On a terminal with color
//! the answer's Markdown is rendered; anywhere else it is text. On every terminal lines end between words.

use std::borrow::Cow;
use std::io::{self, Write};

use pleach_engine::Event;

use crate::markdown::Markdown;
use crate::output::printable;
use crate::style::{DIM, RESET, Style, stdout_columns};
use crate::wrap::Wrap;

/// Writes an answer as it comes.
#[derive(Debug)]
pub(crate) struct AnswerWriter<W> {
    out: W,
    style: Style,
    thoughts: Thoughts,
    markdown: Markdown,
    wrap: Wrap,
    part: Part,
    /// Whether the next character starts a line.
    at_line_start: bool,
}

/// What becomes of the model's thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Thoughts {
    /// They are written before the answer.
    Shown,
    /// They are left out.
    Hidden,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Nothing,
    Reasoning,
    Answer,
}

impl<W: Write> AnswerWriter<W> {
    pub(crate) fn new(out: W, style: Style, thoughts: Thoughts) -> Self {
        let (markdown, wrap, part) = (Markdown::default(), Wrap::default(), Part::Nothing);
        Self { out, style, thoughts, markdown, wrap, part, at_line_start: true }
    }

    pub(crate) fn thoughts(&self) -> Thoughts {
        self.thoughts
    }

    /// Writes what an event adds, and sees to it that it shows at once.
    pub(crate) fn event(&mut self, event: &Event) -> io::Result<()> {
        match event {
            Event::Reasoning(_) if self.thoughts == Thoughts::Hidden => return Ok(()),
            Event::Reasoning(text) => self.piece(Part::Reasoning, text)?,
            Event::Text(text) => self.piece(Part::Answer, text)?,
            _ => return Ok(()),
        }
        self.out.flush()
    }

    /// Ends the last line.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        match self.part {
            Part::Nothing => return Ok(()),
            Part::Reasoning => self.close_reasoning()?,
            Part::Answer => {
                let held = self.markdown.finish();
                self.at_line_start &= held.is_empty();
                self.write(&held)?;
                self.end_line()?;
            }
        }
        self.out.flush()
    }

    fn piece(&mut self, part: Part, text: &str) -> io::Result<()> {
        if self.part != part {
            if self.part == Part::Reasoning {
                self.close_reasoning()?;
                self.out.write_all(b"\n")?;
            }
            if part == Part::Reasoning && !self.style.color {
                self.out.write_all(b"<think>\n")?;
            }
            self.part = part;
        }
        let shown = if self.style.terminal { printable(text) } else { Cow::Borrowed(text) };
        let rendered = match part {
            Part::Answer if self.style.color => Cow::Owned(self.markdown.push(&shown)),
            _ => shown,
        };
        self.at_line_start = text.ends_with('\n');
        self.write(&rendered)
    }

    /// Writes text, on a terminal as far as its words are whole.
    fn write(&mut self, text: &str) -> io::Result<()> {
        if !self.style.terminal {
            return self.out.write_all(text.as_bytes());
        }
        let wrapped = self.wrap.push(text, stdout_columns());
        self.write_wrapped(&wrapped)
    }

    fn write_wrapped(&mut self, text: &str) -> io::Result<()> {
        match self.part {
            // Reset after every piece: a process that is killed leaves the terminal as it was.
            Part::Reasoning if self.style.color && !text.is_empty() => write!(self.out, "{DIM}{text}{RESET}"),
            _ => self.out.write_all(text.as_bytes()),
        }
    }

    fn close_reasoning(&mut self) -> io::Result<()> {
        self.end_line()?;
        if self.style.color { Ok(()) } else { self.out.write_all(b"</think>\n") }
    }

    fn end_line(&mut self) -> io::Result<()> {
        let held = self.wrap.finish(stdout_columns());
        self.write_wrapped(&held)?;
        if self.at_line_start { Ok(()) } else { self.out.write_all(b"\n") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Style = Style { terminal: false, color: false };
    const COLOR: Style = Style { terminal: true, color: true };
    const NO_COLOR: Style = Style { terminal: true, color: false };

    fn written(style: Style, events: &[Event]) -> String {
        let mut bytes = Vec::new();
        let mut writer = AnswerWriter::new(&mut bytes, style, Thoughts::Shown);
        events.iter().for_each(|event| writer.event(event).unwrap());
        writer.finish().unwrap();
        String::from_utf8(bytes).unwrap()
    }

    fn reasoning(text: &str) -> Event {
        Event::Reasoning(text.to_owned())
    }

    fn text(text: &str) -> Event {
        Event::Text(text.to_owned())
    }

    #[test]
    fn an_answer_ends_with_one_line_break() {
        assert_eq!(written(PLAIN, &[text("a"), text("b")]), "ab\n");
        assert_eq!(written(PLAIN, &[text("a\n")]), "a\n");
        assert_eq!(written(PLAIN, &[]), "");
    }

    #[test]
    fn thoughts_are_marked_or_dimmed() {
        let events = [reasoning("let me"), reasoning(" see"), text("42")];
        assert_eq!(written(PLAIN, &events), "<think>\nlet me see\n</think>\n\n42\n");
        assert_eq!(written(NO_COLOR, &events), "<think>\nlet me see\n</think>\n\n42\n");
        assert_eq!(written(COLOR, &events), "\x1b[2mlet\x1b[0m\x1b[2m me\x1b[0m\x1b[2m see\x1b[0m\n\n42\n");
    }

    #[test]
    fn thoughts_may_be_left_out() {
        let mut bytes = Vec::new();
        let mut writer = AnswerWriter::new(&mut bytes, PLAIN, Thoughts::Hidden);
        [reasoning("let me"), text("42")].iter().for_each(|event| writer.event(event).unwrap());
        writer.finish().unwrap();
        assert_eq!(bytes, b"42\n");
    }

    #[test]
    fn markdown_is_for_terminals_with_color() {
        let events = [text("a **b"), text("** `c"), text("\n")];
        assert_eq!(written(COLOR, &events), "a \x1b[1mb\x1b[0m `c\n");
        assert_eq!(written(NO_COLOR, &events), "a **b** `c\n");
        assert_eq!(written(PLAIN, &events), "a **b** `c\n");
        assert_eq!(written(COLOR, &[text("a `b")]), "a `b\n");
    }

    #[test]
    fn a_thought_that_was_cut_off_is_closed() {
        assert_eq!(written(PLAIN, &[reasoning("let")]), "<think>\nlet\n</think>\n");
        assert_eq!(written(COLOR, &[reasoning("let\n")]), "\x1b[2mlet\n\x1b[0m");
    }

    #[test]
    fn a_model_cannot_command_the_terminal() {
        let events = [text("a\x1b]52;c;\x07\r\u{9b}b\tc\x7f")];
        assert_eq!(written(COLOR, &events), "a␛]52;c;␇␍\u{fffd}b\tc␡\n");
        assert_eq!(written(PLAIN, &events), "a\x1b]52;c;\x07\r\u{9b}b\tc\x7f\n");
    }
}
