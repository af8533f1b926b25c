//! The arguments of `pleach serve`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{ModelFlags, values};

const HELP_HEADING_ACCESS: &str = "Access";

const EXAMPLES: &str = "\
Examples:
  pleach serve --model model.gguf
  pleach serve --model Qwen/Qwen3-0.6B --port 8080 --parallel 2
  pleach serve --model model.gguf --host 0.0.0.0 --api-key-file keys.txt
  curl http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}]}'

docs/server.md lists routes and fields.";

/// Answer over HTTP: chat completions, completions, responses, messages, embeddings.
///
/// The server listens on this machine alone unless told otherwise, and asks for a key then. Its address, opened in a browser,
/// is a page to talk with the model. Ctrl-C lets running requests finish; a
/// second Ctrl-C does not.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    /// Which model answers; --model says what it can be.
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    #[command(flatten)]
    pub(crate) work: WorkFlags,
    #[command(flatten)]
    pub(crate) cache: CacheFlags,
    #[command(flatten)]
    pub(crate) access: AccessFlags,
    /// How to log on standard error; PLEACH_LOG sets the level.
    #[arg(long, value_name = "FORM", value_enum, default_value = "text")]
    pub(crate) log: LogForm,
}

/// How much is done at once.
#[derive(Debug, Args)]
#[command(next_help_heading = "Requests")]
pub(crate) struct WorkFlags {
    /// Texts that are written at the same time, all of them in each pass.
    #[arg(long, value_name = "N", default_value = "4", value_parser = values::parallel, allow_hyphen_values = true)]
    pub(crate) parallel: usize,
    /// Requests that may wait; the next ones are refused.
    #[arg(long, value_name = "N", default_value = "64", value_parser = values::count, allow_hyphen_values = true)]
    pub(crate) queue: usize,
    /// Name of the model in answers [default: that of its file or folder].
    #[arg(long, value_name = "NAME", visible_alias = "alias")]
    pub(crate) model_name: Option<String>,
    /// Largest body of a request, in MiB.
    #[arg(long, value_name = "N", default_value = "64", value_parser = values::mebibytes, allow_hyphen_values = true)]
    pub(crate) max_body_mib: usize,
    /// Keep the line that Claude Code puts before its instructions, which differs in every conversation.
    #[arg(long)]
    pub(crate) keep_billing_line: bool,
}

/// What is kept for prompts that begin as earlier ones did. It changes the speed, never the text.
#[derive(Debug, Args)]
#[command(next_help_heading = "Prefix cache")]
pub(crate) struct CacheFlags {
    /// Read every prompt from the start.
    #[arg(long, conflicts_with_all = ["prefix_cache_bytes", "prefix_cache_dir", "verify_prefix_cache"])]
    pub(crate) no_prefix_cache: bool,
    /// Memory of kept states, such as 512M or 4G.
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = values::bytes, allow_hyphen_values = true)]
    pub(crate) prefix_cache_bytes: u64,
    /// A folder where states at the ends of turns survive the server. They can be turned back into texts: keep it private.
    #[arg(long, value_name = "DIR")]
    pub(crate) prefix_cache_dir: Option<PathBuf>,
    /// Files in that folder.
    #[arg(long, value_name = "BYTES", default_value = "16G", value_parser = values::bytes, allow_hyphen_values = true)]
    pub(crate) prefix_cache_dir_bytes: u64,
    /// Share of the prompts with a known beginning that are read from the start all the same, to compare: 0 to 1.
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = values::share, allow_hyphen_values = true)]
    pub(crate) verify_prefix_cache: f64,
}

/// Who may ask.
#[derive(Debug, Args)]
#[command(next_help_heading = HELP_HEADING_ACCESS)]
pub(crate) struct AccessFlags {
    /// Address to listen on.
    #[arg(long, value_name = "ADDRESS", env = "PLEACH_HOST", hide_env_values = true, default_value = "127.0.0.1")]
    #[arg(value_parser = values::host)]
    pub(crate) host: IpAddr,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, value_name = "PORT", env = "PLEACH_PORT", hide_env_values = true, default_value = "8000")]
    #[arg(value_parser = values::port, allow_hyphen_values = true)]
    pub(crate) port: u16,
    /// A file with the keys that clients may show, one a line. Required for addresses that others can reach.
    #[arg(long, value_name = "FILE", env = "PLEACH_API_KEY_FILE", hide_env_values = true)]
    pub(crate) api_key_file: Option<PathBuf>,
    /// A web page's origin that may ask, such as `https://example.org`. May be repeated.
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) cors_origin: Vec<String>,
    /// Another name by which this machine may be addressed. May be repeated.
    #[arg(long, value_name = "NAME")]
    pub(crate) allowed_host: Vec<String>,
}

/// Spelling of the forms of logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogForm {
    /// Lines for people.
    Text,
    /// A JSON object a line.
    Json,
    /// No log.
    Off,
}
