//! Keys before the editor sees them: pasted text is gathered, and what a terminal tells of itself is left out.
//!
//! The editor by itself waits for the end of a paste whatever is pressed meanwhile, and takes the rest of a sequence that it
//! does not know for typed text.

use std::mem;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustyline::{Cmd, ConditionalEventHandler, Event, EventContext, KeyCode, KeyEvent, Modifiers, RepeatCount};

/// What was pressed or sent so far, as far as it decides about the next key.
#[derive(Debug)]
struct Keys {
    state: State,
    last: Instant,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Typing,
    /// Text is pasted, this much until now.
    Pasting(String),
    /// The rest of an unknown sequence comes, up to a character from `@` to `~`.
    Sequence,
    /// A message of the terminal comes, up to BEL or ESC `\`.
    Message,
}

/// What becomes of a key.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// The editor does what it does.
    Kept,
    Dropped,
    /// A paste is complete.
    Pasted(String),
}

/// Keys that follow each other sooner come from a program, which writes them at once. A key that is held down comes again after
/// 30 ms or more, as systems are set.
const TOGETHER: Duration = Duration::from_millis(25);

impl Keys {
    fn new(now: Instant) -> Self {
        Self { state: State::Typing, last: now }
    }

    fn key(&mut self, key: KeyEvent, now: Instant) -> Fate {
        let follows = now.duration_since(mem::replace(&mut self.last, now)) < TOGETHER;
        match (&mut self.state, key) {
            (State::Pasting(text), KeyEvent(KeyCode::BracketedPasteEnd, _)) => {
                let text = text.replace("\r\n", "\n").replace('\r', "\n");
                self.state = State::Typing;
                return Fate::Pasted(text);
            }
            // One that stands in the text comes together with the rest of it.
            (State::Pasting(_), key) if key == KeyEvent::ctrl('C') && !follows => {}
            (State::Pasting(text), key) => {
                text.extend(character(key));
                return Fate::Dropped;
            }
            (State::Sequence, KeyEvent(KeyCode::Char(character), Modifiers::NONE)) if follows => {
                if ('@'..='~').contains(&character) {
                    self.state = State::Typing;
                }
                return Fate::Dropped;
            }
            (State::Message, key) if follows => {
                if key == KeyEvent::ctrl('G') || key == KeyEvent::alt('\\') {
                    self.state = State::Typing;
                }
                return Fate::Dropped;
            }
            _ => {}
        }
        self.begin(key)
    }

    /// A key that belongs to nothing that came before.
    fn begin(&mut self, KeyEvent(code, modifiers): KeyEvent) -> Fate {
        let (state, fate) = match code {
            KeyCode::BracketedPasteStart => (State::Pasting(String::new()), Fate::Dropped),
            KeyCode::UnknownEscSeq => (State::Sequence, Fate::Dropped),
            // OSC, DCS, SOS, PM and APC begin as these keys do.
            KeyCode::Char(']' | 'P' | 'X' | '^' | '_') if modifiers == Modifiers::ALT => (State::Message, Fate::Kept),
            _ => (State::Typing, Fate::Kept),
        };
        self.state = state;
        fate
    }
}

/// What a key stands for in a text.
fn character(KeyEvent(code, modifiers): KeyEvent) -> Option<char> {
    match (code, modifiers) {
        (KeyCode::Char(character), Modifiers::NONE) => Some(character),
        (KeyCode::Enter, _) => Some('\r'),
        (KeyCode::Char('J'), Modifiers::CTRL) => Some('\n'),
        (KeyCode::Tab, _) => Some('\t'),
        _ => None,
    }
}

/// [`Keys`] at the place where the editor asks about them.
#[derive(Debug)]
pub(super) struct KeyFilter(Mutex<Keys>);

impl KeyFilter {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Keys::new(Instant::now())))
    }
}

impl ConditionalEventHandler for KeyFilter {
    fn handle(&self, event: &Event, _: RepeatCount, _: bool, _: &EventContext<'_>) -> Option<Cmd> {
        let key = *event.get(0)?;
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).key(key, Instant::now()) {
            Fate::Kept => None,
            Fate::Dropped => Some(Cmd::Noop),
            Fate::Pasted(text) => Some(Cmd::Insert(1, text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: KeyEvent = KeyEvent(KeyCode::BracketedPasteStart, Modifiers::NONE);
    const END: KeyEvent = KeyEvent(KeyCode::BracketedPasteEnd, Modifiers::NONE);
    const UNKNOWN: KeyEvent = KeyEvent(KeyCode::UnknownEscSeq, Modifiers::NONE);

    fn keys(text: &str) -> impl Iterator<Item = KeyEvent> + Clone {
        text.chars().map(KeyEvent::from)
    }

    /// What becomes of keys that come at once, and of those that are pressed by somebody after them.
    fn fates(sent: impl IntoIterator<Item = KeyEvent>, typed: impl IntoIterator<Item = KeyEvent>) -> Vec<Fate> {
        let mut now = Instant::now();
        let mut keys = Keys::new(now);
        let mut fates: Vec<Fate> = sent.into_iter().map(|key| keys.key(key, now)).collect();
        fates.extend(typed.into_iter().map(|key| {
            now += TOGETHER;
            keys.key(key, now)
        }));
        fates.retain(|fate| *fate != Fate::Dropped);
        fates
    }

    #[test]
    fn a_paste_is_one_text_without_the_keys_in_it() {
        let text = "a\tb\r\n\u{3}c\u{1b}\rd";
        let pasted = [START].into_iter().chain(keys(text)).chain([UNKNOWN, END]);
        assert_eq!(fates(pasted, keys("x")), [Fate::Pasted("a\tb\nc\nd".to_owned()), Fate::Kept]);
    }

    #[test]
    fn ctrl_c_ends_a_paste_that_never_ends() {
        let typed = [KeyEvent::ctrl('C'), KeyEvent::from('x')];
        assert_eq!(fates([START].into_iter().chain(keys("half")), typed), [Fate::Kept, Fate::Kept]);
    }

    #[test]
    fn the_rest_of_an_unknown_sequence_is_left_out() {
        assert_eq!(fates([UNKNOWN].into_iter().chain(keys("62;1;6c")), keys("x")), [Fate::Kept]);
        let told = [KeyEvent::alt(']')].into_iter().chain(keys("11;rgb:00/00/00"));
        for end in [KeyEvent::ctrl('G'), KeyEvent::alt('\\')] {
            assert_eq!(fates(told.clone().chain([end]), keys("x")), [Fate::Kept, Fate::Kept]);
        }
    }

    /// Alt and a key, or a key that no editor knows, and a word that is typed after it.
    #[test]
    fn what_is_typed_after_a_strange_key_is_kept() {
        assert_eq!(fates([UNKNOWN], keys("hi")), [Fate::Kept, Fate::Kept]);
        assert_eq!(fates([KeyEvent::alt('P')], keys("hi")), [Fate::Kept, Fate::Kept, Fate::Kept]);
    }
}
