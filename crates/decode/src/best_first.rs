//! A queue whose highest entry comes first, for trees that are grown from their likeliest place on.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Entries with scores: the highest score comes out first, of equals the entry that came first.
#[derive(Debug)]
pub struct BestFirst<T> {
    heap: BinaryHeap<Entry<T>>,
    num_pushed: u64,
}

#[derive(Debug)]
struct Entry<T> {
    score: f32,
    number: u64,
    item: T,
}

impl<T> BestFirst<T> {
    /// An empty queue.
    pub fn new() -> Self {
        Self { heap: BinaryHeap::new(), num_pushed: 0 }
    }

    /// Adds an entry; NaN is above all numbers if its sign is positive, and below them otherwise.
    pub fn push(&mut self, score: f32, item: T) {
        self.heap.push(Entry { score, number: self.num_pushed, item });
        self.num_pushed += 1;
    }

    /// Takes the first entry out, with its score.
    pub fn pop(&mut self) -> Option<(f32, T)> {
        self.heap.pop().map(|entry| (entry.score, entry.item))
    }
}

impl<T> Default for BestFirst<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.number.cmp(&self.number))
    }
}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for Entry<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_comes_first_and_of_equals_the_earliest() {
        let mut queue = BestFirst::new();
        for (score, item) in [(0.5, 'a'), (2.0, 'b'), (0.5, 'c'), (f32::NEG_INFINITY, 'd'), (2.0, 'e')] {
            queue.push(score, item);
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|(_, item)| item).collect();
        assert_eq!(order, ['b', 'e', 'a', 'c', 'd']);
    }
}
