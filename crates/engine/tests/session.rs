//! What a session keeps from one request to the next: its prefix after a success, nothing after a failure.

#![allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]

mod support;

use std::thread;

use pleach_engine::{CancelToken, ChatSession, DeviceChoice, EngineOptions, Event, FinishReason, Request, Settings};

use support::{DEVICES, exact, open, plain, prompt, run, sampled, text_of};

#[test]
fn a_prompt_that_goes_on_is_not_read_again() {
    for model in ["tiny-llama", "tiny-qwen35"] {
        let engine = open(model, &EngineOptions::default());
        let mut session = engine.session().unwrap();
        let answer = run(&mut session, &Request::tokens(prompt(30)).with(sampled(10, 1))).ids();

        let mut longer = [prompt(30), answer].concat();
        longer.extend([40, 41, 42]);
        let request = Request::tokens(longer).with(sampled(12, 2));
        let again = run(&mut session, &request);
        // The last token of an answer was drawn but never run.
        assert_eq!(again.finished().usage.cached_tokens, 39, "{model}");
        assert_eq!(again.prefill[0].done, 39);
        assert_eq!(again.text, text_of(&engine, &request), "{model}");
    }
}

#[test]
fn a_prompt_tried_again_is_not_read_at_all() {
    let engine = open("tiny-qwen35", &EngineOptions::default());
    let mut session = engine.session().unwrap();
    for seed in 0..3 {
        let request = Request::tokens(prompt(30)).with(sampled(12, seed));
        let run = run(&mut session, &request);
        assert_eq!(run.finished().usage.cached_tokens, if seed == 0 { 0 } else { 30 });
        assert_eq!(run.text, text_of(&engine, &request));
    }
}

#[test]
fn another_answer_to_the_same_prompt_starts_at_its_end() {
    let engine = open("tiny-qwen35", &EngineOptions::default());
    let mut session = engine.session().unwrap();
    run(&mut session, &Request::tokens(prompt(30)).with(sampled(12, 0)));
    let edited = Request::tokens([prompt(30), vec![9, 9, 9]].concat()).with(plain(12));
    let run = run(&mut session, &edited);
    assert_eq!(run.finished().usage.cached_tokens, 30);
    assert_eq!(run.text, text_of(&engine, &edited));
}

#[test]
fn a_different_prompt_starts_anew() {
    let engine = open("tiny-qwen35", &EngineOptions::default());
    let mut session = engine.session().unwrap();
    run(&mut session, &Request::tokens(prompt(30)).with(plain(5)));
    for other in [prompt(29), vec![1, 2, 3]] {
        let request = Request::tokens(other).with(plain(12));
        let run = run(&mut session, &request);
        assert_eq!(run.finished().usage.cached_tokens, 0);
        assert_eq!(run.text, text_of(&engine, &request));
    }
}

#[test]
fn another_thread_stops_a_request_within_one_pass() {
    let engine = open("tiny-llama", &exact(DeviceChoice::Cpu));
    let mut session = engine.session().unwrap();
    let cancel = CancelToken::new();
    let settings = Settings { cancel: cancel.clone(), ..plain(1000) };
    let request = Request::tokens(prompt(10)).with(settings);
    let (mut tokens, mut finished) = (0, None);
    for event in session.generate(&request).unwrap() {
        match event.unwrap() {
            Event::Token(_) => tokens += 1,
            Event::Finished(end) => finished = Some(end),
            _ => {}
        }
        if tokens == 3 {
            let cancel = cancel.clone();
            thread::spawn(move || cancel.cancel()).join().unwrap();
        }
    }
    let finished = finished.unwrap();
    assert_eq!((finished.reason, finished.usage.output_tokens), (FinishReason::Cancelled, 3));

    let request = Request::tokens(prompt(10)).with(plain(10));
    let next = run(&mut session, &request);
    assert_eq!(next.finished().usage.cached_tokens, 10);
    assert_eq!(next.text, text_of(&engine, &request));
}

