//! What a caller may demand of a text, and what it may know of a session beforehand.

#![allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};

use pleach_engine::{
    CancelToken, Constraint, DeviceChoice, EngineError, EngineOptions, Event, Flow, Pooling, Request, TokenMask,
};

use crate::support::{exact, open, open_with_context, plain, prompt, run};

/// Allows two tokens, forces the first of them every other time, and ends the text after some tokens.
struct Alternate {
    mask: TokenMask,
    pair: [u32; 2],
    seen: Vec<u32>,
    most: usize,
}

impl Constraint for Alternate {
    fn allowed(&mut self) -> Option<&TokenMask> {
        self.mask.allow(self.pair[0]);
        match self.seen.len().is_multiple_of(2) {
            true => self.mask.forbid(self.pair[1]),
            false => self.mask.allow(self.pair[1]),
        }
        Some(&self.mask)
    }

    fn forced(&mut self, most: usize) -> Vec<u32> {
        let is_forced = self.seen.len().is_multiple_of(2) && most > 0;
        if is_forced { vec![self.pair[0]] } else { Vec::new() }
    }

    fn push(&mut self, token: u32) -> Flow {
        self.seen.push(token);
        if self.seen.len() == self.most { Flow::Stop } else { Flow::Continue }
    }
}

fn alternate(vocab_size: usize, most: usize) -> Box<Alternate> {
    Box::new(Alternate { mask: TokenMask::none(vocab_size), pair: [30, 40], seen: Vec::new(), most })
}

#[test]
fn a_demand_decides_tokens_and_end() {
    let engine = open_with_context("tiny-llama", 256);
    let request = Request::tokens(prompt(20)).with(plain(64));
    let mut session = engine.session().unwrap();
    let mut tokens = Vec::new();
    for event in session.generate_with(&request, alternate(engine.info().vocab_size, 9)).unwrap() {
        if let pleach_engine::Event::Token(token) = event.unwrap() {
            tokens.push(token.id);
        }
    }
    assert_eq!(tokens.len(), 9);
    assert!(tokens.iter().step_by(2).all(|&token| token == 30), "{tokens:?}");
    assert!(tokens.iter().all(|token| [30, 40].contains(token)), "{tokens:?}");
}

#[test]
fn a_demand_that_allows_nothing_ends_its_request_alone() {
    struct Nothing(TokenMask);
    impl Constraint for Nothing {
        fn allowed(&mut self) -> Option<&TokenMask> {
            Some(&self.0)
        }
        fn push(&mut self, _token: u32) -> Flow {
            Flow::Continue
        }
    }
    let engine = open_with_context("tiny-llama", 256);
    let mut session = engine.session().unwrap();
    let request = Request::tokens(prompt(20)).with(plain(4));
    let mask = TokenMask::none(engine.info().vocab_size);
    let last = session.generate_with(&request, Box::new(Nothing(mask))).unwrap().last().unwrap();
    assert!(matches!(last, Err(EngineError::Decode(_))), "{last:?}");
    assert_eq!(session.reusable_tokens(&prompt(20)), 20, "a demand says nothing of the states");
    assert_eq!(run(&mut session, &request).tokens.len(), 4);
}

#[test]
fn a_demand_that_panics_leaves_what_was_kept() {
    struct Panics;
    impl Constraint for Panics {
        fn push(&mut self, _token: u32) -> Flow {
            panic!("as it was told to")
        }
    }
    let engine = open_with_context("tiny-llama", 256);
    let mut session = engine.session().unwrap();
    let request = Request::tokens(prompt(20)).with(plain(4));
    let last = session.generate_with(&request, Box::new(Panics)).unwrap().last().unwrap();
    assert!(matches!(last, Err(EngineError::Fault)), "{last:?}");
    assert_eq!(session.reusable_tokens(&prompt(20)), 20);
}

/// Whoever unwinds through a request may have left its state half changed.
#[test]
fn a_request_that_a_panic_gives_up_keeps_nothing() {
    let options = EngineOptions { context: 256.into(), prefill_chunk: 16, ..exact(DeviceChoice::Cpu) };
    let engine = open("tiny-llama", &options);
    for is_panic in [false, true] {
        let mut session = engine.session().unwrap();
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let request = Request::tokens(prompt(60)).with(plain(4));
            let mut events = session.generate(&request).unwrap();
            assert!(events.by_ref().take(3).all(|event| matches!(event, Ok(Event::Prefill(_)))));
            assert!(!is_panic, "as it was told to");
        }));
        assert_eq!(ended.is_err(), is_panic);
        assert_eq!(session.reusable_tokens(&prompt(60)) > 0, !is_panic);
    }
}

#[test]
fn what_a_session_would_not_read_again_is_what_it_reports_as_cached() {
    let engine = open_with_context("tiny-qwen35", 256);
    let mut session = engine.session().unwrap();
    let long = prompt(40);
    assert_eq!(session.reusable_tokens(&long), 0);
    run(&mut session, &Request::tokens(long[..20].to_vec()).with(plain(1)));
    for (prompt, known) in [(&long[..], 20), (&long[..20], 20), (&long[..19], 0), (&long[1..], 0), (&[], 0)] {
        assert_eq!(session.reusable_tokens(prompt), known, "{} tokens", prompt.len());
    }
    assert_eq!(run(&mut session, &Request::tokens(long).with(plain(1))).finished().usage.cached_tokens, 20);
}

#[test]
fn a_text_embeds_the_same_in_any_chunks() {
    let whole = open_with_context("tiny-qwen35", 256);
    let options = pleach_engine::EngineOptions {
        prefill_chunk: 3,
        context: 256.into(),
        ..support::exact(pleach_engine::DeviceChoice::Cpu)
    };
    let in_pieces = support::open("tiny-qwen35", &options);
    let text = prompt(20);
    let go = CancelToken::new();
    for pooling in [Pooling::Mean, Pooling::LastToken] {
        let vector = whole.embed(&text, pooling, &go).unwrap();
        assert_eq!(vector, in_pieces.embed(&text, pooling, &go).unwrap());
        assert_eq!(vector.len(), 64);
    }
    assert_ne!(whole.embed(&text, Pooling::Mean, &go).unwrap(), whole.embed(&text, Pooling::LastToken, &go).unwrap());
    let cancelled = CancelToken::new();
    cancelled.cancel();
    assert!(matches!(whole.embed(&text, Pooling::Mean, &cancelled), Err(EngineError::Cancelled)));
    assert!(matches!(whole.embed(&[], Pooling::Mean, &go), Err(EngineError::Decode(_))));
    assert!(matches!(whole.embed(&[512], Pooling::Mean, &go), Err(EngineError::Decode(_))));
    assert!(matches!(whole.embed(&prompt(257), Pooling::Mean, &go), Err(EngineError::PromptTooLong { .. })));
}

#[test]
fn settings_are_checked_without_a_prompt() {
    let engine = open_with_context("tiny-llama", 64);
    assert!(engine.check(&plain(5)).is_ok());
    let mut settings = plain(5);
    settings.sampling.top_p = Some(2.0);
    assert_eq!(engine.check(&settings).unwrap_err().to_string(), "`top_p` is 2, but must be above 0 and at most 1");
}
