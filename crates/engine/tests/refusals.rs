//! Requests and models that cannot be served, and the words in which they are refused.

#![allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]

mod support;

use std::fs;
use std::path::Path;

use pleach_engine::{
    Batch, ChatRequest, DeviceChoice, EncodedPrompt, Engine, EngineError, EngineOptions, Event, FinishReason, Job,
    Message, PrefixCacheOptions, Prompt, Request, Role, Sampling, Settings,
};
use tempfile::TempDir;

use support::{exact, fixture, open, open_with_context, plain, prompt, run, text_of, try_run};

fn refusal(engine: &Engine, request: &Request) -> String {
    let mut session = engine.session().unwrap();
    let error = session.generate(request).unwrap_err();
    assert_eq!(session.size_bytes(), 0, "work was done before the refusal");
    error.to_string()
}

#[test]
fn a_prompt_must_leave_room_for_an_answer() {
    let engine = open_with_context("tiny-qwen35", 64);
    let run_with = |len: usize| {
        run(
            &mut engine.session().unwrap(),
            &Request::tokens(prompt(len)).with(Settings { max_tokens: None, ..plain(1) }),
        )
    };
    for (len, answer) in [(63, 1), (40, 24)] {
        let run = run_with(len);
        assert_eq!(run.finished().reason, FinishReason::Length);
        assert_eq!(run.finished().usage.output_tokens, answer);
    }
    for len in [64, 65, 1064] {
        assert_eq!(
            refusal(&engine, &Request::tokens(prompt(len))),
            format!("the prompt has {len} tokens, but the context holds 64 with at least one of the answer")
        );
    }
}

#[test]
fn a_context_of_zero_is_automatic_and_one_beyond_the_model_is_refused() {
    let engine = open_with_context("tiny-llama", 0);
    assert_eq!(engine.info().context, engine.info().max_context);
    let most = engine.info().max_context;
    let options = EngineOptions { context: (1 << 31).into(), ..EngineOptions::default() };
    assert_eq!(
        Engine::open(&fixture("tiny-llama"), &options).unwrap_err().to_string(),
        format!("a context of 2147483648 tokens was asked for, but the model was made for at most {most}")
    );
}

#[test]
fn every_number_is_checked_and_named() {
    let engine = open("tiny-llama", &EngineOptions::default());
    let with = |edit: fn(&mut Settings)| {
        let mut settings = Settings::default();
        edit(&mut settings);
        refusal(&engine, &Request::tokens(prompt(5)).with(settings))
    };
    type Edit = fn(&mut Settings);
    let checks: [(Edit, &str); 11] = [
        (|s| s.max_tokens = Some(0), "`max_tokens` is 0, but must be 1 or more, or absent"),
        (|s| s.logprobs = Some(usize::MAX), "`logprobs` is 18446744073709551615, but must be from 0 to 20"),
        (|s| s.sampling.temperature = Some(-1.0), "`temperature` is -1, but must be a finite number of 0 or more"),
        (|s| s.sampling.temperature = Some(f32::NAN), "`temperature` is NaN, but must be a finite number of 0 or more"),
        (|s| s.sampling.top_p = Some(0.0), "`top_p` is 0, but must be above 0 and at most 1"),
        (|s| s.sampling.min_p = Some(1.5), "`min_p` is 1.5, but must be from 0 to 1"),
        (
            |s| s.sampling.repetition_penalty = Some(0.0),
            "`repetition_penalty` is 0, but must be a finite number above 0",
        ),
        (|s| s.sampling.presence_penalty = Some(3.0), "`presence_penalty` is 3, but must be from -2 to 2"),
        (|s| s.sampling.penalty_window = Some(0), "`penalty_window` is 0, but must be 1 or more, or absent"),
        (
            |s| s.sampling.logit_bias = vec![(512, 1.0)],
            "`logit_bias token` is 512, but must be below the vocabulary's 512",
        ),
        (
            |s| s.sampling.logit_bias = vec![(1, 1e30)],
            "`logit_bias` is 1000000000000000000000000000000, but must be from -100 to 100",
        ),
    ];
    for (edit, message) in checks {
        assert_eq!(with(edit), message);
    }
}

