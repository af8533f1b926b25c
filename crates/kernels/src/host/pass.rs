//! The loop over a recording's ops, shared by the devices in main memory.

use std::sync::Arc;
use std::time::Instant;

use bytemuck::Pod;

use super::state::HostState;
use super::weight::is_host_param;
use super::{Buffer, Run};
use crate::ops::{
    Add, AddGated, AddRmsNorm, Attention, CacheRows, CausalConv, Concat, DeltaGates, Embed, Experts, GatedDelta,
    GatedRmsNorm, GatherOutputs, GroupedConv, Hadamard, Linear, QkNormRope, RmsNorm, Route, SwiGlu,
};
use crate::plan::Plan;
use crate::profile::PassPart;
use crate::work::OpWork;
use crate::{
    Commit, DType, Extent, KernelError, Op, Pass, PassInputs, PassProfile, Recording, Rows, State, Tensor, Weight,
};

/// One function per op; what tells one host device from another.
///
/// Shapes, tokens, rows and states are checked before a run starts, so a kernel cannot fail.
pub(crate) trait HostKernels: Send + Sync + 'static {
    fn name(&self) -> &'static str;
    /// Whether this device loaded `weight`.
    fn owns(&self, weight: &Weight) -> bool;
    /// Times that work was handed to other threads so far.
    fn dispatches(&self) -> u64 {
        0
    }

    fn embed(&self, op: &Embed, run: &mut Run<'_>);
    fn rms_norm(&self, op: &RmsNorm, run: &mut Run<'_>);
    fn add_rms_norm(&self, op: &AddRmsNorm, run: &mut Run<'_>);
    fn add(&self, op: &Add, run: &mut Run<'_>);
    fn linear(&self, op: &Linear, run: &mut Run<'_>);
    fn swiglu(&self, op: &SwiGlu, run: &mut Run<'_>);
    fn qk_norm_rope(&self, op: &QkNormRope, run: &mut Run<'_>);
    fn attention(&self, op: &Attention, run: &mut Run<'_>);
    fn causal_conv(&self, op: &CausalConv, run: &mut Run<'_>);
    fn delta_gates(&self, op: &DeltaGates, run: &mut Run<'_>);
    fn gated_delta(&self, op: &GatedDelta, run: &mut Run<'_>);
    fn gated_rms_norm(&self, op: &GatedRmsNorm, run: &mut Run<'_>);
    fn route(&self, op: &Route, run: &mut Run<'_>);
    fn experts(&self, op: &Experts, run: &mut Run<'_>);
    fn add_gated(&self, op: &AddGated, run: &mut Run<'_>);
    fn gather_outputs(&self, op: &GatherOutputs, run: &mut Run<'_>);
    fn concat(&self, op: &Concat, run: &mut Run<'_>);
    fn hadamard(&self, op: &Hadamard, run: &mut Run<'_>);
    fn grouped_conv(&self, op: &GroupedConv, run: &mut Run<'_>);

    /// Moves `recurrent` (`[value_heads, key_dim, value_dim]`) along the rows `path` with the arithmetic of
    /// [`gated_delta`](Self::gated_delta).
    fn advance_delta(&self, op: &GatedDelta, run: &Run<'_>, path: &[usize], recurrent: &mut [f32]);
}

/// A recording with its memory, run by the kernels `K`.
pub(crate) struct HostPass<K> {
    kernels: Arc<K>,
    recording: Recording,
    plan: Plan,
    buffers: Vec<Buffer>,
    rows: Rows,
    outputs: Vec<usize>,
    /// Part of each op; empty until it is asked for.
    parts: Vec<PassPart>,
}

impl<K: HostKernels> HostPass<K> {
    /// Allocates the memory of a pass.
    ///
    /// # Errors
    /// [`KernelError::Foreign`] if the recording holds weights or parameters of another device.
    pub(crate) fn new(kernels: Arc<K>, recording: Recording) -> Result<Self, KernelError> {
        for op in &recording.ops {
            check_owner(&*kernels, op)?;
        }
        let plan = Plan::new(&recording);
        let buffers = plan.buffer_bytes.iter().map(|&bytes| Buffer::new(bytes)).collect();
        Ok(Self { kernels, recording, plan, buffers, rows: Rows::default(), outputs: Vec::new(), parts: Vec::new() })
    }

    fn check_run(&self, inputs: &PassInputs<'_>, states: &[&dyn State]) -> Result<(), KernelError> {
        let (rows, capacity) = (inputs.rows, self.recording.capacity);
        for (what, found, capacity) in
            [("rows", rows.len(), capacity.rows), ("outputs", inputs.outputs.len(), capacity.outputs)]
        {
            if found > capacity {
                return Err(KernelError::Capacity { what, found, capacity });
            }
        }
        if let Some(&found) = inputs.outputs.iter().find(|&&row| row >= rows.len()) {
            return Err(KernelError::Missing { what: "output row", found, available: rows.len() });
        }
        for op in &self.recording.ops {
            check_tokens(op, rows)?;
        }
        self.check_states(rows, states)?;
        for &tensor in &self.recording.inputs {
            let values = input_values(inputs, tensor)?;
            let (found, expected) = (values.len(), rows.len() * tensor.width);
            if found != expected {
                return Err(KernelError::Shape { op: "input", argument: "values", found, expected });
            }
        }
        Ok(())
    }

    /// Recordings without attention and DeltaNet layers need no states.
    fn check_states(&self, rows: &Rows, states: &[&dyn State]) -> Result<(), KernelError> {
        if self.recording.commits.is_empty() {
            return Ok(());
        }
        for sequence in 0..rows.num_sequences() {
            let missing = KernelError::Missing { what: "state", found: sequence, available: states.len() };
            let state = *states.get(sequence).ok_or(missing)?;
            self.check_state(sequence, rows.sequence_len(sequence), state)?;
        }
        Ok(())
    }

    fn check_state(&self, sequence: usize, expected: usize, state: &dyn State) -> Result<(), KernelError> {
        let foreign = KernelError::Foreign { what: "a sequence's state", device: self.kernels.name() };
        let host = state.as_any().downcast_ref::<HostState>().ok_or(foreign)?;
        if host.len != expected {
            return Err(KernelError::StateLength { sequence, found: host.len, expected });
        }
        for commit in &self.recording.commits {
            let fits = match commit {
                Commit::Attention(op) => host.attention.get(op.slot).is_some_and(|cache| cache.layout == op.layout),
                Commit::Window(CausalConv { slot, layout, .. }) | Commit::Delta(GatedDelta { slot, layout, .. }) => {
                    host.delta.get(*slot).is_some_and(|state| state.layout == *layout)
                }
            };
            if !fits {
                return Err(KernelError::StateLayout { sequence });
            }
        }
        Ok(())
    }
}

impl<K: HostKernels> HostPass<K> {
    /// Checks and takes over the inputs, then hands each op to `execute` with its place in the recording.
    fn run_ops(
        &mut self,
        inputs: &PassInputs<'_>,
        states: &[&dyn State],
        mut execute: impl FnMut(usize, &Op, &mut Run<'_>),
    ) -> Result<(), KernelError> {
        self.check_run(inputs, states)?;
        self.rows.clone_from(inputs.rows);
        self.outputs.clear();
        self.outputs.extend_from_slice(inputs.outputs);
        let (rows, outputs) = (&self.rows, &self.outputs[..]);
        let mut run = Run { plan: &self.plan, buffers: &mut self.buffers, rows, outputs, states };
        for &tensor in &self.recording.inputs {
            let values = input_values(inputs, tensor)?;
            run.write(tensor, |_, out| out.copy_from_slice(values));
        }
        for (place, op) in self.recording.ops.iter().enumerate() {
            execute(place, op, &mut run);
        }
        Ok(())
    }
}

impl<K: HostKernels> Pass for HostPass<K> {
    fn run(&mut self, inputs: &PassInputs<'_>, states: &[&dyn State]) -> Result<(), KernelError> {
        let kernels = Arc::clone(&self.kernels);
        self.run_ops(inputs, states, |_, op, run| execute(&*kernels, op, run))
    }

    fn profile(
        &mut self,
        inputs: &PassInputs<'_>,
        states: &[&dyn State],
        profile: &mut PassProfile,
    ) -> Result<(), KernelError> {
        if self.parts.is_empty() {
            self.parts = PassPart::of_all(&self.recording);
        }
        let (kernels, parts) = (Arc::clone(&self.kernels), std::mem::take(&mut self.parts));
        let result = self.run_ops(inputs, states, |place, op, run| {
            let (before, started) = (kernels.dispatches(), Instant::now());
            execute(&*kernels, op, run);
            let (time, dispatches) = (started.elapsed(), kernels.dispatches() - before);
            profile.add_op(parts[place], time, dispatches, OpWork::of(op, run.rows(), run.outputs().len()));
        });
        self.parts = parts;
        result.map(|()| profile.add_pass())
    }

    fn commit(&mut self, path: &[usize], state: &mut dyn State) -> Result<(), KernelError> {
        let sequence = self.rows.check_path(path)?;
        self.check_state(sequence, self.rows.sequence_len(sequence), state)?;
        let foreign = KernelError::Foreign { what: "a sequence's state", device: self.kernels.name() };
        let state = state.as_any_mut().downcast_mut::<HostState>().ok_or(foreign)?;
        let run =
            Run { plan: &self.plan, buffers: &mut self.buffers, rows: &self.rows, outputs: &self.outputs, states: &[] };
        for commit in &self.recording.commits {
            match commit {
                Commit::Attention(op) => commit_attention(op, &run, path, state),
                Commit::Window(op) => {
                    // Earlier rows would leave the window again.
                    let kept = path.len().saturating_sub(op.layout.conv_kernel_dim);
                    for inputs in path[kept..].iter().map(|&row| row_of(&run, op.x, row)) {
                        state.delta[op.slot].push_window(inputs);
                    }
                }
                Commit::Delta(op) => {
                    self.kernels.advance_delta(op, &run, path, &mut state.delta[op.slot].recurrent);
                }
            }
        }
        state.len += path.len();
        Ok(())
    }

    fn read(&self, tensor: Tensor) -> Result<&[f32], KernelError> {
        if !self.recording.kept.contains(&tensor) || tensor.dtype != DType::F32 {
            let (found, available) = (tensor.index(), self.recording.kept.len());
            return Err(KernelError::Missing { what: "kept tensor", found, available });
        }
        let count = match tensor.extent {
            Extent::Rows => self.rows.len(),
            Extent::Outputs => self.outputs.len(),
        };
        Ok(self.buffers[self.plan.buffer_of[tensor.index()]].slice(count * tensor.width))
    }
}

fn execute<K: HostKernels>(kernels: &K, op: &Op, run: &mut Run<'_>) {
    match op {
        Op::Embed(op) => kernels.embed(op, run),
        Op::RmsNorm(op) => kernels.rms_norm(op, run),
        Op::AddRmsNorm(op) => kernels.add_rms_norm(op, run),
        Op::Add(op) => kernels.add(op, run),
        Op::Linear(op) => kernels.linear(op, run),
        Op::SwiGlu(op) => kernels.swiglu(op, run),
        Op::QkNormRope(op) => kernels.qk_norm_rope(op, run),
        Op::Attention(op) => kernels.attention(op, run),
        Op::CausalConv(op) => kernels.causal_conv(op, run),
        Op::DeltaGates(op) => kernels.delta_gates(op, run),
        Op::GatedDelta(op) => kernels.gated_delta(op, run),
        Op::GatedRmsNorm(op) => kernels.gated_rms_norm(op, run),
        Op::Route(op) => kernels.route(op, run),
        Op::Experts(op) => kernels.experts(op, run),
        Op::AddGated(op) => kernels.add_gated(op, run),
        Op::GatherOutputs(op) => kernels.gather_outputs(op, run),
        Op::Concat(op) => kernels.concat(op, run),
        Op::Hadamard(op) => kernels.hadamard(op, run),
        Op::GroupedConv(op) => kernels.grouped_conv(op, run),
    }
}

/// Appends the key and value rows of `path` to a cache.
fn commit_attention(op: &CacheRows, run: &Run<'_>, path: &[usize], state: &mut HostState) {
    fn tokens<'a, T: Pod>(op: &CacheRows, run: &'a Run<'_>, path: &[usize]) -> impl Iterator<Item = [&'a [T]; 2]> {
        let (keys, values, width) = (run.read::<T>(op.k), run.read::<T>(op.v), op.layout.width());
        path.iter().map(move |row| [&keys[row * width..][..width], &values[row * width..][..width]])
    }
    let cache = &mut state.attention[op.slot];
    match op.layout.dtype {
        DType::F16 | DType::BF16 => {
            for (place, [keys, values]) in tokens::<u16>(op, run, path).enumerate() {
                cache.append(state.len + place, keys, values);
            }
        }
        DType::F32 | DType::I32 | DType::I8 => {
            for (place, [keys, values]) in tokens::<f32>(op, run, path).enumerate() {
                cache.append_floats(state.len + place, keys, values);
            }
        }
    }
}

fn row_of<'a>(run: &'a Run<'_>, tensor: Tensor, row: usize) -> &'a [f32] {
    &run.read(tensor)[row * tensor.width..(row + 1) * tensor.width]
}

fn input_values<'a>(inputs: &PassInputs<'a>, tensor: Tensor) -> Result<&'a [f32], KernelError> {
    let given = inputs.inputs.iter().find(|(given, _)| *given == tensor);
    let missing = KernelError::Missing { what: "input", found: tensor.index(), available: inputs.inputs.len() };
    given.map(|&(_, values)| values).ok_or(missing)
}

fn check_tokens(op: &Op, rows: &Rows) -> Result<(), KernelError> {
    let Op::Embed(Embed { table, .. }) = op else { return Ok(()) };
    let vocab_size = table.rows;
    match rows.tokens().iter().position(|&token| token as usize >= vocab_size) {
        Some(row) => Err(KernelError::Token { row, token: rows.tokens()[row], vocab_size }),
        None => Ok(()),
    }
}

fn check_owner<K: HostKernels>(kernels: &K, op: &Op) -> Result<(), KernelError> {
    let device = kernels.name();
    if !op.weights().into_iter().all(|weight| kernels.owns(weight)) {
        return Err(KernelError::Foreign { what: "a weight", device });
    }
    if !op.params().into_iter().all(is_host_param) {
        return Err(KernelError::Foreign { what: "a parameter", device });
    }
    Ok(())
}
