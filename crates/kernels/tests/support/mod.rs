//! What the tests of this crate share.
#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod case;
pub(crate) mod fixture;
pub(crate) mod model;
pub(crate) mod random;

use std::num::NonZeroUsize;
use std::sync::Arc;

use pleach_kernels::{CpuDevice, CpuOptions, Device, InstructionSet, ReferenceDevice};

/// Every device under test; the first is the reference.
pub(crate) fn devices() -> Vec<Arc<dyn Device>> {
    let mut devices: Vec<Arc<dyn Device>> = vec![Arc::new(ReferenceDevice::new())];
    for set in InstructionSet::ALL.into_iter().filter(|set| set.is_available()) {
        devices.push(Arc::new(cpu(set, 1)));
    }
    devices.push(Arc::new(cpu(InstructionSet::detect(), 3)));
    devices
}

fn cpu(set: InstructionSet, threads: usize) -> CpuDevice {
    CpuDevice::new(CpuOptions { threads: NonZeroUsize::new(threads), instruction_set: Some(set) }).unwrap()
}

/// How far a value may be from the expected one: `absolute + relative · max|expected|`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tolerance {
    pub(crate) absolute: f64,
    pub(crate) relative: f64,
}

impl Tolerance {
    /// Nothing is computed, or only once and correctly rounded.
    pub(crate) const EXACT: Self = Self { absolute: 0.0, relative: 0.0 };

    pub(crate) const fn absolute(absolute: f64) -> Self {
        Self { absolute, relative: 0.0 }
    }

    pub(crate) const fn relative(relative: f64) -> Self {
        Self { absolute: 0.0, relative }
    }
}

#[track_caller]
pub(crate) fn assert_close(what: &str, found: &[f32], expected: &[f64], tolerance: Tolerance) {
    assert_eq!(found.len(), expected.len(), "{what}: number of values");
    let max = expected.iter().fold(0.0, |max: f64, value| max.max(value.abs()));
    let allowed = tolerance.absolute + tolerance.relative * max;
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let off = (f64::from(found) - expected).abs();
        assert!(
            off <= allowed,
            "{what}: value {i} is {found}, expected {expected}: off by {off:e}, allowed {allowed:e}"
        );
    }
}

/// The bits of values, so that comparison tells −0 from 0 and finds NaN equal to itself.
pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

pub(crate) fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}
