//! A model without weights, and drafters that know it too well or not at all.

use std::collections::HashSet;
use std::convert::Infallible;

use pleach_decode::{
    Constraint, DraftContext, Drafter, Flow, Generation, GenerationOptions, History, StopReason, Target, TokenId,
    TokenMask, TreeBuilder, TreeRows,
};

/// Scrambles a number (SplitMix64's finalizer).
pub(crate) fn scramble(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A target whose logits are a pure function of the whole prefix, so any mistake in the path shows.
///
/// It checks everything a pass may rely on.
#[derive(Debug, Clone)]
pub(crate) struct FakeTarget {
    seed: u64,
    vocab_size: usize,
    context: usize,
    /// Position whose token cannot be drawn, as if the model broke down there.
    broken_at: Option<usize>,
    pub(crate) committed: Vec<TokenId>,
    pass: Vec<FakeRow>,
}

#[derive(Debug, Clone)]
struct FakeRow {
    token: TokenId,
    parent: Option<usize>,
    prefix: u64,
    logits: Vec<f32>,
}

impl FakeTarget {
    pub(crate) fn new(seed: u64, vocab_size: usize, context: usize) -> Self {
        Self { seed, vocab_size, context, broken_at: None, committed: Vec::new(), pass: Vec::new() }
    }

    /// The same model, broken down where the token at position `at` is to be drawn.
    pub(crate) fn broken_at(self, at: Option<usize>) -> Self {
        Self { broken_at: at, ..self }
    }

    /// Hash of a prefix.
    fn prefix(&self, tokens: &[TokenId]) -> u64 {
        tokens.iter().fold(self.seed, |hash, &token| scramble(hash ^ u64::from(token)))
    }

    /// Logits in coarse steps, so that ties happen, with some tokens out of reach.
    fn logits_after(&self, prefix: u64, position: usize) -> Vec<f32> {
        if self.broken_at == Some(position + 1) {
            return vec![f32::NAN; self.vocab_size];
        }
        let logit = |token: u64| match scramble(prefix ^ scramble(token)) % 40 {
            0 => f32::NEG_INFINITY,
            step => step as f32 * 0.25,
        };
        (0..self.vocab_size as u64).map(logit).collect()
    }

    /// What the model thinks after any text.
    pub(crate) fn logits_of(&self, tokens: &[TokenId]) -> Vec<f32> {
        self.logits_after(self.prefix(tokens), tokens.len() - 1)
    }
}

impl Target for FakeTarget {
    type Error = Infallible;

    fn verify(&mut self, rows: TreeRows<'_>) -> Result<(), Infallible> {
        assert_eq!(rows.start, self.committed.len(), "the root continues the committed tokens");
        assert_eq!(rows.parents[0], -1);
        let mut seen = HashSet::new();
        self.pass.clear();
        for (row, position) in rows.positions().enumerate() {
            assert!(position < self.context, "row {row} at position {position} lies past the context");
            assert!((rows.tokens[row] as usize) < self.vocab_size, "row {row} has a token without embedding");
            assert!(seen.insert((rows.parents[row], rows.tokens[row])), "row {row} repeats a sibling");
            let parent = usize::try_from(rows.parents[row]).ok();
            let before = match parent {
                Some(parent) => {
                    assert!(parent < row && row <= rows.ends[parent] as usize, "row {row} is outside its parent");
                    assert_eq!(rows.depths[row], rows.depths[parent] + 1);
                    self.pass[parent].prefix
                }
                None => self.prefix(&self.committed),
            };
            let token = rows.tokens[row];
            let prefix = scramble(before ^ u64::from(token));
            let logits = self.logits_after(prefix, position);
            self.pass.push(FakeRow { token, parent, prefix, logits });
        }
        Ok(())
    }

    fn logits(&self, row: usize) -> &[f32] {
        &self.pass[row].logits
    }

    fn commit(&mut self, rows: &[usize]) -> Result<(), Infallible> {
        let mut parent = None;
        for &row in rows {
            assert_eq!(self.pass[row].parent, parent, "rows {rows:?} are no path from the root");
            parent = Some(row);
            self.committed.push(self.pass[row].token);
        }
        assert!(!rows.is_empty(), "every step commits its root");
        Ok(())
    }
}

/// Grows random trees, most of it garbage, some tokens outside the vocabulary, many duplicates.
#[derive(Debug, Clone)]
pub(crate) struct RandomDraft {
    pub(crate) state: u64,
}

impl RandomDraft {
    fn next(&mut self, below: u64) -> u64 {
        self.state = scramble(self.state);
        self.state % below
    }
}

impl<T: Target> Drafter<T> for RandomDraft {
    fn draft(&mut self, _: &mut T, context: DraftContext<'_>, tree: &mut TreeBuilder) -> Result<(), T::Error> {
        for _ in 0..self.next(3 * context.budget as u64) {
            let parent = self.next(tree.num_nodes() as u64) as usize;
            let token = self.next(context.sampler.vocab_size() as u64 + 2) as TokenId;
            let log_prob = -(self.next(1000) as f32) / 200.0;
            tree.add(parent, token, log_prob);
        }
        Ok(())
    }
}

/// Knows the target and draws what it will draw, with a mistake now and then and wrong siblings around.
#[derive(Debug, Clone)]
pub(crate) struct KnowingDraft {
    pub(crate) random: RandomDraft,
    /// Of 100 tokens.
    pub(crate) mistakes: u64,
}

impl Drafter<FakeTarget> for KnowingDraft {
    fn draft(
        &mut self,
        target: &mut FakeTarget,
        context: DraftContext<'_>,
        tree: &mut TreeBuilder,
    ) -> Result<(), Infallible> {
        let mut sampler = context.sampler.clone();
        let mut history: History = context.history.clone();
        let mut last = TreeBuilder::ROOT;
        for _ in 1..context.budget {
            let logits = target.logits_of(history.tokens());
            let position = history.tokens().len() as u64;
            let Ok(mut token) = sampler.sample(&logits, position, &history, None) else { break };
            if self.random.next(100) < self.mistakes {
                token = self.random.next(context.sampler.vocab_size() as u64) as TokenId;
            }
            tree.add(last, self.random.next(8) as TokenId, -1.0);
            let Some(node) = tree.add(last, token, -0.1) else { break };
            last = node;
            history.push(token);
        }
        self.random.draft(target, context, tree)
    }
}

/// Forbids to repeat the last token, and ends the text at a pair of neighbors: a grammar and a stop string in small.
#[derive(Debug, Clone)]
pub(crate) struct NoRepeat {
    mask: TokenMask,
    last: Option<TokenId>,
}

impl NoRepeat {
    pub(crate) fn new(vocab_size: usize) -> Self {
        Self { mask: TokenMask::all(vocab_size), last: None }
    }
}

impl Constraint for NoRepeat {
    fn allowed(&mut self) -> Option<&TokenMask> {
        Some(&self.mask)
    }

    fn push(&mut self, token: TokenId) -> Flow {
        assert!(self.mask.is_allowed(token), "token {token} was forbidden");
        let before = self.last.replace(token);
        if let Some(before) = before {
            self.mask.allow(before);
        }
        self.mask.forbid(token);
        if before == Some(3) && token == 1 { Flow::Stop } else { Flow::Continue }
    }
}

/// A finished text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Text {
    pub(crate) tokens: Vec<TokenId>,
    /// Why it ended, or the message of the error that ended it.
    pub(crate) end: Result<StopReason, String>,
}

