//! Never slower: the choice of rows, tried with clocks that only passes and drafts move.

use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use crate::support::{FakeTarget, KnowingDraft, RandomDraft};
use pleach_decode::{
    Clock, Company, CostCurve, DraftContext, Drafter, Experience, Generation, GenerationOptions, Lookup, NoDraft, Pace,
    Paced, Spent, Step, Target, TokenId, TreeBuilder, TreeRows, Unconstrained,
};

const VOCAB: usize = 24;

/// Seconds since the start, moved by hand.
#[derive(Debug, Clone, Default)]
struct Hands(Rc<Cell<f64>>);

impl Hands {
    fn turn(&self, seconds: f64) {
        self.0.set(self.0.get() + seconds);
    }
}

impl Clock for Hands {
    fn now(&mut self) -> Duration {
        Duration::from_secs_f64(self.0.get())
    }
}

/// A target whose passes take time by their rows.
struct Timed<T> {
    target: T,
    clock: Hands,
    cost: fn(usize) -> f64,
}

impl<T: Target> Target for Timed<T> {
    type Error = T::Error;

    fn verify(&mut self, rows: TreeRows<'_>) -> Result<(), T::Error> {
        self.clock.turn((self.cost)(rows.tokens.len()));
        self.target.verify(rows)
    }

    fn logits(&self, row: usize) -> &[f32] {
        self.target.logits(row)
    }

    fn commit(&mut self, rows: &[usize]) -> Result<(), T::Error> {
        self.target.commit(rows)
    }
}

/// A drafter whose drafts take time.
struct TimedDraft<D> {
    drafter: D,
    clock: Hands,
    seconds: f64,
}

impl<T: Target, D: Drafter<T>> Drafter<Timed<T>> for TimedDraft<D> {
    fn draft(
        &mut self,
        target: &mut Timed<T>,
        context: DraftContext<'_>,
        tree: &mut TreeBuilder,
    ) -> Result<(), T::Error> {
        self.clock.turn(self.seconds);
        self.drafter.draft(&mut target.target, context, tree)
    }

    fn observe(&mut self, target: &mut Timed<T>, step: &Step) -> Result<(), T::Error> {
        self.drafter.observe(&mut target.target, step)
    }
}

/// Sure of deep nonsense.
struct Boaster(u32);

impl<T: Target> Drafter<T> for Boaster {
    fn draft(&mut self, _: &mut T, context: DraftContext<'_>, tree: &mut TreeBuilder) -> Result<(), T::Error> {
        let mut last = TreeBuilder::ROOT;
        for _ in 1..context.budget {
            self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let Some(node) = tree.add(last, (self.0 >> 16) % VOCAB as u32, 0.0) else { break };
            last = node;
        }
        Ok(())
    }
}

/// Two cores and 4-bit weights.
fn cpu(rows: usize) -> f64 {
    0.004 * (0.85 + 0.2 * rows as f64).max(1.0)
}

/// A graphics card, where rows are nearly free.
fn gpu(rows: usize) -> f64 {
    0.004 * (1.0 + 0.01 * rows as f64)
}

/// Writes so many tokens; returns the text, the time it took, and what the pace says of it.
fn write<T, Q, D>(
    target: T,
    quick: Q,
    costly: (D, f64),
    cost: fn(usize) -> f64,
    max_tokens: usize,
) -> (Vec<TokenId>, f64, Spent, f64)
where
    T: Target<Error = Infallible>,
    Q: Drafter<Timed<T>>,
    D: Drafter<T>,
{
    let clock = Hands::default();
    let costly = TimedDraft { drafter: costly.0, clock: clock.clone(), seconds: costly.1 };
    let mut drafter = Paced::new(quick, costly, clock.clone(), Pace::Auto(64), CostCurve::default());
    let mut target = Timed { target, clock: clock.clone(), cost };
    let options =
        GenerationOptions { budget: 64, max_tokens: Some(max_tokens), ..GenerationOptions::new(VOCAB, 1 << 14) };
    let mut generation = Generation::new(options, &[1]).unwrap();
    while generation.stopped().is_none() {
        generation.step(&mut target, &mut drafter, &mut Unconstrained).unwrap();
    }
    let text = generation.history().generated().to_vec();
    (text, clock.0.get(), *drafter.spent(), generation.stats().tokens_per_pass().unwrap())
}

