//! Guesses from the text itself: what followed the last time that it read like this.

use crate::calibration::Share;
use crate::ngram::{LONGEST, Match, NgramIndex};
use crate::sampler::Foreseen;
use crate::{BestFirst, DraftContext, Drafter, Step, Target, TokenId, TreeBuilder};

/// Longest match of each class of matches, and the share of guesses after such a match that come true in texts of all
/// kinds, until this text has shown its own.
const CLASSES: [(usize, f32); 8] =
    [(2, 0.3), (3, 0.45), (4, 0.55), (6, 0.65), (9, 0.8), (14, 0.9), (22, 0.94), (usize::MAX, 0.97)];

/// The shares above count as much as this many observations.
const PRIOR: f32 = 3.0;

/// Continuations of one place that are guessed at most.
const MOST_CHILDREN: usize = 4;

/// Guesses less likely than this to be visited are left out.
const LEAST_CHANCE: f32 = 0.01;

/// Looks up how the text went on when it read before as it reads now: prompt and output, of this request alone.
///
/// Where earlier continuations differ, the tree branches; where the match is long, its chains are deep. A guess inside
/// a text that repeats itself may go on into the guess itself. Without a match a draft costs two looks into hash maps.
///
/// Idea: Saxena, "Prompt lookup decoding", 2023; Oliaro et al., "SuffixDecoding", arXiv:2411.04975.
#[derive(Debug, Clone, Default)]
pub struct Lookup {
    index: NgramIndex,
    /// How often the continuation was among those offered, per class of match.
    shares: [Share; CLASSES.len()],
    /// Places of the last draft; the first is the root.
    drafted: Vec<Place>,
}

/// A place in a draft at which continuations were offered.
#[derive(Debug, Clone)]
struct Place {
    class: usize,
    /// Tokens offered, each with its place if that was continued.
    offered: Vec<(TokenId, Option<usize>)>,
}

/// A node whose continuations may be added.
#[derive(Debug)]
struct Open {
    node: usize,
    /// Matches that agree with the path so far; their `len` counts the path.
    matches: Vec<Match>,
    /// Guessed tokens from the root down to the node, the root left out.
    path: Vec<TokenId>,
    /// Place that offers it, and its number there.
    parent: Option<(usize, usize)>,
}

impl Lookup {
    /// A drafter for one text.
    pub fn new() -> Self {
        Self::default()
    }

    /// Grows the tree from the likeliest open place on.
    fn grow(&mut self, context: &DraftContext<'_>, tree: &mut TreeBuilder) {
        let text = context.history.tokens();
        let matches = self.index.matches(text);
        // By the chance to be visited.
        let mut open = BestFirst::new();
        open.push(1.0, Open { node: TreeBuilder::ROOT, matches, path: Vec::new(), parent: None });
        let mut num_added = 1;
        while num_added < context.budget
            && let Some((reached, place)) = open.pop()
        {
            let children = self.offer(&place, context, text);
            for (number, (token, log_prob)) in children.into_iter().enumerate() {
                let chance = reached * log_prob.exp();
                if chance < LEAST_CHANCE {
                    continue;
                }
                let Some(node) = tree.add(place.node, token, log_prob) else { continue };
                num_added += 1;
                let parent = Some((self.drafted.len() - 1, number));
                open.push(chance, place.follow(node, token, text, parent));
            }
        }
    }

    /// Continuations of a place with the beliefs in them, noted among the drafted places.
    fn offer(&mut self, place: &Open, context: &DraftContext<'_>, text: &[TokenId]) -> Vec<(TokenId, f32)> {
        let Some(longest) = place.matches.iter().map(|found| found.len).max() else { return Vec::new() };
        let class = CLASSES.iter().position(|&(end, _)| longest <= end).unwrap_or(CLASSES.len() - 1);
        let mut votes: Vec<(TokenId, f32)> = Vec::new();
        for found in &place.matches {
            let Some(token) = place.token_at(found.next, text) else { continue };
            // Each token of agreement counts as much as all shorter matches together.
            let weight = (-((longest - found.len) as f32)).exp2();
            match votes.iter_mut().find(|(other, _)| *other == token) {
                Some((_, votes)) => *votes += weight,
                None => votes.push((token, weight)),
            }
        }
        votes.sort_by(|a, b| b.1.total_cmp(&a.1));
        let share = self.shares[class].rate(CLASSES[class].1, PRIOR) / votes.iter().map(|vote| vote.1).sum::<f32>();
        votes.truncate(MOST_CHILDREN);

        if let Some((parent, number)) = place.parent {
            self.drafted[parent].offered[number].1 = Some(self.drafted.len());
        }
        let position = (text.len() + place.path.len()) as u64;
        let beliefs = votes.into_iter().map(|(token, votes)| (token, votes * share));
        let children = Foreseen::of(context.sampler, position, beliefs).into_log_probs();
        // In the order of the children, which noise may have changed: places name each other by it.
        self.drafted.push(Place { class, offered: children.iter().map(|&(token, _)| (token, None)).collect() });
        children
    }
}

