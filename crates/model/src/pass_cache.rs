//! Recorded passes, one per row bucket.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use pleach_kernels::{Capacity, Device, KernelError, Ops, Pass, PassInputs, PassProfile, Rows, State, Tensor};

use crate::ModelError;

/// Rows of the largest pass; longer prompts are split into chunks.
pub const MAX_ROWS: usize = 512;

/// Passes recorded on first use. A bucket of rows is the next power of two, one of outputs the next power of four: passes
/// of several sequences come in every mixture of both, and each recording keeps its memory.
pub(crate) struct PassCache<T> {
    passes: HashMap<Capacity, (Box<dyn Pass>, T)>,
    last: Option<Capacity>,
}

impl<T> PassCache<T> {
    pub(crate) fn new() -> Self {
        Self { passes: HashMap::new(), last: None }
    }

    /// Runs `rows` through the pass of their bucket, recording it first if need be.
    ///
    /// `inputs` names the values that each run brings along, given what the recording returned.
    pub(crate) fn run<'a>(
        &mut self,
        device: &dyn Device,
        run: RunOf<'a>,
        record: impl FnOnce(&mut Ops) -> Result<T, KernelError>,
        inputs: impl FnOnce(&T) -> Vec<(Tensor, &'a [f32])>,
    ) -> Result<(), ModelError> {
        let capacity = bucket(run.rows.len(), run.outputs.len())?;
        self.last = None;
        let (pass, outputs) = match self.passes.entry(capacity) {
            Entry::Occupied(recorded) => recorded.into_mut(),
            Entry::Vacant(empty) => {
                let mut ops = Ops::new(capacity);
                let outputs = record(&mut ops)?;
                empty.insert((device.prepare(ops.finish())?, outputs))
            }
        };
        let inputs = inputs(outputs);
        let inputs = PassInputs { rows: run.rows, outputs: run.outputs, inputs: &inputs };
        match run.profile {
            Some(profile) => pass.profile(&inputs, run.states, profile)?,
            None => pass.run(&inputs, run.states)?,
        }
        self.last = Some(capacity);
        Ok(())
    }

    /// The pass that ran last, and what its recording returned.
    ///
    /// # Errors
    /// [`ModelError::NotRun`] before the first run and after a failed one.
    pub(crate) fn last(&self) -> Result<(&dyn Pass, &T), ModelError> {
        let recorded = self.last.and_then(|capacity| self.passes.get(&capacity));
        recorded.map(|(pass, outputs)| (&**pass, outputs)).ok_or(ModelError::NotRun)
    }

    /// The pass that ran last, to commit rows of it.
    ///
    /// # Errors
    /// As [`last`](Self::last).
    pub(crate) fn last_mut(&mut self) -> Result<&mut Box<dyn Pass>, ModelError> {
        let recorded = self.last.and_then(|capacity| self.passes.get_mut(&capacity));
        recorded.map(|(pass, _)| pass).ok_or(ModelError::NotRun)
    }
}

/// The rows of one run and the states they continue.
pub(crate) struct RunOf<'a> {
    pub(crate) rows: &'a Rows,
    pub(crate) outputs: &'a [usize],
    pub(crate) states: &'a [&'a dyn State],
    /// Where to add what each op takes.
    pub(crate) profile: Option<&'a mut PassProfile>,
}

/// The capacity that serves a run.
fn bucket(rows: usize, outputs: usize) -> Result<Capacity, ModelError> {
    if rows > MAX_ROWS {
        return Err(ModelError::TooManyRows { found: rows, most: MAX_ROWS });
    }
    let (rows, mut least) = (rows.next_power_of_two(), 1);
    while least < outputs {
        least *= 4;
    }
    // Few rows cannot have more outputs than they are.
    Ok(Capacity { rows, outputs: least.min(rows.max(outputs)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_powers() {
        assert_eq!(bucket(5, 1).unwrap(), Capacity { rows: 8, outputs: 1 });
        assert_eq!(bucket(5, 3).unwrap(), Capacity { rows: 8, outputs: 4 });
        assert_eq!(bucket(8, 8).unwrap(), Capacity { rows: 8, outputs: 8 });
        assert_eq!(bucket(300, 9).unwrap(), Capacity { rows: 512, outputs: 16 });
        assert_eq!(bucket(512, 300).unwrap(), Capacity { rows: 512, outputs: 512 });
        let error = bucket(513, 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a pass of 513 rows was asked for, at most 512 are possible: split the rows into chunks"
        );
    }
}
