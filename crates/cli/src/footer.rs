//! The statistics under an answer: nine lines, always the same, always in this order.

use std::time::Duration;

use pleach_engine::{Drafting, Usage};

use crate::measure::Measured;

/// The lines, without line breaks.
pub(crate) fn lines(measured: &Measured) -> [String; 9] {
    let (usage, timings) = (&measured.finished.usage, &measured.finished.timings);
    let no_token = || "no token was written".to_owned();
    let energy = |joules: f64| format!("{} J", significant(joules));
    [
        ("time to first token", timings.time_to_first_token.ok_or_else(no_token).map(duration)),
        (
            "prefill speed",
            timings
                .prefill_tokens_per_s(usage)
                .filter(|_| timings.time_to_first_token.is_some())
                .ok_or_else(|| "the prompt was not read to its end".to_owned())
                .map(speed),
        ),
        (
            "generation speed",
            timings
                .generation_tokens_per_s(usage)
                .ok_or_else(|| "it takes an answer of two tokens or more".to_owned())
                .map(speed),
        ),
        (
            "tokens per forward pass",
            usage
                .tokens_per_pass()
                .ok_or_else(|| "no pass was needed after the prompt's".to_owned())
                .map(|tokens| format!("{tokens:.2} tokens")),
        ),
        (
            "memory used",
            measured.memory.ok_or_else(|| "the system does not say".to_owned()).map(|memory| size(memory.peak_bytes)),
        ),
        ("total energy", measured.energy.clone().map(|joules| energy(joules.total))),
        ("input energy per token", measured.input_energy_per_token().map(energy).map_err(str::to_owned)),
        ("output energy per token", measured.output_energy_per_token().map(energy).map_err(str::to_owned)),
        ("duration", Ok(duration(timings.total))),
    ]
    .map(|(label, value)| aligned(label, &value.unwrap_or_else(|reason| format!("not available: {reason}"))))
}

/// `label: value`, the values of all labels below each other.
pub(crate) fn aligned(label: &str, value: &str) -> String {
    const WIDTH: usize = "tokens per forward pass: ".len();
    format!("{:<WIDTH$}{value}", format!("{label}:"))
}

/// What guessing ahead brought, in words.
pub(crate) fn drafting(drafting: &Drafting, usage: &Usage) -> String {
    if drafting.drafters.is_empty() {
        return "off".to_owned();
    }
    let drafters = drafting.drafters.join(" and ");
    let accepted = format!("{drafters}, {} of {} guesses accepted", usage.accepted, usage.drafted);
    match drafting.speedup {
        Some(speedup) => format!("{accepted}, {speedup:.2} times plain decoding"),
        None => accepted,
    }
}

/// Milliseconds below a second, seconds from there on.
pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    // 999.5 ms would round to `1000 ms`.
    if seconds < 0.9995 { format!("{} ms", significant(1e3 * seconds)) } else { format!("{} s", significant(seconds)) }
}

fn speed(tokens_per_s: f64) -> String {
    format!("{} tokens/s", significant(tokens_per_s))
}

/// In units of 1024.
pub(crate) fn size(bytes: u64) -> String {
    let (bytes, unit) = match bytes as f64 {
        bytes @ ..1023.5 => (bytes, "bytes"),
        bytes if bytes < 1023.5 * f64::from(1 << 10) => (bytes / f64::from(1 << 10), "KiB"),
        bytes if bytes < 1023.5 * f64::from(1 << 20) => (bytes / f64::from(1 << 20), "MiB"),
        bytes => (bytes / f64::from(1 << 30), "GiB"),
    };
    if unit == "bytes" { format!("{bytes} bytes") } else { format!("{} {unit}", significant(bytes)) }
}

/// Three significant digits, and every digit before the point.
pub(crate) fn significant(value: f64) -> String {
    match value.abs() {
        0.0 => return "0".to_owned(),
        999.5.. => return format!("{value:.0}"),
        _ => {}
    }
    // Rounding may add a digit: 9.999 is 10.0.
    let digits_before = |value: f64| value.abs().log10().floor() as i32 + 1;
    let scale = 10_f64.powi(3 - digits_before(value));
    let rounded = (value * scale).round() / scale;
    let decimals = usize::try_from(3 - digits_before(rounded)).unwrap_or(0).min(9);
    format!("{rounded:.decimals$}")
}

