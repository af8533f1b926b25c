//! How many rows a pass gets: as many as pay on this machine, and one if no more do.

use std::time::Duration;

use crate::calibration::{Calibration, Guesses, Source};
use crate::cost::OUTLIER;
use crate::worth::{Experience, Promise, Window, Worth};
use crate::{CostCurve, DraftContext, Drafter, Step, Target, TreeBuilder};

/// A draft must promise to be this much faster than no draft.
const MARGIN: f64 = 1.03;

/// Steps of several rows after which one of a single row shows what that costs by now: contexts grow.
const REFRESH: u32 = 128;

/// A draft without guesses that takes less than this share of a plain pass was none.
const NO_DRAFT: f64 = 0.02;

/// A clock, given from outside so that this crate has none and its tests need none.
pub trait Clock {
    /// Time since some fixed moment.
    fn now(&mut self) -> Duration;
}

/// Who decides how many rows a pass has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Measured speed decides, up to this many rows.
    Auto(usize),
    /// Always this many, where so many are drafted.
    Fixed(usize),
}

/// What a pass has beside the rows of one text: other texts, and prompts that are read.
///
/// All of them wait for the whole pass, so a row is worth its cost if it raises the tokens per second of all together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Company {
    /// Rows of the pass.
    pub rows: usize,
    /// Tokens that these rows are expected to give.
    pub tokens: f64,
    /// Seconds of drafting for them.
    pub draft_s: f64,
}

impl Company {
    /// Texts that are decoded plainly.
    pub const fn plain(texts: usize) -> Self {
        Self { rows: texts, tokens: texts as f64, draft_s: 0.0 }
    }

    /// Rows of a prompt, which give no token.
    pub const fn prompt(rows: usize) -> Self {
        Self { rows, tokens: 0.0, draft_s: 0.0 }
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { rows: self.rows + other.rows, tokens: self.tokens + other.tokens, draft_s: self.draft_s + other.draft_s }
    }

    /// What is left without a part of it.
    #[must_use]
    pub fn without(self, part: Self) -> Self {
        Self {
            rows: self.rows.saturating_sub(part.rows),
            tokens: (self.tokens - part.tokens).max(0.0),
            draft_s: (self.draft_s - part.draft_s).max(0.0),
        }
    }
}

/// Two drafters on one tree, and the choice of its size.
///
/// `quick` costs nothing worth counting and drafts on every step. `costly` runs a model of its own: it is asked where it
/// raises the tokens per second, and now and then, for a hundredth of the time, to see whether it would. From beliefs that are calibrated by what came
/// true, and the measured cost of passes, each step takes the number of drafted rows with
///
/// ```text
/// max over n >= 0 of  (1 + Σ chances of the n likeliest) / (cost of the draft + cost of a pass of 1 + n rows)
/// ```
///
/// The rule is that of CaDDTree (arXiv:2606.01813), over all `n` and with plain decoding among them. Where texts share a
/// pass, tokens and costs are those of all of them: whoever runs it says so with [`join`](Self::join) before each draft and
/// with [`pass_took`](Self::pass_took) before the drafters observe.
#[derive(Debug)]
pub struct Paced<Q, D, C> {
    quick: Q,
    costly: D,
    clock: C,
    pace: Pace,
    costs: CostCurve,
    trust: Calibration,
    worth: Worth,
    /// Cost of a costly guess at least, as a share of a plain pass.
    least_share: f64,
    window: Window,
    company: Company,
    round: Round,
    /// Steps since the last pass of one row.
    since_plain: u32,
    /// Tokens of passes of several rows, written before one of a single row was measured.
    unpriced: usize,
    spent: Spent,
}

/// Where the time of a request went.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Spent {
    /// Seconds of drafting.
    pub draft_s: f64,
    /// Seconds of passes, with the draws and commits that belong to them.
    pub pass_s: f64,
    /// Seconds that plain decoding would have taken for the same tokens, as far as measured passes tell.
    pub plain_s: f64,
}

/// What is known of a step while it is under way.
#[derive(Debug, Default)]
struct Round {
    guesses: Guesses,
    rows: usize,
    drafted_at: Duration,
    draft_s: f64,
    /// What the pass took, if someone else measured it.
    pass_s: Option<f64>,
    asked: bool,
    /// Tokens per second that the step promised before the costly drafter was asked.
    without: f64,
    /// Tokens that the tree is expected to give.
    tokens: f64,
}

