//! `pleach bench --prompts`: answers to real prompts, with guesses and without.

mod prompts;
mod report;

use std::collections::BTreeMap;

use pleach_engine::{
    CancelToken, Engine, EngineOptions, Event, Finished, Located, Request, Settings, SpecBudget, load_average,
};

use super::loading::{Loaded, Machine, load};
use super::report::Report;
use crate::args::BenchArgs;
use crate::error::{CliError, End};
use crate::interrupt::Interrupts;
use crate::models::Finder;
use crate::progress::Progress;
use crate::style::Style;

use prompts::Question;

/// What was measured of one model with one set of options.
#[derive(Debug)]
struct SpecRun {
    located: Located,
    options: EngineOptions,
    budget: SpecBudget,
    device: String,
    drafters: Vec<&'static str>,
    temperature: f32,
    /// Before and after.
    load_average: [Option<[f64; 3]>; 2],
    categories: BTreeMap<String, Category>,
    /// Whether Ctrl-C came before the end.
    interrupted: bool,
}

/// The answers to the prompts of one category.
#[derive(Debug, Default)]
struct Category {
    num_prompts: usize,
    samples: Vec<Sample>,
}

/// One prompt, answered twice.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// Of the answer, the first left out, which is the prompt's.
    tokens: usize,
    plain_s: f64,
    drafted_s: f64,
    passes: u64,
    drafted: u64,
    accepted: u64,
    /// Whether both answers are the same, as they must be.
    same_text: bool,
}

/// An answer.
struct Answer {
    ids: Vec<u32>,
    finished: Finished,
}

/// Answers every prompt with every model. What was measured is printed, whatever comes after.
pub(super) fn bench(args: &BenchArgs, models: &[Located]) -> Result<End, CliError> {
    let questions = prompts::read(&args.speculation.prompts, args.speculation.per_category)?;
    let cancel = Interrupts::listen()?.stoppable();
    let mut report = Report::new(args.report.form());
    let outcome = measure_all(args, models, &questions, &cancel, &mut report);
    report.finish(outcome, &cancel)
}

fn measure_all(
    args: &BenchArgs,
    models: &[Located],
    questions: &[Question],
    cancel: &CancelToken,
    report: &mut Report<SpecRun>,
) -> Result<(), CliError> {
    let mut progress = Progress::new(Style::of_stderr(), args.report.quiet);
    let finder = Finder::new(&args.network);
    let draft_model = args.speculation.spec.draft_model.as_deref();
    let draft_model = draft_model.map(|path| finder.find_path(path, &mut progress)).transpose()?;
    for located in models {
        for options in args.machine.engine_options(0) {
            let options = EngineOptions {
                speculation: args.speculation.spec.speculation(),
                draft_model: draft_model.clone(),
                ..options
            };
            if cancel.is_cancelled() {
                return Ok(());
            }
            let run = measure(args, located, options, questions, cancel, &mut progress);
            progress.clear();
            if let Some(run) = run? {
                report.add(run)?;
            }
        }
    }
    Ok(())
}

fn measure(
    args: &BenchArgs,
    located: &Located,
    options: EngineOptions,
    questions: &[Question],
    cancel: &CancelToken,
    progress: &mut Progress,
) -> Result<Option<SpecRun>, CliError> {
    let loaded = load(located, &options, Machine::Unmeasured, cancel, progress)?;
    let Some(Loaded { engine, load_average: load_before, .. }) = loaded else { return Ok(None) };
    let (budget, temperature) = (args.speculation.spec.spec_budget, args.speculation.temperature);
    let settings = Settings {
        sampling: args.speculation.sampling(),
        max_tokens: Some(args.tests.generate.first().copied().unwrap_or(DEFAULT_TOKENS)),
        cancel: cancel.clone(),
        ..Settings::default()
    };
    let mut run = SpecRun {
        located: located.clone(),
        options,
        budget,
        device: engine.info().device.clone(),
        drafters: engine.drafter_names(),
        temperature,
        load_average: [load_before, None],
        categories: BTreeMap::new(),
        interrupted: false,
    };
    let mut pairs = Pairs { engine: &engine, settings, budget };
    if let Some(first) = questions.first() {
        pairs.compare(first, Order::PlainFirst)?;
    }
    'rounds: for repetition in 0..args.tests.repetitions {
        let order = if repetition % 2 == 0 { Order::PlainFirst } else { Order::DraftedFirst };
        for (index, question) in questions.iter().enumerate() {
            progress.show(&format!(
                "{}: round {} of {}, prompt {} of {}",
                located.name,
                repetition + 1,
                args.tests.repetitions,
                index + 1,
                questions.len()
            ));
            let sample = pairs.compare(question, order)?;
            if cancel.is_cancelled() {
                run.interrupted = true;
                break 'rounds;
            }
            let category = run.categories.entry(question.category.clone()).or_default();
            category.num_prompts += usize::from(repetition == 0);
            category.samples.extend(sample);
        }
    }
    run.load_average[1] = load_average();
    Ok(Some(run))
}

/// Tokens of an answer at most, unless `-n` says otherwise.
const DEFAULT_TOKENS: usize = 128;

/// Which answer comes first. They alternate, since a machine has better and worse moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    PlainFirst,
    DraftedFirst,
}

/// Answers questions twice.
struct Pairs<'a> {
    engine: &'a Engine,
    settings: Settings,
    budget: SpecBudget,
}

impl Pairs<'_> {
    /// `None` for an answer of a single token, which no pass after the prompt's has written.
    fn compare(&mut self, question: &Question, order: Order) -> Result<Option<Sample>, CliError> {
        let plain_budget = SpecBudget::Rows(std::num::NonZeroUsize::MIN);
        let (plain, drafted) = match order {
            Order::PlainFirst => {
                let plain = self.answer(question, plain_budget)?;
                (plain, self.answer(question, self.budget)?)
            }
            Order::DraftedFirst => {
                let drafted = self.answer(question, self.budget)?;
                (self.answer(question, plain_budget)?, drafted)
            }
        };
        let usage = drafted.finished.usage;
        let tokens = usage.output_tokens.saturating_sub(1);
        Ok((tokens > 0).then(|| Sample {
            tokens,
            plain_s: plain.finished.timings.generation.as_secs_f64(),
            drafted_s: drafted.finished.timings.generation.as_secs_f64(),
            passes: usage.passes,
            drafted: usage.drafted,
            accepted: usage.accepted,
            same_text: plain.ids == drafted.ids,
        }))
    }

    fn answer(&self, question: &Question, spec_budget: SpecBudget) -> Result<Answer, CliError> {
        let request = Request::chat(question.chat.clone()).with(Settings { spec_budget, ..self.settings.clone() });
        let mut session = self.engine.session().map_err(CliError::from_engine)?;
        let mut ids = Vec::new();
        for event in session.generate(&request).map_err(CliError::from_engine)? {
            match event.map_err(CliError::from_engine)? {
                Event::Token(token) => ids.push(token.id),
                Event::Finished(finished) => return Ok(Answer { ids, finished }),
                _ => {}
            }
        }
        unreachable!("the last event of a request is that it finished, or an error")
    }
}