#[test]
fn huge_counts_are_no_more_than_everything() {
    let engine = open("tiny-llama", &EngineOptions::default());
    let huge = Settings {
        max_tokens: Some(usize::MAX),
        sampling: Sampling { top_k: Some(usize::MAX), penalty_window: Some(usize::MAX), ..Sampling::greedy() },
        stop: vec!["ver".to_owned()],
        ..plain(1)
    };
    let request = |settings| Request::tokens(prompt(5)).with(settings);
    let mut session = engine.session().unwrap();
    let few: Vec<_> = session.generate(&request(huge)).unwrap().take(10).collect();
    assert!(few.iter().all(Result::is_ok));
}

#[test]
fn prompts_that_cannot_be_continued_are_refused() {
    let engine = open("tiny-llama", &EngineOptions::default());
    assert_eq!(
        refusal(&engine, &Request::tokens(Vec::new())),
        "the prompt has no tokens: give it at least one, such as the model's start token"
    );
    assert_eq!(
        refusal(&engine, &Request::tokens(vec![1, 512])),
        "prompt token 1 is 512, but the vocabulary has 512 tokens: encode the prompt with this model's tokenizer"
    );
    let chat = |messages| Request::chat(ChatRequest::new(messages));
    let error = engine.session().unwrap().generate(&chat(Vec::new())).unwrap_err();
    assert!(matches!(error, EngineError::Text(_)));
    let image = serde_json::from_str::<Message>(r#"{"role": "user", "content": [{"type": "image_url"}]}"#).unwrap();
    assert_eq!(refusal(&engine, &chat(vec![image])), "`messages` is a part of type `image_url`, but must be text");
    assert!(engine.encode(&Prompt::Chat(ChatRequest::new(vec![Message::text(Role::User, "a")]))).is_ok());
}

#[test]
fn stop_strings_are_checked() {
    let engine = open("tiny-llama", &EngineOptions::default());
    let settings = Settings { stop: vec![String::new()], ..Settings::default() };
    let error = engine.session().unwrap().generate(&Request::user("a").with(settings)).unwrap_err();
    assert!(matches!(error, EngineError::Text(_)));
}

#[test]
fn a_folder_without_a_model_is_refused() {
    let dir = TempDir::new().unwrap();
    let error = Engine::open(dir.path(), &EngineOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot open the model `{}`", dir.path().display()));
    assert!(std::error::Error::source(&error).unwrap().to_string().starts_with("no `config.json` in"));
}

/// A copy of a fixture.
fn copy(model: &str) -> TempDir {
    let dir = TempDir::new().unwrap();
    for entry in fs::read_dir(fixture(model)).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension != "gguf") && !path.ends_with("reference.safetensors") {
            fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    dir
}

/// Puts a NaN at an element of a bf16 tensor.
fn spoil(dir: &Path, tensor: &str, element: usize) {
    let path = dir.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let header_len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header_len]).unwrap();
    assert_eq!(header[tensor]["dtype"], "BF16");
    let start = header[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[8 + header_len + start + 2 * element..][..2].copy_from_slice(&0x7FC0u16.to_le_bytes());
    fs::write(path, bytes).unwrap();
}

/// A weight.
#[test]
fn a_nan_weight_ends_the_request_with_an_error() {
    let dir = copy("tiny-llama");
    spoil(dir.path(), "model.norm.weight", 3);
    let engine = Engine::open(dir.path(), &exact(DeviceChoice::Cpu)).unwrap();
    let mut session = engine.session().unwrap();
    let mut events = session.generate(&Request::tokens(prompt(5)).with(plain(5))).unwrap();
    let error = events.find_map(Result::err).unwrap();
    assert!(events.next().is_none());
    assert_eq!(
        error.to_string(),
        "non-finite logits: the logit of token 0 at position 5 is NaN, but must be a number below infinity"
    );
    assert!(error.hint().unwrap().contains("f32 key-value cache"));
}

/// A cached state.
#[test]
fn a_nan_in_the_state_is_forgotten_with_its_request() {
    const BROKEN: u32 = 300;
    let dir = copy("tiny-qwen35");
    spoil(dir.path(), "model.language_model.embed_tokens.weight", BROKEN as usize * 64);
    let engine = Engine::open(dir.path(), &exact(DeviceChoice::Cpu)).unwrap();
    let mut session = engine.session().unwrap();

    let clean = Request::tokens(vec![1, 2, 3, 4]).with(plain(8));
    let expected = text_of(&engine, &clean);
    assert_eq!(run(&mut session, &clean).text, expected);
    let broken = Request::tokens(vec![1, 2, 3, 4, BROKEN, 5]).with(plain(8));
    for _ in 0..2 {
        let error = try_run(&mut session, &broken).unwrap_err();
        assert!(matches!(error, EngineError::NonFiniteLogits { position: 6, .. }), "{error}");
        assert_eq!(session.reusable_tokens(&[1, 2, 3, 4, BROKEN, 5, 6]), 0);
    }
    let after = run(&mut session, &clean);
    assert_eq!((after.text, after.finished.unwrap().usage.cached_tokens), (expected, 0));
}

/// A state that was written before the request failed would spoil those of later processes.
#[test]
fn a_nan_in_the_state_is_forgotten_on_disk_too() {
    const BROKEN: u32 = 10;
    let dir = copy("tiny-qwen35");
    spoil(dir.path(), "model.language_model.embed_tokens.weight", BROKEN as usize * 64);
    let engine = Engine::open(dir.path(), &exact(DeviceChoice::Cpu)).unwrap();
    let states = TempDir::new().unwrap();
    let options = || {
        let mut options = PrefixCacheOptions::default();
        options.dir = Some(states.path().to_owned());
        options
    };
    let tokens = [&prompt(50)[..], &[BROKEN], &prompt(40)].concat();
    let ask = |batch: &mut Batch, tokens: Vec<u32>| {
        let prompt = EncodedPrompt { tokens, opens_reasoning: false, notes: Vec::new(), turn_ends: vec![40, 80] };
        batch.add(Job::new(prompt, plain(1))).unwrap();
        let mut last = None;
        while !batch.is_empty() {
            last = batch.step().pop().map(|(_, event)| event).or(last);
        }
        last.unwrap()
    };
    let mut batch = Batch::new(engine.clone(), &options()).unwrap();
    ask(&mut batch, prompt(91)).unwrap();
    let error = ask(&mut batch, tokens).unwrap_err();
    assert!(matches!(error, EngineError::NonFiniteLogits { position: 91, .. }), "{error}");
    drop(batch);
    // Both stand for the first tokens of one text; of the other prompt the later one is left, beside the folder's salt.
    assert_eq!(fs::read_dir(states.path()).unwrap().count(), 2);
    let mut next = Batch::new(engine, &options()).unwrap();
    let Event::Finished(finished) = ask(&mut next, [prompt(85), vec![5; 6]].concat()).unwrap() else { panic!() };
    assert_eq!(finished.usage.cached_tokens, 80);
}

#[test]
fn a_tokenizer_of_another_model_is_refused() {
    let dir = copy("tiny-llama");
    let path = dir.path().join("tokenizer.json");
    let mut tokenizer: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    let mut extra = added[0].clone();
    extra["id"] = 600.into();
    extra["content"] = "<|extra|>".into();
    added.push(extra);
    fs::write(&path, tokenizer.to_string()).unwrap();
    // The tokenizer may refuse the gap in its ids, or the engine the id beyond the model's rows: nothing else may happen.
    let error = Engine::open(dir.path(), &EngineOptions::default()).unwrap_err();
    assert!(
        matches!(error, EngineError::Vocabulary { tokenizer: 601, model: 512 } | EngineError::Tokenizer { .. }),
        "{error}"
    );
}
