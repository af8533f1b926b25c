//! A real model from a real file. `scripts/fetch-model.sh` fetches it.

#![allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]

mod support;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use pleach_checkpoint::{Checkpoint, DrafterCheckpoint, Tensor, WeaverCheckpoint};
use pleach_engine::{
    DeviceChoice, Engine, EngineOptions, Environment, Event, Request, Sampling, Settings, SpecBudget, Speculation,
    locate,
};
use pleach_kernels::{Activations, CpuDevice, CpuOptions, DType, Device, ReferenceDevice};
use pleach_model::{DFlash, DFlashRunner, LoadOptions, Model, Weaver, WeaverNode, WeaverRunner};

use support::{DEVICES, run};

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const QUESTION: &str = "Write a python function to merge two sorted lists";

fn path() -> PathBuf {
    let dirs = Environment::of_process().model_dirs();
    let path = dirs.iter().map(|dir| dir.join(FILE)).find(|path| path.exists());
    path.unwrap_or_else(|| panic!("`{FILE}` is in none of {dirs:?}: run `scripts/fetch-model.sh`"))
}

fn open(device: DeviceChoice) -> Engine {
    Engine::open(&path(), &EngineOptions { device, ..EngineOptions::default() }).unwrap()
}

fn greedy(max_tokens: usize) -> Request {
    let settings = Settings { sampling: Sampling::greedy(), max_tokens: Some(max_tokens), ..Settings::default() };
    Request::user(QUESTION).with(Settings { logprobs: Some(1), ..settings })
}

#[test]
fn the_first_tokens_are_the_same_on_every_device() {
    for device in DEVICES {
        let run = run(&mut open(device).session().unwrap(), &greedy(FIRST.len()));
        assert_eq!(run.ids(), FIRST, "on {device:?}: {:?}", run.text);
    }
}

#[test]
fn the_answer_is_a_function_that_merges_two_lists() {
    let engine = open(DeviceChoice::Cpu);
    let mut text = String::new();
    for event in engine.session().unwrap().generate(&greedy(64)).unwrap() {
        if let Event::Text(piece) = event.unwrap() {
            text.push_str(&piece);
        }
    }
    assert!(text.starts_with("```python\ndef merge_sorted_lists(list1, list2):\n"), "{text}");
    assert!(text.contains("return "), "{text}");
}

#[test]
fn the_file_is_described() {
    let engine = open(DeviceChoice::Cpu);
    let info = engine.info();
    assert_eq!((info.architecture, info.file_format), ("llama", "GGUF"));
    assert_eq!((info.name.as_str(), info.max_context, info.vocab_size), ("SmolLM2-135M-Instruct.Q4_1", 8192, 49152));
    assert!(info.quantization.starts_with("Q4_1 "), "{}", info.quantization);
    assert_eq!(info.num_parameters / 1_000_000, 134);
    assert_eq!(info.skipped, []);
    assert!(info.warnings.iter().all(|warning| warning.starts_with("the vocabulary of `")), "{:?}", info.warnings);
    let stops: Vec<_> = engine.stop_tokens().iter().map(|&id| engine.tokenizer().token_text(id).unwrap()).collect();
    assert_eq!(stops, ["<|endoftext|>", "<|im_end|>"]);
}

#[test]
fn a_name_that_is_no_path_is_refused() {
    let error = locate(Some("HuggingFaceTB/SmolLM2-135M-Instruct"), &Environment::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no model `HuggingFaceTB/SmolLM2-135M-Instruct`: no file or folder has this name"
    );
}

/// The first tokens of the greedy answer.
const FIRST: [u32; 12] = [3725, 5367, 198, 1604, 16905, 79, 25488, 79, 22372, 24, 2402, 33];

/// Draws with the drafter that comes with the project: the text of plain decoding, in fewer passes.
#[test]
fn the_trained_drafter_changes_no_token_and_saves_passes() {
    let plain = open(DeviceChoice::Cpu);
    for (speculation, name) in [(Speculation::DFlash, "dflash"), (Speculation::Draft, "weaver")] {
        let drafted = open_with_drafter(speculation);
        for temperature in [0.0, 0.7] {
            let sampling = Sampling { temperature: Some(temperature), seed: Some(5), ..Sampling::default() };
            let settings = Settings { sampling, max_tokens: Some(48), ..Settings::default() };
            let text = run(&mut plain.session().unwrap(), &Request::user(QUESTION).with(settings.clone())).ids();
            for budget in ["auto", "16"] {
                let spec_budget = budget.parse().unwrap();
                let request = Request::user(QUESTION).with(Settings { spec_budget, ..settings.clone() });
                let run = run(&mut drafted.session().unwrap(), &request);
                assert_eq!(run.ids(), text, "temperature {temperature}, {budget} rows");
                let usage = run.finished().usage;
                assert_eq!(run.finished().drafting.drafters, [name]);
                // Measured: 2.9 tokens per pass of 16 rows at temperature 0 on this question's answer.
                assert!(budget != "16" || temperature > 0.0 || usage.tokens_per_pass().unwrap() > 2.0, "{usage:?}");
            }
        }
    }
}