fn fake() -> FakeTarget {
    FakeTarget::new(3, VOCAB, 1 << 14)
}

fn knowing(mistakes: u64) -> KnowingDraft {
    KnowingDraft { random: RandomDraft { state: 5 }, mistakes }
}

/// A target that repeats thirty tokens over and over.
#[derive(Default)]
struct Round {
    committed: usize,
    logits: Vec<Vec<f32>>,
}

impl Target for Round {
    type Error = Infallible;

    fn verify(&mut self, rows: TreeRows<'_>) -> Result<(), Infallible> {
        let next = |position: usize| ((position % 30) * 7 % VOCAB) as u32;
        let likes = |token| (0..VOCAB as u32).map(|other| f32::from(u8::from(other == token))).collect();
        self.logits = rows.positions().map(|position| likes(next(position))).collect();
        Ok(())
    }

    fn logits(&self, row: usize) -> &[f32] {
        &self.logits[row]
    }

    fn commit(&mut self, rows: &[usize]) -> Result<(), Infallible> {
        self.committed += rows.len();
        Ok(())
    }
}

/// The issue of every engine that drafts: text that cannot be foreseen must not pay for the attempt.
#[test]
fn garbage_costs_less_than_three_percent() {
    for cost in [cpu, gpu] {
        for tokens in [300, 3000] {
            let (plain, plain_s, ..) = write(fake(), NoDraft, (NoDraft, 0.0), cost, tokens);
            let quick = write(fake(), Boaster(1), (NoDraft, 0.0), cost, tokens);
            let costly = write(fake(), NoDraft, (Boaster(2), 0.5 * cost(1)), cost, tokens);
            let both = write(fake(), Lookup::new(), (RandomDraft { state: 9 }, 0.3 * cost(1)), cost, tokens);
            for (name, (text, seconds, ..)) in [("quick", quick), ("costly", costly), ("both", both)] {
                assert_eq!(text, plain);
                assert!(seconds * 0.97 <= plain_s, "{name}, {tokens} tokens: {} of plain speed", plain_s / seconds);
            }
        }
    }
}

#[test]
fn repetition_is_written_several_times_faster() {
    let (plain, plain_s, ..) = write(Round::default(), NoDraft, (NoDraft, 0.0), cpu, 600);
    let (text, seconds, spent, tokens_per_pass) = write(Round::default(), Lookup::new(), (NoDraft, 0.0), cpu, 600);
    assert_eq!(text, plain);
    assert!(plain_s / seconds > 2.5, "{}", plain_s / seconds);
    assert!(tokens_per_pass > 6.0, "{tokens_per_pass}");
    let reported = spent.speedup().unwrap();
    assert!((reported / (plain_s / seconds) - 1.0).abs() < 0.05, "reported {reported}, measured {}", plain_s / seconds);
}

/// The number of rows follows the cost of rows: few where they are dear, many where they are free.
#[test]
fn a_good_drafter_gets_the_rows_that_the_machine_can_pay() {
    let run = |cost: fn(usize) -> f64| {
        let (plain, plain_s, ..) = write(fake(), NoDraft, (NoDraft, 0.0), cost, 1500);
        let (text, seconds, _, tokens_per_pass) = write(fake(), NoDraft, (knowing(20), 0.1 * cost(1)), cost, 1500);
        assert_eq!(text, plain);
        (plain_s / seconds, tokens_per_pass)
    };
    let (on_cpu, on_gpu) = (run(cpu), run(gpu));
    assert!(on_cpu.0 > 1.4 && on_gpu.0 > 2.5, "cpu {on_cpu:?}, gpu {on_gpu:?}");
    assert!(on_gpu.1 > on_cpu.1, "cpu {on_cpu:?}, gpu {on_gpu:?}");
}

