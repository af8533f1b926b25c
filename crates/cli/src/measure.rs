//! What an answer took: time, memory, energy.

use std::time::{Duration, Instant};

use pleach_engine::{EnergyMeter, EnergyUnavailable, Event, Finished, ResidentMemory, resident_memory};

/// Everything that is known about an answer that has ended.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) finished: Finished,
    /// Opening the model, which no other time includes.
    pub(crate) load: Duration,
    /// Joules, or why there are none.
    pub(crate) energy: Result<Energy, String>,
    /// Of this process; `None` where the system does not say.
    pub(crate) memory: Option<ResidentMemory>,
}

/// Joules of the processor packages while the answer was made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Energy {
    /// Until the prompt was read and the first token drawn; `None` if it did not come to that.
    pub(crate) prefill: Option<f64>,
    /// Until the end.
    pub(crate) total: f64,
}

/// Reads the energy counters while an answer is made.
#[derive(Debug)]
pub(crate) struct Meter {
    meter: Result<EnergyMeter, EnergyUnavailable>,
    prefill: Option<f64>,
    last_read: Instant,
}

/// Why there is no energy per token where there is none at all; the reason for that stands with the total.
const NO_READING: &str = "no energy reading";

/// Counters wrap around after tens of minutes under load; this is often enough to miss no turn and costs nothing.
const READ_EVERY: Duration = Duration::from_secs(10);

impl Meter {
    /// Starts counting.
    pub(crate) fn start(meter: Result<EnergyMeter, EnergyUnavailable>) -> Self {
        Self { meter, prefill: None, last_read: Instant::now() }
    }

    /// Notes where the prompt ends.
    pub(crate) fn event(&mut self, event: &Event) {
        let prompt_ends = matches!(event, Event::Prefill(prefill) if prefill.done == prefill.total);
        if prompt_ends && self.prefill.is_none() {
            self.prefill = self.read();
        } else if self.last_read.elapsed() > READ_EVERY {
            self.read();
        }
    }

    /// The energy until now.
    fn finish(mut self) -> Result<Energy, String> {
        match self.read() {
            Some(total) => Ok(Energy { prefill: self.prefill, total }),
            None => Err(self.meter.expect_err("a meter that gives nothing holds the reason").to_string()),
        }
    }

    /// Joules since the start. A counter that fails once is not read again.
    fn read(&mut self) -> Option<f64> {
        self.last_read = Instant::now();
        match self.meter.as_mut().ok()?.joules() {
            Ok(joules) => Some(joules),
            Err(error) => {
                self.meter = Err(error);
                None
            }
        }
    }
}

impl Measured {
    /// Reads what is to be read at the end.
    pub(crate) fn new(finished: Finished, load: Duration, meter: Meter) -> Self {
        Self { finished, load, energy: meter.finish(), memory: resident_memory() }
    }

    /// Joules of the prompt per token of it that was read; or why that is unknown.
    pub(crate) fn input_energy_per_token(&self) -> Result<f64, &'static str> {
        let energy = self.energy.as_ref().map_err(|_| NO_READING)?;
        let usage = &self.finished.usage;
        let read = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
        match energy.prefill {
            Some(prefill) if read > 0 => Ok(prefill / read as f64),
            _ => Err("the prompt was not read to its end"),
        }
    }

    /// Joules after the prompt per token of the answer; or why that is unknown.
    pub(crate) fn output_energy_per_token(&self) -> Result<f64, &'static str> {
        let energy = self.energy.as_ref().map_err(|_| NO_READING)?;
        match (energy.prefill, self.finished.usage.output_tokens) {
            (Some(prefill), tokens @ 1..) => Ok((energy.total - prefill) / tokens as f64),
            _ => Err("no token was written"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use pleach_engine::Prefill;
    use tempfile::TempDir;

    use super::*;
    use crate::footer::tests::finished;

    fn counter(root: &TempDir, microjoules: u64) {
        let zone = root.path().join("intel-rapl:0");
        fs::create_dir_all(&zone).unwrap();
        fs::write(zone.join("name"), "package-0").unwrap();
        fs::write(zone.join("max_energy_range_uj"), "1000000000").unwrap();
        fs::write(zone.join("energy_uj"), microjoules.to_string()).unwrap();
    }

    fn prefill(done: usize) -> Event {
        Event::Prefill(Prefill { done, total: 10, cached: 0 })
    }

    #[test]
    fn energy_is_told_apart_where_the_prompt_ends() {
        let root = TempDir::new().unwrap();
        counter(&root, 1_000_000);
        let mut meter = Meter::start(EnergyMeter::open_at(root.path()));
        meter.event(&prefill(0));
        counter(&root, 4_000_000);
        meter.event(&prefill(10));
        counter(&root, 9_000_000);
        let measured = Measured::new(finished(10, 4), Duration::ZERO, meter);
        assert_eq!(measured.energy, Ok(Energy { prefill: Some(3.0), total: 8.0 }));
        assert_eq!(measured.input_energy_per_token(), Ok(0.3));
        assert_eq!(measured.output_energy_per_token(), Ok(1.25));
    }

    #[test]
    fn what_was_not_measured_has_a_reason() {
        let root = TempDir::new().unwrap();
        let measured = Measured::new(finished(10, 4), Duration::ZERO, Meter::start(EnergyMeter::open_at(root.path())));
        assert!(measured.energy.as_ref().unwrap_err().starts_with("no energy counter of a processor package"));
        assert_eq!(measured.input_energy_per_token(), Err("no energy reading"));
        assert_eq!(measured.output_energy_per_token(), Err("no energy reading"));

        counter(&root, 0);
        let measured = Measured::new(finished(10, 0), Duration::ZERO, Meter::start(EnergyMeter::open_at(root.path())));
        assert_eq!(measured.input_energy_per_token().unwrap_err(), "the prompt was not read to its end");
        assert_eq!(measured.output_energy_per_token().unwrap_err(), "no token was written");
    }

    #[test]
    fn a_counter_that_fails_midway_spoils_the_reading() {
        let root = TempDir::new().unwrap();
        counter(&root, 0);
        let mut meter = Meter::start(EnergyMeter::open_at(root.path()));
        fs::write(root.path().join("intel-rapl:0/energy_uj"), "?").unwrap();
        meter.event(&prefill(10));
        counter(&root, 5);
        let reason = Measured::new(finished(10, 4), Duration::ZERO, meter).energy.unwrap_err();
        assert!(reason.ends_with("is `?`, expected a number of microjoules"), "{reason}");
    }
}
