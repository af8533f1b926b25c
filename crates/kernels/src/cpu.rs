//! The CPU device: threads and vector instructions, picked at run time.
//!
//! A plain build is the fast build: every kernel is compiled for each [`InstructionSet`] and the fastest one present is
//! taken. The kernels are written once, against vectors of 16 floats (`simd.rs`); products with quantized weights use
//! weights repacked at load (`tiles.rs`).
//!
//! What must stay true: every output element is computed by one thread, in an order that its own row fixes. So results
//! are the same bits for any number of threads and whatever other rows share the pass.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::host::{HostKernels, HostPass, HostState, Run, host_param};
use crate::ops::{
    Add, AddGated, AddRmsNorm, Attention, CausalConv, Concat, DeltaGates, Embed, Experts, GatedDelta, GatedRmsNorm,
    GatherOutputs, GroupedConv, Hadamard, Linear, QkNormRope, RmsNorm, Route, SwiGlu,
};
use crate::{Ceilings, Device, KernelError, Param, Pass, Recording, State, StateLayout, Weight, WeightData};

mod activations;
mod add;
mod add_gated;
mod add_rms_norm;
mod ahead;
mod attention;
mod causal_conv;
mod ceilings;
mod concat;
mod delta_gates;
mod embed;
mod experts;
mod gated_delta;
mod gated_rms_norm;
mod gather_outputs;
mod grouped_conv;
mod hadamard;
mod instruction_set;
mod linear;
mod math;
mod memory;
mod pool;
mod product;
mod qk_norm_rope;
mod rms_norm;
mod route;
mod scratch;
mod share;
mod simd;
mod swiglu;
mod threads;
mod tiles;
mod weight;

use ahead::Ahead;
use memory::Arena;
use pool::Pool;
use scratch::Scratch;
use weight::CpuWeight;

pub use instruction_set::InstructionSet;

/// Choices of a [`CpuDevice`]; the default leaves all of them to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads that share a pass, the caller among them; else one per physical core that the process may use.
    pub threads: Option<NonZeroUsize>,
    /// Vector instructions; else the fastest that the machine has.
    pub instruction_set: Option<InstructionSet>,
}

/// The processor cores of this machine.
#[derive(Clone, Debug)]
pub struct CpuDevice {
    kernels: Arc<Kernels>,
}

impl CpuDevice {
    /// Starts the device's threads, which sleep while no pass runs and end with the last pass and handle.
    ///
    /// # Errors
    /// [`KernelError::InstructionSet`] if the machine lacks the set asked for, [`KernelError::Threads`] if the system
    /// gives no threads.
    pub fn new(options: CpuOptions) -> Result<Self, KernelError> {
        let set = options.instruction_set.map_or(Ok(InstructionSet::detect()), InstructionSet::checked)?;
        let threads = options.threads.unwrap_or_else(threads::default_threads);
        let pool = Pool::new(threads).map_err(|source| KernelError::Threads { threads: threads.get(), source })?;
        let scratch = Scratch::new(threads.get());
        let team = Mutex::new(Team { pool, scratch, arena: Arena::default(), ahead: Ahead::new(set.asks_ahead()) });
        Ok(Self { kernels: Arc::new(Kernels { set, threads, team }) })
    }

    /// Threads that share a pass.
    pub fn threads(&self) -> NonZeroUsize {
        self.kernels.threads
    }

    /// Vector instructions in use.
    pub fn instruction_set(&self) -> InstructionSet {
        self.kernels.set
    }
}

impl Device for CpuDevice {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> String {
        let threads = self.kernels.threads;
        format!("{}, {threads} thread{}", self.kernels.set, if threads.get() == 1 { "" } else { "s" })
    }

    /// Threads do not change a bit; instructions may.
    fn arithmetic(&self) -> String {
        format!("cpu {}", self.kernels.set)
    }

    fn weight(&self, data: WeightData) -> Result<Weight, KernelError> {
        data.check()?;
        let weight = {
            let Team { pool, arena, .. } = &mut *self.kernels.team();
            CpuWeight::new(self.kernels.set, data.clone(), pool, arena)
        };
        Ok(Weight::new(&data, Arc::new(weight)))
    }

    fn table(&self, data: WeightData) -> Result<Weight, KernelError> {
        data.check()?;
        Ok(Weight::new(&data.clone(), Arc::new(CpuWeight::table(data))))
    }

    fn param(&self, values: Vec<f32>) -> Result<Param, KernelError> {
        Ok(host_param(values))
    }

    fn state(&self, layout: &StateLayout) -> Result<Box<dyn State>, KernelError> {
        Ok(Box::new(HostState::new(layout)))
    }

    fn prepare(&self, recording: Recording) -> Result<Box<dyn Pass>, KernelError> {
        let pass = HostPass::new(Arc::clone(&self.kernels), recording.clone())?;
        self.kernels.team().scratch.reserve(self.kernels.set, &recording);
        Ok(Box::new(pass))
    }

