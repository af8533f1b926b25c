//! What the tests of this crate share.

#![allow(dead_code, unreachable_pub, reason = "each test program has this module as its own and uses a part of it")]

pub mod random_drafter;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use pleach_engine::{
    Activations, DeviceChoice, Engine, EngineError, EngineOptions, Event, Finished, KvCacheType, Prefill, Request,
    Sampling, Session, Settings, SpecBudget, SpecialTokens, TokenEvent,
};
use serde_json::Value;

/// Every device: results must not depend on it, except in speed and in the last bits of a logit.
pub const DEVICES: [DeviceChoice; 2] = [DeviceChoice::Cpu, DeviceChoice::Reference];

pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).join(name)
}

pub fn expected(model: &str) -> Value {
    let text = std::fs::read_to_string(fixture(model).join("expected.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// f32 throughout, as the fixtures were recorded.
pub fn exact(device: DeviceChoice) -> EngineOptions {
    EngineOptions { device, kv_cache: KvCacheType::F32, activations: Activations::Exact, ..EngineOptions::default() }
}

pub fn open(model: &str, options: &EngineOptions) -> Engine {
    Engine::open(&fixture(model), options).unwrap()
}

/// An engine on the default device with room for `context` tokens.
pub fn open_with_context(model: &str, context: usize) -> Engine {
    open(model, &EngineOptions { context: context.into(), ..exact(DeviceChoice::Cpu) })
}

/// Greedy, past all stop tokens, everything shown.
pub fn plain(max_tokens: usize) -> Settings {
    Settings {
        sampling: Sampling::greedy(),
        max_tokens: Some(max_tokens),
        ignore_eos: true,
        split_reasoning: false,
        special_tokens: SpecialTokens::Keep,
        ..Settings::default()
    }
}

pub fn sampled(max_tokens: usize, seed: u64) -> Settings {
    let sampling = Sampling { temperature: Some(1.0), seed: Some(seed), ..Sampling::default() };
    Settings { sampling, ..plain(max_tokens) }
}

/// All events of a request, by kind.
#[derive(Debug, Default)]
pub struct Run {
    pub text: String,
    pub reasoning: String,
    pub tokens: Vec<TokenEvent>,
    pub prefill: Vec<Prefill>,
    pub finished: Option<Finished>,
}

impl Run {
    pub fn finished(&self) -> &Finished {
        self.finished.as_ref().unwrap()
    }

    pub fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }
}

pub fn try_run(session: &mut Session, request: &Request) -> Result<Run, EngineError> {
    let mut run = Run::default();
    for event in session.generate(request)? {
        assert!(run.finished.is_none(), "an event after the last");
        match event? {
            Event::Prefill(progress) => run.prefill.push(progress),
            Event::Token(token) => run.tokens.push(token),
            Event::Text(text) => run.text.push_str(&text),
            Event::Reasoning(text) => run.reasoning.push_str(&text),
            Event::Finished(finished) => run.finished = Some(finished),
            other => panic!("unknown event {other:?}"),
        }
    }
    Ok(run)
}

pub fn run(session: &mut Session, request: &Request) -> Run {
    try_run(session, request).unwrap()
}

/// The text of a request in a session of its own.
pub fn text_of(engine: &Engine, request: &Request) -> String {
    run(&mut engine.session().unwrap(), request).text
}

/// A prompt of tokens that every fixture's vocabulary has.
pub fn prompt(len: usize) -> Vec<u32> {
    (0..len as u32).map(|index| 20 + index * 7 % 300).collect()
}

pub fn rows(rows: usize) -> SpecBudget {
    SpecBudget::Rows(NonZeroUsize::new(rows).unwrap())
}

/// Greedy and sampled, with what makes a token depend on those before it.
pub fn all_settings() -> Vec<Settings> {
    let penalized = Sampling {
        repetition_penalty: Some(1.2),
        frequency_penalty: Some(0.3),
        presence_penalty: Some(0.2),
        penalty_window: Some(24),
        logit_bias: vec![(7, 4.0), (30, -100.0)],
        ..sampled(0, 3).sampling
    };
    let filtered = Sampling { top_k: Some(20), top_p: Some(0.9), min_p: Some(0.02), ..sampled(0, 4).sampling };
    let with = |sampling| Settings { sampling, ..plain(70) };
    let greedy_penalized = Sampling { temperature: Some(0.0), ..penalized.clone() };
    vec![plain(70), sampled(70, 1), with(penalized), with(greedy_penalized), with(filtered)]
}

/// A prompt that repeats itself, so that there is something to look up.
pub fn repeating() -> Vec<u32> {
    [prompt(20), prompt(20), prompt(9)].concat()
}

/// Puts NaNs among the numbers of the F32 tensors of a safetensors file.
pub fn put_nans(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    let (len, rest) = bytes.split_first_chunk_mut().unwrap();
    let (header, data) = rest.split_at_mut(u64::from_le_bytes(*len) as usize);
    let header: Value = serde_json::from_slice(header).unwrap();
    for tensor in header.as_object().unwrap().values().filter(|tensor| tensor["dtype"] == "F32") {
        let [start, end] = [0, 1].map(|i| tensor["data_offsets"][i].as_u64().unwrap() as usize);
        data[start..end].as_chunks_mut().0.iter_mut().step_by(97).for_each(|x| *x = f32::NAN.to_le_bytes());
    }
    std::fs::write(file, bytes).unwrap();
}
