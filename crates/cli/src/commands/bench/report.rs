//! What was measured, for people and for programs.

use pleach_engine::{Activity, BenchProfile, CancelToken, Ceilings, EngineOptions, PartProfile, processor_name};
use serde::Serialize;

use super::json::Object;
use super::measure::{Measured, TestResult, Throughput};
use super::plan::Test;
use super::statistics::Statistics;
use crate::args::ReportForm;
use crate::error::{CliError, End};
use crate::footer::{duration, significant, size};
use crate::output::{print_json, print_text};
use crate::table::Table;

/// What is measured of one model with one set of options.
pub(super) trait Reported: Sized {
    /// For people.
    fn text(&self, form: ReportForm) -> String;

    /// All of them, for programs.
    fn object(runs: &[Self]) -> impl Serialize;
}

/// Prints tables as they come, or an object at the end.
#[derive(Debug)]
pub(super) struct Report<R> {
    form: ReportForm,
    runs: Vec<R>,
}

impl<R: Reported> Report<R> {
    pub(super) fn new(form: ReportForm) -> Self {
        Self { form, runs: Vec::new() }
    }

    pub(super) fn add(&mut self, run: R) -> Result<(), CliError> {
        if self.form != ReportForm::Json {
            let blank = if self.runs.is_empty() { "" } else { "\n" };
            print_text(&format!("{blank}{}", run.text(self.form)))?;
        }
        self.runs.push(run);
        Ok(())
    }

    /// Ends the report after what came of the measurements. An error that came before any result prints nothing but itself.
    pub(super) fn finish(self, outcome: Result<(), CliError>, cancel: &CancelToken) -> Result<End, CliError> {
        if self.form == ReportForm::Json && (outcome.is_ok() || !self.runs.is_empty()) {
            print_json(&R::object(&self.runs))?;
        }
        outcome.map(|()| if cancel.is_cancelled() { End::Interrupted } else { End::Done })
    }
}

impl Reported for Measured {
    fn text(&self, form: ReportForm) -> String {
        text(self, form)
    }

    fn object(runs: &[Self]) -> impl Serialize {
        Object::new(runs)
    }
}

/// The conditions, a line each, then the tables.
fn text(run: &Measured, form: ReportForm) -> String {
    let markdown = form == ReportForm::Markdown;
    let facts = facts(run);
    let width = facts.iter().map(|(label, _)| label.len() + 2).max().unwrap_or(0);
    let fact = |(label, value): &(&str, String)| match markdown {
        true => format!("- {label}: {value}\n"),
        false => format!("{:<width$}{value}\n", format!("{label}:")),
    };
    let render = |table: &Table| if markdown { table.markdown() } else { table.text() };
    let mut text: String = facts.iter().map(fact).collect();
    text += &format!("\n{}", render(&speeds(run)));
    text += &note(run.results.iter().flat_map(|result| [run.read(result), run.macs(result)]));
    for (test, profile) in &run.profiles {
        let title =
            format!("{test}: {} a pass, op by op", duration(profile.total / test.work.profiled_passes() as u32));
        text += &format!("\n{title}{}\n{}", if markdown { "\n" } else { "" }, render(&profile_table(*test, profile)));
    }
    text
}

fn facts(run: &Measured) -> Vec<(&'static str, String)> {
    let (info, conditions) = (&run.info, &run.conditions);
    let file = run.file_bytes.map_or_else(String::new, |bytes| format!(", {}", size(bytes)));
    let parameters = significant(info.num_parameters as f64 / 1e6);
    let unknown = || "not available: the system does not say".to_owned();
    let mut facts = vec![
        ("model", run.located.name.clone()),
        (
            "files",
            format!(
                "{}, {}, {parameters} M parameters, {}{file}",
                info.architecture, info.file_format, info.quantization
            ),
        ),
        ("processor", processor_name().unwrap_or_else(unknown)),
        ("device", info.device.clone()),
        ("precision", precision(&run.options)),
        ("loading", duration(run.load)),
        ("peak memory", run.peak_resident_bytes.map_or_else(unknown, size)),
        ("read", ceilings(&conditions.ceilings, |ceilings| (ceilings.read_bytes_per_s.median, "GB/s"))),
        ("int8", ceilings(&conditions.ceilings, |ceilings| (ceilings.int8_macs_per_s.median, "GMAC/s"))),
        ("load average", load_average(conditions.load_average)),
        ("processor time", conditions.activity.as_ref().map_or_else(unknown, activity)),
    ];
    if run.interrupted {
        facts.push(("stopped", "with Ctrl-C, before all was measured".to_owned()));
    }
    facts
}

/// As the flags spell it.
fn precision(options: &EngineOptions) -> String {
    let precision = format!("{:?} keys and values, {:?} activations", options.kv_cache, options.activations);
    precision.to_ascii_lowercase()
}

