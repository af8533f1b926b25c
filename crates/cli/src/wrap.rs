//! Lines that end between words, while they are being written.
//!
//! Libraries wrap whole texts; an answer comes a few characters at a time. A word is held back until it is known where it
//! ends, so nothing that stands on the terminal is ever taken back, and the terminal may change its size at any time.

use unicode_linebreak::linebreaks;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::markdown::Fence;
use crate::style::RESET;

/// Breaks the lines of a text with the terminal's own marks. Lines of code stay as they are.
#[derive(Debug, Default)]
pub(crate) struct Wrap {
    /// Text since the last place where the line may break.
    held: String,
    /// The terminal's marks, and the bytes of `held` that each of them follows.
    marks: Vec<(usize, String)>,
    /// The marks that are in force after what was written.
    style: String,
    /// Spaces before the next word, unless a new row begins with it.
    gap: String,
    /// Whether the next word is the rest of one that is longer than a row.
    is_rest: bool,
    /// Columns of the row that are taken.
    column: usize,
    /// The line so far.
    line: Line,
    /// What ends the block of code.
    fence: Option<Fence>,
}

/// What is known of a line of the text, which may take several rows.
#[derive(Debug, Default)]
struct Line {
    /// Its text.
    text: String,
    /// Columns that its further rows begin after.
    indent: usize,
    /// Whether there was a word that is no part of the indentation, as a bullet or a number is.
    has_words: bool,
}

/// The first word of what is held.
struct Word {
    /// The byte after it and the spaces that follow it.
    end: usize,
    /// Whether it is longer than a row, so that there is more of it.
    is_cut: bool,
}

const TAB: usize = 8;

impl Wrap {
    /// What can be shown on a terminal of so many columns once `text` has come.
    pub(crate) fn push(&mut self, text: &str, columns: usize) -> String {
        let mut shown = String::new();
        for part in text.split_inclusive('\n') {
            self.take(part.trim_end_matches('\n'));
            self.advance(&mut shown, columns, part.ends_with('\n'));
            if part.ends_with('\n') {
                self.end_line(&mut shown);
            }
        }
        shown
    }

    /// What is still held back.
    pub(crate) fn finish(&mut self, columns: usize) -> String {
        let mut shown = String::new();
        self.advance(&mut shown, columns, true);
        *self = Self::default();
        shown
    }

    /// Tells text and marks apart.
    fn take(&mut self, text: &str) {
        let mut rest = text;
        while let Some((plain, mark)) = rest.split_once('\x1b') {
            self.held.push_str(plain);
            let end = mark.find('m').map_or(mark.len(), |end| end + 1);
            self.marks.push((self.held.len(), format!("\x1b{}", &mark[..end])));
            self.line.text.push_str(plain);
            rest = &mark[end..];
        }
        self.held.push_str(rest);
        self.line.text.push_str(rest);
    }

    /// Writes every word that is whole; all of them at the end of a line.
    fn advance(&mut self, shown: &mut String, columns: usize, line_ends: bool) {
        if self.fence.is_some() {
            let length = self.held.len();
            return self.write(shown, length, length);
        }
        let columns = columns.max(1);
        while let Some(word) = first_word(&self.held, columns) {
            self.word(shown, &word, columns);
        }
        if line_ends && !(self.held.is_empty() && self.marks.is_empty()) {
            let last = Word { end: self.held.len(), is_cut: false };
            self.word(shown, &last, columns);
        }
    }

    /// Writes a word, on a new row if it does not fit.
    fn word(&mut self, shown: &mut String, &Word { end, is_cut }: &Word, columns: usize) {
        let is_rest = std::mem::replace(&mut self.is_rest, is_cut);
        let word = self.held[..end].trim_end_matches([' ', '\t']).to_owned();
        let gap = self.held[word.len()..end].to_owned();
        // A narrower terminal has broken the row by itself.
        self.column = within(self.column, columns);
        if !word.is_empty() {
            let start = after(self.column, &self.gap);
            let indent = if self.line.indent * 2 > columns { 0 } else { self.line.indent };
            if start + word.width() > columns && start > indent && !is_rest {
                shown.push('\n');
                shown.push_str(&" ".repeat(indent));
                self.column = indent;
            } else {
                shown.push_str(&self.gap);
                self.column = start;
            }
            self.column = within(after(self.column, &word), columns);
            self.gap.clear();
        }
        self.write(shown, word.len(), end);
        self.gap.push_str(&gap);
        self.indent_after(&word);
    }