#[cfg(test)]
pub(crate) mod tests {
    use pleach_engine::{FinishReason, Finished, ResidentMemory, Timings};

    use super::*;
    use crate::measure::Energy;

    /// An answer of so many tokens at 40 tokens per second.
    pub(crate) fn finished(prompt_tokens: usize, output_tokens: usize) -> Finished {
        let generation = Duration::from_millis(25 * output_tokens.saturating_sub(1) as u64);
        Finished {
            reason: FinishReason::Stop,
            usage: Usage {
                prompt_tokens,
                output_tokens,
                passes: output_tokens.saturating_sub(1) as u64,
                ..Usage::default()
            },
            timings: Timings {
                time_to_first_token: (output_tokens > 0).then_some(Duration::from_millis(160)),
                prefill: Duration::from_millis(150),
                generation,
                total: Duration::from_millis(160) + generation,
            },
            drafting: Drafting::default(),
            seed: 0,
        }
    }

    fn measured(prompt_tokens: usize, output_tokens: usize) -> Measured {
        Measured {
            finished: finished(prompt_tokens, output_tokens),
            load: Duration::from_secs(1),
            energy: Ok(Energy { prefill: Some(3.0), total: 23.5 }),
            memory: Some(ResidentMemory { now_bytes: 0, peak_bytes: 300 << 20 }),
        }
    }

    #[test]
    fn nine_lines_in_a_fixed_order() {
        let expected = "\
time to first token:     160 ms
prefill speed:           200 tokens/s
generation speed:        40.0 tokens/s
tokens per forward pass: 1.00 tokens
memory used:             300 MiB
total energy:            23.5 J
input energy per token:  0.100 J
output energy per token: 0.500 J
duration:                1.16 s";
        assert_eq!(lines(&measured(30, 41)).join("\n"), expected);
    }

    #[test]
    fn what_is_not_known_says_why() {
        let mut nothing = measured(30, 0);
        nothing.energy = Err("no energy counters".to_owned());
        nothing.memory = None;
        let expected = "\
time to first token:     not available: no token was written
prefill speed:           not available: the prompt was not read to its end
generation speed:        not available: it takes an answer of two tokens or more
tokens per forward pass: not available: no pass was needed after the prompt's
memory used:             not available: the system does not say
total energy:            not available: no energy counters
input energy per token:  not available: no energy reading
output energy per token: not available: no energy reading
duration:                160 ms";
        assert_eq!(lines(&nothing).join("\n"), expected);
    }

    #[test]
    fn drafting_says_who_guessed_and_what_it_brought() {
        let usage = Usage { drafted: 80, accepted: 35, ..Usage::default() };
        let mut brought = Drafting { drafters: vec!["ngram", "mtp"], speedup: Some(1.874), ..Drafting::default() };
        assert_eq!(drafting(&brought, &usage), "ngram and mtp, 35 of 80 guesses accepted, 1.87 times plain decoding");
        brought.speedup = None;
        assert_eq!(drafting(&brought, &usage), "ngram and mtp, 35 of 80 guesses accepted");
        assert_eq!(drafting(&Drafting::default(), &usage), "off");
    }

    #[test]
    fn numbers_have_three_significant_digits() {
        let numbers = [0.0, 0.01234, 0.9999, 1.0, 9.994, 9.996, 99.95, 123.4, 999.6, 12345.6];
        let texts = ["0", "0.0123", "1.00", "1.00", "9.99", "10.0", "100", "123", "1000", "12346"];
        assert_eq!(numbers.map(significant), texts);
        assert_eq!(duration(Duration::from_micros(999_700)), "1.00 s");
        let sizes = [2, 1023, 1024, 665_600, 1 << 20, 1023 << 20, 5 << 30].map(size);
        assert_eq!(sizes, ["2 bytes", "1023 bytes", "1.00 KiB", "650 KiB", "1.00 MiB", "1023 MiB", "5.00 GiB"]);
    }
}
