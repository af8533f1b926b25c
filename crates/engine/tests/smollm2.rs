//! A real model from a real file. `scripts/fetch-model.sh` fetches it.

#![allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]

mod support;

use std::path::PathBuf;
use std::sync::Arc;

use pleach_checkpoint::{Checkpoint, DrafterCheckpoint};
use pleach_engine::{
    DeviceChoice, Engine, EngineOptions, Environment, Event, Request, Sampling, Settings, Speculation, locate,
};
use pleach_kernels::{Activations, CpuDevice, CpuOptions, DType, Device, ReferenceDevice};
use pleach_model::{DFlash, DFlashRunner, LoadOptions, Model};

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
fn a_hub_like_name_that_is_not_cached_is_refused() {
    let environment = Environment { home: Some("nowhere".into()), ..Environment::default() };
    let error = locate(Some("HuggingFaceTB/SmolLM2-135M-Instruct"), &environment).unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no model `HuggingFaceTB/SmolLM2-135M-Instruct`: it is no path and not in \
         `nowhere/.cache/huggingface/hub/models--HuggingFaceTB--SmolLM2-135M-Instruct`"
    );
}

/// The first tokens of the greedy answer.
const FIRST: [u32; 12] = [3725, 5367, 198, 1604, 16905, 79, 25488, 79, 22372, 24, 2402, 33];

/// Draws with the drafter that comes with the project: the text of plain decoding, in fewer passes.
#[test]
fn the_trained_drafter_changes_no_token_and_saves_passes() {
    let plain = open(DeviceChoice::Cpu);
    let drafted = open_with_drafter();
    for temperature in [0.0, 0.7] {
        let sampling = Sampling { temperature: Some(temperature), seed: Some(5), ..Sampling::default() };
        let settings = Settings { sampling, max_tokens: Some(64), ..Settings::default() };
        let text = run(&mut plain.session().unwrap(), &Request::user(QUESTION).with(settings.clone())).ids();
        for budget in ["auto", "4", "16"] {
            let spec_budget = budget.parse().unwrap();
            let request = Request::user(QUESTION).with(Settings { spec_budget, ..settings.clone() });
            let run = run(&mut drafted.session().unwrap(), &request);
            assert_eq!(run.ids(), text, "temperature {temperature}, {budget} rows");
            let usage = run.finished().usage;
            assert_eq!(run.finished().drafting.drafters, ["dflash"]);
            // Measured: 2.9 tokens per pass of 16 rows at temperature 0 on this question's answer.
            assert!(budget != "16" || temperature > 0.0 || usage.tokens_per_pass().unwrap() > 2.0, "{usage:?}");
        }
    }
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

/// Block by block against what training recorded: taps in, hidden states of the block out.
#[test]
fn the_drafter_computes_what_it_was_trained_to() {
    let bytes = std::fs::read(drafter().join("reference.safetensors")).unwrap();
    let header_len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header_len]).unwrap();
    let words = |name: &str| -> Vec<[u8; 4]> {
        let [begin, end] = [0, 1].map(|i| header[name]["data_offsets"][i].as_u64().unwrap() as usize);
        bytes[8 + header_len..][begin..end].as_chunks::<4>().0.to_vec()
    };
    let floats = |name: &str| words(name).into_iter().map(f32::from_le_bytes).collect::<Vec<_>>();
    let ids = |name: &str| words(name).into_iter().map(u32::from_le_bytes).collect::<Vec<_>>();
    let (taps, hidden, tokens) = (floats("taps"), floats("block_hidden"), ids("ids"));

    let devices: [Arc<dyn Device>; 2] =
        [Arc::new(CpuDevice::new(CpuOptions::default()).unwrap()), Arc::new(ReferenceDevice::new())];
    for device in devices {
        let name = device.name();
        let mut runner = drafter_on(device);
        for (block, &anchor) in ids("anchors").iter().enumerate() {
            let mut sequence = runner.drafter().new_sequence().unwrap();
            runner.read(&taps[..anchor as usize * 4 * 576], &mut sequence).unwrap();
            runner.draft(tokens[anchor as usize], 7, &sequence).unwrap();
            let expected = &hidden[block * 8 * 576..][..8 * 576];
            let largest = expected.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
            let found = runner.hidden().unwrap();
            let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // Recorded in bf16 arithmetic, which has 8 bits.
            assert!(worst < 0.03 * largest, "{name}, block {block}: {worst} off, values up to {largest}");
        }
    }
}

fn drafter() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/smollm2-135m-instruct-drafter"))
}

fn open_with_drafter() -> Engine {
    let speculation = Speculation::Draft;
    let options = EngineOptions { speculation, draft_model: Some(drafter()), ..EngineOptions::default() };
    Engine::open(&path(), &options).unwrap()
}

/// The drafter with its target on a device.
fn drafter_on(device: Arc<dyn Device>) -> DFlashRunner {
    let options = LoadOptions { kv_cache: DType::F32, activations: Activations::Float };
    let checkpoint = Checkpoint::open(&path()).unwrap();
    let head = checkpoint.tensors.get("embed_tokens.weight").unwrap().clone();
    let target = Model::load(checkpoint.config, checkpoint.tensors, device, &options).unwrap();
    let drafter = DrafterCheckpoint::open(&drafter()).unwrap();
    DFlashRunner::new(Arc::new(DFlash::load(drafter, &target, &head, &options).unwrap()))
}
