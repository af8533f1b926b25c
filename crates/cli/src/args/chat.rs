//! The arguments of `pleach chat`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser as _};

use super::{ConversationFlags, HELP_HEADING_OUTPUT, ModelFlags, SamplingFlags, values};

const EXAMPLES: &str = "\
Examples:
  pleach chat                                     with the default model
  pleach chat Qwen/Qwen3-0.6B --no-think          with one of the Hugging Face hub
  pleach chat model.gguf --system \"Be short.\" --temperature 0.7
  pleach chat model.gguf --load talk.json         go on with a saved conversation

/help lists what can be typed at the prompt.";

/// Talk with a model: questions, answers, and commands that begin with `/`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ChatArgs {
    /// Which model to talk with; --model says what it can be.
    #[arg(value_name = "MODEL")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) conversation: ConversationFlags,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    #[command(flatten)]
    pub(crate) sampling: SamplingFlags,
    #[command(flatten)]
    pub(crate) look: ChatFlags,
}

/// What a conversation looks like, and what is kept of it.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = HELP_HEADING_OUTPUT)]
pub(crate) struct ChatFlags {
    /// Go on with a conversation that `/save` wrote.
    #[arg(long, value_name = "FILE")]
    pub(crate) load: Option<PathBuf>,
    /// Where typed lines are kept for the next time; empty for nowhere [default: pleach/history in XDG_STATE_HOME].
    #[arg(long, value_name = "FILE", env = "PLEACH_HISTORY", hide_env_values = true, value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub(crate) history: Option<PathBuf>,
    /// Leave the model's thoughts out.
    #[arg(long, env = "PLEACH_HIDE_THOUGHTS", hide_env_values = true, value_parser = values::switch)]
    pub(crate) hide_thoughts: bool,
    /// Statistics after each answer.
    #[arg(long)]
    pub(crate) stats: bool,
    /// Print JSON: one event on each line, as docs/cli.md lists them. Questions and commands come as without it.
    #[arg(long)]
    pub(crate) json: bool,
    /// No greeting, progress or warnings.
    #[arg(long)]
    pub(crate) quiet: bool,
}