/// Draws by every drafter, in trees of every size, on one and two threads, greedily and with noise and penalties: one text
/// for each seed. A small part of it runs in every test run, above.
#[test]
#[ignore = "takes minutes: `cargo nextest run --release -p pleach-engine --run-ignored only`"]
fn every_drafter_budget_thread_count_and_seed_gives_the_text_of_plain_decoding() {
    let garbage = tempfile::tempdir().unwrap();
    let shape = support::random_drafter::Shape { hidden_size: 576, vocab_size: 49152, num_layers: 30 };
    support::random_drafter::write(garbage.path(), shape, 11);
    let drafters = [
        (Speculation::Ngram, None),
        (Speculation::DFlash, Some(drafter())),
        (Speculation::Draft, Some(drafter())),
        (Speculation::Auto, Some(drafter())),
        (Speculation::DFlash, Some(garbage.path().to_owned())),
        (Speculation::Draft, Some(garbage.path().to_owned())),
    ];
    let plain = open(DeviceChoice::Cpu);
    let cases: Vec<_> = (0..6).flat_map(|seed| matrix_settings(seed).map(|settings| (seed, settings))).collect();
    let ask = |engine: &Engine, seed: u64, settings: &Settings, spec_budget: SpecBudget| {
        let question = MATRIX_QUESTIONS[seed as usize % MATRIX_QUESTIONS.len()];
        let request = Request::user(question).with(Settings { spec_budget, ..settings.clone() });
        run(&mut engine.session().unwrap(), &request).ids()
    };
    let texts: Vec<_> = cases.iter().map(|(seed, settings)| ask(&plain, *seed, settings, support::rows(1))).collect();
    for (speculation, draft_model) in drafters {
        for threads in [1, 2] {
            let options = EngineOptions {
                speculation,
                draft_model: draft_model.clone(),
                threads: NonZeroUsize::new(threads),
                ..EngineOptions::default()
            };
            let engine = Engine::open(&path(), &options).unwrap();
            for budget in [SpecBudget::Automatic].into_iter().chain([1, 2, 3, 5, 8, 16, 33, 64].map(support::rows)) {
                for ((seed, settings), text) in cases.iter().zip(&texts) {
                    let found = ask(&engine, *seed, settings, budget);
                    let sampling = &settings.sampling;
                    assert_eq!(&found, text, "{speculation:?}, {draft_model:?}, {threads}, {budget:?}, {sampling:?}");
                }
            }
        }
    }
}

/// Code, prose, and a text that is largely a copy of the prompt.
const MATRIX_QUESTIONS: [&str; 3] = [
    QUESTION,
    "Why is the sky blue? Answer in three sentences.",
    "Repeat this list and add one item: apples, pears, plums, cherries, quinces, apples, pears, plums.",
];

fn matrix_settings(seed: u64) -> [Settings; 3] {
    let sampled = Sampling { temperature: Some(0.7), top_p: Some(0.95), seed: Some(seed), ..Sampling::default() };
    let penalized = Sampling {
        repetition_penalty: Some(1.15),
        frequency_penalty: Some(0.2),
        presence_penalty: Some(0.1),
        min_p: Some(0.02),
        ..sampled.clone()
    };
    [Sampling::greedy(), sampled, penalized].map(|sampling| Settings {
        sampling,
        max_tokens: Some(40),
        ..Settings::default()
    })
}

#[test]
fn a_drafter_of_another_model_is_refused() {
    let options = EngineOptions { draft_model: Some(drafter()), ..EngineOptions::default() };
    let error = Engine::open(&support::fixture("tiny-llama"), &options).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`dflash` cannot draft for this model: its `hidden_size` is 576, but the model has 96"
    );
}

/// What training recorded at a few places of one answer.
struct Reference {
    header: serde_json::Value,
    data: Vec<u8>,
}

impl Reference {
    fn read() -> Self {
        let mut bytes = std::fs::read(drafter().join("reference.safetensors")).unwrap();
        let data = bytes.split_off(8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize);
        Self { header: serde_json::from_slice(&bytes[8..]).unwrap(), data }
    }

    fn words(&self, name: &str) -> &[[u8; 4]] {
        let [begin, end] = [0, 1].map(|i| self.header[name]["data_offsets"][i].as_u64().unwrap() as usize);
        self.data[begin..end].as_chunks::<4>().0
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.words(name).iter().copied().map(f32::from_le_bytes).collect()
    }

    fn ids(&self, name: &str) -> Vec<u32> {
        self.words(name).iter().copied().map(u32::from_le_bytes).collect()
    }
}

/// Largest difference as a share of the largest value.
fn worst(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest
}

