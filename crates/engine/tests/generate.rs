//! Requests on the tiny models: what they give, and that nothing but the request decides it.

#![allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]

mod support;

use std::num::NonZeroUsize;
use std::thread;

use pleach_engine::{DeviceChoice, EngineOptions, FinishReason, Request, Settings, SpecialTokens};

use support::{DEVICES, exact, expected, ids, open, plain, prompt, run, sampled, text_of};

const MODELS: [&str; 4] = ["tiny-llama", "tiny-qwen3", "tiny-qwen35", "tiny-qwen35-moe"];

#[test]
fn greedy_text_is_the_recorded_one_on_every_device() {
    for (model, device) in MODELS.into_iter().flat_map(|model| DEVICES.map(|device| (model, device))) {
        let expected = expected(model);
        let engine = open(model, &exact(device));
        let prompt = expected["prompt_text"].as_str().unwrap();
        let run = run(&mut engine.session().unwrap(), &Request::text(prompt).with(plain(24)));
        assert_eq!(run.ids(), ids(&expected["greedy_ids"]), "{model} on {device:?}");
        assert_eq!(run.text, expected["greedy_text"].as_str().unwrap(), "{model} on {device:?}");
        assert_eq!(run.finished().reason, FinishReason::Length);
        assert_eq!(run.finished().usage.prompt_tokens, ids(&expected["input_ids"]).len());
        let usage = run.finished().usage;
        assert_eq!(usage.passes + usage.accepted, 23);
    }
}

#[test]
fn special_tokens_are_left_out_unless_asked_for() {
    let model = "tiny-qwen35-moe";
    let engine = open(model, &exact(DeviceChoice::Cpu));
    let settings = Settings { special_tokens: SpecialTokens::Skip, ..plain(24) };
    let request = Request::tokens(ids(&expected(model)["input_ids"])).with(settings);
    assert_eq!(text_of(&engine, &request), expected(model)["greedy_text_skip_special"].as_str().unwrap());
}

#[test]
fn a_gguf_file_gives_the_text_of_its_folder() {
    for model in ["tiny-llama", "tiny-qwen35"] {
        let engine = open(&format!("{model}/model.gguf"), &exact(DeviceChoice::Cpu));
        let request = Request::text(expected(model)["prompt_text"].as_str().unwrap()).with(plain(24));
        assert_eq!(text_of(&engine, &request), expected(model)["greedy_text"].as_str().unwrap(), "{model}");
    }
}

#[test]
fn a_seed_decides_the_text() {
    let engine = open("tiny-qwen35", &EngineOptions::default());
    let text = |seed| text_of(&engine, &Request::tokens(prompt(30)).with(sampled(24, seed)));
    assert_eq!(text(1), text(1));
    assert_ne!(text(1), text(2));
}

#[test]
fn the_seed_is_reported() {
    let engine = open("tiny-llama", &EngineOptions::default());
    let mut session = engine.session().unwrap();
    let seed = |settings| Request::tokens(prompt(5)).with(settings);
    assert_eq!(run(&mut session, &seed(sampled(1, 7))).finished().seed, 7);
    assert_eq!(run(&mut session, &seed(plain(1))).finished().seed, 0);
}

#[test]
fn chunks_of_the_prompt_do_not_change_the_text() {
    for model in MODELS {
        let text = |prefill_chunk| {
            let engine = open(model, &EngineOptions { prefill_chunk, ..EngineOptions::default() });
            text_of(&engine, &Request::tokens(prompt(70)).with(sampled(16, 3)))
        };
        let whole = text(256);
        assert!(!whole.is_empty());
        for chunk in [1, 7, 64] {
            assert_eq!(text(chunk), whole, "{model} in chunks of {chunk}");
        }
    }
}

#[test]
fn threads_do_not_change_the_text() {
    for model in MODELS {
        let text = |threads| {
            let options = EngineOptions { threads: NonZeroUsize::new(threads), ..EngineOptions::default() };
            text_of(&open(model, &options), &Request::tokens(prompt(40)).with(sampled(16, 4)))
        };
        assert_eq!(text(1), text(3), "{model}");
    }
}

