//! Calls as Qwen3.5 writes them: `<function=name>`, then `<parameter=key>` with the value as text.

use serde_json::Value;

use super::parser::{Piece, Progress, held_bytes};
use super::{Tool, typed};

const PARAMETER: &str = "<parameter=";
const END_PARAMETER: &str = "</parameter>";
const END_VALUE: &str = "\n</parameter>";
const END_FUNCTION: &str = "</function>";
const END_CALL: &str = "</tool_call>";
/// Longest name of a function or a parameter.
const MAX_NAME_BYTES: usize = 256;

/// A call while it is read, from after `<function=` on.
#[derive(Debug, Default)]
pub(super) struct XmlCall {
    must_be_offered: bool,
    /// Schema of the arguments; null for a tool that was not offered.
    schema: Value,
    num_parameters: usize,
    part: Part,
}

#[derive(Debug, Default, PartialEq)]
enum Part {
    #[default]
    Name,
    /// Between parameters.
    Between,
    Key,
    /// A text that is passed on as it comes; `fresh` until its first character.
    Text {
        fresh: bool,
    },
    /// Anything else, by its parameter.
    Typed(String),
}

impl XmlCall {
    /// A call without the marker around it, which only counts for a tool that was offered.
    pub(super) fn of_offered_tool() -> Self {
        Self { must_be_offered: true, ..Self::default() }
    }

    pub(super) fn push(&mut self, held: &mut String, tools: &[Tool], pieces: &mut Vec<Piece>) -> Progress {
        loop {
            let step = match &self.part {
                Part::Name => self.read_name(held, tools, pieces),
                Part::Between => read_between(held),
                Part::Key => self.read_key(held, pieces),
                Part::Text { fresh } => self.read_text(*fresh, held, pieces),
                Part::Typed(_) => self.read_typed(held, pieces),
            };
            match step {
                Some(part) => self.part = part,
                None if self.part == Part::Between && ends(held) => {
                    return self.end(held, pieces);
                }
                None if self.part == Part::Name && !may_be_name(held) => return Progress::NoCall,
                None => return Progress::Wait,
            }
        }
    }

    /// Ends a call in the middle of it.
    pub(super) fn finish(mut self, held: &str, ended: bool, pieces: &mut Vec<Piece>) -> Progress {
        if self.part == Part::Name {
            return Progress::NoCall;
        }
        if !ended {
            return Progress::Done;
        }
        match &self.part {
            Part::Text { fresh } => {
                let text = if *fresh { held.strip_prefix('\n').unwrap_or(held) } else { held };
                arguments(escaped(text) + "\"", pieces);
            }
            Part::Typed(key) => {
                let value = self.typed_value(key, held);
                arguments(value.to_string(), pieces);
            }
            _ => {}
        }
        self.close(pieces);
        Progress::Done
    }

    fn read_name(&mut self, held: &mut String, tools: &[Tool], pieces: &mut Vec<Piece>) -> Option<Part> {
        let end = held.find('>').filter(|&end| may_be_name(&held[..end]))?;
        let name = held[..end].trim().to_owned();
        let tool = tools.iter().find(|tool| tool.name == name);
        if name.is_empty() || (self.must_be_offered && tool.is_none()) {
            return None;
        }
        self.schema = tool.map(|tool| tool.parameters.clone()).unwrap_or_default();
        held.drain(..=end);
        pieces.push(Piece::Begin(name));
        Some(Part::Between)
    }

    fn read_key(&mut self, held: &mut String, pieces: &mut Vec<Piece>) -> Option<Part> {
        let end = held.find('>')?;
        let key = held[..end].trim().to_owned();
        held.drain(..=end);
        let before = if self.num_parameters == 0 { "{" } else { ", " };
        self.num_parameters += 1;
        arguments(format!("{before}{}: ", Value::from(key.as_str())), pieces);
        if typed::is_free_text(self.parameter(&key), &self.schema) {
            arguments("\"".to_owned(), pieces);
            return Some(Part::Text { fresh: true });
        }
        Some(Part::Typed(key))
    }

    /// Passes on what cannot be the end of the value.
    fn read_text(&mut self, fresh: bool, held: &mut String, pieces: &mut Vec<Piece>) -> Option<Part> {
        if fresh {
            if held.chars().next()? == '\n' {
                held.drain(..1);
            }
            return Some(Part::Text { fresh: false });
        }
        if let Some(end) = held.find(END_PARAMETER) {
            let text = &held[..end];
            let text = text.strip_suffix('\n').unwrap_or(text);
            arguments(escaped(text) + "\"", pieces);
            held.drain(..end + END_PARAMETER.len());
            return Some(Part::Between);
        }
        let kept = held_bytes(held, END_VALUE).max(held_bytes(held, END_PARAMETER));
        let settled: String = held.drain(..held.len() - kept).collect();
        arguments(escaped(&settled), pieces);
        None
    }

    fn read_typed(&mut self, held: &mut String, pieces: &mut Vec<Piece>) -> Option<Part> {
        let end = held.find(END_PARAMETER)?;
        let Part::Typed(key) = &self.part else { return None };
        let value = self.typed_value(key, &held[..end]);
        arguments(value.to_string(), pieces);
        held.drain(..end + END_PARAMETER.len());
        Some(Part::Between)
    }

    fn typed_value(&self, key: &str, text: &str) -> Value {
        let text = text.strip_prefix('\n').unwrap_or(text);
        let text = text.strip_suffix('\n').unwrap_or(text);
        self.parameter(key).map_or_else(|| Value::from(text), |schema| typed::value(text, schema, &self.schema))
    }

    fn parameter(&self, key: &str) -> Option<&Value> {
        self.schema.get("properties")?.get(key)
    }

    fn end(&mut self, held: &mut String, pieces: &mut Vec<Piece>) -> Progress {
        let rest = held.trim_start();
        // The closing marker of the whole call is left for whoever looks for it.
        *held = rest.strip_prefix(END_FUNCTION).unwrap_or(rest).to_owned();
        self.close(pieces);
        Progress::Done
    }

    fn close(&mut self, pieces: &mut Vec<Piece>) {
        arguments(if self.num_parameters == 0 { "{}" } else { "}" }.to_owned(), pieces);
    }
}

fn read_between(held: &mut String) -> Option<Part> {
    loop {
        let rest = held.trim_start();
        let may_follow = [PARAMETER, END_FUNCTION, END_CALL];
        if let Some(after) = rest.strip_prefix(PARAMETER) {
            *held = after.to_owned();
            return Some(Part::Key);
        }
        if may_follow.iter().any(|marker| marker.starts_with(rest) || rest.starts_with(marker)) {
            return None;
        }
        // Anything else has no place here.
        let next = rest.char_indices().skip(1).find(|&(_, letter)| letter == '<');
        *held = rest[next.map_or(rest.len(), |(at, _)| at)..].to_owned();
    }
}

fn ends(held: &str) -> bool {
    let rest = held.trim_start();
    rest.starts_with(END_FUNCTION) || rest.starts_with(END_CALL)
}

fn may_be_name(text: &str) -> bool {
    text.len() <= MAX_NAME_BYTES && !text.contains(['\n', '<', '>', '{'])
}

fn arguments(text: String, pieces: &mut Vec<Piece>) {
    match pieces.last_mut() {
        _ if text.is_empty() => {}
        Some(Piece::Arguments(last)) => last.push_str(&text),
        _ => pieces.push(Piece::Arguments(text)),
    }
}

/// A text as it stands inside a JSON string.
fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