impl Spent {
    /// How many times faster than plain decoding; `None` if nothing was measured.
    pub fn speedup(&self) -> Option<f64> {
        (self.plain_s > 0.0).then(|| self.plain_s / (self.draft_s + self.pass_s))
    }
}

impl<Q, D, C: Clock> Paced<Q, D, C> {
    /// `costs` may be empty, or come from an earlier request to the same model on the same device.
    pub fn new(quick: Q, costly: D, clock: C, pace: Pace, costs: CostCurve) -> Self {
        Self {
            quick,
            costly,
            clock,
            pace,
            costs,
            trust: Calibration::new(),
            worth: Worth::new(Experience::default()),
            least_share: 0.0,
            window: Window::new(),
            company: Company::default(),
            round: Round::default(),
            since_plain: 0,
            unpriced: 0,
            spent: Spent::default(),
        }
    }

    /// With a costly drafter of which each guess takes at least this share of a plain pass, such as its share of the
    /// weights: one that could not pay if it were always right is never asked.
    #[must_use]
    pub fn with_least_share(self, least_share: f64) -> Self {
        Self { least_share, ..self }
    }

    /// With a costly drafter that has brought so much in earlier requests.
    #[must_use]
    pub fn with_experience(self, experience: Experience) -> Self {
        Self { worth: Worth::new(experience), ..self }
    }

    /// What the costly drafter has brought in this request, for [`Experience::learn`]. Nothing where the number of rows is fixed,
    /// which may be a bad one, and of passes with [`Company`], which tell little of a text alone.
    pub fn experience(&self) -> Experience {
        self.worth.brought()
    }

    /// Costs as they are known now.
    pub fn costs(&self) -> &CostCurve {
        &self.costs
    }

    /// Where the time went so far.
    pub fn spent(&self) -> &Spent {
        &self.spent
    }

    /// Says what else the next pass has, and what passes cost by now.
    pub fn join(&mut self, company: Company, costs: &CostCurve) {
        self.company = company;
        self.costs.clone_from(costs);
    }

    /// Says what the pass took and what else it had in the end. Its cost is then not noted here: it was one pass for all.
    pub fn pass_took(&mut self, seconds: f64, company: Company) {
        self.company = company;
        self.round.pass_s = Some(seconds);
    }

    /// What this text brings to the pass that it was drafted for last.
    pub fn share(&self) -> Company {
        Company { rows: self.round.rows, tokens: self.round.tokens, draft_s: self.round.draft_s }
    }

    /// The drafter that runs a model.
    pub fn costly_mut(&mut self) -> &mut D {
        &mut self.costly
    }

    /// The drafter that runs a model.
    pub fn costly(&self) -> &D {
        &self.costly
    }

    /// Seconds of a pass with so many rows of this text.
    fn pass_s(&self, rows: usize) -> Option<f64> {
        self.costs.seconds(self.company.rows + rows)
    }

    /// Tokens per second if nothing is guessed.
    fn plain_rate(&self) -> Option<f64> {
        let Company { tokens, draft_s, .. } = self.company;
        self.pass_s(1).map(|pass_s| (tokens + 1.0) / (draft_s + pass_s))
    }

    /// Rows that the next pass may have at most.
    fn most_rows(&self, budget: usize) -> usize {
        match self.pace {
            Pace::Fixed(rows) => budget.min(rows),
            // There is nothing to compare with yet, or what there is has grown old. In company no pass has a single row.
            Pace::Auto(_) if !self.costs.is_known() && self.company.rows == 0 => 1,
            Pace::Auto(_) if self.since_plain >= REFRESH => 1,
            Pace::Auto(rows) => budget.min(rows).min(self.window.rows()),
        }
    }

    fn draft_quick<T: Target + ?Sized>(
        &mut self,
        target: &mut T,
        context: DraftContext<'_>,
        tree: &mut TreeBuilder,
    ) -> Result<(), T::Error>
    where
        Q: Drafter<T>,
    {
        self.quick.draft(target, context, tree)?;
        self.trust.apply(tree, &mut self.round.guesses, Source::Quick);
        Ok(())
    }