#[test]
fn sessions_side_by_side_write_what_each_writes_alone() {
    let engine = open("tiny-qwen35", &EngineOptions { prefill_chunk: 8, ..EngineOptions::default() });
    let requests: Vec<Request> =
        (0..4).map(|index| Request::tokens(prompt(20 + 5 * index)).with(sampled(20, index as u64))).collect();
    let alone: Vec<String> = requests.iter().map(|request| text_of(&engine, request)).collect();
    let together: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = requests.iter().map(|request| scope.spawn(|| text_of(&engine, request))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(together, alone);
}

/// On one thread, one event at a time: the candidates of one session never meet those of another.
#[test]
fn sessions_may_take_turns_on_one_thread() {
    let engine = open("tiny-qwen35", &EngineOptions::default());
    let request = |seed| Request::tokens(prompt(20)).with(sampled(20, seed));
    let (mut first, mut second) = (engine.session().unwrap(), engine.session().unwrap());
    let mut events = [Vec::new(), Vec::new()];
    let mut first_run = first.generate(&request(1)).unwrap();
    let mut second_run = second.generate(&request(2)).unwrap();
    loop {
        let next = [first_run.next(), second_run.next()];
        if next.iter().all(Option::is_none) {
            break;
        }
        for (events, event) in events.iter_mut().zip(next) {
            events.extend(event.map(Result::unwrap));
        }
    }
    let texts = events.map(|events| {
        let text = |event| if let pleach_engine::Event::Text(text) = event { Some(text) } else { None };
        events.into_iter().filter_map(text).collect::<String>()
    });
    assert_eq!(texts, [text_of(&engine, &request(1)), text_of(&engine, &request(2))]);
}

#[test]
fn the_text_ends_before_a_stop_string() {
    let model = "tiny-llama";
    let engine = open(model, &exact(DeviceChoice::Cpu));
    let whole = expected(model)["greedy_text"].as_str().unwrap().to_owned();
    let stop = "ver".to_owned();
    let settings = Settings { stop: vec!["no such text".to_owned(), stop.clone()], ..plain(24) };
    let request = Request::tokens(ids(&expected(model)["input_ids"])).with(settings);
    let run = run(&mut engine.session().unwrap(), &request);
    assert_eq!(run.text, whole[..whole.find(&stop).unwrap()]);
    assert_eq!(run.finished().reason, FinishReason::StopString(stop));
    assert!(run.finished().usage.output_tokens < 24);
}

#[test]
fn a_stop_token_ends_the_text_and_does_not_show() {
    let model = "tiny-llama";
    let engine = open(model, &exact(DeviceChoice::Cpu));
    // Makes the end of turn the likeliest token from the start.
    let end = engine.stop_tokens()[0];
    let mut settings = Settings { ignore_eos: false, logprobs: Some(2), ..plain(24) };
    settings.sampling.logit_bias = vec![(end, 100.0)];
    let run = run(&mut engine.session().unwrap(), &Request::tokens(prompt(10)).with(settings));
    assert_eq!(run.finished().reason, FinishReason::Stop);
    assert_eq!(run.finished().usage.output_tokens, 1);
    assert_eq!(run.text, "");
    // Log-probabilities are the model's own: the bias is not in them.
    assert_eq!(run.ids(), [end]);
    let log_probs = run.tokens[0].log_probs.as_ref().unwrap();
    assert_eq!(log_probs.top.len(), 2);
    assert!(log_probs.top[0].0 != end && log_probs.log_prob < log_probs.top[1].1);
}

#[test]
fn tokens_come_without_log_probs_unless_asked_for() {
    let engine = open("tiny-llama", &EngineOptions::default());
    let tokens = |logprobs| {
        let request = Request::tokens(prompt(10)).with(Settings { logprobs, ..plain(6) });
        run(&mut engine.session().unwrap(), &request).tokens
    };
    let (plain, mut with_log_probs) = (tokens(None), tokens(Some(0)));
    assert_eq!(plain.len(), 6);
    assert!(with_log_probs.iter_mut().all(|token| token.log_probs.take().is_some()));
    assert_eq!(plain, with_log_probs);
}

#[test]
fn generation_ends_on_the_tokens_of_config_and_tokenizer() {
    let stops = |model: &str| {
        let engine = open(model, &EngineOptions::default());
        let spell = |&id: &u32| engine.tokenizer().token_text(id).unwrap();
        engine.stop_tokens().iter().map(spell).collect::<Vec<_>>()
    };
    assert_eq!(stops("tiny-qwen35"), ["<|endoftext|>", "<|im_end|>"]);
    assert_eq!(stops("tiny-llama"), ["<|im_end|>"]);
}

#[test]
fn a_thought_opened_by_the_prompt_is_told_from_the_answer() {
    let engine = open("tiny-qwen35", &exact(DeviceChoice::Cpu));
    let settings = Settings { split_reasoning: true, ..plain(12) };
    let run = run(&mut engine.session().unwrap(), &Request::user("Hello").with(settings));
    assert_eq!(run.text, "");
    assert!(!run.reasoning.is_empty());
}

#[test]
fn the_makers_sampling_is_used_unless_the_request_says_otherwise() {
    let engine = open("tiny-qwen35", &EngineOptions::default());
    assert_eq!(engine.generation_config().top_k, Some(20));
    let settings =
        |seed| Settings { sampling: pleach_engine::Sampling { seed: Some(seed), ..Default::default() }, ..plain(24) };
    let text = |seed| text_of(&engine, &Request::tokens(prompt(30)).with(settings(seed)));
    assert_ne!(text(1), text(2));
}

#[test]
fn times_and_counts_agree_with_each_other() {
    let engine = open("tiny-llama", &EngineOptions::default());
    let mut session = engine.session().unwrap();
    let run = run(&mut session, &Request::tokens(prompt(30)).with(plain(10)));
    let (usage, timings) = (run.finished().usage, run.finished().timings);
    let first = timings.time_to_first_token.unwrap();
    assert!(timings.prefill <= first && first <= timings.total);
    assert_eq!(first + timings.generation, timings.total);
    assert_eq!((usage.output_tokens, usage.passes + usage.accepted), (10, 9));
    assert!(usage.accepted <= usage.drafted);
    assert_eq!(usage.tokens_per_pass(), Some(9.0 / usage.passes as f64));
    let done: Vec<_> = run.prefill.iter().map(|progress| (progress.done, progress.total)).collect();
    assert_eq!(done, [(0, 30), (30, 30)]);
}