fn ceilings(both: &[Option<Ceilings>; 2], of: impl Fn(&Ceilings) -> (f64, &'static str)) -> String {
    let values: Vec<(f64, &str)> = both.iter().flatten().map(of).collect();
    let one = |(value, _): &(f64, &str)| significant(value / 1e9);
    match values.as_slice() {
        [] => "not measured on this device".to_owned(),
        [only] => format!("{} {} at most, before", one(only), only.1),
        [before, after, ..] => {
            format!("{} {} at most, before; {} after; shares are of the higher one", one(before), before.1, one(after))
        }
    }
}

pub(super) fn load_average(both: [Option<[f64; 3]>; 2]) -> String {
    match both.map(|averages| averages.map(|[last_minute, ..]| last_minute)) {
        [Some(before), Some(after)] => format!("{before:.2} before; {after:.2} after"),
        _ => "not available: the system does not say".to_owned(),
    }
}

fn activity(activity: &Activity) -> String {
    const NAMED: usize = 4;
    let percent = |share: f64| format!("{} %", significant(100.0 * share));
    let Activity { own, others, stolen, programs } = activity;
    let named: Vec<String> =
        programs.iter().take(NAMED).map(|program| format!("{} {}", program.name, percent(program.share))).collect();
    let named = if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) };
    let stolen = if *stolen >= 0.001 { format!(", the host {}", percent(*stolen)) } else { String::new() };
    format!("this process {}, others {}{named}{stolen}", percent(*own), percent(*others))
}

fn speeds(run: &Measured) -> Table {
    let header = ["test", "tokens/s", "min", "max", "ms", "ratio", "GB/s", "of read", "GMAC/s", "of int8"];
    let mut table = Table::new(&header);
    for result in &run.results {
        table.push(speed_row(run, result));
    }
    table
}

fn speed_row(run: &Measured, result: &TestResult) -> Vec<String> {
    let speed = Statistics::of(&result.tokens_per_s());
    let number = |value: Option<f64>| value.map_or_else(String::new, significant);
    let giga = |found: Option<Throughput>| number(found.map(|found| found.per_s / 1e9));
    let percent = |found: Option<Throughput>| found.and_then(|found| found.share).map_or_else(String::new, percent);
    let (read, macs) = (run.read(result), run.macs(result));
    vec![
        result.test.to_string(),
        number(speed.map(|speed| speed.median)),
        number(speed.map(|speed| speed.min)),
        number(speed.map(|speed| speed.max)),
        number(Statistics::of(&result.seconds).map(|seconds| 1e3 * seconds.median)),
        Statistics::of(&result.ratios).map_or_else(String::new, |ratio| format!("{:.2}", ratio.median)),
        giga(read),
        percent(read),
        giga(macs),
        percent(macs),
    ]
}

/// Beside shares of more than a ceiling.
const ABOVE: &str = "†";

const ABOVE_NOTE: &str = "† More than the ceiling: the processor's caches held what was read, or the machine was slower while the ceiling was \
    measured. Measure again when nothing else runs.";

/// What marks in the table say, where there are any.
fn note(found: impl Iterator<Item = Option<Throughput>>) -> String {
    let mut shares = found.flatten().filter_map(|found| found.share);
    if shares.any(is_above) { format!("\n{ABOVE_NOTE}\n") } else { String::new() }
}

/// Whether it shows as more than the whole.
fn is_above(share: f64) -> bool {
    (100.0 * share).round() > 100.0
}

fn percent(share: f64) -> String {
    let percent = format!("{} %", (100.0 * share).round());
    if is_above(share) { format!("{percent} {ABOVE}") } else { percent }
}

fn profile_table(test: Test, profile: &BenchProfile) -> Table {
    let mut table = Table::new(&["op", "ms", "share", "ops", "dispatches", "GB/s", "GMAC/s"]);
    let passes = test.work.profiled_passes() as f64;
    for (name, part) in profile.parts() {
        table.push(profile_row(name, &part, passes, profile.total.as_secs_f64()));
    }
    table
}

fn profile_row(name: &str, part: &PartProfile, passes: f64, total: f64) -> Vec<String> {
    let seconds = part.time.as_secs_f64();
    let count = |count: u64| if count == 0 { String::new() } else { significant(count as f64 / passes) };
    let rate = |units: u64| if units == 0 { String::new() } else { significant(units as f64 / seconds / 1e9) };
    vec![
        name.to_owned(),
        significant(1e3 * seconds / passes),
        format!("{:.1} %", 100.0 * seconds / total),
        count(part.ops),
        count(part.dispatches),
        rate(part.weight_bytes + part.state_bytes),
        rate(part.macs),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_above_a_ceiling_are_marked() {
        assert_eq!([0.0, 0.844, 1.004, 1.31].map(percent), ["0 %", "84 %", "100 %", "131 % †"]);
        let of_share = |share| Some(Throughput { per_s: 1e9, share });
        assert_eq!(note([None, of_share(None), of_share(Some(1.004))].into_iter()), "");
        assert_eq!(note([None, of_share(Some(1.31))].into_iter()), format!("\n{ABOVE_NOTE}\n"));
    }

    #[test]
    fn ceilings_say_which_one_shares_are_of() {
        let rate = |giga: f64| pleach_engine::Rate { median: giga * 1e9, best: giga * 1e9 };
        let measured = |giga| Some(Ceilings { read_bytes_per_s: rate(giga), int8_macs_per_s: rate(1.0) });
        let text = |both| ceilings(&both, |ceilings| (ceilings.read_bytes_per_s.median, "GB/s"));
        assert_eq!(
            text([measured(31.2), measured(36.0)]),
            "31.2 GB/s at most, before; 36.0 after; shares are of the higher one"
        );
        assert_eq!(text([measured(31.2), None]), "31.2 GB/s at most, before");
        assert_eq!(text([None, None]), "not measured on this device");
    }
}
