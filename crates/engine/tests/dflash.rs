//! Block drafters with random weights: whatever they guess, the text is that of plain decoding. And those that cannot guess
//! for a model are refused.

#![allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]

#[path = "../../model/tests/suite/random_drafter.rs"]
mod random_drafter;
mod support;

use std::error::Error;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use pleach_engine::{
    DeviceChoice, Engine, EngineError, EngineOptions, FinishReason, Request, Sampling, Settings, SpecBudget,
    Speculation,
};
use serde_json::{Value, json};

use random_drafter::{Kind, RandomDrafter};
use support::{exact, fixture, open, plain, prompt, run, sampled};

fn with_drafter(drafter: &Path, speculation: Speculation, threads: usize) -> EngineOptions {
    EngineOptions { draft_model: Some(drafter.to_owned()), ..without_drafter(speculation, threads) }
}

fn without_drafter(speculation: Speculation, threads: usize) -> EngineOptions {
    EngineOptions { speculation, threads: NonZeroUsize::new(threads), ..EngineOptions::default() }
}

fn rows(rows: usize) -> SpecBudget {
    SpecBudget::Rows(NonZeroUsize::new(rows).unwrap())
}

/// Greedy and sampled, with what makes a token depend on those before it, and with a token that may not be drawn.
fn settings(seed: u64) -> Vec<Settings> {
    let penalized = Sampling {
        repetition_penalty: Some(1.2),
        frequency_penalty: Some(0.3),
        presence_penalty: Some(0.2),
        penalty_window: Some(24),
        logit_bias: vec![(7, 4.0), (30, -100.0)],
        ..sampled(0, seed).sampling
    };
    let filtered = Sampling { top_k: Some(20), top_p: Some(0.9), min_p: Some(0.02), ..sampled(0, seed).sampling };
    let with = |sampling| Settings { sampling, ..plain(36) };
    let greedy_penalized = Sampling { temperature: Some(0.0), ..penalized.clone() };
    vec![plain(36), sampled(36, seed), with(penalized), with(greedy_penalized), with(filtered)]
}

fn kinds() -> Vec<Kind> {
    let full = Kind::default;
    vec![
        full(),
        Kind { window: Some(9), ..full() },
        Kind { window: Some(40), is_causal: Some(false), conv: Some((2, 16)), ..full() },
        Kind { every: Some(3), ..full() },
        Kind { window: Some(40), conv: Some((3, 32)), selector: Some((8, 6)), ..full() },
        Kind { mirai: true, window: Some(12), ..full() },
    ]
}

fn ids(engine: &Engine, settings: &Settings, budget: SpecBudget) -> Vec<u32> {
    let settings = Settings { spec_budget: budget, ..settings.clone() };
    run(&mut engine.session().unwrap(), &Request::tokens(prompt(30)).with(settings)).ids()
}

#[test]
fn every_block_drafter_and_budget_gives_the_text_of_plain_decoding() {
    for model in ["tiny-llama", "tiny-qwen35", "tiny-qwen35-moe"] {
        let plainly = open(model, &without_drafter(Speculation::Off, 1));
        for (seed, kind) in kinds().iter().enumerate() {
            let drafter = RandomDrafter::new(&fixture(model), kind, seed as u64);
            let settings = settings(seed as u64);
            let texts: Vec<_> = settings.iter().map(|settings| ids(&plainly, settings, rows(1))).collect();
            let all = [SpecBudget::Automatic, rows(2), rows(16), rows(64)];
            for (speculation, threads, budgets) in
                [(Speculation::Draft, 1, &all[..]), (Speculation::Auto, 2, &all[2..3])]
            {
                let engine = open(model, &with_drafter(&drafter.path(), speculation, threads));
                assert!(engine.drafter_names().contains(&"dflash"));
                for &budget in budgets {
                    for (settings, text) in settings.iter().zip(&texts) {
                        let found = ids(&engine, settings, budget);
                        assert_eq!(&found, text, "{model}, {kind:?}, {speculation:?}, {threads} threads, {budget:?}");
                    }
                }
            }
        }
    }
}

/// The reference computes in plain loops, so one setting has to do.
#[test]
fn the_reference_drafts_and_writes_the_same() {
    let model = "tiny-qwen35";
    let options = exact(DeviceChoice::Reference);
    let text =
        ids(&open(model, &EngineOptions { speculation: Speculation::Off, ..options.clone() }), &plain(20), rows(1));
    for kind in kinds() {
        let drafter = RandomDrafter::new(&fixture(model), &kind, 3);
        let options =
            EngineOptions { draft_model: Some(drafter.path()), speculation: Speculation::Draft, ..options.clone() };
        assert_eq!(ids(&open(model, &options), &plain(20), rows(12)), text, "{kind:?}");
    }
}

