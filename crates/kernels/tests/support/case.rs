//! One op, recorded and run on every device.

use pleach_kernels::{
    Capacity, Device, KernelError, Ops, PassInputs, ReferenceDevice, Rows, State, StateLayout, StateValues, Tensor,
};

use super::{Tolerance, assert_close, bits, devices, wide};

/// Records an op over inputs; returns what to compare.
pub(crate) type Record<'a> = dyn Fn(&dyn Device, &mut Ops, &[Tensor]) -> Result<Vec<Tensor>, KernelError> + 'a;

/// One line of the table: an op with its inputs and what it must give.
pub(crate) struct Case<'a> {
    pub(crate) name: String,
    pub(crate) rows: Rows,
    pub(crate) outputs: Vec<usize>,
    /// Each `[rows, width]`.
    pub(crate) inputs: Vec<Vec<f32>>,
    /// State of each sequence.
    pub(crate) states: Option<(StateLayout, Vec<StateValues>)>,
    pub(crate) record: &'a Record<'a>,
    /// The formula in f64, one entry per recorded result.
    pub(crate) expected: Vec<Vec<f64>>,
    pub(crate) tolerance: Tolerance,
}

impl Case<'_> {
    /// The reference must give the formula, and every device what the reference gives.
    #[track_caller]
    pub(crate) fn check(&self) {
        let truth = self.run(&ReferenceDevice::new());
        assert_eq!(truth.len(), self.expected.len(), "{}: number of results", self.name);
        for (i, (found, expected)) in truth.iter().zip(&self.expected).enumerate() {
            assert_close(&format!("{} result {i}, reference", self.name), found, expected, self.tolerance);
        }
        for device in &devices()[1..] {
            for (i, (found, expected)) in self.run(&**device).iter().zip(&truth).enumerate() {
                let what = format!("{} result {i}, {}", self.name, device.describe());
                assert_close(&what, found, &wide(expected), self.tolerance);
            }
        }
    }

    /// Every device must give what is expected, without the reference between them: for golden values.
    #[track_caller]
    pub(crate) fn check_golden(&self) {
        for device in devices() {
            let results = self.run(&*device);
            assert_eq!(results.len(), self.expected.len(), "{}: number of results", self.name);
            for (i, (found, expected)) in results.iter().zip(&self.expected).enumerate() {
                let what = format!("{} result {i}, {}", self.name, device.describe());
                assert_close(&what, found, expected, self.tolerance);
            }
        }
    }

    /// Runs twice in a pass with room to spare; both runs must give the same bits.
    pub(crate) fn run(&self, device: &dyn Device) -> Vec<Vec<f32>> {
        let mut ops = Ops::new(Capacity { rows: self.rows.len() + 3, outputs: self.outputs.len() + 1 });
        let tensors: Vec<_> = self.inputs.iter().map(|input| ops.input(input.len() / self.rows.len())).collect();
        let results = (self.record)(device, &mut ops, &tensors).unwrap();
        results.iter().for_each(|&result| ops.keep(result));
        let mut pass = device.prepare(ops.finish()).unwrap();

        let states = self.states(device);
        let states: Vec<&dyn State> = states.iter().map(|state| &**state).collect();
        let inputs: Vec<_> = tensors.iter().zip(&self.inputs).map(|(&tensor, input)| (tensor, &input[..])).collect();
        let inputs = PassInputs { rows: &self.rows, outputs: &self.outputs, inputs: &inputs };
        let mut run = || {
            pass.run(&inputs, &states).unwrap();
            results.iter().map(|&result| pass.read(result).unwrap().to_vec()).collect::<Vec<_>>()
        };
        let (first, second) = (run(), run());
        for (first, second) in first.iter().zip(&second) {
            assert_eq!(bits(first), bits(second), "{}: a pass must give the same bits again", self.name);
        }
        second
    }

    fn states(&self, device: &dyn Device) -> Vec<Box<dyn State>> {
        let Some((layout, values)) = &self.states else { return Vec::new() };
        values.iter().map(|values| restored(device, layout, values)).collect()
    }
}

/// A state of `device` that holds `values`.
pub(crate) fn restored(device: &dyn Device, layout: &StateLayout, values: &StateValues) -> Box<dyn State> {
    let mut state = device.state(layout).unwrap();
    state.restore(values).unwrap();
    state
}

/// `n` rows of one sequence without history.
pub(crate) fn plain_rows(n: usize) -> Rows {
    super::random::forest(&[super::random::Tree::chain(0, vec![0; n])])
}
