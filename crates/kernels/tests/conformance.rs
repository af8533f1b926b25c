//! Each op on every device: against its formula in f64, against the reference device, and against itself in other company.
//!
//! A device joins by one line in `support::devices`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod support;

#[path = "conformance/attention.rs"]
mod attention;
#[path = "conformance/blocks.rs"]
mod blocks;
#[path = "conformance/delta.rs"]
mod delta;
#[path = "conformance/errors.rs"]
mod errors;
#[path = "conformance/experts.rs"]
mod experts;
#[path = "conformance/linear.rs"]
mod linear;
#[path = "conformance/not_finite.rs"]
mod not_finite;
#[path = "conformance/pointwise.rs"]
mod pointwise;
#[path = "conformance/rows.rs"]
mod rows;
#[path = "conformance/states.rs"]
mod states;
