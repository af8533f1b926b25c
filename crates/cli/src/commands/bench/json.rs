//! The object that `pleach bench --json` prints. `docs/cli.md` describes its fields.

use std::time::Duration;

use pleach_engine::{Activity, BenchProfile, Ceilings, DeviceChoice, PartProfile, Rate, RowShape, processor_name};
use serde::Serialize;

use super::measure::{Measured, TestResult, Throughput};
use super::plan::{Test, Work};
use super::statistics::Statistics;

/// The whole object. Fields stay where they are from one version to the next; new ones may come.
#[derive(Debug, Serialize)]
pub(super) struct Object {
    version: &'static str,
    processor: Option<String>,
    logical_processors: Option<usize>,
    runs: Vec<Run>,
}

#[derive(Debug, Serialize)]
struct Run {
    model: Model,
    settings: Settings,
    interrupted: bool,
    load_ms: f64,
    peak_resident_bytes: Option<u64>,
    ceilings: BeforeAfter<CeilingRates>,
    load_average: BeforeAfter<[f64; 3]>,
    activity: Option<Shares>,
    tests: Vec<TestObject>,
    profiles: Vec<Profile>,
}

#[derive(Debug, Serialize)]
struct Model {
    name: String,
    path: String,
    architecture: &'static str,
    num_parameters: u64,
    file_format: &'static str,
    quantization: String,
    file_bytes: Option<u64>,
    weights_bytes: usize,
    state_bytes: usize,
    token_bytes: usize,
    pass_weight_bytes: u64,
    macs_per_row: u64,
    macs_per_output: u64,
}

#[derive(Debug, Serialize)]
struct Settings {
    device: String,
    device_kind: &'static str,
    threads: Option<usize>,
    kv_cache: String,
    activations: String,
    prefill_chunk: usize,
    context: usize,
}

#[derive(Debug, Serialize)]
struct BeforeAfter<T> {
    before: Option<T>,
    after: Option<T>,
}

#[derive(Debug, Serialize)]
struct CeilingRates {
    read_bytes_per_s: MedianBest,
    int8_macs_per_s: MedianBest,
}

#[derive(Debug, Serialize)]
struct MedianBest {
    median: f64,
    best: f64,
}

#[derive(Debug, Serialize)]
struct Shares {
    own: f64,
    others: f64,
    stolen: f64,
    programs: Vec<Program>,
}

#[derive(Debug, Serialize)]
struct Program {
    name: String,
    share: f64,
}

#[derive(Debug, Serialize)]
struct TestObject {
    #[serde(flatten)]
    test: TestName,
    samples_ms: Vec<f64>,
    ms: Option<Spread>,
    tokens_per_s: Option<Spread>,
    ratio: Option<Spread>,
    read: Option<Speed>,
    int8: Option<Speed>,
}

/// What a test or a profile is of.
#[derive(Debug, Serialize)]
struct TestName {
    name: String,
    kind: &'static str,
    tokens: usize,
    depth: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    row_shape: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
    mad: f64,
}

#[derive(Debug, Serialize)]
struct Speed {
    per_s: f64,
    share: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Profile {
    #[serde(flatten)]
    test: TestName,
    passes: usize,
    ms: f64,
    parts: Vec<Part>,
}

#[derive(Debug, Serialize)]
struct Part {
    name: &'static str,
    ops: f64,
    dispatches: f64,
    ms: f64,
    share: f64,
    weight_bytes: f64,
    state_bytes: f64,
    macs: f64,
}

impl Object {
    pub(super) fn new(runs: &[Measured]) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            processor: processor_name(),
            logical_processors: std::thread::available_parallelism().ok().map(Into::into),
            runs: runs.iter().map(Run::new).collect(),
        }
    }
}

impl Run {
    fn new(measured: &Measured) -> Self {
        let conditions = &measured.conditions;
        let [before, after] = conditions.ceilings.map(|ceilings| ceilings.map(CeilingRates::new));
        let [load_before, load_after] = conditions.load_average;
        Self {
            model: Model::new(measured),
            settings: Settings::new(measured),
            interrupted: measured.interrupted,
            load_ms: ms(measured.load),
            peak_resident_bytes: measured.peak_resident_bytes,
            ceilings: BeforeAfter { before, after },
            load_average: BeforeAfter { before: load_before, after: load_after },
            activity: conditions.activity.as_ref().map(Shares::new),
            tests: measured.results.iter().map(|result| TestObject::new(measured, result)).collect(),
            profiles: measured.profiles.iter().map(|(test, profile)| Profile::new(*test, profile)).collect(),
        }
    }
}

