//! The seam: what a device must be able to do.

use std::fmt;
use std::sync::Arc;

use crate::{
    Ceilings, KernelError, Param, PassProfile, Recording, Rows, State, StateLayout, Tensor, Weight, WeightData,
};

/// A place where passes run.
///
/// The trait is object safe: everything above it holds an `Arc<dyn Device>` and knows nothing else of the hardware.
pub trait Device: Send + Sync + fmt::Debug {
    /// Short name for messages, such as `reference` or `cpu`.
    fn name(&self) -> &'static str;

    /// What runs here in words, for people: instruction set, threads, card.
    fn describe(&self) -> String;

    /// Name of its arithmetic: devices with the same one compute the same bits.
    fn arithmetic(&self) -> String {
        self.name().to_owned()
    }

    /// Takes over a weight matrix; repacking for speed happens here.
    ///
    /// # Errors
    /// [`KernelError::WeightBytes`] or [`KernelError::WeightBlocks`] if the bytes do not fit shape and format.
    fn weight(&self, data: WeightData) -> Result<Weight, KernelError>;

    /// Takes over a matrix of which only single rows are looked up, as an embedding does; nothing is repacked where that
    /// would only serve products. These work all the same, slowly.
    ///
    /// # Errors
    /// As [`weight`](Self::weight).
    fn table(&self, data: WeightData) -> Result<Weight, KernelError> {
        self.weight(data)
    }

    /// Takes over a small f32 vector.
    ///
    /// # Errors
    /// What the device says when its memory is full.
    fn param(&self, values: Vec<f32>) -> Result<Param, KernelError>;

    /// The memory of a new, empty sequence.
    ///
    /// # Errors
    /// What the device says when its memory is full.
    fn state(&self, layout: &StateLayout) -> Result<Box<dyn State>, KernelError>;

    /// Turns a recording into something that runs; all memory of the pass is allocated here.
    ///
    /// # Errors
    /// [`KernelError::Foreign`] if the recording holds weights of another device.
    fn prepare(&self, recording: Recording) -> Result<Box<dyn Pass>, KernelError>;

    /// The same hardware for passes of so little work that sharing it among threads costs more than it saves; it runs
    /// passes over weights of this device. `None` if that is this device itself.
    fn serial(&self) -> Option<Arc<dyn Device>> {
        None
    }

    /// Whether passes read weights where they were stored, so that a mapped file has to stay in memory.
    fn reads_stored_weights(&self) -> bool {
        false
    }

    /// Measures what the hardware can do at most, which takes less than a second; `None` from a device that does not try
    /// to reach it.
    fn ceilings(&self) -> Option<Ceilings> {
        None
    }
}

/// What changes from run to run of one pass.
#[derive(Clone, Copy, Debug)]
pub struct PassInputs<'a> {
    /// The rows, at most [`Capacity::rows`](crate::Capacity).
    pub rows: &'a Rows,
    /// Rows that [`Extent::Outputs`](crate::Extent) tensors hold, in this order.
    pub outputs: &'a [usize],
    /// Values of the tensors made by [`Ops::input`](crate::Ops::input), each `[rows, width]`.
    pub inputs: &'a [(Tensor, &'a [f32])],
}

/// A prepared recording.
pub trait Pass: Send {
    /// Runs over `inputs.rows`. `states[s]` belongs to the pass's sequence `s` and is only read.
    ///
    /// # Errors
    /// Rows, tokens or states that do not fit the pass; nothing is changed then.
    fn run(&mut self, inputs: &PassInputs<'_>, states: &[&dyn State]) -> Result<(), KernelError>;

    /// Does what [`run`](Self::run) does, bit for bit, and adds to `profile` what each op took.
    ///
    /// # Errors
    /// As `run`.
    fn profile(
        &mut self,
        inputs: &PassInputs<'_>,
        states: &[&dyn State],
        profile: &mut PassProfile,
    ) -> Result<(), KernelError>;

    /// Appends the rows `path` of the last run (row indices of the pass, root first) to the state of their sequence.
    ///
    /// # Errors
    /// [`KernelError::Path`] if `path` is no chain from the end of its sequence; nothing is changed then.
    fn commit(&mut self, path: &[usize], state: &mut dyn State) -> Result<(), KernelError>;

    /// Values of a kept tensor after the last run: `[rows or outputs of that run, width]`. They stay until the next run,
    /// whatever is committed; a device with memory of its own brings them over at the end of a run.
    ///
    /// # Errors
    /// [`KernelError::Missing`] if the tensor was not kept.
    fn read(&self, tensor: Tensor) -> Result<&[f32], KernelError>;
}
