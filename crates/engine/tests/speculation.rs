//! Guessing ahead changes the speed, never the text: through the engine with its own drafters.

#![allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]

mod support;

use std::num::NonZeroUsize;

use pleach_engine::{
    ChatSession, DeviceChoice, Engine, EngineOptions, FinishReason, Request, Settings, SpecBudget, Speculation,
};

use support::{all_settings, exact, open, plain, prompt, repeating, rows, run, sampled};

/// Models with every kind of layer; the second has a head that drafts.
const MODELS: [&str; 3] = ["tiny-llama", "tiny-qwen35", "tiny-qwen35-moe"];

fn options(speculation: Speculation, threads: usize) -> EngineOptions {
    EngineOptions { speculation, threads: NonZeroUsize::new(threads), ..EngineOptions::default() }
}

fn ids(engine: &Engine, settings: &Settings, budget: SpecBudget) -> Vec<u32> {
    let settings = Settings { spec_budget: budget, ..settings.clone() };
    run(&mut engine.session().unwrap(), &Request::tokens(repeating()).with(settings)).ids()
}

#[test]
fn every_drafter_and_budget_gives_the_text_of_plain_decoding() {
    for model in MODELS {
        let engine = open(model, &options(Speculation::Off, 1));
        let texts: Vec<_> =
            all_settings().iter().map(|settings| ids(&engine, settings, SpecBudget::Automatic)).collect();
        for speculation in [Speculation::Auto, Speculation::Ngram] {
            for threads in [1, 2] {
                let engine = open(model, &options(speculation, threads));
                for budget in [SpecBudget::Automatic, rows(1), rows(2), rows(5), rows(16), rows(64)] {
                    for (settings, text) in all_settings().iter().zip(&texts) {
                        let found = ids(&engine, settings, budget);
                        assert_eq!(&found, text, "{model}, {speculation:?}, {threads} threads, {budget:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_head_alone_gives_the_text_of_plain_decoding() {
    let budgets = [SpecBudget::Automatic, rows(2), rows(4), rows(24)];
    // The reference computes on one thread in plain loops: one setting is enough to show that devices agree.
    for (options, num_settings) in [(EngineOptions::default(), 5), (exact(DeviceChoice::Reference), 1)] {
        let with = |speculation| open("tiny-qwen35", &EngineOptions { speculation, ..options.clone() });
        let (off, mtp) = (with(Speculation::Off), with(Speculation::Mtp));
        for settings in all_settings().into_iter().rev().take(num_settings) {
            let text = ids(&off, &settings, SpecBudget::Automatic);
            for budget in budgets {
                assert_eq!(ids(&mtp, &settings, budget), text, "{budget:?}");
            }
        }
    }
}

/// The head is random here; that it guesses better than chance shows that it reads the right hidden states.
#[test]
fn the_head_drafts_and_some_of_it_comes_true() {
    let engine = open("tiny-qwen35", &options(Speculation::Mtp, 1));
    let mut accepted = 0;
    for seed in 0..6 {
        let settings = Settings { spec_budget: rows(8), ..sampled(60, seed) };
        let request = Request::tokens(prompt(20)).with(settings);
        let finished = run(&mut engine.session().unwrap(), &request).finished().clone();
        assert_eq!(finished.drafting.drafters, ["mtp"]);
        assert!(finished.usage.drafted > 100, "{:?}", finished.usage);
        accepted += finished.usage.accepted;
    }
    assert!(accepted > 0);
}

#[test]
fn repetition_takes_fewer_passes_and_is_counted() {
    let engine = open("tiny-llama", &options(Speculation::Ngram, 1));
    let settings = Settings { spec_budget: rows(16), ..plain(120) };
    let finished = run(&mut engine.session().unwrap(), &Request::tokens(repeating()).with(settings)).finished().clone();
    let (usage, drafting) = (&finished.usage, &finished.drafting);
    // A tiny random model repeats itself soon.
    assert!(usage.tokens_per_pass().unwrap() > 2.0, "{usage:?}");
    assert_eq!(usage.output_tokens as u64, 1 + usage.passes + usage.accepted);
    assert_eq!(drafting.drafters, ["ngram"]);
    assert_eq!(drafting.drafted_by_depth.iter().sum::<u64>(), usage.drafted);
    assert_eq!(drafting.accepted_by_depth.iter().sum::<u64>(), usage.accepted);
}

#[test]
fn plain_decoding_reports_no_drafting() {
    let engine = open("tiny-qwen35", &options(Speculation::Off, 1));
    let finished =
        run(&mut engine.session().unwrap(), &Request::tokens(repeating()).with(plain(20))).finished().clone();
    assert_eq!((finished.usage.passes, finished.usage.drafted), (19, 0));
    assert_eq!((finished.drafting.drafters.len(), finished.drafting.speedup), (0, None));
}

/// The state that a drafted answer leaves behind serves the next turn like any other.
#[test]
fn turns_go_on_from_drafted_answers() {
    for model in ["tiny-llama", "tiny-qwen35"] {
        let answers = |speculation| {
            let mut chat = ChatSession::new(open(model, &options(speculation, 2)).session().unwrap());
            *chat.settings_mut() = Settings { spec_budget: rows(12), ..plain(40) };
            ["One", "Two", "Three"].map(|question| chat.ask(question).unwrap().finish().unwrap().text)
        };
        assert_eq!(answers(Speculation::Auto), answers(Speculation::Off), "{model}");
    }
}

#[test]
fn limits_and_stop_strings_inside_a_path_end_the_text_where_plain_decoding_does() {
    let off = open("tiny-llama", &options(Speculation::Off, 1));
    let ngram = open("tiny-llama", &options(Speculation::Ngram, 1));
    let text = run(&mut off.session().unwrap(), &Request::tokens(repeating()).with(plain(60))).text;
    let stop: String = text.chars().skip(text.chars().count() / 2).take(3).collect();
    for settings in [plain(1), plain(2), plain(37), Settings { stop: vec![stop.clone()], ..plain(60) }] {
        let settings = Settings { spec_budget: rows(16), ..settings };
        let [expected, found] = [&off, &ngram].map(|engine| {
            let run = run(&mut engine.session().unwrap(), &Request::tokens(repeating()).with(settings.clone()));
            (run.ids(), run.text.clone(), run.finished().reason.clone())
        });
        assert_eq!(found, expected);
    }
    let small = EngineOptions { context: 60.into(), ..options(Speculation::Ngram, 1) };
    let request = Request::tokens(repeating()).with(Settings { max_tokens: None, spec_budget: rows(16), ..plain(1) });
    let run = run(&mut open("tiny-llama", &small).session().unwrap(), &request);
    assert_eq!((run.ids().len(), &run.finished().reason), (11, &FinishReason::Length));
}

#[test]
fn a_head_that_is_not_there_is_refused() {
    let options = options(Speculation::Mtp, 1);
    let error = Engine::open(&support::fixture("tiny-llama"), &options).unwrap_err();
    assert_eq!(error.to_string(), "`mtp` cannot draft for this model: it has no multi-token-prediction head");
    assert_eq!(error.hint().unwrap(), "leave the drafter out to have one chosen");
}

/// A model that drafts for itself is always right, greedy or sampled, whatever the penalties: the guesses see the very
/// noise that decides.
#[test]
fn a_model_that_drafts_for_itself_is_always_right() {
    for model in MODELS {
        let draft_model = Some(support::fixture(model));
        let engine = open(model, &EngineOptions { draft_model, ..options(Speculation::Draft, 2) });
        let off = open(model, &options(Speculation::Off, 1));
        for settings in all_settings() {
            let filters = settings.sampling.top_k.is_some();
            let text = ids(&off, &settings, SpecBudget::Automatic);
            assert_eq!(ids(&engine, &settings, SpecBudget::Automatic), text, "{model}");
            let settings = Settings { spec_budget: rows(64), ..settings };
            let run = run(&mut engine.session().unwrap(), &Request::tokens(repeating()).with(settings));
            assert_eq!(run.ids(), text, "{model}");
            let drafting = &run.finished().drafting;
            assert_eq!(drafting.drafters, ["draft"]);
            let passes = run.finished().usage.passes;
            // Top-k, top-p and min-p are not foreseen, and where one token is left nothing is drafted.
            let accepted = drafting.accepted_by_depth[0];
            assert!(filters || accepted + 1 >= passes, "{model}: {drafting:?}, {passes} passes");
        }
    }
}

#[test]
fn a_draft_model_of_another_vocabulary_is_refused() {
    let with = |draft: Option<&str>| {
        let draft_model = draft.map(support::fixture);
        let options = EngineOptions { draft_model, ..options(Speculation::Draft, 1) };
        Engine::open(&support::fixture("tiny-llama"), &options).unwrap_err().to_string()
    };
    assert_eq!(with(None), "`draft` cannot draft for this model: no draft model was named");
    let error = with(Some("tiny-qwen3"));
    assert!(error.starts_with("`draft` cannot draft for this model: token "), "{error}");
}

#[test]
fn a_budget_beyond_all_passes_is_refused() {
    let engine = open("tiny-llama", &options(Speculation::Auto, 1));
    let settings = Settings { spec_budget: rows(65), ..plain(5) };
    let error = engine.session().unwrap().generate(&Request::tokens(prompt(5)).with(settings)).unwrap_err();
    assert_eq!(error.to_string(), "`spec_budget` is 65, but must be from 1 to 64");
}
