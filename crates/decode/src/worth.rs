//! Whether a costly drafter pays, and how many rows a request dares.

/// Share of a request's time that may be lost in trying a drafter that does not pay.
const TRIAL_SHARE: f64 = 0.01;

/// Drafts that a request tries in any case: the first prepares buffers and reads the prompt, so only the second shows what a
/// draft costs.
const FIRST_TRIES: u32 = 2;

/// Weight of the latest step in a mean.
const LATEST: f64 = 0.3;

/// A draft that takes longer than this multiple of the mean was disturbed, or had much to catch up with.
const OUTLIER: f64 = 3.0;

/// Where other drafts promise this multiple of plain decoding, they are left alone.
const GOOD_ENOUGH: f64 = 1.5;

/// Weight of what drafts promise beside what came of them: promises follow a text quickly, but leave much out. Measured in
/// `docs/benchmarks.md`, "When a drafter is asked".
const PROMISED: f64 = 0.3;

/// What the drafts of a drafter that runs a model have brought: tokens, and the time that they took, in passes of one row.
///
/// ```text
/// speed-up over plain decoding = tokens / passes
/// ```
///
/// An engine keeps one, takes in what each request brought ([`learn`](Self::learn)) and lets the next one begin with it, since a few
/// unlucky drafts at its start would else decide. The default is a speed-up of 1.25 that counts as 16 passes: somebody chose or
/// trained the drafter, and a bad one is found out within a request or two.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Experience {
    tokens: f64,
    passes: f64,
}

impl Experience {
    /// Passes that earlier requests count as at the start of one: with a good drafter, enough for four bad drafts.
    const AT_FIRST: f64 = 6.0;

    /// Passes that a request remembers: texts change.
    const OF_REQUEST: f64 = 20.0;

    /// Passes that are remembered over all requests: those of ten short ones.
    const OF_ALL: f64 = 200.0;

    /// Passes that one request counts as at most, so that a long one does not decide for all.
    const OF_ONE: f64 = 50.0;

    /// A draft that brought nothing yet.
    const NONE: Self = Self { tokens: 0.0, passes: 0.0 };

    /// How many times faster than plain decoding.
    fn speedup(self) -> f64 {
        self.tokens / self.passes
    }

    /// Takes in what a request has brought; what is older fades.
    pub fn learn(&mut self, request: Self) {
        self.add(request.at_most(Self::OF_ONE), Self::OF_ALL);
    }

    /// Adds what came later; what came before fades so that both count as `most` passes at most.
    fn add(&mut self, later: Self, most: f64) {
        let later = later.at_most(most);
        let before = self.at_most(most - later.passes);
        *self = Self { tokens: before.tokens + later.tokens, passes: before.passes + later.passes };
    }

    fn at_most(self, most: f64) -> Self {
        let share = if self.passes > most { most / self.passes } else { 1.0 };
        Self { tokens: share * self.tokens, passes: share * self.passes }
    }
}

impl Default for Experience {
    fn default() -> Self {
        Self { tokens: 20.0, passes: 16.0 }
    }
}

/// What is known of a costly drafter: its own cost, and the tokens per second that it brings.
#[derive(Debug)]
pub(crate) struct Worth {
    /// Speed of the steps that it drafted for as a multiple of plain decoding, as they promised; `None` before that was
    /// known. A multiple, since the machine may be faster or slower from one moment to the next.
    promised: Option<f64>,
    /// The same as it came, of this request and somewhat of earlier ones.
    realized: Experience,
    /// Of this request alone.
    brought: Experience,
    /// Seconds of one of its drafts.
    draft_s: Option<f64>,
    num_drafts: u32,
    /// Seconds that its drafts took longer than they brought.
    lost_s: f64,
}

/// What a step promises without a costly draft.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Promise {
    /// Tokens per second with other drafts.
    pub(crate) without: f64,
    /// Tokens per second of plain decoding.
    pub(crate) plain: f64,
    /// Seconds that the request has taken so far.
    pub(crate) spent_s: f64,
}

