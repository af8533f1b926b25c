//! The tokens so far and how often each occurs, kept right along every path of a tree.

use std::collections::HashMap;

use crate::TokenId;

/// The tokens of a sequence, prompt and output, with the counts that penalties need.
///
/// `push` and `undo` are exact inverses, so that a walk over a tree can count each path and come back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    tokens: Vec<TokenId>,
    prompt_len: usize,
    /// Only this many last tokens are counted.
    window: usize,
    counts: HashMap<TokenId, Count>,
}

/// Occurrences of one token inside the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// In prompt and output; at least 1.
    pub total: u32,
    /// In the output alone.
    pub generated: u32,
}

impl History {
    /// A history that starts with a prompt and counts all of it.
    pub fn new(prompt: &[TokenId]) -> Self {
        Self::with_window(prompt, usize::MAX)
    }

    /// A history that counts the last `window` tokens only; all of them are still remembered.
    pub fn with_window(prompt: &[TokenId], window: usize) -> Self {
        let mut counts = HashMap::<TokenId, Count>::new();
        for &token in &prompt[prompt.len().saturating_sub(window)..] {
            counts.entry(token).or_default().total += 1;
        }
        Self { tokens: prompt.to_vec(), prompt_len: prompt.len(), window, counts }
    }

    /// Appends a generated token.
    pub fn push(&mut self, token: TokenId) {
        self.tokens.push(token);
        self.count(self.tokens.len() - 1);
        if let Some(left) = self.first_left() {
            self.discount(left);
        }
    }

    /// Takes back the last generated token and returns it; `None` if only the prompt is left.
    pub fn undo(&mut self) -> Option<TokenId> {
        if self.tokens.len() == self.prompt_len {
            return None;
        }
        if let Some(left) = self.first_left() {
            self.count(left);
        }
        self.discount(self.tokens.len() - 1);
        self.tokens.pop()
    }

    /// All tokens, prompt first.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// The generated tokens.
    pub fn generated(&self) -> &[TokenId] {
        &self.tokens[self.prompt_len..]
    }

    /// Number of tokens of the prompt.
    pub fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    /// Each distinct token inside the window with its occurrences, in no order.
    pub fn counts(&self) -> impl Iterator<Item = (TokenId, Count)> + '_ {
        self.counts.iter().map(|(&token, &count)| (token, count))
    }

    /// Occurrences of a token inside the window; `None` if it does not occur.
    pub fn count_of(&self, token: TokenId) -> Option<Count> {
        self.counts.get(&token).copied()
    }

    /// Place of the token that the last push moved out of the window.
    fn first_left(&self) -> Option<usize> {
        self.tokens.len().checked_sub(self.window)?.checked_sub(1)
    }

    fn count(&mut self, place: usize) {
        let count = self.counts.entry(self.tokens[place]).or_default();
        count.total += 1;
        count.generated += u32::from(place >= self.prompt_len);
    }

    fn discount(&mut self, place: usize) {
        let token = self.tokens[place];
        let Some(count) = self.counts.get_mut(&token) else { return };
        count.total -= 1;
        count.generated -= u32::from(place >= self.prompt_len);
        if count.total == 0 {
            self.counts.remove(&token);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sorted(history: &History) -> Vec<(TokenId, u32, u32)> {
        let mut counts: Vec<_> = history.counts().map(|(token, c)| (token, c.total, c.generated)).collect();
        counts.sort_unstable();
        counts
    }

    /// The counts by their definition.
    fn counted(prompt: &[TokenId], output: &[TokenId], window: usize) -> Vec<(TokenId, u32, u32)> {
        let all: Vec<_> = prompt.iter().map(|&t| (t, 0)).chain(output.iter().map(|&t| (t, 1))).collect();
        let mut counts = std::collections::BTreeMap::<TokenId, (u32, u32)>::new();
        for &(token, generated) in &all[all.len().saturating_sub(window)..] {
            let count = counts.entry(token).or_default();
            *count = (count.0 + 1, count.1 + generated);
        }
        counts.into_iter().map(|(token, (total, generated))| (token, total, generated)).collect()
    }

    #[test]
    fn tells_prompt_from_output() {
        let mut history = History::new(&[1, 2, 1]);
        history.push(1);
        assert_eq!(sorted(&history), [(1, 3, 1), (2, 1, 0)]);
        assert_eq!(history.generated(), [1]);
        assert_eq!(history.undo(), Some(1));
        assert_eq!(history.undo(), None);
        assert_eq!(history, History::new(&[1, 2, 1]));
    }

    #[test]
    fn a_window_forgets_the_oldest() {
        let mut history = History::with_window(&[1, 2], 2);
        history.push(3);
        assert_eq!(sorted(&history), [(2, 1, 0), (3, 1, 1)]);
        history.push(3);
        assert_eq!(sorted(&history), [(3, 2, 2)]);
        assert_eq!(history.tokens(), [1, 2, 3, 3]);
    }

    proptest! {
        /// Pushes and undos in any order leave the counts that the remaining tokens have by definition.
        #[test]
        fn undo_is_the_inverse_of_push(
            prompt in prop::collection::vec(0u32..6, 0..12),
            steps in prop::collection::vec(prop::option::weighted(0.6, 0u32..6), 0..80),
            window in prop_oneof![1usize..10, Just(usize::MAX)],
        ) {
            let mut history = History::with_window(&prompt, window);
            let mut output = Vec::new();
            for step in steps {
                match step {
                    Some(token) => { history.push(token); output.push(token); }
                    None => prop_assert_eq!(history.undo(), output.pop()),
                }
                prop_assert_eq!(sorted(&history), counted(&prompt, &output, window));
                prop_assert_eq!(history.generated(), &output[..]);
            }
        }
    }
}
