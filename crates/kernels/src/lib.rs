//! Every operation the models need, on every device, behind one seam.
//!
//! A model *records* a pass once: [`Ops`] checks the shapes of each call and appends an [`Op`] to a [`Recording`]. A
//! [`Device`] prepares the recording into its own form, a [`Pass`], which is then run over [`Rows`] again and again
//! without allocating. A pass reads the [`State`] of its sequences and never changes it; [`Pass::commit`] appends the
//! accepted rows afterwards.
//!
//! ```
//! use pleach_kernels::{Capacity, Device, Ops, PassInputs, ReferenceDevice, Rows, SequenceRows};
//!
//! let device = ReferenceDevice::new();
//! let weight = device.param(vec![1.0; 4])?;
//! let mut ops = Ops::new(Capacity { rows: 8, outputs: 1 });
//! let x = ops.input(4);
//! let y = ops.rms_norm(x, &weight, 1e-6)?;
//! ops.keep(y);
//! let mut pass = device.prepare(ops.finish())?;
//!
//! let rows = Rows::new(&[SequenceRows::chain(0, &[7])])?;
//! let hidden = [1.0, 2.0, 3.0, 4.0];
//! pass.run(&PassInputs { rows: &rows, outputs: &[], inputs: &[(x, &hidden)] }, &[])?;
//! assert!((pass.read(y)?[3] - 4.0 / 7.5_f32.sqrt()).abs() < 1e-6);
//! # Ok::<(), pleach_kernels::KernelError>(())
//! ```

mod blocks;
mod ceilings;
mod cpu;
mod device;
mod dtype;
mod error;
mod format;
mod host;
pub mod ops;
mod plan;
mod profile;
pub mod quantize;
mod recording;
mod reference;
mod rows;
mod state;
mod tensor;
mod weight;
mod work;

pub use blocks::{GROUP, Group, WeightRow, row_bytes};
pub use ceilings::{Ceilings, Rate};
pub use cpu::{CpuDevice, CpuOptions, InstructionSet};
pub use device::{Device, Pass, PassInputs};
pub use dtype::DType;
pub use error::KernelError;
pub use format::{FloatFormat, WeightFormat};
pub use ops::Op;
pub use profile::{PartProfile, PassPart, PassProfile};
pub use recording::{Capacity, Commit, DeltaHeads, HeadRows, Ops, Recording, RotatedHeads};
pub use reference::ReferenceDevice;
pub use rows::{DeltaStart, DeltaVisit, Parents, Rows, SequenceRows};
pub use state::{DeltaLayout, DeltaValues, KvLayout, KvValues, State, StateLayout, StatePart, StateValues};
pub use tensor::{Extent, Tensor};
pub use weight::{Activations, Param, Weight, WeightData};
pub use work::PassWork;
