//! `pleach bench`: how fast models run on this machine.

mod json;
mod loading;
mod measure;
mod plan;
mod report;
mod speculation;
mod statistics;

use pleach_engine::{CancelToken, Located};

use crate::args::BenchArgs;
use crate::error::{CliError, End};
use crate::interrupt::Interrupts;
use crate::models::Finder;
use crate::progress::Progress;
use crate::style::Style;

use measure::{Measured, Measurement};
use plan::Plan;
use report::Report;

/// Measures every model with every number of threads. What was measured is printed, whatever comes after.
pub(crate) fn bench(args: &BenchArgs) -> Result<End, CliError> {
    let mut progress = Progress::new(Style::of_stderr(), args.report.quiet);
    let models = find(args, &mut progress)?;
    if !args.speculation.prompts.is_empty() {
        return speculation::bench(args, &models);
    }
    let plan = Plan::new(&args.tests);
    let cancel = Interrupts::listen()?.stoppable();
    let mut report = Report::new(args.report.form());
    let outcome = measure_all(args, &plan, &models, &cancel, &mut report);
    report.finish(outcome, &cancel)
}

fn measure_all(
    args: &BenchArgs,
    plan: &Plan,
    models: &[Located],
    cancel: &CancelToken,
    report: &mut Report<Measured>,
) -> Result<(), CliError> {
    let mut progress = Progress::new(Style::of_stderr(), args.report.quiet);
    for located in models {
        for options in args.machine.engine_options(plan.context()) {
            if cancel.is_cancelled() {
                return Ok(());
            }
            let measured = Measurement { located, options: &options, plan, cancel, progress: &mut progress }.run();
            progress.clear();
            if let Some(measured) = measured? {
                report.add(measured)?;
            }
        }
    }
    Ok(())
}

/// Finds all models before any is measured.
fn find(args: &BenchArgs, progress: &mut Progress) -> Result<Vec<Located>, CliError> {
    let named: Vec<Option<&str>> = match args.models.as_slice() {
        [] => vec![None],
        models => models.iter().map(|model| Some(model.as_str())).collect(),
    };
    let finder = Finder::new(&args.network);
    named.into_iter().map(|model| finder.find(model, progress)).collect()
}
