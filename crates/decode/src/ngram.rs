//! Where the end of a text occurred before.

use std::collections::HashMap;

use crate::TokenId;

/// Tokens of a short gram: the least that counts as a match.
const SHORT: usize = 2;

/// Tokens of a long gram, so that a long match is found among many short ones.
const LONG: usize = 6;

/// Longest match that is told from longer ones.
pub(crate) const LONGEST: usize = 32;

/// Occurrences that are looked at, latest first, per length of gram.
const MOST: usize = 24;

/// An earlier occurrence of the end of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Match {
    /// Place of the token that followed then.
    pub(crate) next: usize,
    /// Tokens that agree, counted backwards: from 2 to [`LONGEST`].
    pub(crate) len: usize,
}

/// All occurrences of the grams of a growing text, in two hash chains as in LZ77.
#[derive(Debug, Clone, Default)]
pub(crate) struct NgramIndex {
    short: Chain<[TokenId; SHORT]>,
    long: Chain<[TokenId; LONG]>,
    len: usize,
}

/// For each gram the place after its last occurrence, and for each place the one before.
#[derive(Debug, Clone)]
struct Chain<G> {
    last: HashMap<G, u32>,
    /// One entry per token of the text; 0 ends a chain, since no gram ends there.
    before: Vec<u32>,
}

impl<G> Default for Chain<G> {
    fn default() -> Self {
        Self { last: HashMap::new(), before: Vec::new() }
    }
}

impl NgramIndex {
    /// Takes in what a text has gained. A text that became shorter is indexed anew.
    pub(crate) fn extend(&mut self, text: &[TokenId]) {
        if text.len() < self.len {
            *self = Self::default();
        }
        for end in self.len + 1..=text.len() {
            self.short.push(&text[..end]);
            self.long.push(&text[..end]);
        }
        self.len = text.len();
    }

    /// Earlier occurrences of the end of the text that was indexed last, each once.
    pub(crate) fn matches(&self, text: &[TokenId]) -> Vec<Match> {
        let mut found: Vec<Match> = Vec::new();
        let places = self.long.places().take(MOST).chain(self.short.places().take(MOST));
        for next in places {
            if found.iter().all(|earlier| earlier.next != next) {
                found.push(Match { next, len: agreement(text, next) });
            }
        }
        found
    }
}

impl<const N: usize> Chain<[TokenId; N]> {
    /// Takes in the gram at the end of `text`, whose other tokens were taken in before.
    fn push(&mut self, text: &[TokenId]) {
        let before = text.last_chunk().and_then(|gram| self.last.insert(*gram, text.len() as u32));
        self.before.push(before.unwrap_or(0));
    }

    /// Places after earlier occurrences of the gram at the end of the text, latest first.
    fn places(&self) -> impl Iterator<Item = usize> + '_ {
        let earlier = |place: u32| (place > 0).then_some(place);
        let before = move |place: u32| self.before.get(place as usize - 1).copied().and_then(earlier);
        let first = self.before.last().copied().and_then(earlier);
        std::iter::successors(first, move |&place| before(place)).map(|place| place as usize)
    }
}

/// Tokens before `next` that agree with the end of the text.
fn agreement(text: &[TokenId], next: usize) -> usize {
    let pairs = text[..next].iter().rev().zip(text.iter().rev());
    pairs.take(LONGEST).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(text: &[TokenId]) -> Vec<Match> {
        let mut index = NgramIndex::default();
        index.extend(text);
        index.matches(text)
    }

    #[test]
    fn the_latest_occurrence_comes_first_and_each_once() {
        assert_eq!(matches(&[7, 1, 2, 5, 1, 2, 6, 7, 1, 2]), [Match { next: 6, len: 2 }, Match { next: 3, len: 3 }]);
        assert_eq!(matches(&[1, 2, 3]), []);
        assert_eq!(matches(&[]), []);
        assert_eq!(matches(&[4, 4, 4]), [Match { next: 2, len: 2 }]);
    }

    #[test]
    fn a_long_match_is_found_behind_many_short_ones() {
        let mut text = vec![10, 11, 12, 13, 1, 2, 99];
        (0..100).for_each(|filler| text.extend([1, 2, 200 + filler]));
        text.extend([10, 11, 12, 13, 1, 2]);
        let found = matches(&text);
        assert!(found.contains(&Match { next: 6, len: 6 }), "{found:?}");
        assert_eq!(found.len(), 1 + MOST);
    }

    proptest! {
        /// Growing in steps of any size finds what comparing everything finds.
        #[test]
        fn same_matches_as_by_comparing_everything(
            text in prop::collection::vec(0u32..3, 0..MOST),
            steps in prop::collection::vec(1usize..5, 1..30),
        ) {
            let mut index = NgramIndex::default();
            let mut end = 0;
            for step in steps {
                end = (end + step).min(text.len());
                index.extend(&text[..end]);
                let mut found = index.matches(&text[..end]);
                found.sort_by_key(|found| found.next);
                let all = (1..end).map(|next| Match { next, len: agreement(&text[..end], next) });
                let expected: Vec<_> = all.filter(|found| found.len >= SHORT).collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}
