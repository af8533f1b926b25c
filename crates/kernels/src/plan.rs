//! Which tensors of a pass may share memory.

use crate::{Commit, Recording, Tensor};

/// Where each tensor of a recording lives: tensors whose lifetimes do not meet share a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Buffer of each tensor, by tensor index.
    pub(crate) buffer_of: Vec<usize>,
    /// Size of each buffer.
    pub(crate) buffer_bytes: Vec<usize>,
}

impl Plan {
    /// Walks the ops once; a buffer is free again after the last op that reads its tensor.
    ///
    /// Inputs, kept tensors and what a commit reads stay to the end of the pass.
    pub(crate) fn new(recording: &Recording) -> Self {
        let last_use = last_uses(recording);
        let mut plan = Self { buffer_of: vec![usize::MAX; recording.tensors.len()], buffer_bytes: Vec::new() };
        let mut free = Vec::new();
        for &tensor in &recording.inputs {
            plan.place(tensor, bytes(recording, tensor), &mut free);
        }
        for (place, op) in recording.ops.iter().enumerate() {
            for tensor in op.writes() {
                plan.place(tensor, bytes(recording, tensor), &mut free);
            }
            for tensor in op.reads().into_iter().chain(op.writes()) {
                let buffer = plan.buffer_of[tensor.index()];
                if last_use[tensor.index()] == place && !free.contains(&buffer) {
                    free.push(buffer);
                }
            }
        }
        plan
    }

    /// Gives a tensor the free buffer that fits best, or a new one.
    fn place(&mut self, tensor: Tensor, bytes: usize, free: &mut Vec<usize>) {
        let best = free.iter().enumerate().min_by_key(|&(_, &buffer)| self.buffer_bytes[buffer].abs_diff(bytes));
        let buffer = match best.map(|(place, _)| place) {
            Some(place) => free.swap_remove(place),
            None => {
                self.buffer_bytes.push(0);
                self.buffer_bytes.len() - 1
            }
        };
        self.buffer_bytes[buffer] = self.buffer_bytes[buffer].max(bytes);
        self.buffer_of[tensor.index()] = buffer;
    }
}

fn bytes(recording: &Recording, tensor: Tensor) -> usize {
    recording.capacity.of(tensor.extent) * tensor.width * tensor.dtype.size_bytes()
}

/// Index of the last op that uses each tensor; `usize::MAX` for those that outlive the pass.
fn last_uses(recording: &Recording) -> Vec<usize> {
    let mut last = vec![0; recording.tensors.len()];
    for (place, op) in recording.ops.iter().enumerate() {
        for tensor in op.reads().into_iter().chain(op.writes()) {
            last[tensor.index()] = place;
        }
    }
    let committed = recording.commits.iter().flat_map(|commit| match commit {
        Commit::Attention(op) => vec![op.k, op.v],
        Commit::Window(op) => vec![op.x],
        Commit::Delta(op) => vec![op.terms],
    });
    for tensor in recording.inputs.iter().chain(&recording.kept).copied().chain(committed) {
        last[tensor.index()] = usize::MAX;
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Capacity, Device, Ops, ReferenceDevice};

    #[test]
    fn a_chain_of_ops_needs_two_buffers_and_its_input() {
        let weight = ReferenceDevice::new().param(vec![1.0; 8]).unwrap();
        let mut ops = Ops::new(Capacity { rows: 3, outputs: 1 });
        let mut x = ops.input(8);
        for _ in 0..6 {
            x = ops.rms_norm(x, &weight, 1e-6).unwrap();
        }
        ops.keep(x);
        let plan = Plan::new(&ops.finish());
        assert_eq!(plan.buffer_bytes, [96; 3]);
    }

    #[test]
    fn a_residual_stays_until_it_is_added() {
        let weight = ReferenceDevice::new().param(vec![1.0; 4]).unwrap();
        let mut ops = Ops::new(Capacity { rows: 1, outputs: 1 });
        let input = ops.input(4);
        let x = ops.rms_norm(input, &weight, 1e-6).unwrap();
        let y = ops.rms_norm(x, &weight, 1e-6).unwrap();
        let z = ops.rms_norm(y, &weight, 1e-6).unwrap();
        let sum = ops.add(x, z).unwrap();
        ops.keep(sum);
        let plan = Plan::new(&ops.finish());
        assert_ne!(plan.buffer_of[x.index()], plan.buffer_of[z.index()]);
        assert_ne!(plan.buffer_of[sum.index()], plan.buffer_of[x.index()]);
    }
}
