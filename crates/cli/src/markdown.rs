//! Markdown on a terminal, while it is being written.
//!
//! Libraries render whole documents; an answer comes a few characters at a time. Whatever is clear is shown at once; a
//! mark is held back until it is known what it means, at the longest to the end of its line. Marks that turn out to mean
//! nothing show as they are: no character that is not a mark of Markdown is ever lost.

use crate::style::{BOLD, CODE, DIM, ITALIC, RESET};

/// Turns pieces of Markdown into text with the terminal's own marks.
#[derive(Debug, Default)]
pub(crate) struct Markdown {
    /// What is not decided yet.
    held: String,
    place: Place,
    /// The fence that ends the block of code.
    fence: Option<Fence>,
    /// How the line is shown, as in a heading.
    line_style: &'static str,
    /// The last character that was shown.
    before: Option<char>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    /// Nothing of the line was decided.
    #[default]
    LineStart,
    Inside,
}

/// A mark without its partner within so many bytes means itself.
const LONGEST_SPAN: usize = 400;

impl Markdown {
    /// What can be shown once `text` has come.
    pub(crate) fn push(&mut self, text: &str) -> String {
        let mut shown = String::new();
        for character in text.chars() {
            match character {
                '\n' => {
                    self.advance(&mut shown, true);
                    shown.push('\n');
                    (self.place, self.line_style, self.before) = (Place::LineStart, "", None);
                }
                other => self.held.push(other),
            }
        }
        self.advance(&mut shown, false);
        shown
    }

    /// What is still held back.
    pub(crate) fn finish(&mut self) -> String {
        let mut shown = String::new();
        self.advance(&mut shown, true);
        *self = Self::default();
        shown
    }

    /// Decides as much as can be decided; everything at the end of a line.
    fn advance(&mut self, shown: &mut String, line_ends: bool) {
        if self.place == Place::LineStart && !self.start_line(shown, line_ends) {
            return;
        }
        if self.fence.is_some() {
            let code = std::mem::take(&mut self.held);
            styled(shown, CODE, &code);
        } else {
            self.inline(shown, line_ends);
        }
    }

    /// Reads what makes a line a block of some kind; false if that is not clear yet.
    fn start_line(&mut self, shown: &mut String, line_ends: bool) -> bool {
        let line = self.held.trim_start_matches(' ');
        let indent = self.held.len() - line.len();
        if line.is_empty() && !line_ends {
            return false;
        }
        match self.kind(line, line_ends) {
            Kind::Unclear => return false,
            Kind::Fence => {
                styled(shown, DIM, &self.held);
                self.fence = match self.fence.take() {
                    None => Fence::opened_by(line),
                    Some(_) => None,
                };
                self.held.clear();
            }
            Kind::Heading(marks) => {
                self.line_style = BOLD;
                self.held.drain(..indent + marks);
            }
            Kind::Bullet => {
                shown.push_str(&" ".repeat(indent));
                shown.push_str("• ");
                self.held.drain(..indent + 2);
            }
            Kind::Quote => {
                styled(shown, DIM, "│ ");
                self.held.drain(..indent + 1);
                let spaces = self.held.len() - self.held.trim_start_matches(' ').len();
                self.held.drain(..spaces.min(1));
            }
            Kind::Rule => {
                styled(shown, DIM, &"─".repeat(line.trim_end().len().max(8)));
                self.held.clear();
            }
            Kind::Text => {}
        }
        self.place = Place::Inside;
        true
    }

