//! What a request demands of its tokens: a thought within its budget, then an answer within its grammar.

use pleach_engine::{AddedTokens, Constraint, Engine, Flow, TokenMask, Tokenizer};

use crate::grammar::Rule;

const CLOSE: &[u8] = b"</think>";

/// The demands of one request, for any number of texts.
pub(crate) struct Demands {
    pub(crate) grammar: Option<Rule>,
    /// Tokens that a thought may have.
    pub(crate) budget: Option<usize>,
    /// Whether the model may begin to think by itself.
    pub(crate) may_think: bool,
    /// Tokens that come before one that ends the text.
    pub(crate) min_tokens: usize,
}

/// The thought's side of a vocabulary; made once per model.
#[derive(Debug)]
pub(crate) struct Thoughts {
    tokenizer: Tokenizer,
    /// The token that opens a thought, if one does.
    open: Option<u32>,
    /// The text that ends a thought, as the model would write it.
    closing: Vec<u32>,
    stop_tokens: Vec<u32>,
    /// Tokens that end a thought and begin the answer at once, with the bytes of the marker that they begin with.
    spills: Vec<(u32, usize)>,
    vocab_size: usize,
}

impl Thoughts {
    pub(crate) fn new(engine: &Engine) -> Self {
        let tokenizer = engine.tokenizer().clone();
        let closing = tokenizer.encode("\n</think>\n\n", AddedTokens::Parse).unwrap_or_default();
        let spills = (0..tokenizer.vocab_size() as u32)
            .filter_map(|id| Some((id, spill(&tokenizer.token_bytes(id)?)?)))
            .collect();
        Self {
            // Some models have the token from their makers' other models, and no use for it.
            open: tokenizer.id("<think>").filter(|_| engine.has_thoughts()),
            closing,
            stop_tokens: engine.stop_tokens().to_vec(),
            spills,
            vocab_size: engine.info().vocab_size,
            tokenizer,
        }
    }

    /// Whether the model thinks, and begins that with a token.
    pub(crate) fn has_marker(&self) -> bool {
        self.open.is_some()
    }
}