/// A drafter that takes longer than a pass is left alone even if it is always right about one token.
#[test]
fn a_draft_dearer_than_what_it_brings_is_not_asked_for() {
    let (_, plain_s, ..) = write(fake(), NoDraft, (NoDraft, 0.0), cpu, 2000);
    let (_, seconds, ..) = write(fake(), NoDraft, (knowing(70), 1.5 * cpu(1)), cpu, 2000);
    assert!(seconds * 0.97 <= plain_s, "{}", plain_s / seconds);
}

/// How often a drafter that is mostly wrong is asked for a short text, and what it brought.
fn drafts(pace: Pace, experience: Experience) -> (f64, Experience) {
    let (clock, seconds) = (Hands::default(), 0.3 * cpu(1));
    let costly = TimedDraft { drafter: RandomDraft { state: 9 }, clock: clock.clone(), seconds };
    let paced = Paced::new(NoDraft, costly, clock.clone(), pace, CostCurve::default());
    let mut drafter = paced.with_experience(experience);
    let mut target = Timed { target: fake(), clock, cost: cpu };
    let options = GenerationOptions { max_tokens: Some(60), budget: 64, ..GenerationOptions::new(VOCAB, 1000) };
    let mut generation = Generation::new(options, &[1]).unwrap();
    while generation.stopped().is_none() {
        generation.step(&mut target, &mut drafter, &mut Unconstrained).unwrap();
    }
    (drafter.spent().draft_s / seconds, drafter.experience())
}

#[test]
fn requests_begin_with_what_earlier_ones_have_found_out() {
    let mut experience = Experience::default();
    let (first, brought) = drafts(Pace::Auto(64), experience);
    (0..4).for_each(|_| experience.learn(brought));
    let (later, _) = drafts(Pace::Auto(64), experience);
    assert!(first > later && later >= 2.0, "{first} drafts, then {later}");

    let (_, fixed) = drafts(Pace::Fixed(8), Experience::default());
    let mut unchanged = Experience::default();
    unchanged.learn(fixed);
    assert_eq!(unchanged, Experience::default(), "a fixed number of rows says nothing");
}

/// One stalled pass does not end drafting.
#[test]
fn a_disturbed_pass_is_not_blamed_on_the_drafter() {
    thread_local!(static PASSES: Cell<u32> = const { Cell::new(0) });
    fn stalls(rows: usize) -> f64 {
        let passes = PASSES.replace(PASSES.get() + 1);
        cpu(rows) * if passes == 100 { 60.0 } else { 1.0 }
    }
    let (_, _, spent, calm) = write(fake(), NoDraft, (knowing(25), 0.3 * cpu(1)), cpu, 600);
    let (_, _, stalled, tokens_per_pass) = write(fake(), NoDraft, (knowing(25), 0.3 * cpu(1)), stalls, 600);
    assert!(tokens_per_pass > 0.97 * calm, "{tokens_per_pass} where {calm} without the stall");
    assert!(stalled.pass_s > spent.pass_s + 50.0 * cpu(1), "there was one");
}

/// A draft model as large as its target is not even tried, however right it is.
#[test]
fn a_drafter_that_cannot_pay_is_never_asked() {
    let clock = Hands::default();
    let costly = TimedDraft { drafter: knowing(0), clock: clock.clone(), seconds: 0.01 };
    let paced = Paced::new(NoDraft, costly, clock.clone(), Pace::Auto(64), CostCurve::default());
    let mut drafter = paced.with_least_share(1.0);
    let mut target = Timed { target: fake(), clock, cost: cpu };
    let options = GenerationOptions { max_tokens: Some(50), budget: 64, ..GenerationOptions::new(VOCAB, 1000) };
    let mut generation = Generation::new(options, &[1]).unwrap();
    while generation.stopped().is_none() {
        generation.step(&mut target, &mut drafter, &mut Unconstrained).unwrap();
    }
    assert_eq!((generation.stats().drafted(), drafter.spent().draft_s), (0, 0.0));
}

