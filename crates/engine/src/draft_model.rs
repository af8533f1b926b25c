//! A small model that drafts for a large one.

use std::path::Path;
use std::sync::Arc;

use pleach_checkpoint::Checkpoint;
use pleach_decode::{DraftContext, TokenId, TreeBuilder};
use pleach_kernels::{Rows, SequenceRows, StatePart};
use pleach_model::{Model, ModelError, Runner, Sequence};
use pleach_text::Tokenizer;

use crate::chain::{self, Chain};
use crate::{EngineError, EngineOptions, vocabulary};

/// Tokens that the draft model reads in one pass.
const CHUNK: usize = 256;

/// Drafts a chain with siblings by a model of its own, which reads the text lazily: what was not drafted for is read when
/// the next draft needs it.
#[derive(Debug, Default)]
pub(crate) struct ModelDraft {
    /// `None` before the first draft.
    sequence: Option<Sequence>,
}

/// The draft model at the end of its guesses, which it keeps in a copy of its state.
struct Guessing<'a> {
    runner: &'a mut Runner,
    guesses: Sequence,
}

impl ModelDraft {
    /// A copy that later drafts do not change.
    pub(crate) fn snapshot(&self) -> Self {
        Self { sequence: self.sequence.as_ref().map(Sequence::snapshot) }
    }

    /// The pieces of its memory, some of which copies share.
    pub(crate) fn parts(&self) -> Vec<StatePart> {
        self.sequence.as_ref().map(Sequence::parts).unwrap_or_default()
    }

    /// Goes on with the first `len` tokens of what was read, or forgets everything if it has read more.
    pub(crate) fn resume(&mut self, len: usize) {
        if self.sequence.as_ref().is_some_and(|sequence| sequence.len() > len) {
            self.sequence = None;
        }
    }

    /// Grows the tree after the text.
    pub(crate) fn draft(
        &mut self,
        runner: &mut Runner,
        context: &DraftContext<'_>,
        tree: &mut TreeBuilder,
    ) -> Result<(), ModelError> {
        let sequence = match &mut self.sequence {
            Some(sequence) => sequence,
            none => none.insert(runner.model().new_sequence()?),
        };
        let text = context.history.tokens();
        if text.len() > runner.model().config().max_position_embeddings || text.len() <= sequence.len() {
            return Ok(());
        }
        read(runner, sequence, text)?;
        let guesses = sequence.snapshot();
        chain::draft(&mut Guessing { runner, guesses }, context, tree)
    }
}

/// Reads the rest of the text. The last logits are then those for the token after it.
fn read(runner: &mut Runner, sequence: &mut Sequence, text: &[TokenId]) -> Result<(), ModelError> {
    while sequence.len() < text.len() {
        let start = sequence.len();
        let chunk = &text[start..text.len().min(start + CHUNK)];
        let last = [chunk.len() - 1];
        let outputs: &[usize] = if start + chunk.len() == text.len() { &last } else { &[] };
        let rows = Rows::new(&[SequenceRows::chain(start, chunk)])?;
        runner.forward(&rows, outputs, &[sequence])?;
        runner.commit(&(0..chunk.len()).collect::<Vec<_>>(), sequence)?;
    }
    Ok(())
}

impl Chain for Guessing<'_> {
    fn logits(&self) -> Result<&[f32], ModelError> {
        self.runner.logits()
    }

    fn follow(&mut self, token: TokenId) -> Result<(), ModelError> {
        let tokens = [token];
        let rows = Rows::new(&[SequenceRows::chain(self.guesses.len(), &tokens)])?;
        self.runner.forward(&rows, &[0], &[&self.guesses])?;
        self.runner.commit(&[0], &mut self.guesses)
    }
}

/// Opens a draft model, on the device of the model that it drafts for.
///
/// `target`: tokenizer and vocabulary of that model.
///
/// # Errors
/// Files that cannot be used; [`EngineError::UnfitDrafter`] if the two models do not share their vocabulary.
pub(crate) fn open(
    path: &Path,
    target: (&Tokenizer, usize),
    model: &Model,
    options: &EngineOptions,
) -> Result<Runner, EngineError> {
    let checkpoint =
        Checkpoint::open(path).map_err(|source| EngineError::Checkpoint { path: path.to_owned(), source })?;
    let tokenizer = vocabulary::tokenizer(&checkpoint, path)?;
    check_fit((&tokenizer, checkpoint.config.vocab_size), target)?;
    let Checkpoint { config, tensors, .. } = checkpoint;
    let draft = Model::load(config, tensors, Arc::clone(model.device()), &options.load_options())?;
    Ok(Runner::new(Arc::new(draft)))
}

/// Checks that two models read and write the same tokens.
///
/// # Errors
/// [`EngineError::UnfitDrafter`] with the first difference.
fn check_fit(
    (draft, draft_rows): (&Tokenizer, usize),
    (target, target_rows): (&Tokenizer, usize),
) -> Result<(), EngineError> {
    let unfit = |reason| Err(EngineError::UnfitDrafter { drafter: "draft", reason });
    if draft_rows != target_rows {
        return unfit(format!("the draft model has {draft_rows} tokens, the model {target_rows}"));
    }
    let differs = |id: &u32| draft.token_bytes(*id) != target.token_bytes(*id);
    match (0..target_rows as u32).find(differs) {
        None => Ok(()),
        Some(id) => {
            let text = |tokenizer: &Tokenizer| tokenizer.token_text(id).unwrap_or_default();
            unfit(format!("token {id} is {:?} in the draft model, but {:?} in the model", text(draft), text(target)))
        }
    }
}
