//! How far a drafter's beliefs can be believed, learned from what came true.

use crate::{Guess, TokenId, TreeBuilder};

/// Who made a guess: each is judged on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Quick,
    Costly,
}

/// Upper ends of the intervals of belief that are told apart.
const BELIEFS: [f32; 9] = [0.02, 0.05, 0.12, 0.25, 0.45, 0.65, 0.82, 0.94, 1.0];

/// Greatest depths of the groups that are told apart; the last group has all that are deeper.
const DEPTHS: [usize; 4] = [1, 2, 4, 8];

/// Bins of one source.
const SOURCE_BINS: usize = BELIEFS.len() * (DEPTHS.len() + 1);

/// A drafter's own belief counts as much as this many observations: with fewer, luck chooses the rows (`docs/benchmarks.md`).
const PRIOR: f32 = 6.0;

/// What an observation still counts after one more: some 64 are remembered, since texts change their subject.
const FADE: f32 = 1.0 - 1.0 / 64.0;

/// Shares of guesses that came true, by source, by depth and by what was believed of them.
///
/// ```text
/// calibrated = (hits + prior · belief · honesty) / (trials + prior)
/// honesty    = hits of the source / beliefs of the source, at most 1
/// ```
///
/// So a source that boasts at depth 1 is not believed at depth 2 either, where it was hardly ever tried.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Calibration {
    bins: Vec<Share>,
    honesty: [Honesty; 2],
}

/// What a source believed of its guesses, and what came true.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Honesty {
    hits: f32,
    beliefs: f32,
}

/// Where a guess is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bin(usize);

/// How often something came true.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Share {
    hits: f32,
    trials: f32,
}

/// The nodes of one step's tree after the root, with the bins that guesses are counted in; tokens that were forced are in
/// none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Guesses(Vec<(Guess, Option<Bin>)>);

impl Honesty {
    fn ratio(self) -> f32 {
        ((self.hits + 1.0) / (self.beliefs + 1.0)).min(1.0)
    }

    fn record(&mut self, belief: f32, hit: bool) {
        self.hits = self.hits * FADE + f32::from(u8::from(hit));
        self.beliefs = self.beliefs * FADE + belief;
    }
}

impl Share {
    /// The share, drawn towards `belief` by `prior` observations.
    pub(crate) fn rate(self, belief: f32, prior: f32) -> f32 {
        (self.hits + prior * belief) / (self.trials + prior)
    }

    pub(crate) fn record(&mut self, hit: bool) {
        self.hits = self.hits * FADE + f32::from(u8::from(hit));
        self.trials = self.trials * FADE + 1.0;
    }
}

impl Calibration {
    pub(crate) fn new() -> Self {
        Self { bins: vec![Share::default(); 2 * SOURCE_BINS], honesty: Default::default() }
    }

    /// Puts calibrated beliefs in place of a drafter's own for the nodes that came after `guesses`, and notes them there.
    pub(crate) fn apply(&self, tree: &mut TreeBuilder, guesses: &mut Guesses, source: Source) {
        let honesty = self.honesty[source as usize].ratio();
        for node in guesses.0.len() + 1..tree.num_nodes() {
            let Some(guess) = tree.guess(node) else { continue };
            let belief = guess.log_prob.exp();
            let bin = bin(belief, guess.depth, source);
            guesses.0.push((guess, Some(bin)));
            tree.believe(node, self.bins[bin.0].rate(belief * honesty, PRIOR).ln());
        }
    }

    /// Learns from the tokens that the text went on with: every guess that stood beside one of them is right or wrong.
    ///
    /// Guesses that were not verified are judged as well, so a drafter that was found useless can prove its worth at no
    /// cost.
    pub(crate) fn record(&mut self, guesses: &Guesses, tokens: &[TokenId]) {
        let mut visited = TreeBuilder::ROOT;
        for &token in tokens {
            let mut next = None;
            for (index, (guess, bin)) in guesses.0.iter().enumerate().filter(|(_, (guess, _))| guess.parent == visited)
            {
                let hit = guess.token == token;
                if let Some(Bin(bin)) = *bin {
                    self.bins[bin].record(hit);
                    self.honesty[bin / SOURCE_BINS].record(guess.log_prob.exp(), hit);
                }
                next = if hit { Some(index + 1) } else { next };
            }
            let Some(next) = next else { break };
            visited = next;
        }
    }
}

impl Guesses {
    /// Starts a step whose tree has some nodes already: they are certain, and nobody's guesses.
    pub(crate) fn begin(&mut self, tree: &TreeBuilder) {
        self.0.clear();
        self.0.extend((1..tree.num_nodes()).filter_map(|node| Some((tree.guess(node)?, None))));
    }
}