/// Bytes of the marker's end that `token` begins with, if more than white space follows them.
fn spill(token: &[u8]) -> Option<usize> {
    (1..=CLOSE.len()).find(|&bytes| {
        let rest = token.strip_prefix(&CLOSE[CLOSE.len() - bytes..]);
        rest.is_some_and(|rest| !rest.is_empty() && !rest.iter().all(u8::is_ascii_whitespace))
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing but white space was written.
    Start,
    Thinking,
    /// The closing text is being written, from this token of it on.
    Closing(usize),
    Answer,
}

/// Watches one text.
pub(crate) struct Gate {
    thoughts: std::sync::Arc<Thoughts>,
    grammar: Option<Rule>,
    budget: Option<usize>,
    may_think: bool,
    phase: Phase,
    /// Tokens of the thought.
    spent: usize,
    /// The last bytes of the thought, fewer than the marker's.
    tail: Vec<u8>,
    mask: TokenMask,
    /// All tokens but those that end the text, which may come after so many more.
    unending: TokenMask,
    min_tokens: usize,
}

impl Gate {
    /// A gate at the start of a text; `thinking` if the prompt opened a thought.
    pub(crate) fn new(thoughts: std::sync::Arc<Thoughts>, demands: &Demands, thinking: bool) -> Self {
        let mut mask = TokenMask::all(thoughts.vocab_size);
        thoughts.stop_tokens.iter().for_each(|&token| mask.forbid(token));
        let mut gate = Self {
            grammar: demands.grammar.as_ref().map(Rule::fork),
            budget: demands.budget,
            may_think: demands.may_think,
            phase: if thinking { Phase::Thinking } else { Phase::Start },
            spent: 0,
            tail: Vec::new(),
            unending: mask.clone(),
            mask,
            min_tokens: demands.min_tokens,
            thoughts,
        };
        gate.close_if_spent();
        gate
    }

    fn close_if_spent(&mut self) {
        let is_spent = self.budget.is_some_and(|budget| self.spent >= budget);
        if self.phase == Phase::Thinking && is_spent && !self.thoughts.closing.is_empty() {
            self.phase = Phase::Closing(0);
        }
    }

    fn think(&mut self, token: u32) {
        self.spent += 1;
        let mut text = std::mem::take(&mut self.tail);
        text.extend(self.thoughts.tokenizer.token_bytes(token).unwrap_or_default());
        if text.windows(CLOSE.len()).any(|window| window == CLOSE) {
            self.phase = Phase::Answer;
            return;
        }
        self.tail = text.split_off(text.len() - text.len().min(CLOSE.len() - 1));
        self.close_if_spent();
    }

    fn start(&mut self, token: u32) -> Flow {
        if self.may_think && self.thoughts.open == Some(token) {
            self.phase = Phase::Thinking;
            self.close_if_spent();
            return Flow::Continue;
        }
        let bytes = self.thoughts.tokenizer.token_bytes(token).unwrap_or_default();
        if self.grammar.is_some() || !bytes.iter().all(u8::is_ascii_whitespace) {
            self.phase = Phase::Answer;
        }
        self.answer(token)
    }

    fn answer(&mut self, token: u32) -> Flow {
        self.grammar.as_mut().map_or(Flow::Continue, |grammar| grammar.push(token))
    }

    /// All tokens but those that would end the text in its thought, or run over the thought's end.
    fn thinking_mask(&mut self) -> &TokenMask {
        for &(token, bytes) in &self.thoughts.spills {
            let completes = self.tail.ends_with(&CLOSE[..CLOSE.len() - bytes]);
            if completes { self.mask.forbid(token) } else { self.mask.allow(token) }
        }
        &self.mask
    }
}

impl Constraint for Gate {
    fn allowed(&mut self) -> Option<&TokenMask> {
        match self.phase {
            Phase::Thinking if self.grammar.is_some() => Some(self.thinking_mask()),
            Phase::Closing(index) => {
                self.mask = TokenMask::none(self.thoughts.vocab_size);
                self.mask.allow(self.thoughts.closing[index]);
                Some(&self.mask)
            }
            Phase::Thinking => (self.min_tokens > 0).then_some(&self.unending),
            Phase::Start | Phase::Answer => {
                let open = self.thoughts.open.filter(|_| self.may_think && self.phase == Phase::Start);
                let Some(grammar) = &mut self.grammar else { return (self.min_tokens > 0).then_some(&self.unending) };
                let mask = grammar.allowed();
                open.into_iter().for_each(|token| mask.allow(token));
                Some(mask)
            }
        }
    }

    fn forced(&mut self, most: usize) -> Vec<u32> {
        match self.phase {
            Phase::Closing(index) => self.thoughts.closing[index..].iter().copied().take(most).collect(),
            Phase::Start if self.may_think => Vec::new(),
            Phase::Start | Phase::Answer => self.grammar.as_mut().map(|rule| rule.forced(most)).unwrap_or_default(),
            Phase::Thinking => Vec::new(),
        }
    }

    fn push(&mut self, token: u32) -> Flow {
        self.min_tokens = self.min_tokens.saturating_sub(1);
        match self.phase {
            Phase::Start => return self.start(token),
            Phase::Thinking => self.think(token),
            Phase::Closing(index) if index + 1 == self.thoughts.closing.len() => self.phase = Phase::Answer,
            Phase::Closing(index) => self.phase = Phase::Closing(index + 1),
            Phase::Answer => return self.answer(token),
        }
        Flow::Continue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_run_over_a_thoughts_end_are_found() {
        assert_eq!(spill(b">a"), Some(1));
        assert_eq!(spill(b"think>{"), Some(6));
        assert_eq!(spill(b"</think>\n\nx"), Some(8));
        for harmless in [&b">"[..], b">\n\n", b"</think>", b"think", b"x>a", b""] {
            assert_eq!(spill(harmless), None);
        }
    }
}
