//! Ends and errors inside a drafted path, case by case.

use std::convert::Infallible;
use std::ops::Range;

use crate::support::{FakeTarget, KnowingDraft, Prefill, RandomDraft, generate};
use pleach_decode::{
    Constraint, DecodeError, DraftContext, Drafter, Flow, Generation, GenerationOptions, NoDraft, Step, StepError,
    StopReason, Target, TokenId, TokenMask, TreeBuilder, TreeRows, Unconstrained,
};

/// Counts upwards: after token `t` comes `t + 1`.
#[derive(Debug, Default)]
struct Counting {
    tokens: Vec<TokenId>,
    logits: Vec<Vec<f32>>,
    committed: Vec<TokenId>,
}

impl Target for Counting {
    type Error = Infallible;

    fn verify(&mut self, rows: TreeRows<'_>) -> Result<(), Infallible> {
        self.tokens = rows.tokens.to_vec();
        self.logits = rows.tokens.iter().map(|&token| likes(token + 1)).collect();
        Ok(())
    }

    fn logits(&self, row: usize) -> &[f32] {
        &self.logits[row]
    }

    fn commit(&mut self, rows: &[usize]) -> Result<(), Infallible> {
        self.committed.extend(rows.iter().map(|&row| self.tokens[row]));
        Ok(())
    }
}

fn likes(token: TokenId) -> Vec<f32> {
    (0..50).map(|other| f32::from(other == token)).collect()
}

/// Drafts eight right tokens in a row, each twice, beside a wrong one, and remembers what it saw.
#[derive(Debug, Default)]
struct CountingDraft {
    observed: Vec<Vec<TokenId>>,
}

impl Drafter<Counting> for CountingDraft {
    fn draft(&mut self, _: &mut Counting, context: DraftContext<'_>, tree: &mut TreeBuilder) -> Result<(), Infallible> {
        let root = *context.history.tokens().last().unwrap();
        let mut last = TreeBuilder::ROOT;
        for token in root + 1..=root + 8 {
            tree.add(last, 40, -1.0);
            let node = tree.add(last, token, -0.2);
            assert_eq!(tree.add(last, token, -0.1), node);
            let Some(node) = node else { break };
            last = node;
        }
        Ok(())
    }

    fn observe(&mut self, _: &mut Counting, step: &Step) -> Result<(), Infallible> {
        self.observed.push(step.tokens.clone());
        Ok(())
    }
}

fn options() -> GenerationOptions {
    GenerationOptions { budget: 64, ..GenerationOptions::new(50, 1000) }
}

fn range(tokens: Range<TokenId>) -> Vec<TokenId> {
    tokens.collect()
}

/// One drafted step after the prompt `[1, 2]`, of which the target has run the 1.
fn first_step(options: GenerationOptions, constraint: &mut dyn Constraint) -> (Step, Counting, Generation) {
    let mut target = Counting { committed: vec![1], ..Counting::default() };
    let mut drafter = CountingDraft::default();
    let mut generation = Generation::new(options, &[1, 2]).unwrap();
    let step = generation.step(&mut target, &mut drafter, constraint).unwrap();
    assert_eq!(drafter.observed, std::slice::from_ref(&step.tokens));
    (step, target, generation)
}

#[test]
fn all_of_a_right_draft_is_accepted() {
    let (step, target, generation) = first_step(options(), &mut Unconstrained);
    assert_eq!(step.tokens, range(3..12));
    assert_eq!(step.stop, None);
    assert_eq!(target.committed, range(1..11));
    assert_eq!(generation.stats().accepted_by_depth, [1; 8]);
    assert_eq!(generation.stats().drafted_by_depth, [2; 8]);
}

#[test]
fn a_stop_token_inside_the_path_ends_it() {
    let (step, target, generation) =
        first_step(GenerationOptions { stop_tokens: vec![30, 6], ..options() }, &mut Unconstrained);
    assert_eq!(step.tokens, [3, 4, 5, 6]);
    assert_eq!(step.stop, Some(StopReason::StopToken(6)));
    assert_eq!(target.committed, [1, 2, 3, 4, 5]);
    assert_eq!(generation.committed(), 5);
}

#[test]
fn the_token_limit_inside_the_path_ends_it() {
    let (step, target, generation) =
        first_step(GenerationOptions { max_tokens: Some(4), ..options() }, &mut Unconstrained);
    assert_eq!(step.tokens, [3, 4, 5, 6]);
    assert_eq!(step.stop, Some(StopReason::MaxTokens));
    assert_eq!(target.committed, [1, 2, 3, 4, 5]);
    assert_eq!(target.tokens.len(), 7, "no row is verified that could not be given out");
    assert_eq!(generation.tokens_left(), 0);
}