    fn serial(&self) -> Option<Arc<dyn Device>> {
        if self.kernels.threads.get() == 1 {
            return None;
        }
        let options = CpuOptions { threads: Some(NonZeroUsize::MIN), instruction_set: Some(self.kernels.set) };
        Some(Arc::new(Self::new(options).ok()?))
    }

    fn ceilings(&self) -> Option<Ceilings> {
        Some(ceilings::measure(self.kernels.set, &mut self.kernels.team().pool))
    }
}

const NAME: &str = "cpu";

/// Instructions, and the threads with their memory.
#[derive(Debug)]
struct Kernels {
    set: InstructionSet,
    threads: NonZeroUsize,
    team: Mutex<Team>,
}

/// What one op at a time has to itself.
#[derive(Debug)]
struct Team {
    pool: Pool,
    scratch: Scratch,
    arena: Arena,
    ahead: Ahead,
}

impl Kernels {
    /// Waits for the op of another pass to end.
    fn team(&self) -> MutexGuard<'_, Team> {
        // Ops leave nothing in the scratch memory that a later one relies on, so a panic spoils nothing.
        self.team.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostKernels for Kernels {
    fn name(&self) -> &'static str {
        NAME
    }

    fn owns(&self, weight: &Weight) -> bool {
        weight.storage::<CpuWeight>().is_some()
    }

    fn dispatches(&self) -> u64 {
        self.team().pool.dispatches()
    }

    fn embed(&self, op: &Embed, run: &mut Run<'_>) {
        embed::embed(self, op, run);
    }

    fn rms_norm(&self, op: &RmsNorm, run: &mut Run<'_>) {
        rms_norm::rms_norm(self, op, run);
    }

    fn add_rms_norm(&self, op: &AddRmsNorm, run: &mut Run<'_>) {
        add_rms_norm::add_rms_norm(self, op, run);
    }

    fn add(&self, op: &Add, run: &mut Run<'_>) {
        add::add(self, op, run);
    }

    fn linear(&self, op: &Linear, run: &mut Run<'_>) {
        linear::linear(self, op, run);
    }

    fn swiglu(&self, op: &SwiGlu, run: &mut Run<'_>) {
        swiglu::swiglu(self, op, run);
    }

    fn qk_norm_rope(&self, op: &QkNormRope, run: &mut Run<'_>) {
        qk_norm_rope::qk_norm_rope(self, op, run);
    }

    fn attention(&self, op: &Attention, run: &mut Run<'_>) {
        attention::attention(self, op, run);
    }

    fn causal_conv(&self, op: &CausalConv, run: &mut Run<'_>) {
        causal_conv::causal_conv(self, op, run);
    }

    fn delta_gates(&self, op: &DeltaGates, run: &mut Run<'_>) {
        delta_gates::delta_gates(self, op, run);
    }

    fn gated_delta(&self, op: &GatedDelta, run: &mut Run<'_>) {
        gated_delta::gated_delta(self, op, run);
    }

    fn gated_rms_norm(&self, op: &GatedRmsNorm, run: &mut Run<'_>) {
        gated_rms_norm::gated_rms_norm(self, op, run);
    }

    fn route(&self, op: &Route, run: &mut Run<'_>) {
        route::route(self, op, run);
    }

    fn experts(&self, op: &Experts, run: &mut Run<'_>) {
        experts::experts(self, op, run);
    }

    fn add_gated(&self, op: &AddGated, run: &mut Run<'_>) {
        add_gated::add_gated(self, op, run);
    }

    fn gather_outputs(&self, op: &GatherOutputs, run: &mut Run<'_>) {
        gather_outputs::gather_outputs(op, run);
    }

    fn concat(&self, op: &Concat, run: &mut Run<'_>) {
        concat::concat(op, run);
    }

    fn hadamard(&self, op: &Hadamard, run: &mut Run<'_>) {
        hadamard::hadamard(self, op, run);
    }

    fn grouped_conv(&self, op: &GroupedConv, run: &mut Run<'_>) {
        grouped_conv::grouped_conv(self, op, run);
    }

    fn advance_delta(&self, op: &GatedDelta, run: &Run<'_>, path: &[usize], recurrent: &mut [f32]) {
        gated_delta::advance_delta(self, op, run, path, recurrent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_says_what_it_is() {
        let options = CpuOptions { threads: NonZeroUsize::new(3), instruction_set: Some(InstructionSet::Scalar) };
        let device = CpuDevice::new(options).unwrap();
        assert_eq!((device.name(), device.describe().as_str()), ("cpu", "scalar, 3 threads"));
        assert_eq!((device.threads().get(), device.instruction_set()), (3, InstructionSet::Scalar));
    }
}
