//! One run of a pass, as the kernels see it.

use std::panic::{self, AssertUnwindSafe};

use bytemuck::Pod;

use super::{Buffer, HostState};
use crate::plan::Plan;
use crate::{Extent, Rows, State, Tensor};

/// The tensors, rows and states of one run.
///
/// Kernels read tensors freely and take the ones they fill out of the run while they write, so the borrow checker sees
/// that no op reads what it writes.
pub(crate) struct Run<'a> {
    pub(super) plan: &'a Plan,
    pub(super) buffers: &'a mut [Buffer],
    pub(super) rows: &'a Rows,
    pub(super) outputs: &'a [usize],
    pub(super) states: &'a [&'a dyn State],
}

impl<'a> Run<'a> {
    /// The rows of the run.
    pub(crate) fn rows(&self) -> &'a Rows {
        self.rows
    }

    /// Rows whose logits are wanted.
    pub(crate) fn outputs(&self) -> &'a [usize] {
        self.outputs
    }

    /// Length of the first dimension of `tensor` in this run.
    pub(crate) fn count(&self, tensor: Tensor) -> usize {
        match tensor.extent {
            Extent::Rows => self.rows.len(),
            Extent::Outputs => self.outputs.len(),
        }
    }

    /// Values of a tensor that an earlier op filled.
    pub(crate) fn read<T: Pod>(&self, tensor: Tensor) -> &[T] {
        self.buffers[self.plan.buffer_of[tensor.index()]].slice(self.count(tensor) * tensor.width)
    }

    /// Fills `out`: `fill` gets the rest of the run and the values to write.
    pub(crate) fn write<T: Pod, R>(&mut self, out: Tensor, fill: impl FnOnce(&mut Self, &mut [T]) -> R) -> R {
        let place = self.plan.buffer_of[out.index()];
        let mut buffer = std::mem::take(&mut self.buffers[place]);
        let values = buffer.slice_mut(self.count(out) * out.width);
        // The pass outlives a panic of a kernel, and then needs the buffer as much as after any other run.
        let result = panic::catch_unwind(AssertUnwindSafe(|| fill(self, values)));
        self.buffers[place] = buffer;
        result.unwrap_or_else(|payload| panic::resume_unwind(payload))
    }

    /// State of sequence `sequence` of the run.
    pub(crate) fn state(&self, sequence: usize) -> &'a HostState {
        let state = self.states[sequence].as_any().downcast_ref();
        state.expect("a run starts only with states of this device")
    }
}