impl Model {
    fn new(measured: &Measured) -> Self {
        let (info, work) = (&measured.info, &measured.work);
        Self {
            name: measured.located.name.clone(),
            path: measured.located.path.display().to_string(),
            architecture: info.architecture,
            num_parameters: info.num_parameters,
            file_format: info.file_format,
            quantization: info.quantization.clone(),
            file_bytes: measured.file_bytes,
            weights_bytes: info.memory.weights_bytes,
            state_bytes: info.memory.state_bytes,
            token_bytes: info.memory.token_bytes,
            pass_weight_bytes: work.weight_bytes,
            macs_per_row: work.macs_per_row,
            macs_per_output: work.macs_per_output,
        }
    }
}

impl Settings {
    fn new(measured: &Measured) -> Self {
        let options = &measured.options;
        Self {
            device: measured.info.device.clone(),
            device_kind: match options.device {
                DeviceChoice::Cpu => "cpu",
                DeviceChoice::Reference => "reference",
                _ => "other",
            },
            threads: options.threads.map(Into::into),
            kv_cache: format!("{:?}", options.kv_cache).to_ascii_lowercase(),
            activations: format!("{:?}", options.activations).to_ascii_lowercase(),
            prefill_chunk: options.prefill_chunk,
            context: measured.info.context,
        }
    }
}

impl CeilingRates {
    fn new(ceilings: Ceilings) -> Self {
        let rate = |Rate { median, best }| MedianBest { median, best };
        Self { read_bytes_per_s: rate(ceilings.read_bytes_per_s), int8_macs_per_s: rate(ceilings.int8_macs_per_s) }
    }
}

impl Shares {
    fn new(activity: &Activity) -> Self {
        let Activity { own, others, stolen, programs } = activity;
        let programs = programs.iter().map(|program| Program { name: program.name.clone(), share: program.share });
        Self { own: *own, others: *others, stolen: *stolen, programs: programs.collect() }
    }
}

impl TestObject {
    fn new(measured: &Measured, result: &TestResult) -> Self {
        let samples_ms: Vec<f64> = result.seconds.iter().map(|seconds| 1e3 * seconds).collect();
        let speed =
            |throughput: Option<Throughput>| throughput.map(|Throughput { per_s, share }| Speed { per_s, share });
        Self {
            test: TestName::new(result.test),
            ms: Spread::of(&samples_ms),
            tokens_per_s: Spread::of(&result.tokens_per_s()),
            ratio: Spread::of(&result.ratios),
            read: speed(measured.read(result)),
            int8: speed(measured.macs(result)),
            samples_ms,
        }
    }
}

impl TestName {
    fn new(test: Test) -> Self {
        let (kind, row_shape) = match test.work {
            Work::Prefill { .. } => ("prefill", None),
            Work::Decode { .. } => ("decode", None),
            Work::Rows { shape: RowShape::Chain, .. } => ("rows", Some("chain")),
            Work::Rows { shape: RowShape::Tree, .. } => ("rows", Some("tree")),
        };
        Self { name: test.to_string(), kind, tokens: test.work.tokens(), depth: test.depth, row_shape }
    }
}

impl Spread {
    fn of(samples: &[f64]) -> Option<Self> {
        let Statistics { median, min, max, mad } = Statistics::of(samples)?;
        Some(Self { median, min, max, mad })
    }
}

impl Profile {
    fn new(test: Test, profile: &BenchProfile) -> Self {
        let passes = test.work.profiled_passes();
        let part = |(name, part): (&'static str, PartProfile)| {
            let per_pass = |count: u64| count as f64 / passes as f64;
            Part {
                name,
                ops: per_pass(part.ops),
                dispatches: per_pass(part.dispatches),
                ms: ms(part.time) / passes as f64,
                share: part.time.as_secs_f64() / profile.total.as_secs_f64(),
                weight_bytes: per_pass(part.weight_bytes),
                state_bytes: per_pass(part.state_bytes),
                macs: per_pass(part.macs),
            }
        };
        let parts = profile.parts().into_iter().map(part).collect();
        Self { test: TestName::new(test), passes, ms: ms(profile.total) / passes as f64, parts }
    }
}

fn ms(time: Duration) -> f64 {
    1e3 * time.as_secs_f64()
}
