//! Whether products of few rows ask for memory by instruction.

use std::time::{Duration, Instant};

/// Dispatches that each way is measured with.
const TRIES: u32 = 96;

/// Bytes of weights from which a product shows how fast memory is read.
const LEAST_BYTES: usize = 512 << 10;

/// The other way must be so much faster to be taken: the error of the measurement.
const LEAST_GAIN: f64 = 1.04;

/// Tries both ways on the first dispatches of one or two rows, and keeps the faster one for as long as the device lives.
///
/// Whether the processor's own prefetching keeps ahead of one or two rows is a matter of its make. Measured with two
/// threads, GB/s without asking and with it, one row: Zen 3 `Q4_0` 18 and 21; Emerald Rapids `Q4_0` 14.6 and 20.0, `Q4_K` 13.1
/// and 20.4; but Zen 4, one thread, `Q4_0` 30 and 20. It changes no bit. More rows always ask: see `streamed_rows` in
/// `product/codes.rs`.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    asks: bool,
    /// Of the ways without and with asking: dispatches, and the sum of the logarithms of their bytes per second, in which a
    /// disturbed one counts little.
    tried: [(u32, f64); 2],
}

/// How one dispatch goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// Whether it asks.
    pub(super) asks: bool,
    /// When it began and the bytes that it reads, if it is measured.
    measured: Option<(Instant, usize)>,
}

impl Ahead {
    /// Begins as the instruction set usually fares best.
    pub(super) fn new(asks: bool) -> Self {
        Self { asks, ..Self::default() }
    }

    /// How the next dispatch goes, which reads `bytes` of weights for one or two rows, or is not to be measured.
    pub(super) fn turn(&self, bytes: impl FnOnce() -> Option<usize>) -> Turn {
        let bytes = if self.is_settled() { None } else { bytes().filter(|&bytes| bytes >= LEAST_BYTES) };
        let asks = if bytes.is_some() { self.next() } else { self.asks };
        Turn { asks, measured: bytes.map(|bytes| (Instant::now(), bytes)) }
    }

    /// Takes in what a turn took.
    pub(super) fn end(&mut self, turn: Turn) {
        if let Some((began, bytes)) = turn.measured {
            self.note(turn.asks, bytes, began.elapsed());
        }
    }

    fn note(&mut self, asks: bool, bytes: usize, time: Duration) {
        let (tries, sum) = &mut self.tried[usize::from(asks)];
        *tries += 1;
        *sum += (bytes as f64 / time.as_secs_f64().max(1e-9)).ln();
        if self.is_settled() {
            let mean = |asks: bool| self.tried[usize::from(asks)].1 / f64::from(TRIES);
            self.asks ^= mean(!self.asks) - mean(self.asks) > LEAST_GAIN.ln();
        }
    }

    fn is_settled(&self) -> bool {
        self.tried.iter().all(|(tries, _)| *tries >= TRIES)
    }

    /// Of each two dispatches one goes each way, in a random order: both ways meet the same drift of the machine, and neither
    /// keeps step with the matrices of a model.
    fn next(&self) -> bool {
        let tried = self.tried[0].0 + self.tried[1].0;
        let mixed = u64::from(tried / 2).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let is_flipped = (mixed ^ mixed >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 63 == 1;
        is_flipped ^ (tried % 2 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The way kept after dispatches of `bytes` that take `micros` without and with asking, and how many were measured.
    fn settled(first: bool, bytes: usize, micros: [u64; 2]) -> (bool, u32) {
        let mut ahead = Ahead::new(first);
        let mut num_measured = 0;
        for _ in 0..1000 {
            let turn = ahead.turn(|| Some(bytes));
            num_measured += u32::from(turn.measured.is_some());
            if turn.measured.is_some() {
                ahead.note(turn.asks, bytes, Duration::from_micros(micros[usize::from(turn.asks)]));
            }
        }
        (ahead.turn(|| None).asks, num_measured)
    }

    #[test]
    fn the_faster_way_is_kept() {
        for first in [false, true] {
            assert_eq!(settled(first, 1 << 20, [100, 80]), (true, 2 * TRIES));
            assert_eq!(settled(first, 1 << 20, [80, 100]), (false, 2 * TRIES));
        }
    }

    #[test]
    fn without_a_clear_difference_the_first_way_is_kept() {
        for first in [false, true] {
            assert_eq!(settled(first, 1 << 20, [100, 98]).0, first);
            assert_eq!(settled(first, 1 << 20, [98, 100]).0, first);
        }
    }

    #[test]
    fn small_products_are_not_measured() {
        assert_eq!(settled(true, LEAST_BYTES - 1, [80, 100]), (true, 0));
    }

    #[test]
    fn a_disturbance_settles_nothing() {
        let mut ahead = Ahead::new(false);
        while !ahead.is_settled() {
            let asks = ahead.next();
            // Each tenth dispatch that asks not takes ten times as long; else asking is slower by a fifth.
            let is_disturbed = !asks && ahead.tried[0].0.is_multiple_of(20);
            let micros = if is_disturbed { 1000 } else { 100 + 20 * u64::from(asks) };
            ahead.note(asks, 1 << 20, Duration::from_micros(micros));
        }
        assert!(!ahead.turn(|| None).asks);
    }
}