/// The last token of a limited text leaves no room for guesses: its step is booked for what it was, so the curve that later
/// requests start from has no step in it that took twice as long.
#[test]
fn the_last_step_of_a_limited_text_is_booked_as_what_it_was() {
    for tokens in [2, 3, 40] {
        let clock = Hands::default();
        let mut drafter = Paced::new(NoDraft, NoDraft, clock.clone(), Pace::Auto(64), CostCurve::default());
        let mut target = Timed { target: fake(), clock: clock.clone(), cost: cpu };
        let options = GenerationOptions { max_tokens: Some(tokens), budget: 64, ..GenerationOptions::new(VOCAB, 1000) };
        let mut generation = Generation::new(options, &[1]).unwrap();
        while generation.stopped().is_none() {
            generation.step(&mut target, &mut drafter, &mut Unconstrained).unwrap();
        }
        let measured = drafter.costs().seconds(1).unwrap();
        assert!((measured / cpu(1) - 1.0).abs() < 1e-9, "{tokens} tokens: {measured}");
        assert!((drafter.spent().pass_s / clock.0.get() - 1.0).abs() < 1e-9, "{:?}", drafter.spent());
    }
}

#[test]
fn a_fixed_pace_drafts_always_and_keeps_to_its_rows() {
    let clock = Hands::default();
    let costly = TimedDraft { drafter: Boaster(4), clock: clock.clone(), seconds: 0.001 };
    let mut drafter = Paced::new(NoDraft, costly, clock.clone(), Pace::Fixed(6), CostCurve::default());
    let mut target = Timed { target: fake(), clock, cost: cpu };
    let options = GenerationOptions { max_tokens: Some(50), budget: 64, ..GenerationOptions::new(VOCAB, 1000) };
    let mut generation = Generation::new(options, &[1]).unwrap();
    for _ in 0..10 {
        let before = generation.stats().drafted();
        generation.step(&mut target, &mut drafter, &mut Unconstrained).unwrap();
        assert_eq!(generation.stats().drafted() - before, 5);
    }
    assert_eq!(drafter.spent().speedup(), None, "no pass of one row was measured");
}

/// Notes what it is told of the chances that guesses must have.
#[derive(Default)]
struct Listener(Vec<f32>);

impl<T: Target> Drafter<T> for Listener {
    fn draft(&mut self, _: &mut T, context: DraftContext<'_>, _: &mut TreeBuilder) -> Result<(), T::Error> {
        self.0 = (1..context.budget).map(|rows| context.least_chance(rows)).collect();
        Ok(())
    }
}

/// What a first draft hears where passes of 1, 2, ... rows take so many times a plain pass.
fn least_chances(cost: fn(usize) -> f64) -> Vec<f32> {
    let mut costs = CostCurve::default();
    (0..200).for_each(|round| [1, 1 + round % 8].into_iter().for_each(|rows| costs.record(rows, cost(rows))));
    let clock = Hands::default();
    let mut listener = Listener::default();
    let mut drafter = Paced::new(NoDraft, &mut listener, clock.clone(), Pace::Auto(64), costs);
    let options = GenerationOptions { budget: 64, ..GenerationOptions::new(VOCAB, 1000) };
    let mut generation = Generation::new(options, &[1]).unwrap();
    generation.draft(&mut Timed { target: fake(), clock, cost }, &mut drafter, &mut Unconstrained).unwrap();
    listener.0
}

/// A drafter that spends time on each guess leaves out those whose rows would cost more than they bring.
#[test]
fn guesses_must_be_worth_the_rows_that_are_left() {
    let free_at_first = least_chances(|rows| 1.0 + 0.5 * rows.saturating_sub(4) as f64);
    assert_eq!(free_at_first.len(), 4, "{free_at_first:?}");
    assert!(free_at_first[..3].iter().all(|&chance| chance < 0.02), "{free_at_first:?}");
    assert!((free_at_first[3] - 0.35).abs() < 0.02, "seven tenths of half a plain pass: {free_at_first:?}");
    let free_at_last = least_chances(|rows| if rows == 1 { 1.0 } else { 1.8 });
    assert!((free_at_last[0] - 0.14).abs() < 0.02, "four rows share the price of the first: {free_at_last:?}");
    assert!(free_at_last[1..].iter().all(|&chance| chance < 0.02), "{free_at_last:?}");
}