impl Worth {
    /// Of a drafter that has brought so much in earlier requests.
    pub(crate) fn new(experience: Experience) -> Self {
        Self {
            promised: None,
            realized: experience.at_most(Experience::AT_FIRST),
            brought: Experience::NONE,
            draft_s: None,
            num_drafts: 0,
            lost_s: 0.0,
        }
    }

    /// What the drafts of this request have brought.
    pub(crate) fn brought(&self) -> Experience {
        self.brought
    }

    /// Mean seconds of a draft.
    pub(crate) fn draft_s(&self) -> f64 {
        self.draft_s.unwrap_or(0.0)
    }

    /// Whether a draft is worth its cost, or can be afforded as a trial.
    pub(crate) fn asks(&self, promise: Promise) -> bool {
        let Promise { without, plain, spent_s } = promise;
        if self.speedup().is_some_and(|speedup| speedup * plain > without) {
            return true;
        }
        let is_first = self.num_drafts < FIRST_TRIES;
        let is_cheap = self.lost_s + self.draft_s() <= TRIAL_SHARE * spent_s;
        without <= GOOD_ENOUGH * plain && (is_first || is_cheap)
    }

    /// What a draft brings, as a multiple of plain decoding; `None` before one has shown what it costs.
    fn speedup(&self) -> Option<f64> {
        Some(PROMISED * self.promised? + (1.0 - PROMISED) * self.realized.speedup())
    }

    /// Notes what a draft cost, and returns the mean.
    pub(crate) fn drafted(&mut self, seconds: f64) -> f64 {
        self.num_drafts = self.num_drafts.saturating_add(1);
        let draft_s = match self.draft_s {
            Some(before) if self.num_drafts == FIRST_TRIES => before.min(seconds),
            before => mean(before, seconds.min(before.map_or(seconds, |before| OUTLIER * before))),
        };
        self.draft_s = Some(draft_s);
        draft_s
    }

    /// Notes the speed that a step promises with a draft, as a multiple of plain decoding.
    pub(crate) fn learn(&mut self, speedup: f64) {
        if self.num_drafts >= FIRST_TRIES {
            self.promised = Some(mean(self.promised, speedup));
        }
    }

    /// Notes how many tokens a step with a draft gave for each that plain decoding gives in a pass, and in the time of how many
    /// such passes. Later requests hear of it if no other text was in the pass.
    pub(crate) fn realize(&mut self, tokens: f64, passes: f64, is_alone: bool) {
        if self.num_drafts >= FIRST_TRIES && passes.is_finite() {
            let step = Experience { tokens, passes: passes.clamp(0.1, 20.0) };
            self.realized.add(step, Experience::OF_REQUEST);
            if is_alone {
                self.brought.add(step, Experience::OF_ALL);
            }
        }
    }

