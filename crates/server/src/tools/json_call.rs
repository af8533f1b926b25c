//! Calls as JSON: `{"name": ..., "arguments": {...}}`.

use serde_json::Value;

use super::parser::{Piece, Progress};

/// A call while it is read, from its opening brace on.
#[derive(Debug, Default)]
pub(super) struct JsonCall {
    /// What was read so far, until it is clear that this is a call.
    raw: String,
    has_name: bool,
    /// The arguments, as far as they came before the name.
    early: Option<String>,
    has_arguments: bool,
    part: Part,
}

#[derive(Debug, Default)]
enum Part {
    #[default]
    Brace,
    /// Before a key, a comma or the closing brace.
    Key,
    Colon(String),
    /// Before a value.
    Value(String),
    /// Inside a value.
    Inside(String, Extent),
}

/// Where in a JSON value a text has come to.
#[derive(Debug, Default, Clone)]
struct Extent {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// A number, `true`, `false` or `null`, which ends where something else begins.
    is_bare: bool,
    text: String,
}

impl JsonCall {
    /// What was read, for a text that is no call.
    pub(super) fn raw(&self) -> &str {
        &self.raw
    }

    pub(super) fn push(&mut self, held: &mut String, pieces: &mut Vec<Piece>) -> Progress {
        let text = std::mem::take(held);
        let mut shown = String::new();
        for (at, letter) in text.char_indices() {
            let progress = self.read(letter, &mut shown, pieces);
            if matches!(progress, Progress::Wait) {
                self.keep(letter);
                continue;
            }
            flush(&mut shown, pieces);
            // What ends a bare value or the object is the last that belongs to it; what is no call stays.
            let rest = if matches!(progress, Progress::Done) { at + letter.len_utf8() } else { at };
            held.push_str(&text[rest..]);
            return progress;
        }
        flush(&mut shown, pieces);
        Progress::Wait
    }

    /// Ends a call in the middle of it.
    pub(super) fn finish(&self) -> Progress {
        if self.has_name { Progress::Done } else { Progress::NoCall }
    }

    fn keep(&mut self, letter: char) {
        if self.has_name {
            self.raw.clear();
        } else {
            self.raw.push(letter);
        }
    }

    fn read(&mut self, letter: char, shown: &mut String, pieces: &mut Vec<Piece>) -> Progress {
        match std::mem::take(&mut self.part) {
            Part::Brace => self.go(Part::Key),
            Part::Key if letter.is_ascii_whitespace() || letter == ',' => self.go(Part::Key),
            Part::Key if letter == '"' => self.go(Part::Inside(String::new(), Extent::starting(letter))),
            Part::Key if letter == '}' => self.end(shown),
            Part::Key => self.fail(),
            Part::Colon(key) if letter.is_ascii_whitespace() => self.go(Part::Colon(key)),
            Part::Colon(key) if letter == ':' => self.go(Part::Value(key)),
            Part::Colon(_) => self.fail(),
            Part::Value(key) if letter.is_ascii_whitespace() => self.go(Part::Value(key)),
            Part::Value(_) if matches!(letter, ',' | '}' | ']' | ':') => self.fail(),
            Part::Value(key) => {
                let extent = Extent::starting(letter);
                self.pass_on(&key, &extent, letter, shown);
                self.go(Part::Inside(key, extent))
            }
            Part::Inside(key, extent) => self.read_inside(key, extent, letter, shown, pieces),
        }
    }

    fn read_inside(
        &mut self,
        key: String,
        mut extent: Extent,
        letter: char,
        shown: &mut String,
        pieces: &mut Vec<Piece>,
    ) -> Progress {
        if extent.is_bare && matches!(letter, ',' | '}' | ' ' | '\n' | '\r' | '\t') {
            let progress = self.value(&key, extent.text, shown, pieces);
            return if letter == '}' && matches!(progress, Progress::Wait) { self.end(shown) } else { progress };
        }
        let is_complete = extent.take(letter);
        self.pass_on(&key, &extent, letter, shown);
        if is_complete {
            return self.value(&key, extent.text, shown, pieces);
        }
        self.go(Part::Inside(key, extent))
    }

    /// Arguments are passed on letter by letter, once it is known whose they are.
    fn pass_on(&mut self, key: &str, extent: &Extent, letter: char, shown: &mut String) {
        if self.has_name && is_arguments(key) && extent.text.starts_with('{') {
            shown.push(letter);
        }
    }

    /// Notes a complete value. An empty key stands for a key that was read itself.
    fn value(&mut self, key: &str, text: String, shown: &mut String, pieces: &mut Vec<Piece>) -> Progress {
        match key {
            "" => match serde_json::from_str::<String>(&text) {
                // A key that is empty itself must not be taken for that.
                Ok(key) if !key.is_empty() => return self.go(Part::Colon(key)),
                _ => return self.fail(),
            },
            "name" if !self.has_name => match serde_json::from_str::<String>(&text) {
                Ok(name) if !name.is_empty() => self.begin(name, shown, pieces),
                _ => return self.fail(),
            },
            key if is_arguments(key) && !self.has_arguments => self.note_arguments(text, shown),
            _ => {}
        }
        self.go(Part::Key)
    }

    fn begin(&mut self, name: String, shown: &mut String, pieces: &mut Vec<Piece>) {
        self.has_name = true;
        pieces.push(Piece::Begin(name));
        shown.extend(self.early.take());
    }

    fn note_arguments(&mut self, text: String, shown: &mut String) {
        self.has_arguments = true;
        let is_shown = self.has_name && text.starts_with('{');
        // Some models write the arguments as a string of JSON.
        let text = match serde_json::from_str::<String>(&text) {
            Ok(inner) if serde_json::from_str::<Value>(&inner).is_ok_and(|value| value.is_object()) => inner,
            _ if text == "null" => "{}".to_owned(),
            _ => text,
        };
        match (self.has_name, is_shown) {
            (_, true) => {}
            (true, false) => shown.push_str(&text),
            (false, _) => self.early = Some(text),
        }
    }

    fn end(&mut self, shown: &mut String) -> Progress {
        if !self.has_name {
            return self.fail();
        }
        if !self.has_arguments {
            shown.push_str("{}");
        }
        Progress::Done
    }

    fn go(&mut self, part: Part) -> Progress {
        self.part = part;
        Progress::Wait
    }

    /// No call, unless it was one already: then it ends here.
    fn fail(&mut self) -> Progress {
        if self.has_name { Progress::Done } else { Progress::NoCall }
    }
}

impl Extent {
    fn starting(letter: char) -> Self {
        Self {
            depth: usize::from(matches!(letter, '{' | '[')),
            in_string: letter == '"',
            escaped: false,
            is_bare: !matches!(letter, '{' | '[' | '"'),
            text: letter.to_string(),
        }
    }

    /// Takes the next letter; true if the value is complete with it.
    fn take(&mut self, letter: char) -> bool {
        self.text.push(letter);
        match letter {
            _ if self.escaped => self.escaped = false,
            '\\' if self.in_string => self.escaped = true,
            '"' => {
                self.in_string = !self.in_string;
                return !self.in_string && self.depth == 0;
            }
            _ if self.in_string => {}
            '{' | '[' => self.depth += 1,
            '}' | ']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}

fn is_arguments(key: &str) -> bool {
    matches!(key, "arguments" | "parameters")
}

fn flush(shown: &mut String, pieces: &mut Vec<Piece>) {
    if !shown.is_empty() {
        pieces.push(Piece::Arguments(std::mem::take(shown)));
    }
}
