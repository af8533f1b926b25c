//! What was measured, for people and for programs.

use std::io::{self, Write as _};

use pleach_engine::{Activity, BenchProfile, Ceilings, EngineOptions, PartProfile, processor_name};

use super::json::Object;
use super::measure::{Measured, TestResult, Throughput};
use super::plan::Test;
use super::statistics::Statistics;
use crate::args::ReportForm;
use crate::error::CliError;
use crate::footer::{duration, significant, size};
use crate::table::Table;

/// Prints tables as they come, and an object at the end.
#[derive(Debug)]
pub(super) struct Report {
    form: ReportForm,
    runs: Vec<Measured>,
}

impl Report {
    pub(super) fn new(form: ReportForm) -> Self {
        Self { form, runs: Vec::new() }
    }

    pub(super) fn add(&mut self, run: Measured) -> Result<(), CliError> {
        if self.form != ReportForm::Json {
            let blank = if self.runs.is_empty() { "" } else { "\n" };
            print(&format!("{blank}{}", text(&run, self.form)))?;
        }
        self.runs.push(run);
        Ok(())
    }

    /// Whether any model was measured.
    pub(super) fn has_results(&self) -> bool {
        !self.runs.is_empty()
    }

    /// Ends the report.
    pub(super) fn finish(self) -> Result<(), CliError> {
        if self.form != ReportForm::Json {
            return Ok(());
        }
        let object = serde_json::to_string_pretty(&Object::new(&self.runs));
        print(&(object.map_err(|error| CliError::Write(error.into()))? + "\n"))
    }
}

pub(super) fn print(text: &str) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(CliError::Write)
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
        [before, after, ..] => format!("{} {} at most, before; {} after", one(before), before.1, one(after)),
    }
}

fn load_average(both: [Option<[f64; 3]>; 2]) -> String {
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
    let percent = |found: Option<Throughput>| {
        found.and_then(|found| found.share).map_or_else(String::new, |share| format!("{:.0} %", 100.0 * share))
    };
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
