//! Many requests at once: each text is the one that its request gives alone.

#![allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]

mod support;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;

use pleach_engine::{
    Batch, CacheOwner, CancelToken, Constraint, EncodedPrompt, Engine, EngineError, EngineOptions, Event, FinishReason,
    Finished, Flow, Job, PrefixCacheOptions, PrefixCacheStats, Prompt, Request, RequestId, Settings, SpecBudget,
    Speculation, TokenMask, Usage,
};
use proptest::prelude::*;

use support::random_drafter::{self, Shape};
use support::{all_settings, fixture, open, plain, prompt, repeating, rows, sampled};

/// Allows some tokens by turns, forces where only one is left, and ends the text after `most`.
struct Turns {
    mask: TokenMask,
    seen: usize,
    most: usize,
}

impl Turns {
    fn demand(engine: &Engine, most: usize) -> Box<dyn Constraint + Send> {
        Box::new(Self { mask: TokenMask::none(engine.info().vocab_size), seen: 0, most })
    }
}

impl Constraint for Turns {
    fn allowed(&mut self) -> Option<&TokenMask> {
        let is_free = self.seen % 3 != 1;
        (40..60).for_each(|token| if is_free { self.mask.allow(token) } else { self.mask.forbid(token) });
        self.mask.allow(30);
        Some(&self.mask)
    }

    fn forced(&mut self, most: usize) -> Vec<u32> {
        if self.seen % 3 == 1 && most > 0 { vec![30] } else { Vec::new() }
    }

    fn push(&mut self, _token: u32) -> Flow {
        self.seen += 1;
        if self.seen == self.most { Flow::Stop } else { Flow::Continue }
    }
}

/// Panics at its third token.
struct Faulty(usize);

impl Constraint for Faulty {
    fn allowed(&mut self) -> Option<&TokenMask> {
        None
    }

    fn push(&mut self, _token: u32) -> Flow {
        self.0 += 1;
        assert!(self.0 < 3, "on purpose");
        Flow::Continue
    }
}

fn encoded(engine: &Engine, tokens: Vec<u32>) -> EncodedPrompt {
    engine.encode_prompt(&Prompt::Tokens(tokens)).unwrap()
}

fn job(engine: &Engine, tokens: Vec<u32>, settings: Settings) -> Job {
    Job::new(encoded(engine, tokens), settings)
}

fn batch(engine: &Engine) -> Batch {
    Batch::new(engine.clone(), &PrefixCacheOptions::default()).unwrap()
}

fn no_cache() -> PrefixCacheOptions {
    let mut options = PrefixCacheOptions::default();
    options.bytes = 0;
    options
}

/// What requests have given so far.
#[derive(Default)]
struct Answers(BTreeMap<RequestId, Answer>);

#[derive(Default, Clone)]
struct Answer {
    ids: Vec<u32>,
    finished: Option<Finished>,
    error: Option<String>,
}

impl Answers {
    fn step(&mut self, batch: &mut Batch) {
        for (id, event) in batch.step() {
            let answer = self.0.entry(id).or_default();
            assert!(answer.finished.is_none() && answer.error.is_none(), "an event after the last");
            match event {
                Ok(Event::Token(token)) => answer.ids.push(token.id),
                Ok(Event::Finished(finished)) => answer.finished = Some(finished),
                Ok(_) => {}
                Err(error) => answer.error = Some(error.to_string()),
            }
        }
    }

    fn run(batch: &mut Batch) -> Self {
        let mut answers = Self::default();
        while !batch.is_empty() {
            answers.step(batch);
        }
        answers
    }

    fn of(&self, id: RequestId) -> &Answer {
        &self.0[&id]
    }

    fn usage(&self, id: RequestId) -> Usage {
        self.of(id).finished.as_ref().unwrap().usage
    }
}

/// Alone, without anything kept from before.
fn solo(engine: &Engine, tokens: &[u32], settings: &Settings, demand: Option<Box<dyn Constraint + Send>>) -> Vec<u32> {
    let request = Request::tokens(tokens.to_vec()).with(settings.clone());
    let mut session = engine.session().unwrap();
    let events = match demand {
        Some(demand) => session.generate_with(&request, demand).unwrap(),
        None => session.generate(&request).unwrap(),
    };
    let token = |event| if let Event::Token(token) = event { Some(token.id) } else { None };
    events.filter_map(|event| token(event.unwrap())).collect()
}

/// One request of a random crowd.
#[derive(Debug, Clone)]
struct Guest {
    arrives: usize,
    prompt: Vec<u32>,
    setting: usize,
    seed: u64,
    budget: Option<usize>,
    max_tokens: usize,
    demand: Option<usize>,
    /// Steps after its arrival.
    leaves: Option<usize>,
}

impl Guest {
    fn settings(&self) -> Settings {
        let mut settings = all_settings().swap_remove(self.setting);
        settings.sampling.seed = Some(self.seed);
        settings.max_tokens = Some(self.max_tokens);
        settings.spec_budget = self.budget.map_or(SpecBudget::Automatic, rows);
        settings
    }

