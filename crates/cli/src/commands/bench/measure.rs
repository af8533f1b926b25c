//! One model with one set of options, measured.

use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use pleach_engine::{
    Activity, ActivityMeter, BenchProfile, Bencher, CancelToken, Ceilings, EngineError, EngineOptions, Located,
    ModelInfo, PassWork, load_average, resident_memory,
};

use super::loading::{Loaded, Machine, load};
use super::plan::{Plan, Test, Work};
use super::statistics::Statistics;
use crate::error::CliError;
use crate::progress::Progress;

/// What is to be done.
pub(super) struct Measurement<'a> {
    pub(super) located: &'a Located,
    pub(super) options: &'a EngineOptions,
    pub(super) plan: &'a Plan,
    pub(super) cancel: &'a CancelToken,
    pub(super) progress: &'a mut Progress,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) located: Located,
    pub(super) options: EngineOptions,
    pub(super) info: ModelInfo,
    pub(super) work: PassWork,
    /// `None` where the model has several files that nobody listed.
    pub(super) file_bytes: Option<u64>,
    pub(super) load: Duration,
    /// `None` where the system does not say.
    pub(super) peak_resident_bytes: Option<u64>,
    pub(super) conditions: Conditions,
    pub(super) results: Vec<TestResult>,
    pub(super) profiles: Vec<(Test, BenchProfile)>,
    /// Whether Ctrl-C came before the end.
    pub(super) interrupted: bool,
}

/// The machine meanwhile; each `None` where device or system do not say.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    /// Before and after.
    pub(super) ceilings: [Option<Ceilings>; 2],
    pub(super) load_average: [Option<[f64; 3]>; 2],
    /// While the tests ran.
    pub(super) activity: Option<Activity>,
}

/// The samples of one test.
#[derive(Debug, Clone)]
pub(super) struct TestResult {
    pub(super) test: Test,
    /// Seconds per pass, or per prompt, one entry per repetition that came to its end.
    pub(super) seconds: Vec<f64>,
    /// Times relative to the first rows test of the same depth, each within one repetition.
    pub(super) ratios: Vec<f64>,
}

/// Least time of a sample of a rows test; shorter passes are repeated within it.
const ROWS_SAMPLE: Duration = Duration::from_millis(30);

/// Tokens that warm a decode test up.
const WARM_UP_TOKENS: usize = 4;

impl Measurement<'_> {
    /// Loads and measures; `None` if Ctrl-C came before there was anything to measure.
    pub(super) fn run(self) -> Result<Option<Measured>, CliError> {
        let loaded = load(self.located, self.options, Machine::Measured, self.cancel, self.progress)?;
        let Some(Loaded { engine, load, load_average: load_before, ceilings, peak_resident_bytes }) = loaded else {
            return Ok(None);
        };
        let mut bencher = engine.bencher(self.cancel.clone()).map_err(CliError::from_engine)?;

        let meter = ActivityMeter::start();
        let mut rounds = Rounds::new(self.plan, &mut bencher, self.progress);
        rounds.run().map_err(CliError::from_engine)?;
        let Rounds { results, profiles, .. } = rounds;
        let activity = meter.and_then(|meter| meter.activity());

        let peak = resident_memory().map(|memory| memory.peak_bytes);
        let (info, work) = (engine.info().clone(), bencher.work());
        drop((bencher, engine));
        self.progress.show("measuring the machine");
        // Who pressed Ctrl-C does not want to wait.
        let ceilings_after =
            if self.cancel.is_cancelled() { None } else { self.options.ceilings().map_err(CliError::from_engine)? };
        Ok(Some(Measured {
            located: self.located.clone(),
            options: self.options.clone(),
            info,
            work,
            file_bytes: file_bytes(&self.located.path).ok().flatten(),
            load,
            // A mark from before that the model did not pass says nothing about the model.
            peak_resident_bytes: peak.filter(|&peak| peak_resident_bytes.is_none_or(|before| peak > before)),
            conditions: Conditions {
                ceilings: [ceilings, ceilings_after],
                load_average: [load_before, load_average()],
                activity,
            },
            results,
            profiles,
            interrupted: self.cancel.is_cancelled(),
        }))
    }
}

/// Repetitions in which every test runs once.
struct Rounds<'a> {
    plan: &'a Plan,
    bencher: &'a mut Bencher,
    progress: &'a mut Progress,
    /// Passes of a sample, one entry per test.
    passes: Vec<usize>,
    results: Vec<TestResult>,
    profiles: Vec<(Test, BenchProfile)>,
}