    fn kind(&self, line: &str, line_ends: bool) -> Kind {
        if let Some(fence) = &self.fence {
            return match () {
                () if line_ends && fence.is_closed_by(line) => Kind::Fence,
                () if !line_ends && fence.may_be_closed_by(line) => Kind::Unclear,
                () => Kind::Text,
            };
        }
        let run = |mark: char| line.chars().take_while(|&c| c == mark).count();
        let after = |run: usize| line.chars().nth(run);
        let only_marks = |mark: char| line.trim_end().chars().all(|c| c == mark || c == ' ');
        match line.chars().next() {
            Some(mark @ ('`' | '~')) if run(mark) >= 3 => {
                if line_ends {
                    Kind::Fence
                } else {
                    Kind::Unclear
                }
            }
            Some('`') if !line_ends && after(run('`')).is_none() => Kind::Unclear,
            Some('#') => match (run('#'), after(run('#'))) {
                (marks @ 1..=6, Some(' ')) => Kind::Heading(marks + 1),
                (1..=6, None) if !line_ends => Kind::Unclear,
                _ => Kind::Text,
            },
            Some(mark @ ('-' | '*')) if only_marks(mark) && (line_ends || after(1).is_none() || run(mark) > 1) => {
                if !line_ends {
                    Kind::Unclear
                } else if line.matches(mark).count() >= 3 {
                    Kind::Rule
                } else {
                    Kind::Text
                }
            }
            Some('-' | '*' | '+') if after(1) == Some(' ') => Kind::Bullet,
            Some('+') if after(1).is_none() && !line_ends => Kind::Unclear,
            Some('>') if after(1).is_none() && !line_ends => Kind::Unclear,
            Some('>') => Kind::Quote,
            _ => Kind::Text,
        }
    }

    fn inline(&mut self, shown: &mut String, line_ends: bool) {
        let held = std::mem::take(&mut self.held);
        let mut rest = held.as_str();
        while !rest.is_empty() {
            let plain = rest.find(['`', '*', '_', '\\']).unwrap_or(rest.len());
            if plain > 0 {
                self.show(shown, self.line_style, &rest[..plain]);
                rest = &rest[plain..];
                continue;
            }
            match span(rest, self.before, line_ends) {
                Span::Unclear if rest.len() < LONGEST_SPAN && !line_ends => break,
                Span::Unclear | Span::Plain => {
                    let run = mark_run(rest);
                    self.show(shown, self.line_style, &rest[..run]);
                    rest = &rest[run..];
                }
                Span::Escaped => {
                    let end = 1 + rest[1..].chars().next().map_or(0, char::len_utf8);
                    self.show(shown, self.line_style, &rest[1..end]);
                    rest = &rest[end..];
                }
                Span::Styled { style, inner, length } => {
                    match style {
                        CODE => self.show(shown, CODE, inner),
                        style => self.nested(shown, style, inner),
                    }
                    rest = &rest[length..];
                }
            }
        }
        self.held = rest.to_owned();
    }

    /// Text inside bold or italic text, which may have spans of its own.
    fn nested(&mut self, shown: &mut String, style: &'static str, inner: &str) {
        let mut nested = Self { held: inner.to_owned(), place: Place::Inside, ..Self::default() };
        let mut text = String::new();
        nested.inline(&mut text, true);
        // A reset inside ends the outer style as well: begin it again after each.
        let outer = format!("{}{style}", self.line_style);
        shown.push_str(&format!("{outer}{}{RESET}", text.replace(RESET, &format!("{RESET}{outer}"))));
        self.before = inner.chars().next_back();
    }

    fn show(&mut self, shown: &mut String, style: &str, text: &str) {
        styled(shown, style, text);
        self.before = text.chars().next_back().or(self.before);
    }
}

/// The line that a block of code begins with, and that ends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fence {
    mark: char,
    length: usize,
}

impl Fence {
    /// The fence that a whole line is, if it is one: three marks or more, then the language.
    pub(crate) fn opened_by(line: &str) -> Option<Self> {
        let line = line.trim_start_matches(' ');
        let mark = line.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
        let length = line.chars().take_while(|&c| c == mark).count();
        (length >= 3).then_some(Self { mark, length })
    }