    fn demand(&self, engine: &Engine) -> Option<Box<dyn Constraint + Send>> {
        self.demand.map(|most| Turns::demand(engine, most))
    }

    fn job(&self, engine: &Engine) -> Job {
        Job { demand: self.demand(engine), ..job(engine, self.prompt.clone(), self.settings()) }
    }
}

/// Prompts begin in one of few ways, so that some go on from what others have left.
fn guest() -> impl Strategy<Value = Guest> {
    let tail = prop::collection::vec(20u32..300, 1..40);
    let prompt = (0usize..4, tail).prop_map(|(start, tail)| match start {
        0 => tail,
        1 => repeating(),
        _ => [prompt(20 * start), tail].concat(),
    });
    let budget = prop::option::of(prop::sample::select(vec![1usize, 2, 6, 20, 64]));
    let demand = prop::option::weighted(0.2, 1usize..20);
    let leaves = prop::option::weighted(0.25, 0usize..12);
    (0usize..20, prompt, 0usize..5, any::<u64>(), budget, 1usize..30, demand, leaves).prop_map(
        |(arrives, prompt, setting, seed, budget, max_tokens, demand, leaves)| Guest {
            arrives,
            prompt,
            setting,
            seed,
            budget,
            max_tokens,
            demand,
            leaves,
        },
    )
}

/// Lets a crowd come and go, and compares each text with that of its request alone.
fn check(engine: &Engine, guests: &[Guest], options: &PrefixCacheOptions) -> Result<(), TestCaseError> {
    let mut batch = Batch::new(engine.clone(), options).unwrap();
    let mut answers = Answers::default();
    let mut ids = vec![None; guests.len()];
    let mut step = 0;
    while step < 20 || !batch.is_empty() {
        for (guest, id) in guests.iter().zip(&mut ids) {
            if guest.arrives == step {
                *id = Some(batch.add(guest.job(engine)).unwrap());
            }
            if let (Some(leaves), Some(id)) = (guest.leaves, *id)
                && guest.arrives + leaves == step
            {
                batch.cancel(id);
            }
        }
        answers.step(&mut batch);
        step += 1;
    }
    for (guest, id) in guests.iter().zip(ids) {
        let answer = answers.of(id.unwrap());
        let expected = solo(engine, &guest.prompt, &guest.settings(), guest.demand(engine));
        prop_assert_eq!(&answer.error, &None);
        let finished = answer.finished.as_ref().unwrap();
        if finished.reason == FinishReason::Cancelled {
            prop_assert!(guest.leaves.is_some() && expected.starts_with(&answer.ids));
        } else {
            prop_assert_eq!(&answer.ids, &expected, "{:?}", guest);
        }
    }
    Ok(())
}

/// Dense and hybrid models with every drafter that they can have.
fn engines(drafter: &Path, threads: usize) -> Vec<Engine> {
    let options = |speculation, draft_model: Option<&Path>| EngineOptions {
        speculation,
        draft_model: draft_model.map(Path::to_owned),
        threads: NonZeroUsize::new(threads),
        prefill_chunk: 24,
        ..EngineOptions::default()
    };
    vec![
        open("tiny-llama", &options(Speculation::Ngram, None)),
        open("tiny-qwen35", &options(Speculation::Auto, None)),
        open("tiny-qwen35", &options(Speculation::DFlash, Some(drafter))),
        open("tiny-llama", &options(Speculation::Draft, Some(&fixture("tiny-llama")))),
    ]
}

#[test]
fn every_text_of_a_crowd_is_the_one_that_its_request_gives_alone() {
    let drafter = tempfile::tempdir().unwrap();
    random_drafter::write(drafter.path(), Shape { hidden_size: 64, vocab_size: 512, num_layers: 8 }, 7);
    for threads in [1, 2] {
        for engine in engines(drafter.path(), threads) {
            let config = ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() };
            proptest!(config, |(guests in prop::collection::vec(guest(), 2..7), keeps: bool)| {
                check(&engine, &guests, &if keeps { PrefixCacheOptions::default() } else { no_cache() })?;
            });
        }
    }
}

#[test]
fn a_pass_is_shared_by_all() {
    let engine = open("tiny-qwen35", &EngineOptions { speculation: Speculation::Off, ..EngineOptions::default() });
    let mut batch = batch(&engine);
    let requests: Vec<_> = (0..4).map(|seed| batch.add(job(&engine, prompt(10), sampled(20, seed))).unwrap()).collect();
    let mut answers = Answers::default();
    let mut steps = 0;
    while !batch.is_empty() {
        answers.step(&mut batch);
        steps += 1;
    }
    // Each prompt is read in a pass of its own, and meanwhile those before it write.
    assert_eq!(steps, 4 + 19);
    assert!(requests.iter().all(|&id| answers.of(id).ids.len() == 20));
}

