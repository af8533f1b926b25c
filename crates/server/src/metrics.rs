//! Counts and times, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pleach_engine::{Finished, PrefixCacheStats};

/// A count that grows, or goes up and down.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: usize) {
        self.0.store(value as u64, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper bounds of the classes of times, in seconds.
const BOUNDS: [f64; 12] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0];

/// How times are spread.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// By class; the last is for what lies above all bounds.
    classes: [Count; BOUNDS.len() + 1],
    total_us: Count,
}

impl Times {
    pub(crate) fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let class = BOUNDS.iter().position(|&bound| seconds <= bound).unwrap_or(BOUNDS.len());
        self.classes[class].add(1);
        self.total_us.add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    fn write(&self, name: &str, help: &str, text: &mut String) {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram");
        let mut below = 0;
        for (class, bound) in BOUNDS.iter().enumerate() {
            below += self.classes[class].get();
            let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {below}");
        }
        let all = below + self.classes[BOUNDS.len()].get();
        let seconds = self.total_us.get() as f64 / 1e6;
        let _ = writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {all}\n{name}_sum {seconds}\n{name}_count {all}");
    }
}

/// What the prefix cache last said of itself.
#[derive(Debug, Default)]
pub(crate) struct PrefixCacheCounts(Mutex<PrefixCacheStats>);

impl PrefixCacheCounts {
    pub(crate) fn set(&self, stats: PrefixCacheStats) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = stats;
    }

    fn write(&self, text: &mut String) {
        let stats = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gauge(text, "pleach_prefix_cache_states", "States that are kept for later prompts.", stats.states as u64);
        gauge(text, "pleach_prefix_cache_bytes", "Memory of these states.", stats.bytes as u64);
        for (name, help, count) in [
            ("pleach_prefix_cache_hits_total", "Prompts that went on from a kept state.", stats.hits),
            (
                "pleach_prefix_cache_disk_hits_total",
                "States that were read from disk for a prompt.",
                stats.hits_on_disk,
            ),
            ("pleach_prefix_cache_misses_total", "Prompts that were read from the start.", stats.misses),
            ("pleach_prefix_cache_verified_total", "States compared with reading from the start.", stats.verified),
            ("pleach_prefix_cache_mismatches_total", "Of these, those that gave other logits.", stats.mismatches),
        ] {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {count}");
        }
    }
}

/// All that is counted.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Requests by route and status.
    requests: Mutex<BTreeMap<(String, u16), u64>>,
    pub(crate) running: Count,
    pub(crate) waiting: Count,
    pub(crate) failed: Count,
    pub(crate) clients_gone: Count,
    pub(crate) connections: Count,
    pub(crate) queued: Times,
    pub(crate) prefix_cache: PrefixCacheCounts,
    prompt_tokens: Count,
    cached_tokens: Count,
    output_tokens: Count,
    passes: Count,
    drafted: Count,
    accepted: Count,
    finished: Count,
    cancelled: Count,
    prefill_us: Count,
    generation_us: Count,
    first_token: Times,
    duration: Times,
}

impl Metrics {
    /// Notes an answered request.
    pub(crate) fn respond(&self, route: &str, status: u16) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((route.to_owned(), status)).or_default() += 1;
    }

    /// Notes a text that has ended.
    pub(crate) fn finish(&self, finished: &Finished) {
        let (usage, timings) = (&finished.usage, &finished.timings);
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.finished.add(1);
        self.cancelled.add(u64::from(finished.reason == pleach_engine::FinishReason::Cancelled));
        self.prompt_tokens.add(usage.prompt_tokens as u64);
        self.cached_tokens.add(usage.cached_tokens as u64);
        self.output_tokens.add(usage.output_tokens as u64);
        self.passes.add(usage.passes);
        self.drafted.add(usage.drafted);
        self.accepted.add(usage.accepted);
        self.prefill_us.add(micros(timings.prefill));
        self.generation_us.add(micros(timings.generation));
        if let Some(time) = timings.time_to_first_token {
            self.first_token.observe(time);
        }
        self.duration.observe(timings.total);
    }

    /// The page that is served.
    pub(crate) fn page(&self, ready: bool) -> String {
        let mut text = String::new();
        gauge(&mut text, "pleach_ready", "Whether the model is open and can be run.", u64::from(ready));
        gauge(&mut text, "pleach_requests_running", "Requests that run.", self.running.get());
        gauge(&mut text, "pleach_requests_waiting", "Requests that wait for their turn.", self.waiting.get());
        gauge(&mut text, "pleach_connections", "Open connections.", self.connections.get());
        let counters = [
            ("pleach_texts_total", "Texts that have ended.", &self.finished),
            ("pleach_texts_cancelled_total", "Texts whose clients gave up.", &self.cancelled),
            ("pleach_requests_failed_total", "Requests that failed while they ran.", &self.failed),
            (
                "pleach_clients_gone_total",
                "Requests whose clients closed the connection before the end of the answer.",
                &self.clients_gone,
            ),
            ("pleach_prompt_tokens_total", "Tokens of prompts, cached ones included.", &self.prompt_tokens),
            ("pleach_cached_tokens_total", "Tokens of prompts that were not read again.", &self.cached_tokens),
            ("pleach_output_tokens_total", "Tokens written.", &self.output_tokens),
            ("pleach_passes_total", "Passes after those of prompts.", &self.passes),
            ("pleach_drafted_tokens_total", "Tokens guessed ahead and verified.", &self.drafted),
            ("pleach_accepted_tokens_total", "Guesses that the model would have written.", &self.accepted),
        ];
        for (name, help, count) in counters {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {}", count.get());
        }
        for (name, help, count) in [
            ("pleach_prefill_seconds_total", "Time in which prompts were read.", &self.prefill_us),
            ("pleach_generation_seconds_total", "Time in which tokens were written.", &self.generation_us),
        ] {
            let seconds = count.get() as f64 / 1e6;
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {seconds}");
        }
        self.prefix_cache.write(&mut text);
        self.queued.write("pleach_queue_seconds", "Time that requests waited.", &mut text);
        self.first_token.write("pleach_first_token_seconds", "Time to the first token.", &mut text);
        self.duration.write("pleach_text_seconds", "Time of whole texts.", &mut text);
        self.write_requests(&mut text);
        text
    }

    fn write_requests(&self, text: &mut String) {
        let name = "pleach_http_requests_total";
        let _ = writeln!(text, "# HELP {name} Requests answered.\n# TYPE {name} counter");
        for ((route, status), count) in &*self.requests.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = writeln!(text, "{name}{{route=\"{route}\",status=\"{status}\"}} {count}");
        }
    }
}

fn gauge(text: &mut String, name: &str, help: &str, value: u64) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_cumulative() {
        let times = Times::default();
        [0.001, 0.2, 500.0].into_iter().for_each(|seconds| times.observe(Duration::from_secs_f64(seconds)));
        let mut text = String::new();
        times.write("t", "Times.", &mut text);
        for line in ["t_bucket{le=\"0.01\"} 1", "t_bucket{le=\"0.25\"} 2", "t_bucket{le=\"+Inf\"} 3", "t_count 3"] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }

    #[test]
    fn requests_are_counted_by_route_and_status() {
        let metrics = Metrics::default();
        metrics.respond("/v1/models", 200);
        metrics.respond("/v1/models", 200);
        let page = metrics.page(true);
        assert!(page.contains("pleach_http_requests_total{route=\"/v1/models\",status=\"200\"} 2\n"));
        assert!(page.contains("pleach_ready 1\n"));
    }
}