    /// Whether a whole line ends the block.
    pub(crate) fn is_closed_by(&self, line: &str) -> bool {
        let line = line.trim_matches(' ');
        line.len() >= self.length && line.trim_start_matches(self.mark).is_empty()
    }

    /// Whether the start of a line may become one that ends the block.
    fn may_be_closed_by(&self, start: &str) -> bool {
        start.trim_matches(' ').trim_start_matches(self.mark).is_empty()
    }
}

/// What a line begins.
enum Kind {
    Unclear,
    Text,
    Fence,
    /// With so many bytes of marks.
    Heading(usize),
    Bullet,
    Quote,
    Rule,
}

/// What a mark begins.
enum Span<'t> {
    Unclear,
    /// The mark means itself.
    Plain,
    Escaped,
    Styled {
        style: &'static str,
        inner: &'t str,
        length: usize,
    },
}

fn span(text: &str, before: Option<char>, line_ends: bool) -> Span<'_> {
    let run = mark_run(text);
    let (marks, rest) = text.split_at(run);
    let next = rest.chars().next();
    match marks.chars().next() {
        Some('\\') => match next {
            Some(mark) if mark.is_ascii_punctuation() => Span::Escaped,
            None if !line_ends => Span::Unclear,
            _ => Span::Plain,
        },
        Some('`') => match closing_code(rest, marks) {
            Some(end) => Span::Styled { style: CODE, inner: &rest[..end], length: end + 2 * run },
            None => Span::Unclear,
        },
        Some(mark) => {
            let style = match run {
                1 => ITALIC,
                2 => BOLD,
                _ => return Span::Plain,
            };
            let is_word = |character: Option<char>| character.is_some_and(char::is_alphanumeric);
            match next {
                None => return Span::Unclear,
                Some(next) if next.is_whitespace() || (mark == '_' && is_word(before)) => return Span::Plain,
                Some(_) => {}
            }
            match closing(rest, marks, mark, line_ends) {
                Some(end) => Span::Styled { style, inner: &rest[..end], length: end + 2 * run },
                None => Span::Unclear,
            }
        }
        None => Span::Plain,
    }
}

/// Where a run of exactly as many backticks begins.
fn closing_code(text: &str, marks: &str) -> Option<usize> {
    let mut from = 0;
    while let Some(found) = text[from..].find('`') {
        let start = from + found;
        let run = mark_run(&text[start..]);
        // At the very end more of them may come; a closing run that is long enough is taken all the same.
        if run == marks.len() {
            return Some(start);
        }
        from = start + run;
    }
    None
}

/// Where the same marks stand again, after a character that is no space, and outside of code.
fn closing(text: &str, marks: &str, mark: char, line_ends: bool) -> Option<usize> {
    let mut from = 0;
    while let Some(found) = text[from..].find([mark, '`']) {
        let start = from + found;
        let run = mark_run(&text[start..]);
        let end = start + run;
        if text[start..].starts_with('`') {
            from = end + closing_code(&text[end..], &text[start..end]).map_or(0, |code| code + run);
            continue;
        }
        let before_is_space = text[..start].chars().next_back().is_none_or(char::is_whitespace);
        let after = text[end..].chars().next();
        let is_settled = after.is_some() || line_ends || run == marks.len() && run == 2;
        let ends_word = mark == '*' || !after.is_some_and(char::is_alphanumeric);
        if run == marks.len() && !before_is_space && ends_word && is_settled {
            return Some(start);
        }
        from = end;
    }
    None
}

/// Bytes of the run of one and the same mark; a backslash stands for itself.
fn mark_run(text: &str) -> usize {
    match text.chars().next() {
        Some('\\') => 1,
        Some(mark) => text.chars().take_while(|&c| c == mark).count() * mark.len_utf8(),
        None => 0,
    }
}