    /// Further rows begin below the text of a list's item, after its bullet.
    fn indent_after(&mut self, word: &str) {
        let is_marker = matches!(word, "" | "•" | "-" | "*" | "+" | "│") || is_number(word);
        if !self.line.has_words && is_marker {
            self.line.indent = after(self.column, &self.gap);
        }
        self.line.has_words |= !is_marker;
    }

    /// Writes `length` bytes of what is held with their marks, and lets go of it up to byte `end`. No mark stays in force: a
    /// process that is killed leaves the terminal as it was.
    fn write(&mut self, shown: &mut String, length: usize, end: usize) {
        if length > 0 {
            shown.push_str(&self.style);
        }
        let mut written = 0;
        let due = self.marks.iter().take_while(|(at, _)| *at <= length).count();
        for (at, mark) in self.marks.drain(..due) {
            shown.push_str(&self.held[written..at]);
            written = at;
            if length > 0 {
                shown.push_str(&mark);
            }
            if mark == RESET { self.style.clear() } else { self.style.push_str(&mark) }
        }
        shown.push_str(&self.held[written..length]);
        if length > 0 && !self.style.is_empty() {
            shown.push_str(RESET);
        }
        self.held.drain(..end);
        self.marks.iter_mut().for_each(|(at, _)| *at = at.saturating_sub(end));
    }

    fn end_line(&mut self, shown: &mut String) {
        shown.push('\n');
        let text = std::mem::take(&mut self.line).text;
        self.fence = match self.fence.take() {
            Some(fence) => Some(fence).filter(|fence| !fence.is_closed_by(&text)),
            None => Fence::opened_by(&text),
        };
        self.gap.clear();
        (self.column, self.is_rest) = (0, false);
    }
}

/// The first word of a text, if it is known where it ends: at a space, beside a character of a script that has none, or
/// where the row is full.
fn first_word(text: &str, columns: usize) -> Option<Word> {
    let is_wide = |character: char| character.width() == Some(2);
    let ends_at = |at: usize| {
        let (before, after) = (text[..at].chars().next_back(), text[at..].chars().next());
        let may_end = |before: char| before.is_whitespace() || is_wide(before) || after.is_some_and(is_wide);
        after.is_some() && before.is_some_and(may_end)
    };
    let mut taken = 0;
    let full = text.char_indices().find(|(at, character)| {
        taken += character.width().unwrap_or(0);
        // A row holds one character at least.
        taken > columns && *at > 0
    });
    let word = linebreaks(text).map(|(at, _)| at).find(|&at| ends_at(at));
    match (word, full) {
        // The spaces after a word may reach beyond the row.
        (Some(end), Some((full, _))) if text[..end].trim_end_matches([' ', '\t']).len() > full => {
            Some(Word { end: full, is_cut: true })
        }
        (Some(end), _) => Some(Word { end, is_cut: false }),
        (None, Some((full, _))) if text.trim_end_matches([' ', '\t']).len() > full => {
            Some(Word { end: full, is_cut: true })
        }
        (None, _) => None,
    }
}

