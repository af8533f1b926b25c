//! The flags that say which model runs, where, and what guesses ahead for it.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pleach_engine::{Activations, ContextLength, DeviceChoice, EngineOptions, KvCacheType, SpecBudget, Speculation};

use super::{HELP_HEADING_MODEL, values};

/// Which model, and how it is run.
#[derive(Debug, Args)]
#[command(next_help_heading = HELP_HEADING_MODEL)]
pub(crate) struct ModelFlags {
    /// A folder, a `.gguf` file, or a model of the Hugging Face hub as `org/name`, `org/name:file.gguf` or
    /// `org/name:Q4_K_M`, which is downloaded if it is not there. Without it: PLEACH_MODEL, then the first model where the
    /// default is looked for.
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    pub(crate) network: NetworkFlags,
    /// Tokens that prompt and answer may have together; 0 chooses by model and memory.
    #[arg(
        long,
        value_name = "TOKENS",
        env = "PLEACH_CTX",
        hide_env_values = true,
        default_value = "0",
        allow_hyphen_values = true
    )]
    pub(crate) ctx: ContextLength,
    /// Threads to compute with [default: one per physical core].
    #[arg(long, value_name = "N", env = "PLEACH_THREADS", hide_env_values = true, value_parser = values::threads, allow_hyphen_values = true)]
    pub(crate) threads: Option<NonZeroUsize>,
    #[command(flatten)]
    runtime: RuntimeFlags,
    #[command(flatten)]
    pub(crate) spec: SpecFlags,
}

/// Where models come from.
#[derive(Debug, Default, Args)]
pub(crate) struct NetworkFlags {
    /// Never use the network: only models that are on this machine.
    #[arg(long, env = "PLEACH_OFFLINE", hide_env_values = true, value_parser = values::switch)]
    pub(crate) offline: bool,
    /// The model of the settings file.
    #[arg(skip)]
    pub(crate) default_model: Option<String>,
}

/// What guesses ahead.
#[derive(Debug, Args)]
pub(crate) struct SpecFlags {
    /// What guesses ahead: `ngram` looks up what the text has said before, `mtp` asks the model's own head, `draft` a
    /// --draft-model, of which `dflash` takes the drafter alone and `weaver` insists on its Weaver. It changes the speed, never the text.
    #[arg(
        long,
        value_name = "DRAFTER",
        value_enum,
        env = "PLEACH_SPEC",
        hide_env_values = true,
        default_value = "auto"
    )]
    spec: SpecArg,
    /// What guesses ahead: a small model of the same vocabulary, or the folder of a drafter trained for the model.
    #[arg(long, value_name = "PATH", env = "PLEACH_DRAFT_MODEL", hide_env_values = true)]
    pub(crate) draft_model: Option<PathBuf>,
    /// Rows of a pass for guesses, 1 to 64; `auto` takes as many as pay by the measured speed of this machine.
    #[arg(
        long,
        value_name = "ROWS",
        env = "PLEACH_SPEC_BUDGET",
        hide_env_values = true,
        default_value = "auto",
        allow_hyphen_values = true
    )]
    pub(crate) spec_budget: SpecBudget,
}

/// Where a model runs, and how precisely.
#[derive(Debug, Args)]
#[command(next_help_heading = HELP_HEADING_MODEL)]
pub(crate) struct RuntimeFlags {
    /// Where the model runs; `reference` is slow and checks the others.
    #[arg(long, value_enum, env = "PLEACH_DEVICE", hide_env_values = true, default_value = "cpu")]
    device: DeviceArg,
    /// Type of stored keys and values.
    #[arg(
        long,
        value_name = "TYPE",
        value_enum,
        env = "PLEACH_KV_CACHE",
        hide_env_values = true,
        default_value = "f16"
    )]
    kv_cache: KvCacheArg,
    /// What quantized weights are multiplied with; `exact` is slower.
    #[arg(
        long,
        value_name = "TYPE",
        value_enum,
        env = "PLEACH_ACTIVATIONS",
        hide_env_values = true,
        default_value = "int8"
    )]
    activations: ActivationsArg,
}

/// Spelling of the devices.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum DeviceArg {
    Cpu,
    Reference,
}

/// Spelling of the types of keys and values.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum KvCacheArg {
    F32,
    F16,
    Bf16,
    Q8,
}

/// Spelling of the precisions of activations.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum ActivationsArg {
    Int8,
    Exact,
}

/// Spelling of the drafters.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum SpecArg {
    Auto,
    Off,
    Ngram,
    Mtp,
    Draft,
    Dflash,
    Weaver,
}

impl ModelFlags {
    /// How the engine is to be opened.
    pub(crate) fn engine_options(&self) -> EngineOptions {
        EngineOptions {
            threads: self.threads,
            context: self.ctx,
            speculation: self.spec.speculation(),
            draft_model: self.spec.draft_model.clone(),
            ..self.runtime.engine_options()
        }
    }
}

impl SpecFlags {
    /// The drafters asked for.
    pub(crate) fn speculation(&self) -> Speculation {
        match self.spec {
            SpecArg::Auto => Speculation::Auto,
            SpecArg::Off => Speculation::Off,
            SpecArg::Ngram => Speculation::Ngram,
            SpecArg::Mtp => Speculation::Mtp,
            SpecArg::Draft => Speculation::Draft,
            SpecArg::Dflash => Speculation::DFlash,
            SpecArg::Weaver => Speculation::Weaver,
        }
    }
}

impl RuntimeFlags {
    /// The part of the options that these flags decide.
    pub(super) fn engine_options(&self) -> EngineOptions {
        EngineOptions {
            device: match self.device {
                DeviceArg::Cpu => DeviceChoice::Cpu,
                DeviceArg::Reference => DeviceChoice::Reference,
            },
            kv_cache: match self.kv_cache {
                KvCacheArg::F32 => KvCacheType::F32,
                KvCacheArg::F16 => KvCacheType::F16,
                KvCacheArg::Bf16 => KvCacheType::BF16,
                KvCacheArg::Q8 => KvCacheType::Q8,
            },
            activations: match self.activations {
                ActivationsArg::Int8 => Activations::Int8,
                ActivationsArg::Exact => Activations::Exact,
            },
            ..EngineOptions::default()
        }
    }
}
