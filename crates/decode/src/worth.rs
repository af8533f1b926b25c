//! Whether a costly drafter pays, and how many rows a request dares.

/// Steps in a row at which a draft must have lost before it rests.
const PATIENCE: u32 = 3;

/// Steps of the first rest; each further one is twice as long, up to `LONGEST_REST`.
const FIRST_REST: u32 = 8;
const LONGEST_REST: u32 = 256;

/// Weight of the latest step in a mean.
const LATEST: f64 = 0.3;

/// A draft that takes longer than this multiple of the mean was disturbed, or had much to catch up with.
const OUTLIER: f64 = 3.0;

/// Where other drafts promise this multiple of plain decoding, they are left alone.
const GOOD_ENOUGH: f64 = 1.5;

/// What is known of a costly drafter: its own cost, and the tokens per second that it brings.
#[derive(Debug, Default)]
pub(crate) struct Worth {
    /// Of steps that it drafted for; `None` before the first.
    tokens_per_s: Option<f64>,
    /// Seconds of one of its drafts.
    draft_s: Option<f64>,
    num_drafts: u32,
    losses: u32,
    /// Steps until it is tried again.
    resting: u32,
    /// Length of the next rest.
    rest: u32,
}

impl Worth {
    pub(crate) fn new() -> Self {
        Self { rest: FIRST_REST, ..Self::default() }
    }

    /// Mean seconds of a draft.
    pub(crate) fn draft_s(&self) -> f64 {
        self.draft_s.unwrap_or(0.0)
    }

    /// Whether a draft is worth its cost, or due for another try. `without`: tokens per second that the step promises
    /// without it; `plain`: those of plain decoding.
    pub(crate) fn asks(&mut self, without: f64, plain: f64) -> bool {
        if self.tokens_per_s.is_none_or(|tokens_per_s| tokens_per_s > without) {
            return true;
        }
        if without > GOOD_ENOUGH * plain {
            return false;
        }
        let is_due = self.resting == 0;
        self.resting = self.resting.saturating_sub(1);
        is_due
    }

    /// Notes what a draft cost, and returns the mean.
    pub(crate) fn drafted(&mut self, seconds: f64) -> f64 {
        self.num_drafts = self.num_drafts.saturating_add(1);
        let draft_s = match self.draft_s {
            // The first may have prepared buffers and read a prompt.
            Some(before) if self.num_drafts == 2 => before.min(seconds),
            before => mean(before, seconds.min(before.map_or(seconds, |before| OUTLIER * before))),
        };
        self.draft_s = Some(draft_s);
        draft_s
    }

    /// Notes the tokens per second that a step promises with a draft and without.
    pub(crate) fn learn(&mut self, with: f64, without: f64) {
        self.tokens_per_s = Some(mean(self.tokens_per_s, with));
        if with > without {
            self.losses = 0;
            self.rest = FIRST_REST;
            return;
        }
        self.losses += 1;
        if self.losses >= PATIENCE {
            self.resting = self.rest;
            self.rest = (2 * self.rest).min(LONGEST_REST);
        }
    }
}

fn mean(before: Option<f64>, latest: f64) -> f64 {
    before.map_or(latest, |before| before + LATEST * (latest - before))
}

/// Rows that a request dares: twice as many after a success, half as many after a failure, so that a drafter that
/// boasts at the start of a text costs little.
#[derive(Debug)]
pub(crate) struct Window(usize);

impl Window {
    /// Rows of the first draft, the root included.
    const FIRST: usize = 5;

    /// More than any pass has.
    const MOST: usize = 1 << 12;

    pub(crate) fn new() -> Self {
        Self(Self::FIRST)
    }

    /// Rows that the next pass may have.
    pub(crate) fn rows(&self) -> usize {
        self.0
    }

    /// Learns how many tokens a pass of so many rows gave.
    pub(crate) fn observe(&mut self, rows: usize, tokens: usize) {
        if rows >= Self::FIRST && 2 * tokens > rows {
            self.0 = (2 * self.0).min(Self::MOST);
        } else if rows >= Self::FIRST && tokens == 1 {
            self.0 = (self.0 / 2).max(Self::FIRST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drafter_that_loses_is_asked_ever_more_rarely() {
        let mut worth = Worth::new();
        let mut asked = Vec::new();
        for step in 0..2000 {
            if worth.asks(100.0, 100.0) {
                worth.learn(60.0, 100.0);
                asked.push(step);
            }
        }
        assert_eq!(asked[..6], [0, 1, 2, 11, 28, 61]);
        assert!(asked.len() < 16, "{asked:?}");
    }

    #[test]
    fn a_drafter_that_wins_is_always_asked() {
        let mut worth = Worth::new();
        for _ in 0..100 {
            assert!(worth.asks(100.0, 100.0));
            worth.learn(150.0, 100.0);
        }
        assert!(!worth.asks(300.0, 100.0), "other drafts promise more");
        assert!(worth.asks(100.0, 100.0));
    }

    #[test]
    fn a_drafter_that_recovers_is_asked_again() {
        let mut worth = Worth::new();
        let mut last_asked = 0;
        for step in 0..1000 {
            if worth.asks(100.0, 100.0) {
                worth.learn(if step < 300 { 60.0 } else { 200.0 }, 100.0);
                last_asked = step;
            }
        }
        assert_eq!(last_asked, 999);
    }

    #[test]
    fn the_first_draft_and_disturbed_ones_do_not_set_the_price() {
        let mut worth = Worth::new();
        assert_eq!([worth.drafted(5.0), worth.drafted(0.01)], [5.0, 0.01]);
        assert!(worth.drafted(9.0) < 0.02);
    }

    #[test]
    fn a_window_opens_with_success() {
        let mut window = Window::new();
        (0..3).for_each(|_| window.observe(window.rows(), window.rows()));
        assert_eq!(window.rows(), 40);
        window.observe(2, 1);
        assert_eq!(window.rows(), 40, "a small failure says little");
        (0..9).for_each(|_| window.observe(window.rows(), 1));
        assert_eq!(window.rows(), 5);
    }
}
