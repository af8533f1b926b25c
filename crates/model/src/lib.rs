//! Weights and operations to hidden states and logits; owns what a sequence remembers.
//!
//! [`Model::load`] turns a [`Checkpoint`](pleach_checkpoint::Checkpoint) into device weights. A [`Runner`] holds the
//! recorded passes: [`Runner::forward`] runs rows over sequences without changing them, [`Runner::commit`] appends the
//! accepted rows. A prompt chunk is a chain of rows, plain decoding one row, verification a tree, several clients
//! several trees: there is one path through the model.
//!
//! ```no_run
//! use std::{path::Path, sync::Arc};
//!
//! use pleach_checkpoint::Checkpoint;
//! use pleach_kernels::{ReferenceDevice, Rows, SequenceRows};
//! use pleach_model::{LoadOptions, Model, Runner};
//!
//! let checkpoint = Checkpoint::open(Path::new("models/tiny"))?;
//! let device = Arc::new(ReferenceDevice::new());
//! let model = Arc::new(Model::load(checkpoint.config, checkpoint.tensors, device, &LoadOptions::default())?);
//!
//! let mut runner = Runner::new(Arc::clone(&model));
//! let mut sequence = model.new_sequence()?;
//! let rows = Rows::new(&[SequenceRows::chain(0, &[1, 2, 3])])?;
//! runner.forward(&rows, &[2], &[&sequence])?;
//! let next = runner.logits()?.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
//! runner.commit(&[0, 1, 2], &mut sequence)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attention;
mod block;
mod delta_net;
mod dflash;
mod draft_conv;
mod error;
mod linear;
mod load;
mod mlp;
mod model;
mod moe;
mod mtp;
mod pass_cache;
mod rope;
mod runner;
mod selector;
mod state;
mod weaver;

pub use dflash::{DFlash, DFlashRunner};
pub use error::ModelError;
pub use load::LoadOptions;
pub use model::{MemoryPlan, Model};
pub use mtp::MtpRunner;
pub use pass_cache::MAX_ROWS;
pub use runner::{Runner, Tap};
pub use state::{DFlashSequence, MtpSequence, Sequence};
pub use weaver::{Weaver, WeaverNode, WeaverRunner};