fn styled(shown: &mut String, style: &str, text: &str) {
    if style.is_empty() || text.is_empty() {
        shown.push_str(text);
    } else {
        shown.push_str(style);
        shown.push_str(text);
        shown.push_str(RESET);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What shows of a text that comes at once, with names for the terminal's marks.
    fn shown(text: &str) -> String {
        let mut markdown = Markdown::default();
        named(&(markdown.push(text) + &markdown.finish()))
    }

    fn named(text: &str) -> String {
        let names = [(BOLD, "<b>"), (ITALIC, "<i>"), (CODE, "<c>"), (DIM, "<d>"), (RESET, "</>")];
        names.iter().fold(text.to_owned(), |text, (code, name)| text.replace(code, name))
    }

    #[test]
    fn spans_are_styled() {
        assert_eq!(shown("a **b c** d"), "a <b>b c</> d");
        assert_eq!(shown("*i* and _j_."), "<i>i</> and <i>j</>.");
        assert_eq!(shown("`x * y` ``a`b``"), "<c>x * y</> <c>a`b</>");
        assert_eq!(shown("**use `x` here**"), "<b>use <c>x</><b> here</>");
        assert_eq!(shown("\\*not\\*"), "*not*");
    }

    #[test]
    fn marks_that_mean_nothing_stay() {
        for text in
            ["2 * 3 * 4", "a*b", "snake_case_name", "__init__x", "**open", "a `b", "5 > 3", "a\\b", "-x", "#tag"]
        {
            assert_eq!(shown(text), text);
        }
    }

    #[test]
    fn lines_are_blocks() {
        assert_eq!(shown("# Title\ntext"), "<b>Title</>\ntext");
        assert_eq!(shown("- a\n  * b\n+ c"), "• a\n  • b\n• c");
        assert_eq!(shown("> said"), "<d>│ </>said");
        assert_eq!(shown("---\n"), "<d>────────</>\n");
        assert_eq!(shown("**bold** line\n* *i*"), "<b>bold</> line\n• <i>i</>");
        assert_eq!(shown("1. one"), "1. one");
    }

    #[test]
    fn code_stays_as_it_is() {
        let text = "```python\ndef f(*a):\n    return **a\n```\nx";
        assert_eq!(shown(text), "<d>```python</>\n<c>def f(*a):</>\n<c>    return **a</>\n<d>```</>\nx");
        assert_eq!(shown("~~~\n```\n~~~"), "<d>~~~</>\n<c>```</>\n<d>~~~</>");
    }

    /// However the text is cut into pieces, the same shows in the end; and every character but marks is there.
    #[test]
    fn pieces_make_no_difference() {
        let text = "# A *b*\n\nSome **bold `code` text** and _it_ 2 * 3, a_b_c\n- x\n- **y**: z\n```rust\nlet a = `*`;\n```\n> q\n---\nend **open";
        let visible = |shown: &str| {
            [BOLD, ITALIC, CODE, DIM, RESET].iter().fold(shown.to_owned(), |text, code| text.replace(code, ""))
        };
        let mut whole = Markdown::default();
        let expected = visible(&(whole.push(text) + &whole.finish()));
        for size in [1, 2, 3, 7] {
            let mut markdown = Markdown::default();
            let characters: Vec<char> = text.chars().collect();
            let mut found = String::new();
            for piece in characters.chunks(size) {
                found += &markdown.push(&piece.iter().collect::<String>());
            }
            found += &markdown.finish();
            assert_eq!(visible(&found), expected, "pieces of {size}");
        }
        assert!(expected.contains("end **open") && expected.contains("2 * 3, a_b_c"));
    }

    #[test]
    fn plain_text_is_shown_at_once() {
        let mut markdown = Markdown::default();
        assert_eq!(markdown.push("Hello"), "Hello");
        assert_eq!(markdown.push(" wor"), " wor");
        assert_eq!(markdown.push("ld **b"), "ld ");
        assert_eq!(named(&markdown.push("old** x")), "<b>bold</> x");
    }
}
