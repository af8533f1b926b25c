//! Whole files: the fixtures in each format, folders built on the spot, and files with every fault we know of.
#![allow(clippy::unwrap_used, reason = "all of this is test code; the lint's own exception covers only test functions")]

mod builders;
mod config_faults;
mod drafter;
mod gguf;
mod gguf_faults;
mod hugging_face;
mod mirai_drafter;
mod mlx;
mod mutation;
mod safetensors_faults;

use std::path::PathBuf;

use pleach_checkpoint::Checkpoint;

/// A folder or file of the fixtures.
fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).join(name)
}

/// The shape of a tensor that is there.
fn shape<'a>(checkpoint: &'a Checkpoint, name: &str) -> &'a [usize] {
    &checkpoint.tensors.get(name).unwrap_or_else(|| panic!("{name} is there")).shape
}
