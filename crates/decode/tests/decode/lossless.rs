//! Drafting changes the speed, never the text.

use crate::support::{FakeTarget, KnowingDraft, NoRepeat, Prefill, RandomDraft, Text, generate};
use pleach_decode::{
    Clock, Constraint, CostCurve, Drafter, GenerationOptions, Lookup, NoDraft, Pace, Paced, SamplingParams,
    Unconstrained,
};
use proptest::prelude::*;

const VOCAB: usize = 24;

fn sampling() -> impl Strategy<Value = SamplingParams> {
    let filters = (
        prop_oneof![Just(0.0f32), Just(0.3), Just(1.0), Just(2.5)],
        prop_oneof![Just(0usize), 1usize..30],
        prop_oneof![Just(1.0f32), 0.1f32..1.0],
        prop_oneof![Just(0.0f32), 0.01f32..0.9],
    );
    let edits = (
        prop_oneof![Just(1.0f32), 0.5f32..2.0],
        prop_oneof![Just(0.0f32), -2.0f32..=2.0],
        prop_oneof![Just(0.0f32), -2.0f32..=2.0],
        prop::option::of(1usize..20),
        prop::collection::vec((0..VOCAB as u32, -100.0f32..=100.0), 0..3),
    );
    (filters, edits, any::<u64>()).prop_map(|((temperature, top_k, top_p, min_p), edits, seed)| SamplingParams {
        temperature,
        top_k,
        top_p,
        min_p,
        repetition_penalty: edits.0,
        presence_penalty: edits.1,
        frequency_penalty: edits.2,
        penalty_window: edits.3,
        logit_bias: edits.4,
        seed,
    })
}

fn options() -> impl Strategy<Value = GenerationOptions> {
    let limits = (prop::option::of(1usize..60), 9usize..90, prop::collection::vec(0..VOCAB as u32, 0..2), 1usize..=64);
    (sampling(), limits).prop_map(|(sampling, (max_tokens, context, stop_tokens, budget))| GenerationOptions {
        sampling,
        stop_tokens,
        max_tokens,
        budget,
        ..GenerationOptions::new(VOCAB, context)
    })
}

#[derive(Debug, Clone)]
struct Case {
    target: FakeTarget,
    options: GenerationOptions,
    prompt: Vec<u32>,
    constrained: bool,
}

fn cases() -> impl Strategy<Value = Case> {
    let prompt = prop::collection::vec(0..VOCAB as u32, 1..8);
    let broken = prop::option::weighted(0.1, 8usize..40);
    (any::<u64>(), options(), prompt, any::<bool>(), broken).prop_map(|(seed, options, prompt, constrained, broken)| {
        let target = FakeTarget::new(seed, VOCAB, options.context).broken_at(broken);
        Case { target, options, prompt, constrained }
    })
}

impl Case {
    fn write<D: Drafter<FakeTarget>>(&self, drafter: &mut D, prefill: Prefill) -> Text {
        let (mut free, mut bound) = (Unconstrained, NoRepeat::new(VOCAB));
        let constraint: &mut dyn Constraint = if self.constrained { &mut bound } else { &mut free };
        generate(self.target.clone(), drafter, constraint, &self.options, &self.prompt, prefill).0
    }
}

/// A clock that jumps, so that every decision that time can bring comes up.
struct Erratic(u64);

impl Clock for Erratic {
    fn now(&mut self) -> std::time::Duration {
        self.0 = crate::support::scramble(self.0);
        std::time::Duration::from_micros(self.0 % 100_000)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn same_text_with_and_without_drafting(case in cases(), state: u64, mistakes in 0u64..=100) {
        let plain = case.write(&mut NoDraft, Prefill::Whole);
        let random = RandomDraft { state };
        let knowing = KnowingDraft { random: random.clone(), mistakes };
        prop_assert_eq!(&plain, &case.write(&mut NoDraft, Prefill::AllButLast));
        prop_assert_eq!(&plain, &case.write(&mut random.clone(), Prefill::Whole));
        prop_assert_eq!(&plain, &case.write(&mut random.clone(), Prefill::AllButLast));
        prop_assert_eq!(&plain, &case.write(&mut knowing.clone(), Prefill::Whole));
        prop_assert_eq!(&plain, &case.write(&mut knowing.clone(), Prefill::AllButLast));
        prop_assert_eq!(&plain, &case.write(&mut Lookup::new(), Prefill::Whole));
        for pace in [Pace::Auto(64), Pace::Fixed(1 + state as usize % 64)] {
            let mut paced = Paced::new(Lookup::new(), knowing.clone(), Erratic(state), pace, CostCurve::default());
            prop_assert_eq!(&plain, &case.write(&mut paced, Prefill::Whole));
        }
    }
}

/// One text for every budget, and fewer passes where the drafter is right.
#[test]
fn every_budget_gives_the_same_text() {
    for temperature in [0.0, 0.8] {
        let sampling = SamplingParams {
            temperature,
            repetition_penalty: 1.3,
            frequency_penalty: 0.2,
            top_p: 0.95,
            seed: 4,
            ..SamplingParams::default()
        };
        let mut options = GenerationOptions { sampling, max_tokens: Some(200), ..GenerationOptions::new(VOCAB, 400) };
        let write = |options: &GenerationOptions, mistakes| {
            let target = FakeTarget::new(17, VOCAB, 400);
            let mut drafter = KnowingDraft { random: RandomDraft { state: 5 }, mistakes };
            generate(target, &mut drafter, &mut Unconstrained, options, &[1, 2, 3], Prefill::Whole)
        };
        options.budget = 1;
        let (plain, generation) = write(&options, 0);
        assert_eq!(plain.tokens.len(), 200);
        assert_eq!(generation.stats().passes, 199);
        assert_eq!(generation.stats().tokens_per_pass(), Some(1.0));
        for budget in 2..=64 {
            options.budget = budget;
            for mistakes in [0, 30, 100] {
                let (text, generation) = write(&options, mistakes);
                assert_eq!(text, plain, "budget {budget}, {mistakes} % mistakes");
                let stats = generation.stats();
                assert_eq!(stats.tokens, 199);
                assert_eq!(stats.tokens, stats.passes + stats.accepted());
                assert!(mistakes > 0 || budget < 8 || stats.passes < 60, "{} passes", stats.passes);
            }
        }
    }
}

/// The budget may change in the middle of a text.
#[test]
fn a_changing_budget_gives_the_same_text() {
    let sampling = SamplingParams { temperature: 1.0, seed: 9, ..SamplingParams::default() };
    let options = GenerationOptions { sampling, max_tokens: Some(100), ..GenerationOptions::new(VOCAB, 400) };
    let target = FakeTarget::new(3, VOCAB, 400);
    let (plain, _) = generate(target.clone(), &mut NoDraft, &mut Unconstrained, &options, &[5], Prefill::AllButLast);
    let mut drafter = KnowingDraft { random: RandomDraft { state: 1 }, mistakes: 20 };
    let mut generation = pleach_decode::Generation::new(options, &[5]).unwrap();
    let mut target = target;
    let mut budgets = [1, 16, 0, 3, 64, 2].into_iter().cycle();
    while generation.stopped().is_none() {
        generation.set_budget(budgets.next().unwrap());
        generation.step(&mut target, &mut drafter, &mut Unconstrained).unwrap();
    }
    assert_eq!(generation.history().generated(), plain.tokens);
}