/// Three guesses that exclude each other, each as likely.
struct Thirds;

impl<T: Target> Drafter<T> for Thirds {
    fn draft(&mut self, _: &mut T, _: DraftContext<'_>, tree: &mut TreeBuilder) -> Result<(), T::Error> {
        [3, 4, 5].into_iter().for_each(|token| {
            tree.add(TreeBuilder::ROOT, token, 0.3f32.ln());
        });
        Ok(())
    }
}

/// Rows drafted in a pass that has others beside it.
fn rows_beside(company: Company, cost: fn(usize) -> f64) -> Company {
    let mut costs = CostCurve::default();
    (0..200).for_each(|round| [1, 1 + round % 64].into_iter().for_each(|rows| costs.record(rows, cost(rows))));
    let clock = Hands::default();
    let mut drafter = Paced::new(Thirds, NoDraft, clock.clone(), Pace::Auto(64), CostCurve::default());
    drafter.join(company, &costs);
    let options = GenerationOptions { budget: 64, ..GenerationOptions::new(VOCAB, 1000) };
    let mut generation = Generation::new(options, &[1]).unwrap();
    let mut target = Timed { target: fake(), clock, cost };
    let tree = generation.draft(&mut target, &mut drafter, &mut Unconstrained).unwrap();
    assert_eq!(tree.num_rows(), drafter.share().rows);
    drafter.share()
}

/// A row costs all texts of a pass the same time, and gives tokens to one of them.
#[test]
fn guesses_that_pay_alone_need_not_pay_in_company() {
    let alone = rows_beside(Company::default(), cpu);
    assert_eq!(alone.rows, 4);
    assert!((alone.tokens - 1.9).abs() < 1e-3, "{alone:?}");
    assert_eq!(rows_beside(Company::plain(7), cpu).rows, 1);
    // Where rows are free, company changes nothing; and a long pass that is made anyway makes rows cheap.
    assert_eq!(rows_beside(Company::plain(7), gpu).rows, 4);
    assert_eq!(rows_beside(Company::prompt(40), cpu).rows, 4);
}

/// Whoever measures a pass for several texts notes its cost once for all of them.
#[test]
fn the_cost_of_a_shared_pass_is_not_noted_by_each_text() {
    let mut costs = CostCurve::default();
    (0..9).for_each(|_| costs.record(1, cpu(1)));
    let clock = Hands::default();
    let mut drafter = Paced::new(NoDraft, NoDraft, clock.clone(), Pace::Auto(8), CostCurve::default());
    drafter.join(Company::plain(3), &costs);
    let mut generation = Generation::new(GenerationOptions::new(VOCAB, 1000), &[1]).unwrap();
    let mut target = Timed { target: fake(), clock, cost: cpu };
    let tree = generation.draft(&mut target, &mut drafter, &mut Unconstrained).unwrap();
    target.verify(tree.rows()).unwrap();
    let step = generation.accept(&tree, |row| target.logits(row), &mut Unconstrained).unwrap();
    drafter.pass_took(9.0, Company::plain(3));
    drafter.observe(&mut target, &step).unwrap();
    assert_eq!(drafter.costs(), &costs);
    assert_eq!(drafter.spent().pass_s, 9.0);
}

#[test]
fn parts_of_a_pass_add_up() {
    let all = Company::plain(2).and(Company::prompt(5)).and(Company { rows: 3, tokens: 1.5, draft_s: 0.25 });
    assert_eq!(all, Company { rows: 10, tokens: 3.5, draft_s: 0.25 });
    assert_eq!(all.without(Company::plain(2)), Company { rows: 8, tokens: 1.5, draft_s: 0.25 });
    assert_eq!(Company::default().without(all), Company::default());
}
