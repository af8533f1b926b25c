//! `pleach bench`: how fast models run on this machine.

mod json;
mod measure;
mod plan;
mod report;
mod speculation;
mod statistics;
mod table;

use std::env;

use pleach_engine::{CancelToken, Environment, Located, locate};

use crate::args::BenchArgs;
use crate::error::{CliError, End};
use crate::interrupt;
use crate::progress::Progress;
use crate::style::Style;

use measure::Measurement;
use plan::Plan;
use report::Report;

/// Measures every model with every number of threads. What was measured is printed, whatever comes after.
pub(crate) fn bench(args: &BenchArgs) -> Result<End, CliError> {
    let models = find(&args.models)?;
    if !args.speculation.prompts.is_empty() {
        return speculation::bench(args, &models);
    }
    let plan = Plan::new(&args.tests);
    let cancel = interrupt::listen()?;
    let mut report = Report::new(args.report.form());
    let outcome = measure_all(args, &plan, &models, &cancel, &mut report);
    // An error that comes before any result prints nothing but itself.
    if outcome.is_ok() || report.has_results() {
        report.finish()?;
    }
    outcome.map(|()| if cancel.is_cancelled() { End::Interrupted } else { End::Done })
}

fn measure_all(
    args: &BenchArgs,
    plan: &Plan,
    models: &[Located],
    cancel: &CancelToken,
    report: &mut Report,
) -> Result<(), CliError> {
    let mut progress = Progress::new(Style::of_stderr(), args.report.quiet);
    for located in models {
        for options in args.machine.engine_options(plan.context()) {
            if cancel.is_cancelled() {
                return Ok(());
            }
            let measured = Measurement { located, options: &options, plan, cancel, progress: &mut progress }.run();
            progress.clear();
            report.add(measured?)?;
        }
    }
    Ok(())
}

/// Finds all models before any is measured.
fn find(models: &[String]) -> Result<Vec<Located>, CliError> {
    let from_environment = || env::var("PLEACH_MODEL").ok().filter(|model| !model.is_empty());
    let named: Vec<Option<String>> = match models {
        [] => vec![from_environment()],
        models => models.iter().cloned().map(Some).collect(),
    };
    let found = named.iter().map(|model| locate(model.as_deref(), &Environment::of_process()));
    found.collect::<Result<_, _>>().map_err(CliError::from_engine)
}
