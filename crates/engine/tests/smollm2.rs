//! A real model from a real file. `scripts/fetch-model.sh` fetches it.

#![allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]

mod support;

use pleach_engine::{DeviceChoice, Engine, EngineOptions, Environment, Event, Request, Sampling, Settings, locate};

use support::{DEVICES, run};

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const QUESTION: &str = "Write a python function to merge two sorted lists";

fn open(device: DeviceChoice) -> Engine {
    let dirs = Environment::of_process().model_dirs();
    let path = dirs.iter().map(|dir| dir.join(FILE)).find(|path| path.exists());
    let path = path.unwrap_or_else(|| panic!("`{FILE}` is in none of {dirs:?}: run `scripts/fetch-model.sh`"));
    Engine::open(&path, &EngineOptions { device, ..EngineOptions::default() }).unwrap()
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
