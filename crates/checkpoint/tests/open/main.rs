//! Opening whole models: the fixtures in each format, and folders built on the spot.

mod hugging_face;

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
