//! What guesses brought, for people and for programs.

use serde::Serialize;

use super::super::report::{self, load_average};
use super::super::statistics::Statistics;
use super::{Category, Sample, SpecRun};
use crate::args::ReportForm;
use crate::footer::{aligned, significant};
use crate::table::Table;

/// The whole object. Fields stay where they are from one version to the next; new ones may come.
#[derive(Debug, Serialize)]
struct Object {
    version: &'static str,
    runs: Vec<Run>,
}

#[derive(Debug, Serialize)]
struct Run {
    model: String,
    path: String,
    device: String,
    threads: Option<usize>,
    drafters: Vec<&'static str>,
    spec_budget: String,
    temperature: f32,
    interrupted: bool,
    load_average: [Option<[f64; 3]>; 2],
    categories: Vec<CategoryObject>,
}

#[derive(Debug, Serialize)]
struct CategoryObject {
    category: String,
    prompts: usize,
    #[serde(flatten)]
    sums: Sums,
}

/// What all samples of a category come to.
#[derive(Debug, Clone, Copy, Serialize)]
struct Sums {
    tokens: usize,
    plain_tokens_per_s: Option<f64>,
    drafted_tokens_per_s: Option<f64>,
    tokens_per_pass: Option<f64>,
    drafted_per_pass: Option<f64>,
    /// Of the time without guesses to that with them, each over one prompt.
    ratio: Option<Ratio>,
    different_texts: usize,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Ratio {
    median: f64,
    min: f64,
    max: f64,
    /// Of the sums over all prompts.
    total: f64,
}

impl report::Reported for SpecRun {
    fn text(&self, form: ReportForm) -> String {
        text(self, form)
    }

    fn object(runs: &[Self]) -> impl Serialize {
        Object { version: env!("CARGO_PKG_VERSION"), runs: runs.iter().map(Run::new).collect() }
    }
}

/// The conditions, a line each, then the table.
fn text(run: &SpecRun, form: ReportForm) -> String {
    let markdown = form == ReportForm::Markdown;
    let fact = |(label, value): (&str, String)| match markdown {
        true => format!("- {label}: {value}\n"),
        false => aligned(label, &value) + "\n",
    };
    let mut facts = vec![
        ("model", run.located.name.clone()),
        ("device", run.device.clone()),
        ("drafters", if run.drafters.is_empty() { "none".to_owned() } else { run.drafters.join(" and ") }),
        ("rows", run.budget.to_string()),
        ("temperature", run.temperature.to_string()),
        ("load average", load_average(run.load_average)),
    ];
    if run.interrupted {
        facts.push(("stopped", "with Ctrl-C, before all was measured".to_owned()));
    }
    let table = table(run);
    let facts: String = facts.into_iter().map(fact).collect();
    format!("{facts}\n{}", if markdown { table.markdown() } else { table.text() })
}

fn table(run: &SpecRun) -> Table {
    let mut table = Table::new(&[
        "category",
        "prompts",
        "tokens",
        "plain/s",
        "drafted/s",
        "per pass",
        "guesses",
        "ratio",
        "min",
        "max",
        "total",
        "text",
    ]);
    for (name, category) in &run.categories {
        table.push(row(name, category));
    }
    let samples = run.categories.values().flat_map(|category| category.samples.iter().copied()).collect();
    let num_prompts = run.categories.values().map(|category| category.num_prompts).sum();
    table.push(row("all", &Category { num_prompts, samples }));
    table
}

fn row(name: &str, category: &Category) -> Vec<String> {
    let sums = Sums::of(&category.samples);
    let number = |value: Option<f64>| value.map_or_else(String::new, significant);
    let ratio = |of: fn(Ratio) -> f64| sums.ratio.map_or_else(String::new, |ratio| format!("{:.2}", of(ratio)));
    vec![
        name.to_owned(),
        category.num_prompts.to_string(),
        sums.tokens.to_string(),
        number(sums.plain_tokens_per_s),
        number(sums.drafted_tokens_per_s),
        number(sums.tokens_per_pass),
        number(sums.drafted_per_pass),
        ratio(|ratio| ratio.median),
        ratio(|ratio| ratio.min),
        ratio(|ratio| ratio.max),
        ratio(|ratio| ratio.total),
        if sums.different_texts == 0 { "same".to_owned() } else { format!("{} differ", sums.different_texts) },
    ]
}

impl Sums {
    fn of(samples: &[Sample]) -> Self {
        let sum = |of: fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>();
        let (tokens, passes) = (sum(|sample| sample.tokens as f64), sum(|sample| sample.passes as f64));
        let (plain_s, drafted_s) = (sum(|sample| sample.plain_s), sum(|sample| sample.drafted_s));
        let per = |amount: f64, of: f64| (of > 0.0).then(|| amount / of);
        let ratios: Vec<f64> = samples.iter().map(|sample| sample.plain_s / sample.drafted_s).collect();
        Self {
            tokens: samples.iter().map(|sample| sample.tokens).sum(),
            plain_tokens_per_s: per(tokens, plain_s),
            drafted_tokens_per_s: per(tokens, drafted_s),
            tokens_per_pass: per(passes + sum(|sample| sample.accepted as f64), passes),
            drafted_per_pass: per(sum(|sample| sample.drafted as f64), passes),
            ratio: Statistics::of(&ratios).map(|Statistics { median, min, max, .. }| Ratio {
                median,
                min,
                max,
                total: plain_s / drafted_s,
            }),
            different_texts: samples.iter().filter(|sample| !sample.same_text).count(),
        }
    }
}

impl Run {
    fn new(run: &SpecRun) -> Self {
        let category = |(name, category): (&String, &Category)| CategoryObject {
            category: name.clone(),
            prompts: category.num_prompts,
            sums: Sums::of(&category.samples),
        };
        Self {
            model: run.located.name.clone(),
            path: run.located.path.display().to_string(),
            device: run.device.clone(),
            threads: run.options.threads.map(std::num::NonZeroUsize::get),
            drafters: run.drafters.clone(),
            spec_budget: run.budget.to_string(),
            temperature: run.temperature,
            interrupted: run.interrupted,
            load_average: run.load_average,
            categories: run.categories.iter().map(category).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(plain_s: f64, drafted_s: f64, accepted: u64) -> Sample {
        Sample { tokens: 100, plain_s, drafted_s, passes: 100 - accepted, drafted: 60, accepted, same_text: true }
    }

    #[test]
    fn ratios_are_taken_within_a_prompt_and_over_all() {
        let sums = Sums::of(&[sample(2.0, 1.0, 50), sample(1.0, 1.0, 0), sample(6.0, 4.0, 25)]);
        let ratio = sums.ratio.unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.max, ratio.total), (1.5, 1.0, 2.0, 1.5));
        assert_eq!(
            (sums.tokens, sums.plain_tokens_per_s, sums.drafted_tokens_per_s),
            (300, Some(300.0 / 9.0), Some(50.0))
        );
        assert_eq!((sums.tokens_per_pass, sums.drafted_per_pass), (Some(300.0 / 225.0), Some(180.0 / 225.0)));
    }

    #[test]
    fn a_category_without_answers_has_empty_cells() {
        let cells = row("code", &Category { num_prompts: 2, samples: Vec::new() });
        assert_eq!(cells, ["code", "2", "0", "", "", "", "", "", "", "", "", "same"]);
    }

    #[test]
    fn texts_that_differ_are_counted() {
        let broken = Sample { same_text: false, ..sample(1.0, 1.0, 0) };
        assert_eq!(row("all", &Category { num_prompts: 1, samples: vec![broken] })[11], "1 differ");
    }
}
