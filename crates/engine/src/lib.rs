//! The public library: open a model, generate a stream of events, chat, cancel.
//!
//! An [`Engine`] is an open model. A [`Session`] runs requests on it and remembers what it has read; a [`ChatSession`]
//! remembers turns as well; a [`Batch`] runs many requests at once. A request gives [`Event`]s, made as they are asked for.
//!
//! ```
//! # let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-llama");
//! use pleach_engine::{Engine, EngineOptions, Event, Request, Settings};
//!
//! let engine = Engine::open(dir.as_ref(), &EngineOptions::default())?;
//! let settings = Settings { max_tokens: Some(8), ..Settings::default() };
//! let mut text = String::new();
//! for event in engine.session()?.generate(&Request::user("Hello").with(settings))? {
//!     match event? {
//!         Event::Text(piece) => text.push_str(&piece),
//!         Event::Finished(finished) => assert!(finished.usage.output_tokens <= 8),
//!         _ => {}
//!     }
//! }
//! # Ok::<(), pleach_engine::EngineError>(())
//! ```

mod activity;
mod batch;
mod bench;
mod cancel;
mod chain;
mod chat;
mod chunk;
mod costly;
mod dflash;
mod draft_model;
mod drafter;
mod embed;
mod energy;
mod engine;
mod error;
mod event;
mod fingerprint;
mod forest;
mod generation;
mod info;
mod inspect;
mod keeper;
mod locate;
mod memory;
mod mtp;
mod options;
mod output;
mod pending;
mod prefix_cache;
mod request;
mod running;
mod selected;
mod session;
mod shortlist;
mod speculation;
mod target;
mod turn_ends;
mod turns;
mod vocabulary;
mod weaver;

pub use activity::{Activity, ActivityMeter, ProgramShare, load_average, processor_name};
pub use batch::{Batch, DiskReader, Job, RequestId};
pub use bench::{BenchProfile, Bencher, MAX_PASS_ROWS, RowShape};
pub use cancel::CancelToken;
pub use chat::{Answer, ChatSession, Reply};
pub use embed::Pooling;
pub use energy::{EnergyMeter, EnergyUnavailable};
pub use engine::{EncodedPrompt, Engine, LoadProgress};
pub use error::EngineError;
pub use event::{Event, FinishReason, Finished, Prefill, Timings, TokenEvent, TokenLogProbs, Usage};
pub use generation::Generation;
pub use info::ModelInfo;
pub use inspect::{DrafterFound, FormatShare, Inspection, ModelSummary, TensorInfo, inspect, summarize};
pub use locate::{Environment, Located, local_models, locate};
pub use memory::{ResidentMemory, SystemMemory, forget_peak, resident_memory, system_memory};
pub use options::{
    AUTOMATIC_CONTEXT, Activations, ContextLength, DeviceChoice, EngineOptions, KvCacheType, MAX_PREFILL_CHUNK,
    MAX_THREADS, device_description,
};
pub use prefix_cache::{CacheOwner, PrefixCacheOptions, PrefixCacheStats};
pub use request::{MAX_LOGPROBS, Prompt, Request, Sampling, Settings};
pub use session::Session;
pub use speculation::{AUTOMATIC_SPEC_ROWS, Drafting, MAX_SPEC_ROWS, SpecBudget, Speculation};

// What the signatures above are made of, so that users need no other crate of the project.
pub use pleach_checkpoint::{
    CheckpointError, GenerationConfig, LayerType, ModelConfig, MoeConfig, SkippedTensor, SourceFile,
};
pub use pleach_decode::{Constraint, DecodeError, Flow, SamplingParams, TokenMask};
pub use pleach_kernels::{Ceilings, KernelError, PartProfile, PassPart, PassProfile, PassWork, Rate};
pub use pleach_model::{MemoryPlan, ModelError};
pub use pleach_text::{
    AddedTokens, ChatRequest, Content, FunctionCall, Message, Part, RenderNote, Role, SpecialTokens, TextError,
    Tokenizer, ToolCall,
};