    /// Asks the costly drafter if that pays, and learns what it is worth.
    fn draft_costly<T: Target + ?Sized>(
        &mut self,
        target: &mut T,
        context: DraftContext<'_>,
        tree: &mut TreeBuilder,
    ) -> Result<(), T::Error>
    where
        D: Drafter<T>,
    {
        let without = self.best(tree, context.budget, 0.0).tokens_per_s;
        self.round.without = without;
        self.round.asked = match self.pace {
            Pace::Fixed(_) => true,
            Pace::Auto(_) => {
                let plain = self.plain_rate().unwrap_or(0.0);
                // A trial takes the time of all.
                let spent_s = (self.spent.draft_s + self.spent.pass_s) / (1.0 + self.company.tokens);
                self.can_pay(context.budget) && self.worth.asks(Promise { without, plain, spent_s })
            }
        };
        if !self.round.asked {
            return Ok(());
        }
        let (began, before) = (self.clock.now(), tree.num_nodes());
        self.costly.draft(target, context, tree)?;
        let seconds = self.clock.now().saturating_sub(began).as_secs_f64();
        // A drafter that knows nothing of this place says nothing of its worth.
        if tree.num_nodes() == before && seconds < NO_DRAFT * self.pass_s(1).unwrap_or(0.0) {
            self.round.asked = false;
            return Ok(());
        }
        self.trust.apply(tree, &mut self.round.guesses, Source::Costly);
        let draft_s = self.worth.drafted(seconds);
        let with = self.best(tree, context.budget, draft_s).tokens_per_s;
        self.worth.learn(self.plain_rate().map_or(0.0, |plain| with / plain));
        Ok(())
    }

    /// What [`DraftContext::least_chances`] says: the tokens that plain decoding gives in the time that a further row costs on
    /// average, with as many further rows as make that cheapest; less some allowance for beliefs that are too low.
    fn least_chances(&self, most: usize) -> Vec<f32> {
        const ALLOWANCE: f64 = 0.7;
        let (Pace::Auto(_), Some(plain)) = (self.pace, self.plain_rate()) else { return Vec::new() };
        let costs: Vec<f64> = (1..=most).map(|rows| self.pass_s(rows).unwrap_or(0.0)).collect();
        let least_chance = |rows: usize| {
            let (now, later) = (costs[rows - 1], costs[rows..].iter().zip(1u32..));
            let cheapest = later.map(|(cost, more)| (cost - now) / f64::from(more)).fold(plain.recip(), f64::min);
            (ALLOWANCE * cheapest.max(0.0) * plain) as f32
        };
        (1..most).map(least_chance).collect()
    }

    /// Whether the costly drafter could pay if it were always right.
    fn can_pay(&self, most: usize) -> bool {
        let (Some(plain), Some(plain_s)) = (self.plain_rate(), self.costs.seconds(1)) else { return most > 1 };
        let Company { tokens, draft_s, .. } = self.company;
        (1..most).any(|guesses| {
            let draft_s = draft_s + guesses as f64 * self.least_share * plain_s;
            let seconds = draft_s + self.pass_s(1 + guesses).unwrap_or(plain_s);
            tokens + (1 + guesses) as f64 > MARGIN * seconds * plain
        })
    }

    /// The number of rows that gives most tokens per second.
    fn best(&self, tree: &TreeBuilder, most: usize, draft_s: f64) -> Choice {
        let others = self.company;
        let draft_s = others.draft_s + draft_s;
        let rate = |rows, tokens| {
            let pass_s = self.pass_s(rows).unwrap_or(rows as f64);
            Choice { rows, tokens, tokens_per_s: (others.tokens + tokens) / (draft_s + pass_s) }
        };
        let mut best = rate(1, 1.0);
        // A draft that promises no more than the error of the measurements is left alone.
        let least = best.tokens_per_s + (MARGIN - 1.0) * best.tokens_per_s / (1.0 + others.tokens);
        let mut tokens = 1.0;
        for (index, chance) in tree.chances().into_iter().take(most - 1).enumerate() {
            tokens += f64::from(chance);
            let choice = rate(index + 2, tokens);
            if choice.tokens_per_s > best.tokens_per_s.max(least) {
                best = choice;
            }
        }
        best
    }

