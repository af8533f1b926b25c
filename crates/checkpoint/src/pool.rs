//! Stored tensors under canonical names, before they are checked against the config.

use std::{path::Path, sync::Arc};

use indexmap::IndexMap;

use crate::{CheckpointError, TensorData, TensorFormat, fields::shorten, safetensors::Dtype};

/// A tensor of the files that no part of the model reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedTensor {
    /// The name in the file.
    pub name: String,
    /// Why it is not needed.
    pub reason: &'static str,
}

/// A stored tensor.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    /// The name in the file.
    pub(crate) source_name: String,
    /// Its file.
    pub(crate) file: Arc<Path>,
    /// The shape, as in the file.
    pub(crate) shape: Vec<usize>,
    /// The type of its elements.
    pub(crate) element: Element,
    /// The bytes.
    pub(crate) data: TensorData,
}

/// Elements as stored: in a format of ours, or in one that only a skipped tensor may have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Element {
    /// A format this engine computes with.
    Format(TensorFormat),
    /// Any other.
    Other(Dtype),
}

impl Stored {
    /// The format, or the error that names it.
    pub(crate) fn format(&self) -> Result<TensorFormat, CheckpointError> {
        match self.element {
            Element::Format(format) => Ok(format),
            Element::Other(dtype) => Err(self.unsupported(
                format!("{dtype:?}"),
                "supported in safetensors are F32, F16, BF16 and MLX's groups of 4 or 8 bits; convert the model to one of them",
            )),
        }
    }

    /// The error for a format that cannot be used here.
    pub(crate) fn unsupported(&self, found: String, advice: &'static str) -> CheckpointError {
        CheckpointError::UnsupportedFormat {
            file: self.file.to_path_buf(),
            tensor: shorten(&self.source_name),
            found,
            advice,
        }
    }
}

/// All stored tensors of a checkpoint by canonical name, and those already set aside.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    tensors: IndexMap<String, Stored>,
    skipped: Vec<SkippedTensor>,
}

impl Pool {
    /// Adds a tensor; an error where the name is taken.
    pub(crate) fn insert(&mut self, name: String, stored: Stored) -> Result<(), CheckpointError> {
        if let Some(first) = self.tensors.get(&name) {
            return Err(CheckpointError::TwoSources {
                first: shorten(&first.source_name),
                first_file: first.file.to_path_buf(),
                second: shorten(&stored.source_name),
                second_file: stored.file.to_path_buf(),
                name: shorten(&name),
            });
        }
        self.tensors.insert(name, stored);
        Ok(())
    }

    /// Lists a tensor as not needed.
    pub(crate) fn skip(&mut self, source_name: String, reason: &'static str) {
        self.skipped.push(SkippedTensor { name: source_name, reason });
    }

    /// Takes a tensor out.
    pub(crate) fn remove(&mut self, name: &str) -> Option<Stored> {
        self.tensors.swap_remove(name)
    }

    /// Looks at a tensor.
    pub(crate) fn get(&self, name: &str) -> Option<&Stored> {
        self.tensors.get(name)
    }

    /// The canonical names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Lists what is left, with the reason that `reason` gives for each name, and ends with everything that was skipped,
    /// sorted by name.
    pub(crate) fn into_skipped(self, reason: impl Fn(&str) -> &'static str) -> Vec<SkippedTensor> {
        let left = self.tensors.into_iter();
        let left = left.map(|(name, stored)| SkippedTensor { reason: reason(&name), name: stored.source_name });
        let mut skipped: Vec<_> = self.skipped.into_iter().chain(left).collect();
        skipped.sort_by(|a, b| a.name.cmp(&b.name));
        skipped
    }
}
