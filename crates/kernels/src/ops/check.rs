//! The checks that several ops share.

use crate::{DType, Extent, KernelError, Tensor};

/// `found` elements where the contract of `op` asks for `expected`.
pub(super) fn size(op: &'static str, argument: &'static str, found: usize, expected: usize) -> Result<(), KernelError> {
    if found == expected { Ok(()) } else { Err(KernelError::Shape { op, argument, found, expected }) }
}

/// An f32 tensor of `width` elements per row.
pub(super) fn activation(
    op: &'static str,
    argument: &'static str,
    tensor: Tensor,
    width: usize,
) -> Result<(), KernelError> {
    dtype(op, argument, tensor, DType::F32)?;
    size(op, argument, tensor.width, width)
}

/// A tensor of the element type `expected`.
pub(super) fn dtype(
    op: &'static str,
    argument: &'static str,
    tensor: Tensor,
    expected: DType,
) -> Result<(), KernelError> {
    if tensor.dtype == expected {
        Ok(())
    } else {
        Err(KernelError::DType { op, argument, found: tensor.dtype, expected })
    }
}

/// A tensor over the rows of the pass: for ops that look at positions, parents or states.
pub(super) fn over_rows(op: &'static str, argument: &'static str, tensor: Tensor) -> Result<(), KernelError> {
    self::argument(op, argument, tensor.index(), tensor.extent == Extent::Rows, "a tensor over rows")
}

/// A value that must satisfy a condition stated in words.
pub(super) fn argument(
    op: &'static str,
    argument: &'static str,
    found: usize,
    holds: bool,
    expected: &'static str,
) -> Result<(), KernelError> {
    if holds { Ok(()) } else { Err(KernelError::Argument { op, argument, found, expected }) }
}
