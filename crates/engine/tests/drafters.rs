//! Drafters that were trained for a model, with random weights: they change the speed, never the text.

#![allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]

mod support;

use std::num::NonZeroUsize;

use pleach_engine::{ChatSession, DeviceChoice, Engine, EngineOptions, Request, Settings, SpecBudget, Speculation};
use tempfile::TempDir;

use support::random_drafter::{self, MAX_DEPTH, Shape};
use support::{all_settings, exact, fixture, open, plain, prompt, repeating, rows, run, sampled};

/// Without and with recurrent layers.
const TARGETS: [(&str, Shape); 2] = [
    ("tiny-llama", Shape { hidden_size: 96, vocab_size: 512, num_layers: 4 }),
    ("tiny-qwen35", Shape { hidden_size: 64, vocab_size: 512, num_layers: 8 }),
];

fn drafter(shape: Shape) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    random_drafter::write(dir.path(), shape, 7);
    dir
}

fn options(speculation: Speculation, drafter: &TempDir, threads: usize) -> EngineOptions {
    let draft_model = Some(drafter.path().to_owned());
    EngineOptions { speculation, draft_model, threads: NonZeroUsize::new(threads), ..EngineOptions::default() }
}

fn ids(engine: &Engine, settings: &Settings, spec_budget: SpecBudget) -> Vec<u32> {
    let request = Request::tokens(repeating()).with(Settings { spec_budget, ..settings.clone() });
    run(&mut engine.session().unwrap(), &request).ids()
}

#[test]
fn trees_of_garbage_give_the_text_of_plain_decoding() {
    for (model, shape) in TARGETS {
        let drafter = drafter(shape);
        let off = open(model, &EngineOptions { speculation: Speculation::Off, ..EngineOptions::default() });
        let texts: Vec<_> = all_settings().iter().map(|settings| ids(&off, settings, SpecBudget::Automatic)).collect();
        for speculation in [Speculation::DFlash, Speculation::Weaver, Speculation::Auto] {
            for threads in [1, 2, 3] {
                let engine = open(model, &options(speculation, &drafter, threads));
                for (place, budget) in
                    [SpecBudget::Automatic, rows(1), rows(2), rows(6), rows(64)].into_iter().enumerate()
                {
                    // Every budget with one thread, each with one setting more than that.
                    let all = all_settings().into_iter().zip(&texts).enumerate();
                    for (_, (settings, text)) in all.filter(|(setting, _)| threads == 1 || *setting == place) {
                        let found = ids(&engine, &settings, budget);
                        assert_eq!(&found, text, "{model}, {speculation:?}, {threads} threads, {budget:?}");
                    }
                }
            }
        }
    }
}

/// Weights that compute no numbers guess nothing, and do no harm: the drafter's, its Weaver's, and both.
#[test]
fn broken_weights_change_nothing() {
    let (model, shape) = TARGETS[0];
    let text = ids(&open(model, &options(Speculation::Off, &drafter(shape), 1)), &plain(30), rows(1));
    for files in [&["model.safetensors"][..], &["weaver.safetensors"], &["model.safetensors", "weaver.safetensors"]] {
        let drafter = drafter(shape);
        files.iter().for_each(|file| support::put_nans(&drafter.path().join(file)));
        let engine = open(model, &options(Speculation::Weaver, &drafter, 1));
        assert_eq!(ids(&engine, &plain(30), rows(16)), text, "{files:?}");
    }
}

#[test]
fn the_reference_keeps_the_promise_too() {
    let (model, shape) = TARGETS[0];
    let drafter = drafter(shape);
    let device = exact(DeviceChoice::Reference);
    let text = ids(&open(model, &device), &sampled(24, 2), SpecBudget::Automatic);
    let weaver = EngineOptions { device: device.device, ..options(Speculation::Weaver, &drafter, 1) };
    let weaver = EngineOptions { kv_cache: device.kv_cache, activations: device.activations, ..weaver };
    assert_eq!(ids(&open(model, &weaver), &sampled(24, 2), rows(12)), text);
}