#[test]
fn the_context_inside_the_tree_ends_it() {
    let (step, target, _) = first_step(GenerationOptions { context: 6, ..options() }, &mut Unconstrained);
    assert_eq!(step.tokens, [3, 4, 5, 6]);
    assert_eq!(step.stop, Some(StopReason::Context));
    assert_eq!(target.committed, [1, 2, 3, 4, 5]);
}

#[test]
fn a_constraint_inside_the_path_ends_it() {
    struct Until(TokenId);
    impl Constraint for Until {
        fn push(&mut self, token: TokenId) -> Flow {
            assert!(token <= self.0, "told of {token} after the end");
            if token == self.0 { Flow::Stop } else { Flow::Continue }
        }
    }
    let (step, target, _) = first_step(options(), &mut Until(5));
    assert_eq!(step.tokens, [3, 4, 5]);
    assert_eq!(step.stop, Some(StopReason::Constraint));
    assert_eq!(target.committed, [1, 2, 3, 4]);
}

/// A guess that may not be drawn is verified like any other, and never taken, right as it may be.
#[test]
fn a_forbidden_child_is_never_taken() {
    struct Without(TokenMask);
    impl Constraint for Without {
        fn allowed(&mut self) -> Option<&TokenMask> {
            Some(&self.0)
        }

        fn push(&mut self, _: TokenId) -> Flow {
            Flow::Continue
        }
    }
    let mut mask = TokenMask::all(50);
    mask.forbid(5);
    let (step, target, _) = first_step(options(), &mut Without(mask));
    // The model likes 5 alone; of the others, which it likes equally, the first is drawn.
    assert_eq!(step.tokens, [3, 4, 0]);
    assert_eq!(target.committed, [1, 2, 3, 4]);
}

/// Allows one token after each, as a grammar does between the choices that it leaves.
struct Only {
    tokens: Vec<TokenId>,
    /// Of the tokens, how many were drawn.
    seen: usize,
    mask: TokenMask,
}

impl Only {
    fn new(tokens: &[TokenId]) -> Self {
        Self { tokens: tokens.to_vec(), seen: 0, mask: TokenMask::none(50) }
    }
}

impl Constraint for Only {
    fn allowed(&mut self) -> Option<&TokenMask> {
        let next = *self.tokens.get(self.seen)?;
        self.mask = TokenMask::none(50);
        self.mask.allow(next);
        Some(&self.mask)
    }

    fn forced(&mut self, most: usize) -> Vec<TokenId> {
        self.tokens[self.seen..].iter().copied().take(most).collect()
    }

    fn push(&mut self, _: TokenId) -> Flow {
        self.seen += 1;
        Flow::Continue
    }
}

/// Tokens without a choice need no drafter, and no pass each.
#[test]
fn what_a_grammar_forces_is_drafted_as_certain() {
    let forced = [9, 8, 7, 20, 21];
    let mut constraint = Only::new(&forced);
    let mut target = Counting { committed: vec![1], ..Counting::default() };
    let mut generation = Generation::new(options(), &[1, 2]).unwrap();
    let step = generation.step(&mut target, &mut NoDraft, &mut constraint).unwrap();
    // After the last forced token the model is free again.
    assert_eq!(step.tokens, [9, 8, 7, 20, 21, 22]);
    assert_eq!(generation.stats().drafted_by_depth, [1; 5]);

    let mut narrow = Generation::new(GenerationOptions { budget: 3, ..options() }, &[1, 2]).unwrap();
    let mut target = Counting { committed: vec![1], ..Counting::default() };
    let step = narrow.step(&mut target, &mut NoDraft, &mut Only::new(&forced)).unwrap();
    assert_eq!(step.tokens, [9, 8, 7]);
}

#[test]
fn of_several_reasons_the_stop_token_comes_first() {
    let options = GenerationOptions { stop_tokens: vec![4], max_tokens: Some(2), context: 4, ..options() };
    let (step, ..) = first_step(options.clone(), &mut Unconstrained);
    assert_eq!(step.stop, Some(StopReason::StopToken(4)));
    let (step, ..) = first_step(GenerationOptions { stop_tokens: Vec::new(), ..options }, &mut Unconstrained);
    assert_eq!(step.stop, Some(StopReason::MaxTokens));
}

