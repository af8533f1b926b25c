//! What can go wrong when a pass is recorded, prepared or run.

use crate::{DType, WeightFormat};

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// An argument of an op has another size than the op's contract asks for.
    #[error("`{op}`: `{argument}` has size {found}, expected {expected}")]
    Shape {
        /// Name of the op.
        op: &'static str,
        /// Name of the argument, as in the op's struct.
        argument: &'static str,
        /// Size met, in elements.
        found: usize,
        /// Size expected, in elements.
        expected: usize,
    },
    /// An argument of an op has a value that the op's contract excludes.
    #[error("`{op}`: `{argument}` is {found}, expected {expected}")]
    Argument {
        /// Name of the op.
        op: &'static str,
        /// Name of the argument.
        argument: &'static str,
        /// Value met.
        found: usize,
        /// What the contract asks for.
        expected: &'static str,
    },
    /// A tensor has another element type than its use asks for.
    #[error("`{op}`: `{argument}` holds {found:?}, expected {expected:?}")]
    DType {
        /// Name of the op.
        op: &'static str,
        /// Name of the argument.
        argument: &'static str,
        /// Type met.
        found: DType,
        /// Type expected.
        expected: DType,
    },
    /// The bytes of a weight do not fit its format and shape.
    #[error("weight of format {format} and shape [{rows}, {columns}]: {part} has {found} bytes, expected {expected}")]
    WeightBytes {
        /// Format of the weight.
        format: WeightFormat,
        /// Output features.
        rows: usize,
        /// Input features.
        columns: usize,
        /// Which of its arrays.
        part: &'static str,
        /// Bytes met.
        found: usize,
        /// Bytes expected.
        expected: usize,
    },
    /// A row of a weight is not a whole number of blocks of its format.
    #[error("weight of format {format} has {columns} input features, expected a multiple of {block}")]
    WeightBlocks {
        /// Format of the weight.
        format: WeightFormat,
        /// Input features met.
        columns: usize,
        /// Elements per block.
        block: usize,
    },
    /// An affine weight has a width or a group size that no device knows.
    #[error(
        "affine weights of {bits} bits in groups of {group_size} are not supported: \
         expected 4 or 8 bits and groups of a multiple of 32"
    )]
    Affine {
        /// Bits per code met.
        bits: u8,
        /// Elements per group met.
        group_size: usize,
    },
    /// A weight, parameter, state or tensor was made by another device or recording.
    #[error("{what} belongs to another device than `{device}`: load it with the device that runs the pass")]
    Foreign {
        /// What was handed over.
        what: &'static str,
        /// Name of the running device.
        device: &'static str,
    },
    /// The parent of a row is not an earlier row of its sequence.
    #[error("row {row} of sequence {sequence} has parent {parent}, expected an earlier row or none")]
    Parent {
        /// Sequence, in order of the pass.
        sequence: usize,
        /// Row inside its sequence.
        row: usize,
        /// Parent met.
        parent: usize,
    },
    /// Two lists that describe the same rows differ in length.
    #[error("sequence {sequence} has {tokens} tokens but {parents} parents")]
    RowLists {
        /// Sequence, in order of the pass.
        sequence: usize,
        /// Number of tokens.
        tokens: usize,
        /// Number of parents.
        parents: usize,
    },
    /// A token is outside the vocabulary of the embedding.
    #[error("token {token} of row {row} is outside the vocabulary of {vocab_size} entries")]
    Token {
        /// Row of the pass.
        row: usize,
        /// Token met.
        token: u32,
        /// Rows of the embedding.
        vocab_size: usize,
    },
    /// A pass was asked for more than it was recorded for.
    #[error("the pass was recorded for {capacity} {what}, but {found} were given")]
    Capacity {
        /// `rows`, `outputs` or `sequences`.
        what: &'static str,
        /// Number met.
        found: usize,
        /// Number recorded for.
        capacity: usize,
    },
    /// The state of a sequence stands for another number of tokens than its rows continue.
    #[error("the state of sequence {sequence} stands for {found} tokens, but its rows continue after {expected}")]
    StateLength {
        /// Sequence, in order of the pass.
        sequence: usize,
        /// Tokens that the state stands for.
        found: usize,
        /// Tokens that the rows expect.
        expected: usize,
    },
    /// The state of a sequence lacks a layer that the pass reads, or has it in another shape.
    #[error("the state of sequence {sequence} does not have the layers of the pass: make it with the model that runs")]
    StateLayout {
        /// Sequence, in order of the pass.
        sequence: usize,
    },
    /// Saved values belong to a state of another layout.
    #[error("the saved state has {found} {kind} layers, but the model has {expected}: it belongs to another model")]
    Layers {
        /// `attention` or `DeltaNet`.
        kind: &'static str,
        /// Number met.
        found: usize,
        /// Number of the state's layout.
        expected: usize,
    },
    /// A committed path is not a chain from the end of the sequence.
    #[error("row {row} at place {place} of the path does not continue the row before it")]
    Path {
        /// Row of the pass.
        row: usize,
        /// Place in the path.
        place: usize,
    },
    /// Something is asked for by an index or a handle that does not exist.
    #[error("{what} {found} does not exist: there are {available}")]
    Missing {
        /// Such as `output row`, `input` or `attention layer`.
        what: &'static str,
        /// Index met.
        found: usize,
        /// How many exist.
        available: usize,
    },
    /// The machine lacks what was asked for.
    #[error("instruction set `{name}` is not available on this machine: leave the choice to the program")]
    InstructionSet {
        /// Name asked for.
        name: &'static str,
    },
    /// The worker threads could not be started.
    #[error("cannot start {threads} worker threads")]
    Threads {
        /// Number asked for.
        threads: usize,
        /// What the system said.
        source: std::io::Error,
    },
}