/// `12.` or `3)`, as items of a list have.
fn is_number(word: &str) -> bool {
    let digits = word.strip_suffix(['.', ')']).unwrap_or_default();
    (1..=3).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// The column after a text that begins at `column`.
fn after(column: usize, text: &str) -> usize {
    text.split_inclusive('\t').fold(column, |column, part| match part.strip_suffix('\t') {
        Some(part) => (column + part.width()) / TAB * TAB + TAB,
        None => column + part.width(),
    })
}

/// The column in its row, for a text that went on through several rows.
fn within(column: usize, columns: usize) -> usize {
    if column > columns { (column - 1) % columns + 1 } else { column }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::style::BOLD;

    fn wrapped(text: &str, columns: usize) -> String {
        let mut wrap = Wrap::default();
        wrap.push(text, columns) + &wrap.finish(columns)
    }

    #[test]
    fn rows_end_between_words() {
        assert_eq!(wrapped("one two three four", 9), "one two\nthree\nfour");
        assert_eq!(wrapped("exactly 10 fit", 10), "exactly 10\nfit");
        assert_eq!(wrapped("a  b\n\n  c d\n", 20), "a  b\n\n  c d\n");
        assert_eq!(wrapped("well-known --flags and/or paths", 12), "well-known\n--flags\nand/or paths");
        assert_eq!(wrapped("a\tb c", 10), "a\tb\nc");
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(wrapped("日本語の文章です。次", 8), "日本語の\n文章で\nす。次");
        assert_eq!(wrapped("ab 日本 cd", 6), "ab 日\n本 cd");
        assert_eq!(wrapped("e\u{301}e\u{301} e\u{301}", 4), "e\u{301}e\u{301} e\u{301}");
    }

    #[test]
    fn items_of_lists_stay_beside_their_bullets() {
        assert_eq!(wrapped("• one two three", 9), "• one two\n  three");
        assert_eq!(wrapped("  - one two", 8), "  - one\n    two");
        assert_eq!(wrapped("10. one two", 8), "10. one\n    two");
        // Where that would leave next to nothing, they do not.
        assert_eq!(wrapped("      - one two", 10), "      -\none two");
    }

    #[test]
    fn code_stays_as_it_is() {
        let code = "```rust\nlet long = \"line of code\";\n```\n";
        assert_eq!(wrapped(&format!("{code}one two three"), 9), format!("{code}one two\nthree"));
        assert_eq!(wrapped("~~~\n```\na b c d e\n~~~", 4), "~~~\n```\na b c d e\n~~~");
    }

    /// The terminal breaks a word that is longer than a row, so that it can be copied whole.
    #[test]
    fn a_long_word_is_left_to_the_terminal() {
        assert_eq!(wrapped("see https://example.com/a/b for more", 10), "see\nhttps://example.com/a/b for\nmore");
        assert_eq!(wrapped("abcdefghijkl mn", 6), "abcdefghijkl\nmn");
    }

    #[test]
    fn marks_take_no_columns_and_end_with_each_word() {
        let bold = |text: &str| format!("{BOLD}{text}{RESET}");
        let found = wrapped(&format!("a {} d", bold("bb cc")), 5);
        assert_eq!(found, format!("a {}\n{} d", bold("bb"), bold("cc")));
    }

    #[test]
    fn a_word_is_held_back_until_it_ends() {
        let mut wrap = Wrap::default();
        assert_eq!(wrap.push("one tw", 20), "one");
        assert_eq!(wrap.push("o th", 20), " two");
        assert_eq!(wrap.push("ree\n```\nco", 20), " three\n```\nco");
        assert_eq!(wrap.push("de", 20), "de");
        assert_eq!(wrap.finish(20), "");
    }

    #[test]
    fn pieces_make_no_difference() {
        let text = "A line of words, 日本語 and 👍 emoji — with **marks**.\n\n- an item that goes on\n1. abcdefghijklmnopqrstuvwxyz\n\
                    ```\ncode code code\n```\nthe end ";
        for columns in [1, 2, 5, 9, 14, 40] {
            let expected = wrapped(text, columns);
            for size in [1, 2, 3, 7] {
                let mut wrap = Wrap::default();
                let characters: Vec<char> = text.chars().collect();
                let pieces = characters.chunks(size).map(|piece| piece.iter().collect::<String>());
                let found: String = pieces.map(|piece| wrap.push(&piece, columns)).collect();
                assert_eq!(found + &wrap.finish(columns), expected, "{columns} columns, pieces of {size}");
            }
        }
    }

    /// A terminal that becomes narrower breaks the row that stands there; what comes fits into what is left of it.
    #[test]
    fn a_terminal_may_change_its_size() {
        let mut wrap = Wrap::default();
        let mut shown = wrap.push("one two three four ", 40);
        shown += &wrap.push("five six seven ", 10);
        shown += &wrap.push("eight nine ten", 40);
        assert_eq!(shown + &wrap.finish(40), "one two three four\nfive six seven eight nine ten");
    }
}