#[test]
fn the_first_token_may_be_the_last() {
    let mut generation = Generation::new(GenerationOptions { stop_tokens: vec![3], ..options() }, &[1, 2]).unwrap();
    let step = generation.draw_first(&likes(3), &mut Unconstrained).unwrap();
    assert_eq!(step, Step { tokens: vec![3], rows: vec![], stop: Some(StopReason::StopToken(3)) });
    assert_eq!(generation.committed(), 2);
    let error = generation.step(&mut Counting::default(), &mut NoDraft, &mut Unconstrained).unwrap_err();
    assert_eq!(error.to_string(), "the generation has stopped already (stop token 3): start another one");
}

#[test]
fn calls_out_of_order_are_errors() {
    let mut target = Counting::default();
    let mut generation = Generation::new(options(), &[2]).unwrap();
    let stale = generation.draft(&mut target, &mut NoDraft, &mut Unconstrained).unwrap();
    generation.step(&mut target, &mut NoDraft, &mut Unconstrained).unwrap();
    assert_eq!(generation.draw_first(&likes(3), &mut Unconstrained), Err(DecodeError::AlreadyStarted));
    let row = likes(3);
    let error = generation.accept(&stale, |_| &row, &mut Unconstrained).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the tree starts at position 0, but the generation stands at 1: draft again after each step"
    );
}

#[test]
fn prompts_that_cannot_be_continued_are_refused() {
    let refusal = |prompt: &[TokenId], options| Generation::new(options, prompt).unwrap_err().to_string();
    assert_eq!(
        refusal(&[], options()),
        "the prompt has no tokens: give it at least one, such as the model's start token"
    );
    assert_eq!(
        refusal(&[1; 8], GenerationOptions { context: 8, ..options() }),
        "the prompt has 8 tokens, but the context holds 8 with the answer: shorten the prompt or raise the context length"
    );
    assert_eq!(
        refusal(&[1, 50], options()),
        "prompt token 1 is 50, but the vocabulary has 50 tokens: encode the prompt with this model's tokenizer"
    );
    assert_eq!(
        refusal(&[1], GenerationOptions { max_tokens: Some(0), ..options() }),
        "`max_tokens` is 0, but must be 1 or more, or absent"
    );
    assert_eq!(refusal(&[1], GenerationOptions { budget: 0, ..options() }), "`budget` is 0, but must be 1 or more");
}

/// A model that breaks down in the middle gives its error at the same token, after the same text, drafted or not.
#[test]
fn non_finite_logits_inside_a_path_cost_no_text() {
    let target = FakeTarget::new(8, 24, 100).broken_at(Some(20));
    let options = GenerationOptions::new(24, 100);
    let (plain, _) = generate(target.clone(), &mut NoDraft, &mut Unconstrained, &options, &[1, 2], Prefill::Whole);
    assert_eq!(plain.tokens.len(), 18);
    let error = plain.end.as_ref().unwrap_err();
    assert!(error.starts_with("non-finite logits: the logit of token 0 at position 20 is NaN"), "{error}");
    let mut drafter = KnowingDraft { random: RandomDraft { state: 2 }, mistakes: 0 };
    let (drafted, generation) = generate(target, &mut drafter, &mut Unconstrained, &options, &[1, 2], Prefill::Whole);
    assert_eq!(drafted, plain);
    assert!(generation.stats().passes < 10);
}

/// Errors of the target pass through as they are, and a pass that failed leaves the text as it was.
#[test]
fn errors_of_the_target_come_through() {
    #[derive(Debug, PartialEq, thiserror::Error)]
    #[error("the device is gone")]
    struct Gone;
    struct Broken;
    impl Target for Broken {
        type Error = Gone;
        fn verify(&mut self, _: TreeRows<'_>) -> Result<(), Gone> {
            Err(Gone)
        }
        fn logits(&self, _: usize) -> &[f32] {
            &[]
        }
        fn commit(&mut self, _: &[usize]) -> Result<(), Gone> {
            Err(Gone)
        }
    }
    let mut generation = Generation::new(options(), &[1, 2]).unwrap();
    let error = generation.step(&mut Broken, &mut NoDraft, &mut Unconstrained).unwrap_err();
    assert_eq!(error, StepError::Target(Gone));
    assert_eq!(error.to_string(), "the device is gone");
    assert_eq!(generation.history().tokens(), [1, 2]);
}