#[test]
fn prompts_are_read_by_turns_while_texts_are_written() {
    let options = EngineOptions { speculation: Speculation::Off, prefill_chunk: 16, ..EngineOptions::default() };
    let engine = open("tiny-llama", &options);
    let mut batch = batch(&engine);
    let writer = batch.add(job(&engine, prompt(5), plain(200))).unwrap();
    let mut answers = Answers::default();
    answers.step(&mut batch);
    let long = batch.add(job(&engine, [vec![9], prompt(150)].concat(), plain(1))).unwrap();
    let short = batch.add(job(&engine, [vec![8], prompt(30)].concat(), plain(1))).unwrap();
    let mut before = answers.of(writer).ids.len();
    let mut ended = Vec::new();
    while ended.len() < 2 {
        answers.step(&mut batch);
        let now = answers.of(writer).ids.len();
        assert_eq!(now, before + 1, "a text that is written waits for no prompt");
        before = now;
        ended.extend(
            [long, short]
                .into_iter()
                .filter(|id| !ended.contains(id) && answers.0.get(id).is_some_and(|answer| answer.finished.is_some()))
                .collect::<Vec<_>>(),
        );
    }
    assert_eq!(ended, [short, long], "a short prompt does not wait for a long one");
}

#[test]
fn a_fault_ends_its_request_alone() {
    let engine = open("tiny-qwen35", &EngineOptions::default());
    let mut batch = batch(&engine);
    let good = batch.add(job(&engine, prompt(12), sampled(20, 1))).unwrap();
    let faulty = Job { demand: Some(Box::new(Faulty(0))), ..job(&engine, prompt(12), sampled(20, 1)) };
    let faulty = batch.add(faulty).unwrap();
    let answers = Answers::run(&mut batch);
    assert_eq!(answers.of(good).ids, solo(&engine, &prompt(12), &sampled(20, 1), None));
    let error = answers.of(faulty).error.as_deref();
    assert_eq!(error, Some("the engine met a fault of its own; this request is lost"));
    let again = batch.add(job(&engine, prompt(12), sampled(20, 1))).unwrap();
    assert_eq!(Answers::run(&mut batch).of(again).ids, answers.of(good).ids);
}

#[test]
fn what_cannot_run_is_refused_before_it_is_in() {
    let engine = open("tiny-llama", &EngineOptions::default());
    let mut batch = batch(&engine);
    assert!(matches!(batch.add(job(&engine, Vec::new(), plain(4))), Err(EngineError::Decode(_))));
    assert!(matches!(batch.add(job(&engine, prompt(4), plain(0))), Err(EngineError::InvalidField { .. })));
    assert!(batch.is_empty() && batch.step().is_empty());
}

#[test]
fn tokens_of_other_threads_cancel_within_one_step() {
    let engine = open("tiny-qwen35", &EngineOptions { prefill_chunk: 8, ..EngineOptions::default() });
    let mut batch = batch(&engine);
    let cancel = CancelToken::new();
    let settings = Settings { cancel: cancel.clone(), ..plain(50) };
    let cancelled = batch.add(job(&engine, prompt(60), settings)).unwrap();
    let other = batch.add(job(&engine, prompt(20), plain(5))).unwrap();
    let mut answers = Answers::default();
    (0..3).for_each(|_| answers.step(&mut batch));
    cancel.cancel();
    answers.step(&mut batch);
    assert_eq!(answers.of(cancelled).finished.as_ref().unwrap().reason, FinishReason::Cancelled);
    assert_eq!(batch.len(), 1);
    while !batch.is_empty() {
        answers.step(&mut batch);
    }
    assert_eq!(answers.of(other).ids.len(), 5);
    // What was read of the prompt is not lost.
    let again = batch.add(job(&engine, prompt(60), plain(1))).unwrap();
    assert!(Answers::run(&mut batch).usage(again).cached_tokens >= 8);
}

#[test]
fn prefixes_are_shared_by_requests_of_one_owner_only() {
    let engine = open("tiny-qwen35", &EngineOptions::default());
    let mut batch = batch(&engine);
    let cached = |batch: &mut Batch, owner: &str, tokens: Vec<u32>| {
        let job = Job { owner: CacheOwner::of(owner), ..job(&engine, tokens, sampled(6, 3)) };
        let id = batch.add(job).unwrap();
        Answers::run(batch).usage(id).cached_tokens
    };
    assert_eq!(cached(&mut batch, "1", prompt(40)), 0);
    assert_eq!(cached(&mut batch, "2", prompt(40)), 0);
    assert_eq!(cached(&mut batch, "1", prompt(40)), 40);
    // Two prompts part after 38 tokens; the third that begins so finds a state there.
    let other = |token| [prompt(38), vec![token; 9]].concat();
    assert_eq!(cached(&mut batch, "1", other(7)), 0);
    assert_eq!(cached(&mut batch, "1", other(8)), 38);
    assert_eq!(cached(&mut batch, "2", other(9)), 0);
}

#[test]
fn without_a_cache_every_prompt_is_read_from_the_start() {
    let engine = open("tiny-llama", &EngineOptions::default());
    let mut batch = Batch::new(engine.clone(), &no_cache()).unwrap();
    for _ in 0..2 {
        let id = batch.add(job(&engine, prompt(40), plain(6))).unwrap();
        assert_eq!(Answers::run(&mut batch).usage(id).cached_tokens, 0);
    }
    assert_eq!(batch.prefix_cache(), PrefixCacheStats::default());
}
