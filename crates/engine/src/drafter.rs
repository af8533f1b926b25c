//! Which model drafts for another one: the one that was named, or the one that came with it.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use pleach_checkpoint::{DrafterLayout, Tensor, drafter_beside};
use pleach_model::Model;
use pleach_text::Tokenizer;

use crate::costly::CostlyRunner;
use crate::{EngineError, EngineOptions, Speculation, dflash, draft_model};

/// What a drafter has to fit.
pub(crate) struct Target<'a> {
    pub(crate) model: &'a Arc<Model>,
    pub(crate) tokenizer: &'a Tokenizer,
    /// The output matrix as it is stored.
    pub(crate) head: Option<&'a Tensor>,
}

/// Opens the drafter for the model at `path`, if there is one and it is asked for.
///
/// One that merely lies beside the model is left out if it cannot be used, with a warning, unless a drafter was asked for.
///
/// # Errors
/// Files that cannot be used; [`EngineError::UnfitDrafter`] if it was made for another model.
pub(crate) fn open(
    path: &Path,
    target: &Target<'_>,
    options: &EngineOptions,
    warnings: &mut Vec<String>,
) -> Result<Option<CostlyRunner>, EngineError> {
    if !options.speculation.asks_draft_model() {
        return Ok(None);
    }
    if let Some(named) = &options.draft_model {
        return open_at(named, target, options).map(Some);
    }
    let Some(beside) = drafter_beside(path) else { return Ok(None) };
    match open_at(&beside, target, options) {
        Err(error) if options.speculation == Speculation::Auto => {
            warnings.push(format!("the drafter in `{}` is left out: {}", beside.display(), chain(&error)));
            Ok(None)
        }
        opened => opened.map(Some),
    }
}

fn open_at(path: &Path, target: &Target<'_>, options: &EngineOptions) -> Result<CostlyRunner, EngineError> {
    let Target { model, tokenizer, head } = *target;
    if DrafterLayout::of(path).is_some() {
        let runner = dflash::open(path, model, head, options)?;
        return Ok(CostlyRunner::DFlash(Box::new(runner)));
    }
    let vocabulary = (tokenizer, model.config().vocab_size);
    draft_model::open(path, vocabulary, model, options).map(CostlyRunner::Model)
}

/// An error with its causes in one line.
fn chain(error: &EngineError) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        line.push_str(&format!(": {error}"));
        cause = error.source();
    }
    line
}