/// Whether to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    On,
    Cancelled,
}

impl<'a> Rounds<'a> {
    fn new(plan: &'a Plan, bencher: &'a mut Bencher, progress: &'a mut Progress) -> Self {
        let result = |&test| TestResult { test, seconds: Vec::new(), ratios: Vec::new() };
        let results = plan.tests.iter().map(result).collect();
        Self { plan, bencher, progress, passes: vec![1; plan.tests.len()], results, profiles: Vec::new() }
    }

    fn run(&mut self) -> Result<(), EngineError> {
        if self.warm_up()? == Flow::Cancelled {
            return Ok(());
        }
        for repetition in 1..=self.plan.repetitions {
            if self.repeat(repetition)? == Flow::Cancelled {
                return Ok(());
            }
        }
        self.profile()
    }

    /// Records the passes, fills the caches, and finds out how many passes make a sample.
    fn warm_up(&mut self) -> Result<Flow, EngineError> {
        for (place, &test) in self.plan.tests.iter().enumerate() {
            self.progress.show(&format!("warming up: {test}"));
            let work = match test.work {
                Work::Decode { tokens } => Work::Decode { tokens: tokens.min(WARM_UP_TOKENS) },
                other => other,
            };
            for _ in 0..2 {
                let Some(time) = self.time(Test { work, ..test }, 1)? else { return Ok(Flow::Cancelled) };
                if matches!(work, Work::Rows { .. }) {
                    self.passes[place] = passes_of_a_sample(time);
                }
            }
        }
        Ok(Flow::On)
    }

    fn repeat(&mut self, repetition: usize) -> Result<Flow, EngineError> {
        let mut first: Option<(usize, f64)> = None;
        for (place, &test) in self.plan.tests.iter().enumerate() {
            self.progress.show(&format!("{test}: {repetition} of {}", self.plan.repetitions));
            let passes = self.passes[place];
            let Some(time) = self.time(test, passes)? else { return Ok(Flow::Cancelled) };
            let result = &mut self.results[place];
            match test.work {
                Work::Prefill { .. } => result.seconds.push(time.as_secs_f64()),
                Work::Decode { tokens } => result.seconds.push(time.as_secs_f64() / tokens as f64),
                Work::Rows { .. } => {
                    let seconds = time.as_secs_f64() / passes as f64;
                    let &mut (_, one) = match &mut first {
                        Some(first) if first.0 == test.depth => first,
                        other => other.insert((test.depth, seconds)),
                    };
                    result.seconds.push(seconds);
                    result.ratios.push(seconds / one);
                }
            }
        }
        Ok(Flow::On)
    }

    fn time(&mut self, test: Test, passes: usize) -> Result<Option<Duration>, EngineError> {
        let Test { work, depth } = test;
        match work {
            Work::Prefill { tokens } => self.bencher.prefill(tokens, depth),
            Work::Decode { tokens } => self.bencher.decode(tokens, depth),
            Work::Rows { rows, shape } => self.bencher.rows(rows, shape, depth, passes),
        }
    }

    /// Each profile twice, the first time only for its passes to be recorded.
    fn profile(&mut self) -> Result<(), EngineError> {
        for &test in &self.plan.profiles {
            self.progress.show(&format!("profile: {test}"));
            let mut last = None;
            for _ in 0..2 {
                let Test { work, depth } = test;
                last = match work {
                    Work::Prefill { tokens } => self.bencher.profile_prefill(tokens, depth)?,
                    Work::Decode { tokens } => self.bencher.profile_decode(tokens, depth)?,
                    Work::Rows { rows, shape } => {
                        self.bencher.profile_rows(rows, shape, depth, work.profiled_passes())?
                    }
                };
            }
            let Some(profile) = last else { return Ok(()) };
            self.profiles.push((test, profile));
        }
        Ok(())
    }
}

fn passes_of_a_sample(pass: Duration) -> usize {
    const MOST: u128 = 256;
    ROWS_SAMPLE.as_nanos().div_ceil(pass.as_nanos().max(1)).min(MOST) as usize
}

/// What a test reads or multiplies per second, beside the ceiling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Throughput {
    pub(super) per_s: f64,
    /// Share of what the machine can do; `None` where that is not known.
    pub(super) share: Option<f64>,
}

