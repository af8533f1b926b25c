//! Work that waits, and whose turn it is.

use std::collections::{HashMap, VecDeque};

use pleach_engine::CacheOwner;

use super::Work;

/// Work in the order in which it came. Whoever has least running is served first, so that a client with much to do delays
/// itself more than others; and while others may come, one client cannot take every place.
pub(super) struct Line {
    waiting: VecDeque<Work>,
    most: usize,
    /// Of one client.
    most_of_one: usize,
}

impl Line {
    /// A line with `most` places for `num_keys` clients; without keys all are one.
    pub(super) fn new(most: usize, num_keys: usize) -> Self {
        // One place is left for each of the others.
        let most_of_one = most.saturating_sub(num_keys.saturating_sub(1)).max(1).min(most);
        Self { waiting: VecDeque::new(), most, most_of_one }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Puts work at the end; `false` if there is no place. The next `free` in line will not wait.
    pub(super) fn push(&mut self, work: Work, free: usize) -> bool {
        let has_place = self.has_place(work.owner, free);
        if has_place {
            self.waiting.push_back(work);
        }
        has_place
    }

    /// Whether there is a place for work of this owner.
    pub(super) fn has_place(&mut self, owner: CacheOwner, free: usize) -> bool {
        self.drop_cancelled();
        let of_one = self.waiting.iter().filter(|other| other.owner == owner).count();
        self.len() < self.most + free && of_one < self.most_of_one + free
    }

    /// Takes all out.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Work> {
        self.waiting.drain(..)
    }

    /// Lets those go whose clients have gone.
    pub(super) fn drop_cancelled(&mut self) {
        self.waiting.retain(|work| !work.is_cancelled());
    }

    /// The next work, given the texts that each client has running.
    pub(super) fn pop(&mut self, running: &HashMap<CacheOwner, usize>) -> Option<Work> {
        let of = |work: &Work| running.get(&work.owner).copied().unwrap_or(0);
        // The first of several that have equally few.
        let (next, _) = self.waiting.iter().enumerate().min_by_key(|(_, work)| of(work))?;
        self.waiting.remove(next)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use pleach_engine::{CancelToken, EncodedPrompt, Settings};
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::super::{Run, Update};
    use super::*;

    fn owner(name: &str) -> CacheOwner {
        CacheOwner::of(name)
    }

    fn work(name: &str) -> (Work, UnboundedReceiver<Update>) {
        let prompt =
            EncodedPrompt { tokens: vec![1], opens_reasoning: false, notes: Vec::new(), turn_ends: Vec::new() };
        let run = Run { prompt: Arc::new(prompt), seed: None, cancel: CancelToken::new() };
        let (updates, answer) = unbounded_channel();
        let (settings, submitted) = (Settings::default(), Instant::now());
        let work = Work { runs: vec![run], settings, demands: None, owner: owner(name), updates, submitted };
        (work, answer)
    }

    #[test]
    fn whoever_has_least_running_is_next_and_equals_keep_their_order() {
        let mut line = Line::new(9, 3);
        let mut answers = Vec::new();
        for name in ["a", "a", "b", "a", "c"] {
            let (work, answer) = work(name);
            assert!(line.push(work, 0));
            answers.push(answer);
        }
        let mut running = HashMap::from([(owner("a"), 2), (owner("c"), 1)]);
        let mut order = Vec::new();
        while let Some(work) = line.pop(&running) {
            let name = ["a", "b", "c"].into_iter().find(|name| work.owner == owner(name)).unwrap();
            *running.entry(work.owner).or_default() += 1;
            order.push(name);
        }
        assert_eq!(order, ["b", "c", "a", "a", "a"]);
    }

    #[test]
    fn one_client_cannot_take_all_places() {
        let mut line = Line::new(4, 3);
        let mut answers = Vec::new();
        let mut push = |line: &mut Line, name, free| {
            let (work, answer) = work(name);
            answers.push(answer);
            line.push(work, free)
        };
        assert_eq!(["a", "a", "a"].map(|name| push(&mut line, name, 0)), [true, true, false]);
        assert_eq!(["b", "c", "b"].map(|name| push(&mut line, name, 0)), [true, true, false]);
        assert!(push(&mut line, "a", 1), "what runs at once takes no place");
    }

    #[test]
    fn those_who_left_make_room() {
        let mut line = Line::new(1, 0);
        let (first, answer) = work("a");
        assert!(line.push(first, 0));
        drop(answer);
        let (second, _answer) = work("a");
        assert!(line.push(second, 0));
        assert_eq!(line.len(), 1);
    }
}
