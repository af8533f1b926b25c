//! The arguments: one struct per group of flags, and the help pages made from them.

mod bench;
mod cached;
mod chat;
mod refusal;
mod values;

use std::env;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use pleach_engine::{
    Activations, ChatRequest, ContextLength, DeviceChoice, EngineOptions, KvCacheType, Sampling, SpecBudget,
    Speculation,
};
use serde_json::Value;

use crate::error::CliError;
use crate::render::Thoughts;

pub(crate) use bench::{BenchArgs, ReportForm, TestFlags};
pub(crate) use cached::{DoctorArgs, InfoArgs, InspectArgs, ListArgs, PullArgs, RmArgs};
pub(crate) use chat::{ChatArgs, ChatFlags};
pub(crate) use values::{
    Allowed, count as parse_count, max_tokens as parse_max_tokens, number as parse_number, seed as parse_seed,
    stop as parse_stop,
};

const HELP_HEADING_PROMPT: &str = "Prompt";
const HELP_HEADING_MODEL: &str = "Model";
const HELP_HEADING_SAMPLING: &str = "Sampling (what is left out follows the model's own generation_config)";
const HELP_HEADING_OUTPUT: &str = "Output";

const EXAMPLES: &str = "\
Examples:
  pleach                                         talk with the default model
  pleach -m \"Why is the sky blue?\"               ask it one thing
  pleach --model model.gguf -m \"Why?\"            ask another one
  pleach run model.gguf \"Why is the sky blue?\"   the same, as a command
  git diff | pleach -m \"Write a commit message\"  a question about what comes in
  pleach bench model.gguf                        how fast it runs here

`pleach run --help` says more about prompts and models.";

const RUN_EXAMPLES: &str = "\
The prompt:
  It comes from the argument, from -m, or from standard input. Text that is
  piped in goes after the argument, with a blank line between them.

  A single argument is the model if it is the path of something that exists, or
  has no space and contains `/` or ends with `.gguf`. Otherwise it is the prompt.

Examples:
  pleach run model.gguf \"Why is the sky blue?\"
  pleach run Qwen/Qwen3-0.6B \"Why?\" --no-think --temperature 0.8 --seed 7
  echo \"Why is the sky blue?\" | pleach run model.gguf
  pleach run model.gguf --messages chat.json --json --logprobs 5
  pleach run model.gguf --raw -m \"Once upon a time\" --max-tokens 100

Exit codes:
  0 done    1 failed    2 wrong arguments    130 stopped with Ctrl-C";