/// Where the target stands when a generation begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prefill {
    /// All tokens of the prompt were run: the first token comes from their logits.
    Whole,
    /// The last token was left out and becomes the first root.
    AllButLast,
}

/// Writes a text to its end and checks the books after every step.
pub(crate) fn generate<D: Drafter<FakeTarget>>(
    mut target: FakeTarget,
    drafter: &mut D,
    constraint: &mut dyn Constraint,
    options: &GenerationOptions,
    prompt: &[TokenId],
    prefill: Prefill,
) -> (Text, Generation) {
    let mut generation = Generation::new(options.clone(), prompt).unwrap();
    let mut tokens = Vec::new();
    let end = 'text: {
        target.committed = prompt[..prompt.len() - 1].to_vec();
        if prefill == Prefill::Whole {
            target.committed = prompt.to_vec();
            match generation.draw_first(&target.logits_of(prompt), constraint) {
                Ok(step) => tokens.extend(step.tokens),
                Err(error) => break 'text Err(error.to_string()),
            }
        }
        while generation.stopped().is_none() {
            match generation.step(&mut target, drafter, constraint) {
                Ok(step) => {
                    assert_eq!(step.rows.len(), step.tokens.len());
                    assert!(step.rows.len() <= options.budget);
                    assert_eq!(step.stop, generation.stopped());
                    tokens.extend(step.tokens);
                }
                Err(error) => break 'text Err(error.to_string()),
            }
            let all = generation.history().tokens();
            assert_eq!(target.committed, all[..all.len() - 1], "all but the last token are committed");
            assert_eq!(generation.committed(), target.committed.len());
        }
        Ok(generation.stopped().unwrap())
    };
    assert_eq!(generation.history().generated(), tokens);
    (Text { tokens, end }, generation)
}