    /// Books the time of a step.
    fn book(&mut self, num_tokens: usize) {
        let pass_s = self.round.pass_s.take().unwrap_or_else(|| {
            let pass_s = self.clock.now().saturating_sub(self.round.drafted_at).as_secs_f64();
            self.costs.record(self.round.rows, pass_s);
            pass_s
        });
        if self.round.asked && self.round.without > 0.0 && matches!(self.pace, Pace::Auto(_)) {
            let Company { tokens, draft_s, .. } = self.company;
            // That another program stopped the pass says nothing of the drafter.
            let usual_s = self.pass_s(self.round.rows).unwrap_or(pass_s);
            let pass_s = pass_s.min(OUTLIER * usual_s);
            let seconds = draft_s + self.round.draft_s + pass_s;
            self.worth.lost(seconds - (tokens + num_tokens as f64) / self.round.without);
            let plain_s = draft_s + self.pass_s(1).unwrap_or(pass_s);
            let seconds = draft_s + self.worth.draft_s() + pass_s;
            let is_alone = self.company.rows == 0;
            self.worth.realize((tokens + num_tokens as f64) / (tokens + 1.0), seconds / plain_s, is_alone);
        }
        self.spent.draft_s += self.round.draft_s;
        self.spent.pass_s += pass_s;
        if self.round.rows == 1 {
            // What plain decoding takes is what this took, disturbances included.
            self.spent.plain_s += pass_s;
        } else {
            self.unpriced += num_tokens;
        }
        if let Some(plain_s) = self.pass_s(1).filter(|_| self.costs.is_known()) {
            self.spent.plain_s += std::mem::take(&mut self.unpriced) as f64 * plain_s;
        }
        self.since_plain = if self.round.rows == 1 { 0 } else { self.since_plain + 1 };
    }
}

/// Tokens that a tree of so many rows gives if beliefs are right.
fn expected_tokens(tree: &TreeBuilder, rows: usize) -> f64 {
    1.0 + tree.chances().into_iter().take(rows - 1).map(f64::from).sum::<f64>()
}

/// A number of rows and what it promises.
#[derive(Debug, Clone, Copy)]
struct Choice {
    rows: usize,
    /// Of this text.
    tokens: f64,
    /// Of all texts.
    tokens_per_s: f64,
}

impl<T, Q, D, C> Drafter<T> for Paced<Q, D, C>
where
    T: Target + ?Sized,
    Q: Drafter<T>,
    D: Drafter<T>,
    C: Clock,
{
    fn draft(&mut self, target: &mut T, context: DraftContext<'_>, tree: &mut TreeBuilder) -> Result<(), T::Error> {
        let began = self.clock.now();
        self.round.guesses.begin(tree);
        self.round.asked = false;
        let most = self.most_rows(context.budget);
        if most > 1 {
            let least_chances = self.least_chances(most);
            let context = DraftContext { budget: most, least_chances: &least_chances, ..context };
            self.draft_quick(target, context, tree)?;
            self.draft_costly(target, context, tree)?;
        }
        let (rows, tokens) = match self.pace {
            Pace::Fixed(rows) => (rows, None),
            Pace::Auto(_) => {
                let draft_s = if self.round.asked { self.worth.draft_s() } else { 0.0 };
                let best = self.best(tree, most, draft_s);
                (best.rows, Some(best.tokens))
            }
        };
        tree.limit(rows);
        self.round.rows = rows.min(tree.num_nodes()).min(most).max(1);
        self.round.pass_s = None;
        self.round.tokens = tokens.unwrap_or_else(|| expected_tokens(tree, self.round.rows));
        self.round.drafted_at = self.clock.now();
        self.round.draft_s = self.round.drafted_at.saturating_sub(began).as_secs_f64();
        Ok(())
    }

    fn observe(&mut self, target: &mut T, step: &Step) -> Result<(), T::Error> {
        self.book(step.tokens.len());
        self.trust.record(&self.round.guesses, &step.tokens);
        self.window.observe(self.round.rows, step.tokens.len());
        let began = self.clock.now();
        self.quick.observe(target, step)?;
        self.costly.observe(target, step)?;
        self.spent.draft_s += self.clock.now().saturating_sub(began).as_secs_f64();
        Ok(())
    }
}
