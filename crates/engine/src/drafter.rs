//! Which model drafts for another one: the one that was named, or the one that came with it.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use pleach_checkpoint::{
    Checkpoint, DrafterCheckpoint, DrafterLayout, ModelConfig, Tensor, TensorMap, WeaverCheckpoint, drafter_beside,
};
use pleach_model::{DFlash, Model, Weaver};
use pleach_text::Tokenizer;

use crate::costly::CostlyRunner;
use crate::{DrafterFound, EngineError, EngineOptions, Speculation, dflash, draft_model};

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

/// Bytes of the weights of the drafter that [`open`] would open; 0 where there is none, or none that can be read.
pub(crate) fn weight_bytes(path: &Path, options: &EngineOptions) -> u64 {
    if !options.speculation.asks_draft_model() {
        return 0;
    }
    let Some(drafter) = options.draft_model.clone().or_else(|| drafter_beside(path)) else { return 0 };
    let bytes = |tensors: &TensorMap| tensors.iter().map(|tensor| tensor.size_bytes() as u64).sum::<u64>();
    if DrafterLayout::of(&drafter).is_none() {
        return Checkpoint::open(&drafter).map_or(0, |draft| bytes(&draft.tensors));
    }
    let weaver = match options.speculation {
        Speculation::DFlash => None,
        _ => WeaverCheckpoint::open(&drafter).ok().flatten(),
    };
    let weaver_bytes = weaver.map_or(0, |weaver| bytes(&weaver.tensors));
    DrafterCheckpoint::open(&drafter).map_or(0, |drafter| bytes(&drafter.tensors)) + weaver_bytes
}

/// Looks at the trained drafter that was named or that lies beside the model at `path`, without loading it.
pub(crate) fn look(path: &Path, target: &ModelConfig, options: &EngineOptions) -> Option<DrafterFound> {
    let named = options.draft_model.clone().filter(|named| DrafterLayout::of(named).is_some());
    let folder = named.or_else(|| drafter_beside(path))?;
    let mut found = DrafterFound { path: folder, num_parameters: 0, has_weaver: false, unfit: None };
    found.unfit = look_at(&mut found, target, options.speculation).err().map(|error| chain(&error));
    Some(found)
}

fn look_at(found: &mut DrafterFound, target: &ModelConfig, speculation: Speculation) -> Result<(), EngineError> {
    let failed = |source| EngineError::Checkpoint { path: found.path.clone(), source };
    let elements = |tensors: &TensorMap| tensors.iter().map(|tensor| tensor.num_elements() as u64).sum::<u64>();
    let drafter = DrafterCheckpoint::open(&found.path).map_err(failed)?;
    let weaver = match speculation {
        Speculation::DFlash => None,
        _ => WeaverCheckpoint::open(&found.path).map_err(failed)?,
    };
    found.num_parameters = elements(&drafter.tensors) + weaver.as_ref().map_or(0, |weaver| elements(&weaver.tensors));
    found.has_weaver = weaver.is_some();
    DFlash::check_fit(&drafter.config, target).map_err(|error| dflash::unfit("dflash", error))?;
    let fits = |weaver: &WeaverCheckpoint| Weaver::check_fit(&weaver.config, target, drafter.config.block_size);
    weaver.as_ref().map_or(Ok(()), fits).map_err(|error| dflash::unfit("weaver", error))
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