    /// Notes how much longer a step with a draft took than its tokens would have taken without; negative for a gain.
    pub(crate) fn lost(&mut self, seconds: f64) {
        if self.num_drafts >= FIRST_TRIES {
            self.lost_s = (self.lost_s + seconds).max(0.0);
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

    fn promise(without: f64, spent_s: f64) -> Promise {
        Promise { without, plain: 100.0, spent_s }
    }

    /// Steps at which a drafter is asked whose drafts take 5 ms and bring so many tokens per second, as they promise, beside
    /// plain passes of 10 ms; and what it has brought in the end.
    fn asked(with: impl Fn(u32) -> f64, before: Experience) -> (Vec<u32>, Experience) {
        let (mut worth, mut spent_s, mut asked) = (Worth::new(before), 0.0, Vec::new());
        for step in 0..3000 {
            spent_s += 0.01;
            if worth.asks(promise(100.0, spent_s)) {
                worth.drafted(0.005);
                worth.learn(with(step) / 100.0);
                worth.lost(0.015 - 0.015 * with(step) / 100.0);
                worth.realize(1.5 * with(step) / 100.0, 1.5, true);
                spent_s += 0.005;
                asked.push(step);
            }
        }
        (asked, worth.brought())
    }

    #[test]
    fn a_drafter_that_loses_costs_a_hundredth_of_the_time() {
        let (asked, brought) = asked(|_| 60.0, Experience::default());
        assert_eq!(asked[..2], [0, 1]);
        assert!((30..70).contains(&asked.len()), "{asked:?}");
        assert!((brought.speedup() - 0.6).abs() < 1e-9, "{brought:?}");
    }

    /// How often a drafter that loses a little is asked in the first twenty steps, if earlier requests knew it or not.
    #[test]
    fn later_requests_know_what_earlier_ones_have_found_out() {
        let early = |experience| {
            let (asked, brought) = asked(|_| 90.0, experience);
            (asked.iter().take_while(|&&step| step < 20).count(), brought)
        };
        let mut experience = Experience::default();
        let (first, brought) = early(experience);
        experience.learn(brought);
        let (later, _) = early(experience);
        assert!(first > later && later == 2, "{first}, {later}");
    }

    #[test]
    fn a_drafter_that_recovers_is_asked_again() {
        let (asked, _) = asked(|step| if step < 1000 { 60.0 } else { 200.0 }, Experience::default());
        assert!(asked.len() > 1800, "{}", asked.len());
        assert_eq!(asked.last(), Some(&2999));
    }

    /// One that mostly pays is not given up for a few drafts that do not, and the better it was the less.
    #[test]
    fn a_bad_start_is_forgiven_if_drafts_paid_before() {
        let bad_start = |step| if step < 4 { 60.0 } else { 200.0 };
        let mut good = Experience::default();
        good.learn(Experience { tokens: 300.0, passes: 150.0 });
        let (with_good, _) = asked(bad_start, good);
        assert_eq!(with_good.len(), 3000);
        let (with_hope, _) = asked(bad_start, Experience::default());
        assert!(with_hope.len() < 3000, "{}", with_hope.len());
    }

    #[test]
    fn old_experience_fades_and_no_request_decides_alone() {
        let mut experience = Experience::default();
        let request = |speedup: f64| Experience { tokens: 1000.0 * speedup, passes: 1000.0 };
        (0..40).for_each(|_| experience.learn(request(2.0)));
        assert!((experience.speedup() - 2.0).abs() < 1e-3, "{experience:?}");
        experience.learn(Experience::NONE);
        experience.learn(request(1.0));
        assert!((experience.speedup() - 1.75).abs() < 1e-3, "{experience:?}");
        assert!(experience.passes <= Experience::OF_ALL);
    }

    #[test]
    fn a_drafter_that_wins_is_asked_unless_others_promise_more() {
        let mut worth = Worth::new(Experience::default());
        for _ in 0..100 {
            assert!(worth.asks(promise(100.0, 1.0)));
            worth.drafted(0.001);
            worth.learn(1.5);
            worth.lost(-0.005);
        }
        assert!(!worth.asks(promise(300.0, 1.0)));
        assert!(worth.asks(promise(100.0, 1.0)));
    }

    #[test]
    fn the_first_draft_and_disturbed_ones_do_not_set_the_price() {
        let mut worth = Worth::new(Experience::default());
        assert_eq!([worth.drafted(5.0), worth.drafted(0.01)], [5.0, 0.01]);
        assert!(worth.drafted(9.0) < 0.02);
    }

    /// Promises that are not kept are outweighed by what came of them.
    #[test]
    fn promises_that_are_not_kept_are_found_out() {
        let mut worth = Worth::new(Experience::default());
        (0..60).for_each(|_| {
            worth.drafted(0.004);
            worth.learn(1.1);
            worth.realize(1.0, 1.4, true);
            worth.lost(0.004);
        });
        assert!(!worth.asks(promise(100.0, 0.1)));
        (0..60).for_each(|_| worth.realize(2.0, 1.4, true));
        assert!(worth.asks(promise(100.0, 0.1)));
        assert!(worth.asks(Promise { without: 70.0, plain: 70.0, spent_s: 0.1 }), "on a slower machine as well");
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
