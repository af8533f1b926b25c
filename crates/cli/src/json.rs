//! What `--json` prints for an answer. `docs/cli.md` describes the fields.

use std::time::Duration;

use pleach_engine::{Drafting, Engine, Event, FinishReason, Located, TokenEvent};
use serde::Serialize;

use crate::measure::Measured;

/// Gathers an answer.
#[derive(Debug)]
pub(crate) struct Collector {
    prompt_ids: Vec<u32>,
    wants_logprobs: bool,
    tokens: Vec<TokenEvent>,
    text: String,
    reasoning: String,
}

/// The whole object. Fields stay where they are from one version to the next; new ones may come.
#[derive(Debug, Serialize)]
pub(crate) struct Object {
    model: Model,
    text: String,
    reasoning: String,
    finish_reason: &'static str,
    stop_string: Option<String>,
    seed: u64,
    prompt_ids: Vec<u32>,
    output_ids: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<TokenLogProbs>>,
    usage: Usage,
    speculation: Option<Speculation>,
    timings: Timings,
    energy: Option<Energy>,
    energy_unavailable: Option<String>,
    memory: Memory,
}

/// One line of `chat --json`. `docs/cli.md` describes the fields; new kinds and new fields may come.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum Line<'a> {
    /// The model is open; questions may come.
    Ready { model: Model },
    /// A piece of a thought.
    Reasoning { text: &'a str },
    /// A piece of an answer.
    Text { text: &'a str },
    /// The end of an answer, with everything that `run --json` prints.
    Answer(Box<Object>),
    /// What a command says, or a warning.
    Note { text: &'a str },
    /// A question or a command that failed.
    Error { message: String, causes: Vec<String>, hint: Option<String> },
}

/// What answered.
#[derive(Debug, Serialize)]
pub(crate) struct Model {
    name: String,
    path: String,
    architecture: &'static str,
    num_parameters: u64,
    file_format: &'static str,
    quantization: String,
    vocab_size: usize,
    context: usize,
    max_context: usize,
    device: String,
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct TokenLogProbs {
    id: u32,
    text: String,
    logprob: f32,
    top: Vec<LogProb>,
}

#[derive(Debug, Serialize)]
struct LogProb {
    id: u32,
    text: String,
    logprob: f32,
}

#[derive(Debug, Serialize)]
struct Usage {
    prompt_tokens: usize,
    cached_tokens: usize,
    output_tokens: usize,
    passes: u64,
    drafted: u64,
    accepted: u64,
    tokens_per_pass: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Speculation {
    drafters: Vec<&'static str>,
    drafted_by_depth: Vec<u64>,
    accepted_by_depth: Vec<u64>,
    draft_ms: f64,
    speedup: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Timings {
    load_ms: f64,
    time_to_first_token_ms: Option<f64>,
    prefill_ms: f64,
    generation_ms: f64,
    total_ms: f64,
    prefill_tokens_per_s: Option<f64>,
    generation_tokens_per_s: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Energy {
    total_j: f64,
    input_j_per_token: Option<f64>,
    output_j_per_token: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Memory {
    resident_bytes: Option<u64>,
    peak_resident_bytes: Option<u64>,
    weights_bytes: usize,
    state_bytes: usize,
    token_bytes: usize,
}

impl Collector {
    pub(crate) fn new(prompt_ids: Vec<u32>, wants_logprobs: bool) -> Self {
        Self { prompt_ids, wants_logprobs, tokens: Vec::new(), text: String::new(), reasoning: String::new() }
    }

    pub(crate) fn event(&mut self, event: Event) {
        match event {
            Event::Token(token) => self.tokens.push(token),
            Event::Text(text) => self.text += &text,
            Event::Reasoning(text) => self.reasoning += &text,
            _ => {}
        }
    }

    /// The answer with everything that is known about it.
    pub(crate) fn object(self, engine: &Engine, located: &Located, measured: &Measured) -> Object {
        let finished = &measured.finished;
        let (finish_reason, stop_string) = finish_reason(&finished.reason);
        let logprobs = || self.tokens.iter().filter_map(|token| TokenLogProbs::new(token, engine)).collect();
        Object {
            model: Model::new(engine, located),
            finish_reason,
            stop_string,
            seed: finished.seed,
            output_ids: self.tokens.iter().map(|token| token.id).collect(),
            logprobs: self.wants_logprobs.then(logprobs),
            usage: Usage::new(&finished.usage),
            speculation: Speculation::new(&finished.drafting),
            timings: Timings::new(measured),
            energy: measured.energy.as_ref().ok().map(|energy| Energy {
                total_j: energy.total,
                input_j_per_token: measured.input_energy_per_token().ok(),
                output_j_per_token: measured.output_energy_per_token().ok(),
            }),
            energy_unavailable: measured.energy.as_ref().err().cloned(),
            memory: Memory::new(engine, measured),
            text: self.text,
            reasoning: self.reasoning,
            prompt_ids: self.prompt_ids,
        }
    }
}

fn finish_reason(reason: &FinishReason) -> (&'static str, Option<String>) {
    match reason {
        FinishReason::Stop => ("stop", None),
        FinishReason::StopString(string) => ("stop", Some(string.clone())),
        FinishReason::Length => ("length", None),
        FinishReason::Cancelled => ("cancelled", None),
        // The engine may learn new endings before this command does.
        _ => ("other", None),
    }
}

impl Model {
    pub(crate) fn new(engine: &Engine, located: &Located) -> Self {
        let info = engine.info();
        Self {
            name: located.name.clone(),
            path: located.path.display().to_string(),
            architecture: info.architecture,
            num_parameters: info.num_parameters,
            file_format: info.file_format,
            quantization: info.quantization.clone(),
            vocab_size: info.vocab_size,
            context: info.context,
            max_context: info.max_context,
            device: info.device.clone(),
            warnings: info.warnings.clone(),
        }
    }
}

impl TokenLogProbs {
    /// `None` if no log-probabilities were asked for.
    fn new(token: &TokenEvent, engine: &Engine) -> Option<Self> {
        let log_probs = token.log_probs.as_ref()?;
        let text = |id| String::from_utf8_lossy(&engine.tokenizer().token_bytes(id).unwrap_or_default()).into_owned();
        Some(Self {
            id: token.id,
            text: String::from_utf8_lossy(&token.bytes).into_owned(),
            logprob: log_probs.log_prob,
            top: log_probs.top.iter().map(|&(id, logprob)| LogProb { id, text: text(id), logprob }).collect(),
        })
    }
}

impl Usage {
    fn new(usage: &pleach_engine::Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
            output_tokens: usage.output_tokens,
            passes: usage.passes,
            drafted: usage.drafted,
            accepted: usage.accepted,
            tokens_per_pass: usage.tokens_per_pass(),
        }
    }
}

impl Speculation {
    /// `None` for plain decoding.
    fn new(drafting: &Drafting) -> Option<Self> {
        (!drafting.drafters.is_empty()).then(|| Self {
            drafters: drafting.drafters.clone(),
            drafted_by_depth: drafting.drafted_by_depth.clone(),
            accepted_by_depth: drafting.accepted_by_depth.clone(),
            draft_ms: 1e3 * drafting.draft.as_secs_f64(),
            speedup: drafting.speedup,
        })
    }
}

impl Timings {
    fn new(measured: &Measured) -> Self {
        let (timings, usage) = (&measured.finished.timings, &measured.finished.usage);
        let ms = |time: Duration| 1e3 * time.as_secs_f64();
        Self {
            load_ms: ms(measured.load),
            time_to_first_token_ms: timings.time_to_first_token.map(ms),
            prefill_ms: ms(timings.prefill),
            generation_ms: ms(timings.generation),
            total_ms: ms(timings.total),
            prefill_tokens_per_s: timings.prefill_tokens_per_s(usage).filter(|_| timings.time_to_first_token.is_some()),
            generation_tokens_per_s: timings.generation_tokens_per_s(usage),
        }
    }
}

impl Memory {
    fn new(engine: &Engine, measured: &Measured) -> Self {
        let plan = &engine.info().memory;
        Self {
            resident_bytes: measured.memory.map(|memory| memory.now_bytes),
            peak_resident_bytes: measured.memory.map(|memory| memory.peak_bytes),
            weights_bytes: plan.weights_bytes,
            state_bytes: plan.state_bytes,
            token_bytes: plan.token_bytes,
        }
    }
}