/// Guesses are made and verified: the tests above would pass without any.
#[test]
fn a_random_drafter_does_guess() {
    for kind in kinds() {
        let drafter = RandomDrafter::new(&fixture("tiny-qwen35"), &kind, 5);
        let engine = open("tiny-qwen35", &with_drafter(&drafter.path(), Speculation::Draft, 1));
        let settings = Settings { spec_budget: rows(16), ..sampled(40, 2) };
        let finished =
            run(&mut engine.session().unwrap(), &Request::tokens(prompt(30)).with(settings)).finished().clone();
        assert_eq!(finished.drafting.drafters, ["dflash"]);
        assert!(finished.usage.drafted > 300, "{kind:?}: {:?}", finished.usage);
        assert!(finished.drafting.drafted_by_depth.len() >= 3, "{kind:?}: {:?}", finished.drafting);
    }
}

#[test]
fn limits_stops_and_the_end_of_the_context_inside_a_tree_end_the_text_where_plain_decoding_does() {
    let model = "tiny-qwen35";
    let drafter = RandomDrafter::new(&fixture(model), &Kind::default(), 1);
    let small = |options: EngineOptions| EngineOptions { context: 41.into(), ..options };
    let engines = |options: fn(EngineOptions) -> EngineOptions| {
        let off = options(without_drafter(Speculation::Off, 1));
        let drafting = options(with_drafter(&drafter.path(), Speculation::Draft, 1));
        [open(model, &off), open(model, &drafting)]
    };
    let usual = engines(|options| options);
    let text = run(&mut usual[0].session().unwrap(), &Request::tokens(prompt(30)).with(plain(30))).text;
    let stop: String = text.chars().skip(text.chars().count() / 2).take(2).collect();
    let stopped = Settings { stop: vec![stop], ..plain(30) };
    for settings in [plain(1), plain(2), plain(13), stopped] {
        let [expected, found] = usual.each_ref().map(|engine| {
            let settings = Settings { spec_budget: rows(32), ..settings.clone() };
            let run = run(&mut engine.session().unwrap(), &Request::tokens(prompt(30)).with(settings));
            (run.ids(), run.text.clone(), run.finished().reason.clone())
        });
        assert_eq!(found, expected);
    }
    let small = [without_drafter(Speculation::Off, 1), with_drafter(&drafter.path(), Speculation::Draft, 1)]
        .map(|options| open(model, &small(options)));
    let [expected, found] = small.map(|engine| {
        let settings = Settings { max_tokens: None, spec_budget: rows(32), ..plain(1) };
        let run = run(&mut engine.session().unwrap(), &Request::tokens(prompt(30)).with(settings));
        (run.ids(), run.finished().reason.clone())
    });
    assert_eq!(found, expected);
    assert_eq!((found.0.len(), found.1), (11, FinishReason::Length));
}

/// Weights that compute no numbers guess nothing, and do no harm.
#[test]
fn a_drafter_of_broken_weights_changes_nothing() {
    let model = "tiny-llama";
    let text = ids(&open(model, &without_drafter(Speculation::Off, 1)), &plain(30), rows(1));
    for kind in kinds() {
        let drafter = RandomDrafter::new(&fixture(model), &kind, 1);
        support::put_nans(&drafter.path().join("model.safetensors"));
        let engine = open(model, &with_drafter(&drafter.path(), Speculation::Draft, 1));
        assert_eq!(ids(&engine, &plain(30), rows(16)), text, "{kind:?}");
    }
}

/// A model's folder with a drafter in it.
fn model_with(drafter: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let copy = |from: PathBuf, to: PathBuf| {
        std::fs::create_dir_all(&to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() && path.extension().is_none_or(|extension| extension != "gguf") {
                std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
            }
        }
    };
    copy(fixture("tiny-llama"), dir.path().to_owned());
    std::fs::remove_file(dir.path().join("reference.safetensors")).unwrap();
    copy(drafter.to_owned(), dir.path().join("speculator"));
    dir
}

