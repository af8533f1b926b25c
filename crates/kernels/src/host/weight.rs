//! Weights and parameters in main memory.

use std::sync::Arc;

use crate::blocks::row_bytes;
use crate::{KernelError, Param, WeightData, WeightFormat};

/// Checks that the byte ranges of a weight fit its format and shape.
///
/// Sizes saturate: no byte range is as long as the address space, so a shape that overflows never fits.
pub(crate) fn check_weight(data: &WeightData) -> Result<(), KernelError> {
    let WeightData { format, rows, columns, .. } = *data;
    format.check()?;
    let block = format.block_elements();
    if columns % block != 0 {
        return Err(KernelError::WeightBlocks { format, columns, block });
    }
    let (scales, biases) = match format {
        WeightFormat::Affine { group_size, scales, .. } => {
            let bytes = rows.saturating_mul(columns / group_size).saturating_mul(scales.size_bytes());
            (bytes, bytes)
        }
        WeightFormat::Int8PerRow => (rows.saturating_mul(4), 0),
        _ => (0, 0),
    };
    let parts = [
        ("data", data.data.len(), rows.saturating_mul(row_bytes(format, columns))),
        ("scales", data.scales.len(), scales),
        ("biases", data.biases.len(), biases),
    ];
    for (part, found, expected) in parts {
        if found != expected {
            return Err(KernelError::WeightBytes { format, rows, columns, part, found, expected });
        }
    }
    Ok(())
}

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
