//! `pleach run`: one prompt, one answer.

use std::fmt;

use pleach_engine::{CancelToken, EnergyMeter, FinishReason, Finished, Prompt, Request, Settings};

use crate::answer::Pieces;
use crate::args::{GenerateFlags, OutputFlags};
use crate::error::{CliError, End};
use crate::footer::{self, aligned};
use crate::interrupt::Interrupts;
use crate::json::Collector;
use crate::loaded::Loaded;
use crate::measure::{Measured, Meter};
use crate::output::{say, say_dim};
use crate::progress::Progress;
use crate::prompt::{self, Named};
use crate::style::Style;

/// Answers one prompt. `arguments` are those without a flag.
pub(crate) fn run(arguments: (Option<String>, Option<String>), mut flags: GenerateFlags) -> Result<End, CliError> {
    let model = flags.model.model.take();
    let named = Named::new(arguments, model, &flags.prompt)?;
    let prompt = prompt::read(&named, &flags.prompt)?;

    let interrupts = Interrupts::listen()?;
    let mut progress = Progress::new(Style::of_stderr(), flags.output.quiet);
    let loaded = Loaded::open(named.model.as_deref(), &flags.model, &mut progress)?;
    let cancel = interrupts.stoppable();
    explain(&flags.output, &loaded);
    let request = Request { prompt, settings: settings(&flags, cancel) };
    let silence = interrupts.silence();
    let measured = answer(&loaded, &request, &flags.output, &mut progress)?;
    drop(silence);
    Ok(if measured.finished.reason == FinishReason::Cancelled { End::Interrupted } else { End::Done })
}

fn settings(flags: &GenerateFlags, cancel: CancelToken) -> Settings {
    Settings {
        sampling: flags.sampling.sampling(),
        max_tokens: flags.sampling.max_tokens,
        stop: flags.sampling.stop.clone(),
        logprobs: flags.output.logprobs,
        ignore_eos: flags.sampling.ignore_eos,
        // A raw text is continued as it is: what looks like a thought in it may be anything.
        split_reasoning: !flags.prompt.raw,
        spec_budget: flags.model.spec.spec_budget,
        cancel,
        ..Settings::default()
    }
}

/// Runs the request and prints what comes of it.
fn answer(
    loaded: &Loaded,
    request: &Request,
    flags: &OutputFlags,
    progress: &mut Progress,
) -> Result<Measured, CliError> {
    let mut session = loaded.engine.session().map_err(CliError::from_engine)?;
    let meter = Meter::start(EnergyMeter::open());
    let mut generation =
        session.generate(request).map_err(|error| CliError::from_model(error, loaded.engine.info()))?;
    if !flags.quiet {
        generation.notes().iter().for_each(|note| complain(note));
    }
    let pieces = if flags.json {
        Pieces::Object(Collector::new(generation.prompt_tokens().to_vec(), flags.logprobs.is_some()))
    } else {
        Pieces::text(flags.thoughts())
    };
    let measured = pieces.follow(&mut generation, meter, progress, loaded)?;
    report(flags, request, &measured);
    Ok(measured)
}

/// Says what was opened and what is doubtful about it, if asked to.
fn explain(flags: &OutputFlags, loaded: &Loaded) {
    if !flags.verbose {
        return;
    }
    let info = loaded.engine.info();
    info.warnings.iter().for_each(|warning| complain(warning));
    let memory = &info.memory;
    let lines = [
        aligned("model", &format!("{} (`{}`)", loaded.located.name, loaded.located.path.display())),
        aligned("architecture", &format!("{}, {} parameters", info.architecture, info.num_parameters)),
        aligned("files", &format!("{}, {}", info.file_format, info.quantization)),
        aligned("device", &info.device),
        aligned("context", &format!("{} tokens; the model was made for {}", info.context, info.max_context)),
        aligned("weights", &footer::size(memory.weights_bytes as u64)),
        aligned("state", &state(memory.state_bytes, memory.token_bytes)),
        aligned("skipped tensors", &info.skipped.len().to_string()),
        aligned("loading", &footer::duration(loaded.load)),
    ];
    lines.iter().for_each(|line| say(line));
}

fn state(state_bytes: usize, token_bytes: usize) -> String {
    format!("{} and {} KiB per token", footer::size(state_bytes as u64), token_bytes.div_ceil(1024))
}

/// Prints the statistics. `--json` has them in its object.
fn report(flags: &OutputFlags, request: &Request, measured: &Measured) {
    let Finished { reason, usage, seed, drafting, .. } = &measured.finished;
    if flags.verbose {
        let kind = if matches!(request.prompt, Prompt::Chat(_)) { "chat" } else { "raw" };
        say(&aligned("prompt", &format!("{} tokens, {kind}", usage.prompt_tokens)));
        let is_at_limit = request.settings.max_tokens.is_some_and(|most| usage.output_tokens >= most);
        say(&aligned("answer", &format!("{} tokens, {}", usage.output_tokens, Ending { reason, is_at_limit })));
        say(&aligned("seed", &seed.to_string()));
        say(&aligned("drafting", &footer::drafting(drafting, usage)));
    }
    if flags.quiet || flags.json {
        return;
    }
    let style = Style::of_stderr();
    if style.terminal && Style::of_stdout().terminal {
        say("");
    }
    footer::lines(measured).iter().for_each(|line| say_dim(line));
}

/// Why an answer ended, in words.
struct Ending<'a> {
    reason: &'a FinishReason,
    /// Whether `--max-tokens` are written.
    is_at_limit: bool,
}

impl fmt::Display for Ending<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            FinishReason::Stop => f.write_str("ended by the model"),
            FinishReason::StopString(string) => write!(f, "ended before the stop string {string:?}"),
            FinishReason::Length if self.is_at_limit => f.write_str("cut off by `--max-tokens`"),
            FinishReason::Length => f.write_str("cut off where the context ends"),
            FinishReason::Cancelled => f.write_str("stopped with Ctrl-C"),
            other => write!(f, "ended: {other:?}"),
        }
    }
}

fn complain(warning: &dyn fmt::Display) {
    say(&format!("warning: {warning}"));
}
