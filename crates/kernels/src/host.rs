//! What the devices in main memory share: buffers, states, and the loop over a recording's ops.

mod buffer;
mod element;
mod pass;
mod run;
mod state;
mod weight;

pub(crate) use buffer::Buffer;
pub(crate) use element::Element;
pub(crate) use pass::{HostKernels, HostPass};
pub(crate) use run::Run;
pub(crate) use state::{HostState, KV_BLOCK, KvView};
pub(crate) use weight::{host_param, param_values};