#[test]
fn a_prompt_is_left_between_two_chunks() {
    let engine = open("tiny-qwen35", &EngineOptions { prefill_chunk: 10, ..EngineOptions::default() });
    let mut session = engine.session().unwrap();
    let cancel = CancelToken::new();
    let settings = Settings { cancel: cancel.clone(), ..plain(5) };
    let mut done = Vec::new();
    for event in session.generate(&Request::tokens(prompt(35)).with(settings)).unwrap() {
        match event.unwrap() {
            Event::Prefill(progress) => done.push(progress.done),
            Event::Finished(finished) => {
                assert_eq!(finished.reason, FinishReason::Cancelled);
                assert_eq!(finished.usage.output_tokens, 0);
                assert_eq!(finished.timings.time_to_first_token, None);
            }
            other => panic!("{other:?}"),
        }
        if done.len() == 3 {
            cancel.cancel();
        }
    }
    assert_eq!(done, [0, 10, 20]);

    let request = Request::tokens(prompt(35)).with(plain(5));
    let next = run(&mut session, &request);
    assert_eq!(next.finished().usage.cached_tokens, 20);
    assert_eq!(next.text, text_of(&engine, &request));
}

#[test]
fn a_request_that_is_dropped_leaves_the_session_usable() {
    let engine = open("tiny-qwen35", &EngineOptions::default());
    let mut session = engine.session().unwrap();
    let request = Request::tokens(prompt(20)).with(sampled(12, 5));
    for events in 0..8 {
        session.generate(&request).unwrap().take(events).for_each(|event| drop(event.unwrap()));
    }
    assert_eq!(run(&mut session, &request).text, text_of(&engine, &request));
}

#[test]
fn a_conversation_keeps_its_turns() {
    let engine = open("tiny-llama", &EngineOptions::default());
    let mut chat = ChatSession::new(engine.session().unwrap());
    *chat.settings_mut() = Settings { max_tokens: Some(6), ..plain(6) };
    chat.set_system("Be brief.");
    let first = chat.ask("Hello").unwrap().finish().unwrap();
    assert_eq!(first.reason, Some(FinishReason::Length));
    let mut second = chat.ask("And then?").unwrap();
    let finished = second.by_ref().map(Result::unwrap).find_map(|event| match event {
        Event::Finished(finished) => Some(finished),
        _ => None,
    });
    assert!(finished.unwrap().usage.cached_tokens > 0);
    let roles: Vec<_> = chat.messages().iter().map(|message| message.role.as_str()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);

    let question = chat.undo().unwrap();
    assert_eq!(question, pleach_engine::Message::text(pleach_engine::Role::User, "And then?"));
    assert_eq!(chat.messages().len(), 3);
    chat.clear();
    assert_eq!(chat.messages().len(), 1);
    chat.set_system("");
    assert!(chat.messages().is_empty());
    assert_eq!(chat.undo(), None);
}

#[test]
fn a_question_without_a_whole_answer_is_no_turn() {
    let engine = open("tiny-llama", &EngineOptions::default());
    let mut chat = ChatSession::new(engine.session().unwrap());
    *chat.settings_mut() = plain(6);
    chat.ask("Hello").unwrap().take(2).for_each(drop);
    assert!(chat.messages().is_empty());
    chat.settings_mut().max_tokens = Some(0);
    assert!(chat.ask("Hello").is_err());
    assert!(chat.messages().is_empty());
}

/// Rubbish from the second turn on would mean that a device keeps a wrong state.
#[test]
fn nu_05_three_turns_are_the_same_on_every_device() {
    for model in ["tiny-llama", "tiny-qwen35"] {
        let conversations = DEVICES.map(|device| {
            let engine = open(model, &exact(device));
            let mut chat = ChatSession::new(engine.session().unwrap());
            *chat.settings_mut() = plain(8);
            for question in ["Hello", "And then?", "Why?"] {
                assert!(chat.ask(question).unwrap().finish().unwrap().reason.is_some());
            }
            chat.messages().to_vec()
        });
        assert_eq!(conversations[0].len(), 6);
        assert_eq!(conversations[0], conversations[1], "{model}");
    }
}