impl Measured {
    /// Bytes of weights and state per second of a test whose passes are bound by them; `None` for a prompt and for no
    /// samples.
    pub(super) fn read(&self, result: &TestResult) -> Option<Throughput> {
        let context = match result.test.work {
            Work::Prefill { .. } => return None,
            Work::Decode { tokens } => result.test.depth + tokens / 2,
            Work::Rows { .. } => result.test.depth,
        };
        let memory = &self.info.memory;
        let bytes = self.work.weight_bytes + (memory.state_bytes + memory.token_bytes * context) as u64;
        self.throughput(result, bytes, |ceilings| ceilings.read_bytes_per_s.median)
    }

    /// Multiply-adds with weights per second; `None` for no samples.
    pub(super) fn macs(&self, result: &TestResult) -> Option<Throughput> {
        let (rows, outputs) = match result.test.work {
            Work::Prefill { tokens } => (tokens, 1),
            Work::Decode { .. } => (1, 1),
            Work::Rows { rows, .. } => (rows, rows),
        };
        let macs = self.work.macs_per_row * rows as u64 + self.work.macs_per_output * outputs as u64;
        self.throughput(result, macs, |ceilings| ceilings.int8_macs_per_s.median)
    }

    /// The ceiling is the higher one of before and after, so that a share is rather too low than too high.
    fn throughput(&self, result: &TestResult, units: u64, of: impl Fn(&Ceilings) -> f64) -> Option<Throughput> {
        let per_s = units as f64 / Statistics::of(&result.seconds)?.median;
        let ceiling = self.conditions.ceilings.iter().flatten().map(of).reduce(f64::max);
        Some(Throughput { per_s, share: ceiling.map(|ceiling| per_s / ceiling) })
    }
}

impl TestResult {
    /// Tokens, or rows, per second, one entry per repetition.
    pub(super) fn tokens_per_s(&self) -> Vec<f64> {
        let tokens = match self.test.work {
            Work::Prefill { tokens } => tokens,
            Work::Decode { .. } => 1,
            Work::Rows { rows, .. } => rows,
        };
        self.seconds.iter().map(|seconds| tokens as f64 / seconds).collect()
    }
}

/// Size of the files with the weights; `None` for one part of a split file.
fn file_bytes(path: &Path) -> io::Result<Option<u64>> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if path.is_file() {
        return if name.contains("-of-") { Ok(None) } else { Ok(Some(fs::metadata(path)?.len())) };
    }
    let mut bytes = 0;
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        // Through links, which the Hugging Face cache is made of.
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            bytes += fs::metadata(path)?.len();
        }
    }
    Ok(Some(bytes).filter(|&bytes| bytes > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_passes_are_repeated_within_a_sample() {
        let passes = |micros| passes_of_a_sample(Duration::from_micros(micros));
        assert_eq!((passes(50_000), passes(30_000), passes(20_000), passes(1000)), (1, 1, 2, 30));
        assert_eq!((passes(1), passes(0)), (256, 256));
    }

    #[test]
    fn speeds_are_of_the_tokens_that_a_test_counts() {
        let result = |work| TestResult { test: Test { work, depth: 0 }, seconds: vec![0.5, 0.25], ratios: Vec::new() };
        assert_eq!(result(Work::Prefill { tokens: 100 }).tokens_per_s(), [200.0, 400.0]);
        assert_eq!(result(Work::Decode { tokens: 64 }).tokens_per_s(), [2.0, 4.0]);
        let shape = Default::default();
        assert_eq!(result(Work::Rows { rows: 8, shape }).tokens_per_s(), [16.0, 32.0]);
    }

    #[test]
    fn files_are_counted_with_their_weights() {
        let folder = tempfile::TempDir::new().unwrap();
        assert_eq!(file_bytes(folder.path()).unwrap(), None);
        for (name, bytes) in
            [("a.safetensors", 5), ("b.safetensors", 6), ("config.json", 7), ("m-00001-of-00002.gguf", 8)]
        {
            fs::write(folder.path().join(name), vec![0; bytes]).unwrap();
        }
        assert_eq!(file_bytes(folder.path()).unwrap(), Some(11));
        assert_eq!(file_bytes(&folder.path().join("a.safetensors")).unwrap(), Some(5));
        assert_eq!(file_bytes(&folder.path().join("m-00001-of-00002.gguf")).unwrap(), None);
    }
}
