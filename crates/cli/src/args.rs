//! The arguments: one struct per group of flags, and the help pages made from them.

mod bench;
mod cached;
mod chat;
mod model;
mod refusal;
mod sampling;
mod serve;
mod settings;
mod values;

use std::env;
use std::path::PathBuf;

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use clap_complete::Shell;
use pleach_engine::ChatRequest;
use serde_json::Value;

use crate::error::CliError;
use crate::render::Thoughts;
use sampling::check;
use settings::SettingsFile;

pub(crate) use bench::{BenchArgs, ReportForm, TestFlags};
pub(crate) use cached::{DoctorArgs, InfoArgs, InspectArgs, ListArgs, PullArgs, RmArgs};
pub(crate) use chat::{ChatArgs, ChatFlags};
pub(crate) use model::{ModelFlags, NetworkFlags, RuntimeFlags, SpecFlags};
pub(crate) use sampling::SamplingFlags;
pub(crate) use serve::{CacheFlags, LogForm, ServeArgs};
pub(crate) use settings::settings_path;
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
  pleach serve --model model.gguf                answer over HTTP on port 8000

`pleach help run` says more about prompts and models.";

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
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// Without a command the flags are those of `run`.
    #[command(flatten)]
    pub(crate) flags: GenerateFlags,
    /// Where typed lines are kept, for a conversation without a command.
    #[arg(skip)]
    pub(crate) history: Option<PathBuf>,
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
    /// Answer over HTTP, in the protocols of OpenAI and Anthropic.
    #[command(visible_alias = "server")]
    Serve(Box<ServeArgs>),
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
    #[arg(long, env = "PLEACH_HIDE_THOUGHTS", hide_env_values = true, value_parser = values::switch)]
    pub(crate) hide_thoughts: bool,
    /// No statistics, progress or warnings.
    #[arg(long)]
    pub(crate) quiet: bool,
    /// Say more on standard error: model, files, device, memory, why the answer ended.
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) verbose: bool,
}

/// Reads the arguments of the process, and the settings for what they leave open. Prints help and version itself.
pub(crate) fn parse() -> Result<Cli, CliError> {
    let settings = SettingsFile::read(&Cli::command())?;
    let matches = settings.apply(Cli::command()).try_get_matches().map_err(refusal::translate)?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(refusal::translate)?;
    // The flag is one of `chat` alone; its variable and its setting are for both.
    let setting = || settings.get("history").map(PathBuf::from);
    cli.history = env::var_os("PLEACH_HISTORY").map(PathBuf::from).or_else(setting);
    if let Some(network) = cli.network_mut() {
        network.default_model = settings.get(settings::MODEL).map(str::to_owned);
    }
    match &cli.command {
        Some(Command::Run(run)) => check(&run.flags.sampling.sampling())?,
        Some(Command::Chat(chat)) => check(&chat.sampling.sampling())?,
        Some(Command::Bench(bench)) => check(&bench.speculation.sampling())?,
        Some(_) => {}
        None => check(&cli.flags.sampling.sampling())?,
    }
    Ok(cli)
}

impl Cli {
    /// The flags that say where models come from; `None` for commands that open none.
    fn network_mut(&mut self) -> Option<&mut NetworkFlags> {
        match &mut self.command {
            None => Some(&mut self.flags.model.network),
            Some(Command::Run(run)) => Some(&mut run.flags.model.network),
            Some(Command::Chat(chat)) => Some(&mut chat.model.network),
            Some(Command::Inspect(inspect)) => Some(&mut inspect.model.network),
            Some(Command::Bench(bench)) => Some(&mut bench.network),
            Some(Command::Serve(serve)) => Some(&mut serve.model.network),
            Some(_) => None,
        }
    }
}

impl GenerateFlags {
    /// The same for a conversation, of somebody who gave no prompt.
    pub(crate) fn into_chat(self, history: Option<PathBuf>) -> ChatArgs {
        let look = ChatFlags {
            history,
            hide_thoughts: self.output.hide_thoughts,
            stats: self.output.verbose,
            quiet: self.output.quiet,
            json: self.output.json,
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
