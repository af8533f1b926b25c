//! Weights and parameters in main memory.

use std::sync::Arc;

use crate::Param;

/// A parameter in main memory.
pub(crate) fn host_param(values: Vec<f32>) -> Param {
    Param::new(values.len(), Arc::new(HostParam(values)))
}

/// The values of a parameter made by [`host_param`].
pub(crate) fn param_values(param: &Param) -> &[f32] {
    &param.storage::<HostParam>().expect("`prepare` refuses parameters of other devices").0
}

/// Whether a parameter lives in main memory.
pub(crate) fn is_host_param(param: &Param) -> bool {
    param.storage::<HostParam>().is_some()
}

struct HostParam(Vec<f32>);
