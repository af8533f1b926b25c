//! The arguments of the commands over models that are on this machine.

use clap::Args;

use super::{ModelFlags, NetworkFlags};

const PULL_EXAMPLES: &str = "\
Examples:
  pleach pull Qwen/Qwen3-0.6B                   the model in safetensors
  pleach pull Qwen/Qwen3-0.6B-GGUF:Q8_0         one quantization of a GGUF repository
  pleach pull org/name@v1.0                     a branch, tag or commit

  A download that was cut goes on where it stopped. HF_TOKEN is for private models, HF_ENDPOINT for another hub,
  HF_HUB_CACHE for another folder.";

/// Download models from the Hugging Face hub into its local cache, and print where they are.
#[derive(Debug, Args)]
#[command(after_help = PULL_EXAMPLES)]
pub(crate) struct PullArgs {
    /// What to download: `org/name`, `org/name:file.gguf`, `org/name:Q4_K_M`, each also with `@revision`.
    #[arg(value_name = "MODEL", required = true)]
    pub(crate) models: Vec<String>,
    /// Hash files that are there already, and fetch those again that are not right.
    #[arg(long)]
    pub(crate) verify: bool,
    /// Print one JSON object per model.
    #[arg(long)]
    pub(crate) json: bool,
    /// No progress and no notes.
    #[arg(long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) network: NetworkFlags,
}

/// List the models that are on this machine: where the default is looked for, and in the Hugging Face cache.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Print a JSON list.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Say where a model is, which files it has, and what the hub has of it.
#[derive(Debug, Args)]
pub(crate) struct InfoArgs {
    /// A model as `pleach list` names it, or one of the hub.
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) network: NetworkFlags,
}

/// Remove models from the Hugging Face cache, also what is left of broken ones.
#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// What to remove: `org/name`; with `:file.gguf` or `:Q4_K_M` only that file.
    #[arg(value_name = "MODEL", required = true)]
    pub(crate) models: Vec<String>,
    /// Print one JSON object per model.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Say what is in a model and what it takes, without loading its weights.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Which model; --model says what it can be.
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub(crate) name: Option<String>,
    /// List every tensor.
    #[arg(long)]
    pub(crate) tensors: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
}

/// Say what this machine has and what will be used of it: processor, memory, energy, graphics, models, the hub.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
