//! Where a request's states are kept for later ones, and what is known of its prompt.

use std::sync::Arc;

use pleach_model::Sequence;

use crate::Engine;
use crate::engine::EncodedPrompt;
use crate::prefix_cache::{CacheOwner, Doubt, Found, Keep, Kept, SharedCache};

/// A state is kept for so many tokens more at least: a pass has to end where one is kept, and a short pass costs as much as some
/// tokens of a long one.
const FEWEST: usize = 32;

/// What keeps the states of one request.
#[derive(Debug)]
pub(crate) struct Keeper {
    cache: SharedCache,
    owner: CacheOwner,
    /// Places of the prompt where a state is worth keeping, in order.
    places: Vec<usize>,
    /// Places where one is worth writing to disk.
    lasting: Vec<usize>,
    /// [`Found::doubts`], if the request goes on from a kept state.
    doubts: Option<u64>,
}

/// A kept state that is compared with what reading the prompt from the start gives.
#[derive(Debug)]
pub(crate) struct Check {
    /// Goes on from the kept state to the end of the prompt.
    pub(crate) sequence: Sequence,
    /// Tokens that the state stood for.
    known: usize,
    /// After the whole prompt, once that was read.
    pub(crate) logits: Option<Arc<[f32]>>,
}

impl Keeper {
    pub(crate) fn new(cache: SharedCache, owner: CacheOwner) -> Self {
        Self { cache, owner, places: Vec::new(), lasting: Vec::new(), doubts: None }
    }

    /// Looks up what is known of a prompt, and chooses where to keep more of it: where turns end, where an earlier text went on
    /// differently, and every so many tokens.
    pub(crate) fn look_up(&mut self, engine: &Engine, prompt: &EncodedPrompt) -> Found {
        let found = self.cache.find(self.owner, &prompt.tokens, engine.model());
        let len = prompt.tokens.len();
        let known = found.kept.as_ref().filter(|_| !found.verify).map_or(0, Kept::len);
        self.doubts = (known > 0).then_some(found.doubts);
        let is_worth = |place: &usize| *place >= known + FEWEST && *place < len;
        self.lasting = prompt.turn_ends.iter().copied().chain([found.met]).filter(is_worth).collect();
        let spaced = (1..).map(|count| count * engine.kept_spacing()).take_while(|&place| place < len);
        self.places = self.lasting.iter().copied().chain(spaced.filter(is_worth)).collect();
        self.places.sort_unstable();
        self.places.dedup();
        found
    }

    /// The first place after `position` where a state is worth keeping.
    pub(crate) fn next_place(&self, position: usize) -> Option<usize> {
        self.places.iter().copied().find(|&place| place > position)
    }

    pub(crate) fn is_place(&self, position: usize) -> bool {
        self.places.contains(&position)
    }

    /// Keeps a state that stands for `tokens`.
    pub(crate) fn keep(&self, tokens: &[u32], kept: Kept) {
        let keep = Keep { is_lasting: self.lasting.contains(&tokens.len()), doubts: self.doubts };
        self.cache.insert(self.owner, tokens, kept, keep);
    }

    /// Forgets all states that stand for the first tokens of `tokens`: they may be wrong.
    pub(crate) fn forget(&self, tokens: &[u32]) {
        self.cache.forget(Doubt::Along(self.owner, tokens.to_vec()));
    }

    /// Compares what a kept state has given for a prompt with the logits after reading all of it.
    pub(crate) fn compare(&self, check: &Check, logits: &[f32]) {
        let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
        let is_right = check.logits.as_ref().is_some_and(|kept| bits(kept) == bits(logits));
        self.cache.verified(self.owner, check.known, is_right);
    }
}

impl Check {
    pub(crate) fn new(kept: Kept, prompt: &[u32]) -> Self {
        let known = kept.len();
        Self { sequence: kept.sequence, known, logits: kept.logits.filter(|_| known == prompt.len()) }
    }

    /// Whether more of the prompt is to be read.
    pub(crate) fn is_open(&self) -> bool {
        self.logits.is_none()
    }
}
