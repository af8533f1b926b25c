//! Stopping a request from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Stops the requests that carry it. Clones share one switch, and any thread may use it.
///
/// A running request ends within one pass: after the next token, or after the next chunk of its prompt. It then gives
/// [`FinishReason::Cancelled`](crate::FinishReason::Cancelled) with what it has so far, and its session stays usable.
#[derive(Debug, Clone, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// A token that was not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stops every request that carries this token or a clone of it, now and later.
    pub fn cancel(&self) {
        // Nothing else is published through the flag, so no ordering with other memory is needed.
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl PartialEq for CancelToken {
    /// Whether both are one switch.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_one_switch() {
        let token = CancelToken::new();
        let clone = token.clone();
        std::thread::spawn(move || clone.cancel()).join().unwrap();
        assert!(token.is_cancelled());
        assert!(!CancelToken::new().is_cancelled());
    }
}