fn bin(belief: f32, depth: usize, source: Source) -> Bin {
    let belief = BELIEFS.iter().position(|&end| belief <= end).unwrap_or(BELIEFS.len() - 1);
    let depth = DEPTHS.iter().position(|&end| depth <= end).unwrap_or(DEPTHS.len());
    Bin(source as usize * SOURCE_BINS + depth * BELIEFS.len() + belief)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One guess of token 1 with a belief, judged by what came.
    fn round(calibration: &mut Calibration, belief: f32, came: TokenId) -> f32 {
        let mut tree = TreeBuilder::new(0, 0, 8, 50);
        let node = tree.add(TreeBuilder::ROOT, 1, belief.ln()).unwrap();
        let mut guesses = Guesses::default();
        calibration.apply(&mut tree, &mut guesses, Source::Quick);
        calibration.record(&guesses, &[came]);
        tree.guess(node).unwrap().log_prob.exp()
    }

    #[test]
    fn a_drafter_is_believed_until_it_is_known() {
        assert_eq!(round(&mut Calibration::new(), 0.5, 1), 0.5);
    }

    #[test]
    fn boasting_is_found_out_within_a_few_steps() {
        let mut calibration = Calibration::new();
        (0..20).for_each(|_| assert!(round(&mut calibration, 1.0, 2) > 0.0));
        assert!(round(&mut calibration, 1.0, 2) < 0.12);
    }

    #[test]
    fn shares_follow_what_comes_true() {
        let mut calibration = Calibration::new();
        (0..200).for_each(|step| assert!(round(&mut calibration, 0.3, 1 + u32::from(step % 4 == 0)) > 0.0));
        let calibrated = round(&mut calibration, 0.3, 1);
        assert!((calibrated - 0.75).abs() < 0.05, "{calibrated}");
        let modest = round(&mut calibration, 0.9, 1);
        assert!((modest - 0.9).abs() < 1e-6, "what is too modest elsewhere is not raised here: {modest}");
    }

    /// What a constraint forces is certain, and no drafter's merit.
    #[test]
    fn forced_tokens_are_believed_and_not_judged() {
        let mut tree = TreeBuilder::new(0, 0, 8, 50);
        let forced = tree.add(TreeBuilder::ROOT, 1, 0.0).unwrap();
        let (mut calibration, mut guesses) = (Calibration::new(), Guesses::default());
        (0..20).for_each(|_| assert!(round(&mut calibration, 1.0, 2) > 0.0));
        let before = calibration.clone();
        guesses.begin(&tree);
        let guess = tree.add(forced, 2, 0.5f32.ln()).unwrap();
        calibration.apply(&mut tree, &mut guesses, Source::Quick);
        assert_eq!(tree.guess(forced).unwrap().log_prob, 0.0);
        assert!(tree.guess(guess).unwrap().log_prob < 0.5f32.ln(), "a boaster is not believed below it either");
        calibration.record(&guesses, &[1, 2]);
        let (first, second) = (bin(1.0, 1, Source::Quick).0, bin(0.5, 2, Source::Quick).0);
        assert_eq!(calibration.bins[first], before.bins[first]);
        assert_ne!(calibration.bins[second], before.bins[second]);
    }

    #[test]
    fn only_guesses_beside_the_text_are_judged() {
        let mut tree = TreeBuilder::new(0, 0, 8, 50);
        let a = tree.add(TreeBuilder::ROOT, 1, 0.5f32.ln()).unwrap();
        tree.add(a, 2, 0.9f32.ln()).unwrap();
        let wrong = tree.add(TreeBuilder::ROOT, 3, 0.3f32.ln()).unwrap();
        tree.add(wrong, 4, 0.2f32.ln()).unwrap();
        let (mut calibration, mut guesses) = (Calibration::new(), Guesses::default());
        calibration.apply(&mut tree, &mut guesses, Source::Quick);
        calibration.record(&guesses, &[1, 2, 7]);
        let trials = |belief, depth| calibration.bins[bin(belief, depth, Source::Quick).0];
        assert_eq!(trials(0.5, 1), Share { hits: 1.0, trials: 1.0 });
        assert_eq!(trials(0.9, 2), Share { hits: 1.0, trials: 1.0 });
        assert_eq!(trials(0.3, 1), Share { hits: 0.0, trials: 1.0 });
        assert_eq!(trials(0.2, 2), Share::default());
    }
}