impl Open {
    /// The token at a place of the text, which goes on with the guesses of the path.
    fn token_at(&self, place: usize, text: &[TokenId]) -> Option<TokenId> {
        text.get(place).or_else(|| self.path.get(place - text.len())).copied()
    }

    /// The place after one more guess.
    fn follow(&self, node: usize, token: TokenId, text: &[TokenId], parent: Option<(usize, usize)>) -> Self {
        let agree = self.matches.iter().filter(|found| self.token_at(found.next, text) == Some(token));
        let matches = agree.map(|found| Match { next: found.next + 1, len: (found.len + 1).min(LONGEST) }).collect();
        let path = self.path.iter().copied().chain([token]).collect();
        Self { node, matches, path, parent }
    }
}

impl<T: Target + ?Sized> Drafter<T> for Lookup {
    fn draft(&mut self, _target: &mut T, context: DraftContext<'_>, tree: &mut TreeBuilder) -> Result<(), T::Error> {
        self.index.extend(context.history.tokens());
        self.drafted.clear();
        self.grow(&context, tree);
        Ok(())
    }

    /// What was offered is judged by the text, whether it was verified or not.
    fn observe(&mut self, _target: &mut T, step: &Step) -> Result<(), T::Error> {
        let mut place = Some(0);
        for token in &step.tokens {
            let Some(Place { class, offered }) = place.and_then(|place: usize| self.drafted.get(place)) else { break };
            let hit = offered.iter().find(|(guess, _)| guess == token);
            self.shares[*class].record(hit.is_some());
            place = hit.and_then(|(_, next)| *next);
        }
        self.drafted.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{History, NoDraft, Sampler, SamplingParams, TreeRows};

    struct NoTarget;

    impl Target for NoTarget {
        type Error = std::convert::Infallible;
        fn verify(&mut self, _: TreeRows<'_>) -> Result<(), Self::Error> {
            Ok(())
        }
        fn logits(&self, _: usize) -> &[f32] {
            &[]
        }
        fn commit(&mut self, _: &[usize]) -> Result<(), Self::Error> {
            Ok(())
        }
    }

    fn draft_with(lookup: &mut Lookup, text: &[TokenId], budget: usize, sampling: SamplingParams) -> TreeBuilder {
        let (history, sampler) = (History::new(text), Sampler::new(sampling, 1000).unwrap());
        let mut tree = TreeBuilder::new(text[text.len() - 1], text.len() - 1, 64, 1000);
        let context = DraftContext { history: &history, budget, least_chances: &[], sampler: &sampler };
        lookup.draft(&mut NoTarget, context, &mut tree).unwrap();
        tree
    }

    fn draft(text: &[TokenId], budget: usize) -> TreeBuilder {
        draft_with(&mut Lookup::new(), text, budget, SamplingParams::default())
    }

    fn observe(lookup: &mut Lookup, tokens: &[TokenId]) {
        let step = Step { tokens: tokens.to_vec(), rows: Vec::new(), stop: None };
        lookup.observe(&mut NoTarget, &step).unwrap();
    }

    fn range(tokens: std::ops::Range<TokenId>) -> Vec<TokenId> {
        tokens.collect()
    }

    #[test]
    fn a_copy_goes_on_as_before() {
        let text = [range(10..60), range(10..20)].concat();
        let tree = draft(&text, 17);
        assert_eq!(tree.build(64).rows().tokens, range(19..36));
        assert!(tree.chances()[0] > 0.8 && tree.chances()[15] > 0.3, "{:?}", tree.chances());
    }

    #[test]
    fn a_text_without_a_match_is_not_guessed() {
        assert_eq!(draft(&range(0..100), 64).num_nodes(), 1);
        assert_eq!(draft(&[5], 64).num_nodes(), 1);
        let mut tree = TreeBuilder::new(0, 0, 4, 10);
        let (history, sampler) = (History::new(&[1, 1]), Sampler::new(SamplingParams::default(), 10).unwrap());
        let context = DraftContext { history: &history, budget: 4, least_chances: &[], sampler: &sampler };
        NoDraft.draft(&mut NoTarget, context, &mut tree).unwrap();
        assert_eq!(tree.num_nodes(), 1);
    }

    #[test]
    fn a_repeating_text_is_guessed_past_its_end() {
        let tree = draft(&[1, 2, 3, 1, 2, 3, 1, 2], 10).build(64);
        assert_eq!(tree.rows().tokens, [2, 3, 1, 2, 3, 1, 2, 3, 1, 2]);
    }

    #[test]
    fn differing_continuations_branch_and_the_longer_match_is_likelier() {
        let text = [vec![1, 2, 3, 4], vec![9, 3, 5], vec![1, 2, 3]].concat();
        let text = [text, vec![7, 2, 3, 6, 1, 2, 3]].concat();
        let tree = draft(&text, 64);
        let beliefs: Vec<_> = (1..tree.num_nodes()).filter_map(|node| tree.guess(node)).collect();
        let first: Vec<_> = beliefs.iter().filter(|guess| guess.depth == 1).map(|guess| guess.token).collect();
        assert!(first.contains(&4) && first.contains(&6), "{first:?}");
        let belief = |token| beliefs.iter().find(|guess| guess.token == token && guess.depth == 1).unwrap().log_prob;
        assert!(belief(4) > belief(6), "three tokens agree with 4, two with 6");
    }

    #[test]
    fn a_budget_is_kept_to() {
        let text = [range(10..60), range(10..20)].concat();
        for budget in 1..12 {
            assert_eq!(draft(&text, budget).num_nodes(), budget);
        }
    }

    /// A text that only seems to repeat itself is soon believed less.
    #[test]
    fn beliefs_follow_what_comes_true() {
        let text = [range(10..60), range(10..20)].concat();
        let mut lookup = Lookup::new();
        let before = draft_with(&mut lookup, &text, 8, SamplingParams::default()).chances()[0];
        observe(&mut lookup, &[999]);
        for _ in 0..8 {
            draft_with(&mut lookup, &text, 8, SamplingParams::default());
            observe(&mut lookup, &[999]);
        }
        let after = draft_with(&mut lookup, &text, 8, SamplingParams::default()).chances()[0];
        assert!(after < 0.4 * before, "{before}, then {after}");
        for _ in 0..60 {
            draft_with(&mut lookup, &text, 8, SamplingParams::default());
            observe(&mut lookup, &range(20..27));
        }
        assert!(draft_with(&mut lookup, &text, 8, SamplingParams::default()).chances()[0] > 0.8);
    }

    /// Noise changes the order of the branches; each still leads to what followed it.
    #[test]
    fn places_follow_their_own_tokens_above_temperature_zero() {
        let text = [1, 2, 3, 5, 1, 2, 4, 6, 1, 2, 3, 5, 1, 2, 4, 6, 1, 2];
        let mut followed = [0; 2];
        for seed in 0..20 {
            let sampling = SamplingParams { temperature: 1.0, seed, ..SamplingParams::default() };
            let mut lookup = Lookup::new();
            draft_with(&mut lookup, &text, 64, sampling);
            for (index, (token, follower)) in [(3, 5), (4, 6)].into_iter().enumerate() {
                let (_, next) = lookup.drafted[0].offered.iter().find(|(offered, _)| *offered == token).unwrap();
                // The less likely one may not be worth going on from.
                let Some(next) = *next else { continue };
                assert_eq!(lookup.drafted[next].offered[0].0, follower, "after {token}, seed {seed}");
                followed[index] += 1;
            }
        }
        assert!(followed.iter().all(|&times| times > 2), "{followed:?}");
    }

    /// Above temperature 0 the noise that will decide is known, so of two equal continuations it picks the likelier.
    #[test]
    fn the_noise_of_sampling_orders_the_branches() {
        let text = [1, 2, 3, 8, 1, 2, 4, 8, 1, 2, 3, 8, 1, 2, 4, 9, 1, 2];
        for seed in 0..20 {
            let sampling = SamplingParams { temperature: 1.0, seed, ..SamplingParams::default() };
            let sampler = Sampler::new(sampling.clone(), 1000).unwrap();
            let tree = draft_with(&mut Lookup::new(), &text, 64, sampling);
            let belief = |token| tree.guess(tree.child(TreeBuilder::ROOT, token).unwrap()).unwrap().log_prob;
            let noise = |token| sampler.noise().unwrap().gumbel(text.len() as u64, token);
            if (noise(3) - noise(4)).abs() > 1.0 {
                assert_eq!(belief(3) > belief(4), noise(3) > noise(4), "seed {seed}");
            }
        }
    }
}
