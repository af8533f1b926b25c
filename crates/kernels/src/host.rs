//! What the devices in main memory share: buffers, states, and the loop over a recording's ops.

mod buffer;
mod element;
mod kv_cache;
mod pass;
mod run;
mod state;
mod weight;

pub(crate) use buffer::Buffer;
pub(crate) use element::Element;
pub(crate) use kv_cache::{KEY_PANEL, KV_BLOCK, KvCache, KvView};
pub(crate) use pass::{HostKernels, HostPass};
pub(crate) use run::Run;
pub(crate) use state::HostState;
pub(crate) use weight::{host_param, param_values};
