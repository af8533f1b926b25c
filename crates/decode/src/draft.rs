//! Where guesses come from.

use crate::{History, Sampler, Step, Target, TreeBuilder};

/// Guesses how the text goes on. It decides how fast a text is written, never what is written.
///
/// A drafter may use its target, whose hidden states and device it shares; one that needs only the tokens implements
/// this for every `T`.
pub trait Drafter<T: Target + ?Sized> {
    /// Adds branches to a tree that other drafters may have added to before.
    ///
    /// Called once before every pass, also where there is no room for guesses, with a budget of 1. More than
    /// `context.budget` nodes are pruned to the likeliest.
    ///
    /// # Errors
    ///
    /// Whatever a pass of the drafter's own can meet; it ends the step.
    fn draft(&mut self, target: &mut T, context: DraftContext<'_>, tree: &mut TreeBuilder) -> Result<(), T::Error>;

    /// Learns what came of a step, after its rows were committed: on every step, drafted or not.
    ///
    /// # Errors
    ///
    /// Whatever a pass of the drafter's own can meet; the sequence is lost.
    fn observe(&mut self, _target: &mut T, _step: &Step) -> Result<(), T::Error> {
        Ok(())
    }
}

/// A drafter that may be missing.
impl<T: Target + ?Sized, D: Drafter<T>> Drafter<T> for Option<D> {
    fn draft(&mut self, target: &mut T, context: DraftContext<'_>, tree: &mut TreeBuilder) -> Result<(), T::Error> {
        self.as_mut().map_or(Ok(()), |drafter| drafter.draft(target, context, tree))
    }

    fn observe(&mut self, target: &mut T, step: &Step) -> Result<(), T::Error> {
        self.as_mut().map_or(Ok(()), |drafter| drafter.observe(target, step))
    }
}

/// A drafter that outlives its requests.
impl<T: Target + ?Sized, D: Drafter<T>> Drafter<T> for &mut D {
    fn draft(&mut self, target: &mut T, context: DraftContext<'_>, tree: &mut TreeBuilder) -> Result<(), T::Error> {
        (**self).draft(target, context, tree)
    }

    fn observe(&mut self, target: &mut T, step: &Step) -> Result<(), T::Error> {
        (**self).observe(target, step)
    }
}

/// What a drafter may know.
#[derive(Debug, Clone, Copy)]
pub struct DraftContext<'a> {
    /// Prompt and output; the last token is the tree's root. A clone can follow the penalties along a path.
    pub history: &'a History,
    /// Rows that the pass will have at most, the root included.
    pub budget: usize,
    /// What [`least_chance`](Self::least_chance) gives for 1 likelier row, 2, ...; empty where nothing is known.
    pub least_chances: &'a [f32],
    /// The request's parameters and, above temperature 0, the very noise that will decide, fixed in advance.
    pub sampler: &'a Sampler,
}

impl DraftContext<'_> {
    /// The chance to be visited below which a guess cannot pay for its row where `rows` rows, the root included, are likelier;
    /// 0 where that is not known. Once a guess falls short, no less likely one pays either.
    pub fn least_chance(&self, rows: usize) -> f32 {
        self.least_chances.get(rows.saturating_sub(1)).copied().unwrap_or(0.0)
    }

    /// Whether guesses have to pay for their rows, so that a drafter may leave out work that brings too little: not where the
    /// number of rows is fixed.
    pub fn must_pay(&self) -> bool {
        !self.least_chances.is_empty()
    }
}

/// Drafts nothing: every pass has one row, which is plain decoding.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NoDraft;

impl<T: Target + ?Sized> Drafter<T> for NoDraft {
    fn draft(&mut self, _target: &mut T, _context: DraftContext<'_>, _tree: &mut TreeBuilder) -> Result<(), T::Error> {
        Ok(())
    }
}