/// Both kinds of tree are as large as they may be, and as deep as the block where that is asked for.
#[test]
fn trees_use_the_rows_that_they_are_given() {
    let (model, shape) = TARGETS[0];
    let drafter = drafter(shape);
    for (speculation, name) in [(Speculation::DFlash, "dflash"), (Speculation::Weaver, "weaver")] {
        let engine = open(model, &options(speculation, &drafter, 2));
        for budget in [2, 8, 30] {
            let request = Request::tokens(prompt(30)).with(Settings { spec_budget: rows(budget), ..plain(40) });
            let finished = run(&mut engine.session().unwrap(), &request).finished().clone();
            let (usage, drafting) = (finished.usage, finished.drafting);
            assert_eq!(drafting.drafters, [name]);
            assert!(drafting.drafted_by_depth.len() <= MAX_DEPTH);
            let per_pass = usage.drafted as f64 / usage.passes as f64;
            assert!(per_pass > 0.8 * (budget - 1) as f64, "{name}, {budget} rows: {per_pass} guesses per pass");
        }
    }
}

/// The second turn begins where the first has ended, for the drafter as well: its very first pass has guesses.
#[test]
fn a_drafter_remembers_the_turns_before() {
    for (model, shape) in TARGETS {
        let drafter = drafter(shape);
        for speculation in [Speculation::DFlash, Speculation::Weaver] {
            let engine = open(model, &options(speculation, &drafter, 2));
            let mut session = engine.session().unwrap();
            let settings = Settings { spec_budget: rows(6), ..plain(12) };
            let first = prompt(40);
            let answer = run(&mut session, &Request::tokens(first.clone()).with(settings.clone())).ids();
            let second = [first.clone(), answer, prompt(1)].concat();
            for prompt in [first, second] {
                let run = run(&mut session, &Request::tokens(prompt).with(settings.clone()));
                let usage = run.finished().usage;
                assert!(usage.cached_tokens > 0);
                // A pass without guesses would have one row fewer than five.
                assert!(usage.drafted >= 4 * usage.passes, "{model}, {speculation:?}: {usage:?}");
            }
        }
    }
}

#[test]
fn turns_of_a_chat_are_those_of_plain_decoding() {
    for (model, shape) in TARGETS {
        let drafter = drafter(shape);
        let answers = |options: &EngineOptions| {
            let mut chat = ChatSession::new(open(model, options).session().unwrap());
            *chat.settings_mut() = Settings { spec_budget: rows(12), ..plain(24) };
            ["One", "Two", "Three"].map(|question| chat.ask(question).unwrap().finish().unwrap().text)
        };
        let off = EngineOptions { speculation: Speculation::Off, ..EngineOptions::default() };
        assert_eq!(answers(&options(Speculation::Weaver, &drafter, 2)), answers(&off), "{model}");
    }
}

#[test]
fn what_does_not_fit_is_refused_in_one_line() {
    let (model, shape) = TARGETS[0];
    let drafter = drafter(shape);
    let refusal = |speculation| {
        let options = options(speculation, &drafter, 1);
        Engine::open(&fixture(model), &options).unwrap_err().to_string()
    };
    let path = drafter.path().join("weaver.json");
    let stored = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, stored.replace(r#""K":7"#, r#""K":8"#)).unwrap();
    assert_eq!(
        refusal(Speculation::Draft),
        "`weaver` cannot draft for this model: its `K` is 8, but the model has a drafter that guesses 7 tokens"
    );
    assert!(Engine::open(&fixture(model), &options(Speculation::DFlash, &drafter, 1)).is_ok());
    std::fs::remove_file(&path).unwrap();
    let error = refusal(Speculation::Weaver);
    assert!(error.starts_with("`weaver` cannot draft for this model: there is none in `"), "{error}");

    random_drafter::write(drafter.path(), Shape { hidden_size: 64, ..shape }, 3);
    assert_eq!(
        refusal(Speculation::Auto),
        "`dflash` cannot draft for this model: its `hidden_size` is 64, but the model has 96"
    );
    let no_drafter = EngineOptions { speculation: Speculation::Weaver, ..EngineOptions::default() };
    let error = Engine::open(&fixture(model), &no_drafter).unwrap_err().to_string();
    assert_eq!(error, "`weaver` cannot draft for this model: no draft model was named");
    let whole = EngineOptions { draft_model: Some(fixture(model)), ..no_drafter };
    let error = Engine::open(&fixture(model), &whole).unwrap_err().to_string();
    assert_eq!(error, "`weaver` cannot draft for this model: the draft model is a whole model");
}
