//! The arguments of `pleach bench`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pleach_engine::{ContextLength, EngineOptions, RowShape, Sampling, Speculation};

use super::{NetworkFlags, RuntimeFlags, SpecFlags, values};

const HELP_HEADING_TESTS: &str = "Tests (without -p, -n and --rows: -p 512 -n 64 --rows 1,2,4,8,16,32,64)";

const EXAMPLES: &str = "\
Tests:
  pp512       a prompt of 512 tokens is read
  tg64        64 tokens are written, one per pass
  rows 8      one pass over 8 rows with logits for every row
  ... @ d4096 the same after 4096 tokens of context

Examples:
  pleach bench model.gguf
  pleach bench model.gguf -p 128,512 -n 64 -d 0,4096 -r 9 -o markdown
  pleach bench a.gguf b.gguf --rows 1,8 --threads 1,2 --json > speed.json
  pleach bench model.gguf -n 64 --profile
  pleach bench model.gguf --prompts code.jsonl,chat.jsonl --spec ngram";

const HELP_HEADING_SPECULATION: &str = "Speculation, in place of tests";

/// Measure the speed of models: tokens per second, the cost of a pass against its rows, memory.
///
/// Every test runs once in each repetition, so that a slow moment of the machine meets all of them. Speeds are medians,
/// and stand beside what the machine itself can do and what else ran on it meanwhile.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// What to measure; as `pleach run --help` says of --model. Without one: PLEACH_MODEL, then the default model.
    #[arg(value_name = "MODEL")]
    pub(crate) models: Vec<String>,
    #[command(flatten)]
    pub(crate) tests: TestFlags,
    #[command(flatten)]
    pub(crate) speculation: SpeculationFlags,
    #[command(flatten)]
    pub(crate) machine: MachineFlags,
    #[command(flatten)]
    pub(crate) network: NetworkFlags,
    #[command(flatten)]
    pub(crate) report: ReportFlags,
}

/// What is measured.
#[derive(Debug, Args)]
#[command(next_help_heading = HELP_HEADING_TESTS)]
pub(crate) struct TestFlags {
    /// Read prompts of these many tokens.
    #[arg(short, long, value_name = "N,...", value_delimiter = ',', value_parser = values::test_tokens, allow_hyphen_values = true)]
    pub(crate) prompt: Vec<usize>,
    /// Write these many tokens.
    #[arg(short = 'n', long, value_name = "N,...", value_delimiter = ',', value_parser = values::test_tokens, allow_hyphen_values = true)]
    pub(crate) generate: Vec<usize>,
    /// Run passes of these many rows, logits for every row. Ratios are to the first number of the list.
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = values::rows, allow_hyphen_values = true)]
    pub(crate) rows: Vec<usize>,
    /// Tokens of context before each test.
    #[arg(short, long, visible_alias = "context", value_name = "N,...", value_delimiter = ',', default_value = "0", value_parser = values::depth, allow_hyphen_values = true)]
    pub(crate) depth: Vec<usize>,
    /// How the rows of --rows hang together.
    #[arg(long, value_name = "SHAPE", value_enum, default_value = "chain")]
    row_shape: RowShapeArg,
    /// Times that each test is run, besides a warm-up.
    #[arg(short, long, value_name = "N", default_value = "5", value_parser = values::repetitions, allow_hyphen_values = true)]
    pub(crate) repetitions: usize,
    /// Say where the time goes, op by op: a decode pass, a pass of 8 rows and a prefill, at each depth.
    #[arg(long)]
    pub(crate) profile: bool,
}

/// What guesses bring on real prompts.
#[derive(Debug, Args)]
#[command(next_help_heading = HELP_HEADING_SPECULATION)]
pub(crate) struct SpeculationFlags {
    /// Answer the prompts of these files with guesses and without, -n tokens each: a JSON object with `category` and
    /// `messages` on each line.
    #[arg(long, value_name = "FILE,...", value_delimiter = ',', conflicts_with_all = ["prompt", "rows", "depth", "profile"])]
    pub(crate) prompts: Vec<PathBuf>,
    /// Prompts of a category at most.
    #[arg(long, value_name = "N", default_value = "8", value_parser = values::test_tokens, allow_hyphen_values = true)]
    pub(crate) per_category: usize,
    /// How freely the answers are drawn; 0 always takes the likeliest token.
    #[arg(long, value_name = "X", default_value = "0", value_parser = values::number, allow_hyphen_values = true)]
    pub(crate) temperature: f32,
    #[command(flatten)]
    pub(crate) spec: SpecFlags,
}

/// How the models are run.
#[derive(Debug, Args)]
#[command(next_help_heading = super::HELP_HEADING_MODEL)]
pub(crate) struct MachineFlags {
    /// Threads to compute with; several numbers measure several times [default: one per physical core].
    #[arg(short, long, value_name = "N,...", env = "PLEACH_THREADS", hide_env_values = true, value_delimiter = ',', value_parser = values::threads, allow_hyphen_values = true)]
    threads: Vec<NonZeroUsize>,
    /// Tokens of a prompt that are run in one pass.
    #[arg(long, value_name = "N", value_parser = values::rows, allow_hyphen_values = true)]
    prefill_chunk: Option<usize>,
    #[command(flatten)]
    runtime: RuntimeFlags,
}

/// What is printed.
#[derive(Debug, Args)]
#[command(next_help_heading = super::HELP_HEADING_OUTPUT)]
pub(crate) struct ReportFlags {
    /// Form of the report.
    #[arg(short, long, value_name = "FORM", value_enum, default_value = "table")]
    output: ReportForm,
    /// The same as `-o json`.
    #[arg(long, conflicts_with = "output")]
    json: bool,
    /// The same as `-o markdown`.
    #[arg(long, conflicts_with_all = ["output", "json"])]
    markdown: bool,
    /// No progress.
    #[arg(long)]
    pub(crate) quiet: bool,
}

/// Form of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportForm {
    /// For a terminal.
    Table,
    /// For a page.
    #[value(alias = "md")]
    Markdown,
    /// For a program.
    Json,
}

/// Spelling of the shapes of a pass.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum RowShapeArg {
    /// Each row continues the one before it.
    Chain,
    /// Each row is continued by two.
    Tree,
}

impl SpeculationFlags {
    /// How the answers are drawn.
    pub(crate) fn sampling(&self) -> Sampling {
        Sampling { temperature: Some(self.temperature), ..Sampling::default() }
    }
}

impl TestFlags {
    pub(crate) fn row_shape(&self) -> RowShape {
        match self.row_shape {
            RowShapeArg::Chain => RowShape::Chain,
            RowShapeArg::Tree => RowShape::Tree,
        }
    }
}

impl MachineFlags {
    /// How the engine is to be opened, one after the other, with room for `context` tokens.
    pub(crate) fn engine_options(&self, context: usize) -> Vec<EngineOptions> {
        // Tests run passes of their own: nothing is drafted.
        let mut options = EngineOptions { speculation: Speculation::Off, ..self.runtime.engine_options() };
        options.context = ContextLength::from(context);
        options.prefill_chunk = self.prefill_chunk.unwrap_or(options.prefill_chunk);
        if self.threads.is_empty() {
            return vec![options];
        }
        self.threads.iter().map(|&threads| EngineOptions { threads: Some(threads), ..options.clone() }).collect()
    }
}

impl ReportFlags {
    pub(crate) fn form(&self) -> ReportForm {
        match (self.json, self.markdown) {
            (true, _) => ReportForm::Json,
            (_, true) => ReportForm::Markdown,
            _ => self.output,
        }
    }
}
