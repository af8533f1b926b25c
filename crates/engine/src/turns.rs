//! A lock that is given in the order in which it was asked for.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A value that several threads use in turn.
///
/// A plain mutex may be taken again and again by the thread that just released it, so that one session would write its
/// whole text while the others wait. Here a thread that comes back queues behind those that wait already.
#[derive(Debug)]
pub(crate) struct Turns<T> {
    queue: Mutex<Queue>,
    served: Condvar,
    value: Mutex<T>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Number of the next thread that asks.
    next: u64,
    /// Number of the thread whose turn it is.
    serving: u64,
}

/// The value, for as long as it is held.
pub(crate) struct Turn<'a, T> {
    turns: &'a Turns<T>,
    /// `None` only while it is being dropped.
    value: Option<MutexGuard<'a, T>>,
}

impl<T> Turns<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { queue: Mutex::default(), served: Condvar::new(), value: Mutex::new(value) }
    }

    /// Waits until every thread that asked before has had its turn.
    pub(crate) fn wait(&self) -> Turn<'_, T> {
        let mut queue = self.queue();
        let number = queue.next;
        queue.next += 1;
        let queue = self.served.wait_while(queue, |queue| queue.serving != number);
        drop(queue.unwrap_or_else(PoisonError::into_inner));
        // A panic in an earlier turn is no reason to refuse this one: a pass keeps nothing of the pass before it.
        Turn { turns: self, value: Some(self.value.lock().unwrap_or_else(PoisonError::into_inner)) }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Deref for Turn<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("a turn holds its value until it is dropped")
    }
}

impl<T> DerefMut for Turn<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("a turn holds its value until it is dropped")
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        self.turns.queue().serving += 1;
        self.turns.served.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn whoever_comes_back_queues_behind_those_who_wait() {
        let turns = Arc::new(Turns::new(Vec::new()));
        let held = turns.wait();
        let threads = ["first", "second"].map(|name| {
            let waiting = turns.queue().next;
            let other = Arc::clone(&turns);
            let thread = thread::spawn(move || other.wait().push(name));
            while turns.queue().next == waiting {
                thread::yield_now();
            }
            thread
        });
        drop(held);
        // With a plain mutex this thread would nearly always be back before either of them has woken up.
        assert_eq!(*turns.wait(), ["first", "second"]);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn a_panic_ends_one_turn_only() {
        let turns = Arc::new(Turns::new(1));
        let other = Arc::clone(&turns);
        let result = thread::spawn(move || {
            let _turn = other.wait();
            panic!("on purpose");
        });
        assert!(result.join().is_err());
        assert_eq!(*turns.wait(), 1);
    }
}
