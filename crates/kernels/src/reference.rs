//! The formulas as plain f32 loops: slow, obvious, and the truth in every test.

use std::sync::Arc;

use crate::host::{HostKernels, HostPass, HostState, Run, host_param};
use crate::ops::{
    Add, AddGated, AddRmsNorm, Attention, CausalConv, Concat, DeltaGates, Embed, Experts, GatedDelta, GatedRmsNorm,
    GatherOutputs, GroupedConv, Hadamard, Linear, QkNormRope, RmsNorm, Route, SwiGlu,
};
use crate::{Device, KernelError, Param, Pass, Recording, State, StateLayout, Weight, WeightData};

mod add;
mod add_gated;
mod add_rms_norm;
mod attention;
mod causal_conv;
mod concat;
mod delta_gates;
mod embed;
mod experts;
mod gated_delta;
mod gated_rms_norm;
mod gather_outputs;
mod grouped_conv;
mod hadamard;
mod linear;
mod qk_norm_rope;
mod rms_norm;
mod route;
mod swiglu;

/// The reference device: one thread, no vectors, weights kept as they are stored.
///
/// It serves tests and questions of the kind "is it the kernel or the model?"; it is far too slow to chat with.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReferenceDevice;

impl ReferenceDevice {
    /// The device; it holds nothing.
    pub const fn new() -> Self {
        Self
    }
}

impl Device for ReferenceDevice {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> String {
        "reference loops, 1 thread".to_owned()
    }

    fn weight(&self, data: WeightData) -> Result<Weight, KernelError> {
        data.check()?;
        Ok(Weight::new(&data, Arc::new(StoredWeight(data.clone()))))
    }

    fn reads_stored_weights(&self) -> bool {
        true
    }

    fn param(&self, values: Vec<f32>) -> Result<Param, KernelError> {
        Ok(host_param(values))
    }

    fn state(&self, layout: &StateLayout) -> Result<Box<dyn State>, KernelError> {
        Ok(Box::new(HostState::new(layout)))
    }

    fn prepare(&self, recording: Recording) -> Result<Box<dyn Pass>, KernelError> {
        Ok(Box::new(HostPass::new(Arc::new(Kernels), recording)?))
    }
}

const NAME: &str = "reference";

/// A weight of this device: the bytes as they came. A type of its own, so that no other device takes it for its own.
struct StoredWeight(WeightData);

/// The stored form of a weight of this device.
fn stored(weight: &Weight) -> &WeightData {
    &weight.storage::<StoredWeight>().expect("`prepare` refuses weights of other devices").0
}

struct Kernels;

impl HostKernels for Kernels {
    fn name(&self) -> &'static str {
        NAME
    }

    fn owns(&self, weight: &Weight) -> bool {
        weight.storage::<StoredWeight>().is_some()
    }

    fn embed(&self, op: &Embed, run: &mut Run<'_>) {
        embed::embed(op, run);
    }

    fn rms_norm(&self, op: &RmsNorm, run: &mut Run<'_>) {
        rms_norm::rms_norm(op, run);
    }

    fn add_rms_norm(&self, op: &AddRmsNorm, run: &mut Run<'_>) {
        add_rms_norm::add_rms_norm(op, run);
    }

    fn add(&self, op: &Add, run: &mut Run<'_>) {
        add::add(op, run);
    }

    fn linear(&self, op: &Linear, run: &mut Run<'_>) {
        linear::linear(op, run);
    }

    fn swiglu(&self, op: &SwiGlu, run: &mut Run<'_>) {
        swiglu::swiglu(op, run);
    }

    fn qk_norm_rope(&self, op: &QkNormRope, run: &mut Run<'_>) {
        qk_norm_rope::qk_norm_rope(op, run);
    }

    fn attention(&self, op: &Attention, run: &mut Run<'_>) {
        attention::attention(op, run);
    }

    fn causal_conv(&self, op: &CausalConv, run: &mut Run<'_>) {
        causal_conv::causal_conv(op, run);
    }

    fn delta_gates(&self, op: &DeltaGates, run: &mut Run<'_>) {
        delta_gates::delta_gates(op, run);
    }

    fn gated_delta(&self, op: &GatedDelta, run: &mut Run<'_>) {
        gated_delta::gated_delta(op, run);
    }

    fn gated_rms_norm(&self, op: &GatedRmsNorm, run: &mut Run<'_>) {
        gated_rms_norm::gated_rms_norm(op, run);
    }

    fn route(&self, op: &Route, run: &mut Run<'_>) {
        route::route(op, run);
    }

    fn experts(&self, op: &Experts, run: &mut Run<'_>) {
        experts::experts(op, run);
    }

    fn add_gated(&self, op: &AddGated, run: &mut Run<'_>) {
        add_gated::add_gated(op, run);
    }

    fn gather_outputs(&self, op: &GatherOutputs, run: &mut Run<'_>) {
        gather_outputs::gather_outputs(op, run);
    }

    fn concat(&self, op: &Concat, run: &mut Run<'_>) {
        concat::concat(op, run);
    }

    fn hadamard(&self, op: &Hadamard, run: &mut Run<'_>) {
        hadamard::hadamard(op, run);
    }

    fn grouped_conv(&self, op: &GroupedConv, run: &mut Run<'_>) {
        grouped_conv::grouped_conv(op, run);
    }

    fn advance_delta(&self, op: &GatedDelta, run: &Run<'_>, path: &[usize], recurrent: &mut [f32]) {
        gated_delta::advance_delta(op, run, path, recurrent);
    }
}
