//! What one sequence remembers.

use std::fmt;

use pleach_kernels::{State, StatePart};

/// The memory of one sequence: it stands for exactly `len` committed tokens.
///
/// Only [`Runner::commit`](crate::Runner::commit) changes it.
pub struct Sequence {
    pub(crate) state: Box<dyn State>,
}

impl Sequence {
    /// Committed tokens.
    pub fn len(&self) -> usize {
        self.state.len()
    }

    /// Whether no token is committed.
    pub fn is_empty(&self) -> bool {
        self.state.is_empty()
    }

    /// Bytes held on the device.
    pub fn size_bytes(&self) -> usize {
        self.state.size_bytes()
    }

    /// The pieces of its memory, some of which copies share.
    pub fn parts(&self) -> Vec<StatePart> {
        self.state.parts()
    }

    /// A copy that later commits do not change; unchanged cache blocks are shared.
    pub fn snapshot(&self) -> Self {
        Self { state: self.state.snapshot() }
    }

    /// The device's view, for tests and tools.
    pub fn state(&self) -> &dyn State {
        &*self.state
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sequence({} tokens, {} bytes)", self.len(), self.size_bytes())
    }
}

/// The memory of a DFlash drafter for one sequence: keys and values of committed tokens only.
#[derive(Debug)]
pub struct DFlashSequence(pub(crate) Sequence);

impl DFlashSequence {
    /// Committed tokens.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no token is committed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The pieces of its memory, some of which copies share.
    pub fn parts(&self) -> Vec<StatePart> {
        self.0.parts()
    }

    /// A copy that later commits do not change.
    pub fn snapshot(&self) -> Self {
        Self(self.0.snapshot())
    }
}

/// The memory of the multi-token-prediction head for one sequence.
///
/// It is a type of its own, so that a head cannot be run over the trunk's state.
#[derive(Debug)]
pub struct MtpSequence(pub(crate) Sequence);

impl MtpSequence {
    /// Committed rows.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no row is committed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The pieces of its memory, some of which copies share.
    pub fn parts(&self) -> Vec<StatePart> {
        self.0.parts()
    }

    /// A copy that later commits do not change.
    pub fn snapshot(&self) -> Self {
        Self(self.0.snapshot())
    }
}