/// Block by block: taps in, hidden states of the block out.
#[test]
fn the_drafter_computes_what_it_was_trained_to() {
    let reference = Reference::read();
    let (taps, hidden, tokens) = (reference.floats("taps"), reference.floats("block_hidden"), reference.ids("ids"));
    for (device, options, tolerance) in devices() {
        let name = device.name();
        let mut runner = drafter_on(&target_on(device, &options), &options);
        for (block, &anchor) in reference.ids("anchors").iter().enumerate().take(blocks_on(name)) {
            let mut sequence = runner.drafter().new_sequence().unwrap();
            runner.read(&taps[..anchor as usize * 4 * 576], &mut sequence).unwrap();
            runner.draft(tokens[anchor as usize], 7, &sequence).unwrap();
            // All rows but the first, which guesses nothing.
            let worst = worst(runner.hidden().unwrap(), &hidden[(block * 8 + 1) * 576..][..7 * 576]);
            assert!(worst < tolerance, "{name}, {options:?}, block {block}: {worst} off");
        }
    }
}

/// Depth by depth along the text: hidden states in, queries and the candidates' log-probabilities out.
#[test]
fn the_weaver_computes_what_it_was_trained_to() {
    let reference = Reference::read();
    let (hidden, block_hidden) = (reference.floats("hidden"), reference.floats("block_hidden"));
    let (queries, log_probs) = (reference.floats("queries"), reference.floats("log_probs"));
    let (pool_tokens, pool_scores) = (reference.ids("pool_tokens"), reference.floats("pool_scores"));
    let tokens = reference.ids("ids");
    for (device, options, tolerance) in devices() {
        let name = device.name();
        let target = target_on(device, &options).0;
        let weaver = WeaverCheckpoint::open(&drafter()).unwrap().unwrap();
        let mut runner = WeaverRunner::new(Arc::new(Weaver::load(weaver, &target, 8, &options).unwrap()));
        for (block, &anchor) in reference.ids("anchors").iter().enumerate().take(blocks_on(name)) {
            let anchor = anchor as usize;
            let first = &hidden[(anchor - 1) * 576..anchor * 576];
            runner.begin(&[first, &block_hidden[(block * 8 + 1) * 576..][..7 * 576]].concat()).unwrap();
            for depth in 0..7_usize {
                // A sibling beside each node of the path changes nothing.
                let parent = depth.checked_sub(1).map(|depth| 2 * depth);
                let sibling = WeaverNode { token: 17, parent };
                let nodes = [WeaverNode { token: tokens[anchor + depth], ..sibling }, sibling];
                let found = runner.expand(&nodes).unwrap();
                let place = block * 7 + depth;
                let query_error = worst(&found[..576], &queries[place * 576..][..576]);
                assert!(
                    query_error < tolerance,
                    "{name}, {options:?}, block {block}, depth {depth}: {query_error} off"
                );
                let pool = place * 64..(place + 1) * 64;
                let scores = runner.score(&found, &pool_tokens[pool.clone()], &pool_scores[pool.clone()]).unwrap();
                let total: f32 = scores[..64].iter().map(|score| score.exp()).sum();
                let found: Vec<f32> = scores[..64].iter().map(|score| score - total.ln()).collect();
                let error = worst(&found, &log_probs[pool]);
                assert!(error < tolerance, "{name}, {options:?}, block {block}, depth {depth}: {error} off");
            }
        }
    }
}

/// Blocks that are compared: one where computing takes long.
fn blocks_on(device: &str) -> usize {
    if device == "reference" { 1 } else { 3 }
}

/// Devices with how precisely they compute, and how far that may be from values recorded in bf16 arithmetic.
fn devices() -> [(Arc<dyn Device>, LoadOptions, f32); 3] {
    let cpu = || -> Arc<dyn Device> { Arc::new(CpuDevice::new(CpuOptions::default()).unwrap()) };
    let exact = LoadOptions { kv_cache: DType::F32, activations: Activations::Float };
    [(cpu(), exact, 0.03), (Arc::new(ReferenceDevice::new()), exact, 0.03), (cpu(), LoadOptions::default(), 0.1)]
}

fn drafter() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/smollm2-135m-instruct-drafter"))
}

fn open_with_drafter(speculation: Speculation) -> Engine {
    let options = EngineOptions { speculation, draft_model: Some(drafter()), ..EngineOptions::default() };
    Engine::open(&path(), &options).unwrap()
}

/// The model on a device, with its stored output matrix.
fn target_on(device: Arc<dyn Device>, options: &LoadOptions) -> (Model, Tensor) {
    let checkpoint = Checkpoint::open(&path()).unwrap();
    let head = checkpoint.tensors.get("embed_tokens.weight").unwrap().clone();
    (Model::load(checkpoint.config, checkpoint.tensors, device, options).unwrap(), head)
}

fn drafter_on((target, head): &(Model, Tensor), options: &LoadOptions) -> DFlashRunner {
    let drafter = DrafterCheckpoint::open(&drafter()).unwrap();
    DFlashRunner::new(Arc::new(DFlash::load(drafter, target, head, options).unwrap()))
}