/// Runs language models on this machine.
#[derive(Debug, Parser)]
#[command(name = "pleach", version, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// Without a command the flags are those of `run`.
    #[command(flatten)]
    pub(crate) flags: GenerateFlags,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Talk with a model.
    Chat(Box<ChatArgs>),
    /// Answer one prompt.
    Run(Box<RunArgs>),
    /// Download models from the Hugging Face hub.
    Pull(PullArgs),
    /// List the models that are on this machine.
    List(ListArgs),
    /// Say where a model is and what the hub has of it.
    Info(InfoArgs),
    /// Remove models from the Hugging Face cache.
    Rm(RmArgs),
    /// Say what is in a model and what it takes.
    Inspect(Box<InspectArgs>),
    /// Measure the speed of models.
    Bench(Box<BenchArgs>),
    /// Say what this machine has and what will be used of it.
    Doctor(DoctorArgs),
    /// Print the completions of a shell.
    Completions {
        /// The shell.
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Print the manual, as `man` reads it.
    Man,
    /// Serve models over HTTP; not part of this version.
    #[command(hide = true, disable_help_flag = true)]
    Server {
        /// Whatever a server is told.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

/// Answer one prompt with a model and print the answer as it is written.
///
/// The answer goes to standard output; the statistics go to standard error, so that a pipe carries the answer alone.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
pub(crate) struct RunArgs {
    /// Which model to ask; --model says what it can be.
    #[arg(value_name = "MODEL")]
    pub(crate) first: Option<String>,
    /// What to ask; `-` reads it from standard input.
    #[arg(value_name = "PROMPT")]
    pub(crate) second: Option<String>,
    #[command(flatten)]
    pub(crate) flags: GenerateFlags,
}

/// Everything about one answer.
#[derive(Debug, Args)]
pub(crate) struct GenerateFlags {
    #[command(flatten)]
    pub(crate) prompt: PromptFlags,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    #[command(flatten)]
    pub(crate) sampling: SamplingFlags,
    #[command(flatten)]
    pub(crate) output: OutputFlags,
}

/// What is asked.
#[derive(Debug, Args)]
#[command(next_help_heading = HELP_HEADING_PROMPT)]
pub(crate) struct PromptFlags {
    /// The prompt; `-` reads it from standard input.
    #[arg(short = 'm', long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) message: Option<String>,
    /// A JSON list of chat messages in place of a prompt; `-` reads it from standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["message", "raw", "system"])]
    pub(crate) messages: Option<PathBuf>,
    /// Continue the prompt as it is, without the chat template. Control tokens spelled out in it count as such.
    #[arg(long, conflicts_with_all = ["system", "think", "no_think", "template_arg"])]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) conversation: ConversationFlags,
}

/// What a conversation begins with.
#[derive(Debug, Args)]
#[command(next_help_heading = HELP_HEADING_PROMPT)]
pub(crate) struct ConversationFlags {
    /// Instructions that go before the prompt.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) system: Option<String>,
    /// Let the model think before it answers, if its chat template can say so.
    #[arg(long, conflicts_with = "no_think")]
    pub(crate) think: bool,
    /// Ask the model to answer without thinking.
    #[arg(long)]
    pub(crate) no_think: bool,
    /// A variable for the chat template; JSON after the `=`. May be repeated.
    #[arg(long, value_name = "KEY=JSON", value_parser = values::template_arg)]
    pub(crate) template_arg: Vec<(String, Value)>,
}

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

/// Whether the hub may be asked.
#[derive(Debug, Args)]
pub(crate) struct NetworkFlags {
    /// Never use the network: only models that are on this machine.
    #[arg(long, env = "PLEACH_OFFLINE", hide_env_values = true, value_parser = FalseyValueParser::new())]
    pub(crate) offline: bool,
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

/// How tokens are drawn, and when to stop.
#[derive(Debug, Args)]
#[command(next_help_heading = HELP_HEADING_SAMPLING)]
pub(crate) struct SamplingFlags {
    /// How freely to draw; 0 always takes the likeliest token.
    #[arg(long, value_name = "X", env = "PLEACH_TEMPERATURE", hide_env_values = true, value_parser = values::number, allow_hyphen_values = true)]
    temperature: Option<f32>,
    /// Draw among this many of the likeliest tokens; 0 for all.
    #[arg(long, value_name = "N", env = "PLEACH_TOP_K", hide_env_values = true, value_parser = values::count, allow_hyphen_values = true)]
    top_k: Option<usize>,
    /// Draw among the likeliest tokens that have this share of the probability together.
    #[arg(long, value_name = "P", env = "PLEACH_TOP_P", hide_env_values = true, value_parser = values::number, allow_hyphen_values = true)]
    top_p: Option<f32>,
    /// Draw among tokens at least this likely, as a share of the likeliest.
    #[arg(long, value_name = "P", env = "PLEACH_MIN_P", hide_env_values = true, value_parser = values::number, allow_hyphen_values = true)]
    min_p: Option<f32>,
    /// Make tokens of prompt and answer less likely; 1 is neutral.
    #[arg(long, value_name = "X", value_parser = values::number, allow_hyphen_values = true)]
    repetition_penalty: Option<f32>,
    /// Subtract this from the logit of every token already in the answer; -2 to 2.
    #[arg(long, value_name = "X", value_parser = values::number, allow_hyphen_values = true)]
    presence_penalty: Option<f32>,
    /// Subtract this for every time that a token is in the answer; -2 to 2.
    #[arg(long, value_name = "X", value_parser = values::number, allow_hyphen_values = true)]
    frequency_penalty: Option<f32>,
    /// Add VALUE, -100 to 100, to the logit of token ID. May be repeated.
    #[arg(long, value_name = "ID=VALUE", value_parser = values::logit_bias, allow_hyphen_values = true)]
    logit_bias: Vec<(u32, f32)>,
    /// Decides every draw: the same seed gives the same answer [default: 0].
    #[arg(long, value_name = "N", env = "PLEACH_SEED", hide_env_values = true, value_parser = values::seed, allow_hyphen_values = true)]
    seed: Option<u64>,
    /// Most tokens of the answer, thoughts included [default: as many as the context holds].
    #[arg(long, value_name = "N", env = "PLEACH_MAX_TOKENS", hide_env_values = true, value_parser = values::max_tokens, allow_hyphen_values = true)]
    pub(crate) max_tokens: Option<usize>,
    /// End the answer before this text. May be repeated.
    #[arg(long, value_name = "TEXT", value_parser = values::stop, allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
    /// Go on after tokens that end an answer, until another limit is met.
    #[arg(long)]
    pub(crate) ignore_eos: bool,
}

/// What is printed.
#[derive(Debug, Args)]
#[command(next_help_heading = HELP_HEADING_OUTPUT)]
pub(crate) struct OutputFlags {
    /// Print one JSON object with the answer, token ids and statistics once the answer is complete.
    #[arg(long)]
    pub(crate) json: bool,
    /// With --json: log-probabilities of each token and of the N likeliest beside it, before sampling changes them.
    #[arg(long, value_name = "N", value_parser = values::logprobs, allow_hyphen_values = true, requires = "json")]
    pub(crate) logprobs: Option<usize>,
    /// Leave the model's thoughts out, but for --json.
    #[arg(long, env = "PLEACH_HIDE_THOUGHTS", hide_env_values = true, value_parser = FalseyValueParser::new())]
    pub(crate) hide_thoughts: bool,
    /// No statistics, progress or warnings.
    #[arg(long)]
    pub(crate) quiet: bool,
    /// Say more on standard error: model, files, device, memory, why the answer ended.
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) verbose: bool,
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

/// Reads the arguments of the process. Prints help and version itself.
pub(crate) fn parse() -> Result<Cli, CliError> {
    let cli = Cli::try_parse().map_err(refusal::translate)?;
    let sampling = match &cli.command {
        Some(Command::Run(run)) => &run.flags.sampling,
        Some(Command::Chat(chat)) => &chat.sampling,
        Some(_) => return Ok(cli),
        None => &cli.flags.sampling,
    };
    sampling.check()?;
    Ok(cli)
}

impl GenerateFlags {
    /// The same for a conversation, of somebody who gave no prompt.
    pub(crate) fn into_chat(self) -> ChatArgs {
        let look = ChatFlags {
            // The flag is one of `chat` alone; its variable is for both.
            history: env::var_os("PLEACH_HISTORY").map(PathBuf::from),
            hide_thoughts: self.output.hide_thoughts,
            stats: self.output.verbose,
            quiet: self.output.quiet,
            ..ChatFlags::default()
        };
        let (conversation, model, sampling) = (self.prompt.conversation, self.model, self.sampling);
        ChatArgs { name: None, conversation, model, sampling, look }
    }
}

impl OutputFlags {
    /// What becomes of thoughts.
    pub(crate) fn thoughts(&self) -> Thoughts {
        if self.hide_thoughts { Thoughts::Hidden } else { Thoughts::Shown }
    }
}

impl PromptFlags {
    /// Whether nothing is asked.
    pub(crate) fn is_none(&self) -> bool {
        self.message.is_none() && self.messages.is_none() && !self.raw
    }
}

impl ConversationFlags {
    /// Sets the template's variables.
    pub(crate) fn apply(&self, chat: &mut ChatRequest) {
        if self.think || self.no_think {
            chat.kwargs.insert("enable_thinking".to_owned(), Value::from(self.think));
        }
        chat.kwargs.extend(self.template_arg.iter().cloned());
    }
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
    fn engine_options(&self) -> EngineOptions {
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

impl SamplingFlags {
    /// How tokens are to be drawn.
    pub(crate) fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            penalty_window: None,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
        }
    }

    /// Refuses values out of their range before a model is loaded for them.
    fn check(&self) -> Result<(), CliError> {
        // The vocabulary is not known yet: ids beyond it are refused when the request starts.
        self.sampling()
            .resolve(&Default::default())
            .validate(usize::MAX)
            .map_err(|error| CliError::from_engine(error.into()))
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_flags_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_of_run_work_without_the_command() {
        let cli = Cli::try_parse_from(["pleach", "--model", "x", "-m", "hi", "--top-k", "3"]).unwrap();
        assert_eq!(cli.flags.model.model.as_deref(), Some("x"));
        assert_eq!(cli.flags.sampling.sampling().top_k, Some(3));
    }
}