#[test]
fn the_drafter_beside_a_model_is_used_without_being_named() {
    for mirai in [true, false] {
        let drafter = RandomDrafter::new(&fixture("tiny-llama"), &Kind { mirai, ..Kind::default() }, 1);
        let model = model_with(&drafter.path());
        for (speculation, names) in [
            (Speculation::Auto, &["ngram", "dflash"][..]),
            (Speculation::Draft, &["dflash"]),
            (Speculation::Ngram, &["ngram"]),
            (Speculation::Off, &[]),
        ] {
            let engine = Engine::open(model.path(), &without_drafter(speculation, 1)).unwrap();
            assert_eq!(engine.drafter_names(), names, "{speculation:?}");
            assert_eq!(engine.info().warnings, [""; 0]);
        }
    }
}

/// A model does not become unusable because a drafter lies beside it that is not for it.
#[test]
fn a_drafter_beside_a_model_that_does_not_fit_is_left_out_with_a_warning() {
    let drafter = RandomDrafter::new(&fixture("tiny-qwen35"), &Kind::default(), 1);
    let model = model_with(&drafter.path());
    let engine = Engine::open(model.path(), &without_drafter(Speculation::Auto, 1)).unwrap();
    assert_eq!(engine.drafter_names(), ["ngram"]);
    let folder = model.path().join("speculator");
    assert_eq!(
        engine.info().warnings,
        [format!(
            "the drafter in `{}` is left out: `dflash` cannot draft for this model: its `hidden_size` is 64, but the \
             model has 96",
            folder.display()
        )]
    );
    let error = Engine::open(model.path(), &without_drafter(Speculation::Draft, 1)).unwrap_err();
    assert!(matches!(error, EngineError::UnfitDrafter { .. }));
}

/// The error of opening tiny-llama with a drafter whose config was changed.
fn refused(change: impl Fn(&mut Value)) -> String {
    let drafter = RandomDrafter::new(&fixture("tiny-llama"), &Kind::default(), 1);
    let file = drafter.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(&file, config.to_string()).unwrap();
    let options = with_drafter(&drafter.path(), Speculation::Auto, 1);
    let error = Engine::open(&fixture("tiny-llama"), &options).unwrap_err();
    let mut lines = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        lines.push(error.to_string());
        cause = error.source();
    }
    lines.join(": ").replace(drafter.path().to_str().unwrap(), "DIR")
}

#[test]
fn a_drafter_that_was_made_for_another_model_is_refused_in_one_line() {
    let unfit = "`dflash` cannot draft for this model: its";
    assert_eq!(
        refused(|config| config["num_target_layers"] = json!(12)),
        format!("{unfit} `num_target_layers` is 12, but the model has 4")
    );
    let qwen = RandomDrafter::new(&fixture("tiny-qwen35"), &Kind::default(), 1);
    let options = with_drafter(&qwen.path(), Speculation::Draft, 1);
    let error = Engine::open(&fixture("tiny-llama"), &options).unwrap_err();
    assert_eq!(error.to_string(), format!("{unfit} `hidden_size` is 64, but the model has 96"));
    assert_eq!(error.hint().unwrap(), "leave the drafter out to have one chosen");
    assert_eq!(
        refused(|config| config["vocab_size"] = json!(513)),
        format!("{unfit} `vocab_size` is 513, but the model has 512")
    );
    assert_eq!(
        refused(|config| config["dflash_config"]["target_layer_ids"] = json!([0, 4])),
        "cannot open the model `DIR`: `dflash_config.target_layer_ids` in `DIR/config.json` is 4, expected a list of layers \
         below 4"
    );
    assert_eq!(
        refused(|config| config["dflash_config"]["target_layer_ids"] = json!([0, 1, 2])),
        "cannot open the model `DIR`: tensor `fc.weight` in `DIR/model.safetensors` has shape [96, 192], but `[hidden_size, \
         number of target_layer_ids * hidden_size]` in `DIR/config.json` asks for [96, 288]"
    );
}

#[test]
fn a_drafter_is_not_opened_as_a_model() {
    let drafter = RandomDrafter::new(&fixture("tiny-llama"), &Kind::default(), 1);
    let error = Engine::open(&drafter.path(), &EngineOptions::default()).unwrap_err();
    let source = error.source().unwrap().to_string();
    assert_eq!(
        source.replace(drafter.path().to_str().unwrap(), "DIR"),
        "`DIR` holds a drafter, which guesses ahead for a model and is none itself: open the model that it was made for"
    );
    assert_eq!(error.hint().unwrap(), "name the drafter beside its model, with `--draft-model`");
}
