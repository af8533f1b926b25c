//! Where the time of a pass goes.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::work::OpWork;
use crate::{Extent, Op, Recording};

/// A kind of work in a pass, in the order in which a pass meets them.
///
/// Products are told apart by their place: by what they feed, or by what feeds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum PassPart {
    /// Rows of the embedding table.
    Embed,
    /// Root-mean-square norms, with the residual additions before them.
    Norms,
    /// Queries, keys and values of attention.
    QkvProj,
    /// Norms of queries and keys, rotation, conversion to the type of the cache.
    QkNormRope,
    /// Softmax attention.
    Attention,
    /// Output of attention.
    OProj,
    /// Inputs of Gated DeltaNet.
    DeltaInProj,
    /// Its convolution.
    CausalConv,
    /// Its decay and write strength.
    DeltaGates,
    /// Its recurrence.
    GatedDelta,
    /// The norm of its output.
    GatedRmsNorm,
    /// Output of Gated DeltaNet.
    DeltaOutProj,
    /// The router of a mixture of experts: its product.
    RouterProj,
    /// The choice of experts.
    Route,
    /// The chosen experts.
    Experts,
    /// First two products of a feed-forward block.
    GateUpProj,
    /// Its activation.
    SwiGlu,
    /// Its last product.
    DownProj,
    /// Products at other places.
    OtherProj,
    /// Copies, additions, rotations at other places.
    Other,
    /// From hidden states to logits.
    LmHead,
}

/// What one kind of work took, over all profiled passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartProfile {
    /// Ops.
    pub ops: u64,
    /// Times that work was handed to the device's threads; 0 where a device does not count.
    pub dispatches: u64,
    /// From the start to the end of each op.
    pub time: Duration,
    /// Bytes of weights, as stored in their files. Experts are counted as if no two rows chose the same.
    pub weight_bytes: u64,
    /// Bytes of committed keys, values and recurrent states.
    pub state_bytes: u64,
    /// Multiply-adds with weights.
    pub macs: u64,
}

/// Where the time of one or more passes went; see [`Pass::profile`](crate::Pass::profile).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassProfile {
    passes: u64,
    parts: BTreeMap<PassPart, PartProfile>,
}

impl PassPart {
    /// Name for people and programs, as the checkpoints and the code spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Norms => "norms",
            Self::QkvProj => "qkv_proj",
            Self::QkNormRope => "qk_norm_rope",
            Self::Attention => "attention",
            Self::OProj => "o_proj",
            Self::DeltaInProj => "delta in_proj",
            Self::CausalConv => "causal_conv",
            Self::DeltaGates => "delta_gates",
            Self::GatedDelta => "gated_delta",
            Self::GatedRmsNorm => "gated_rms_norm",
            Self::DeltaOutProj => "delta out_proj",
            Self::RouterProj => "router",
            Self::Route => "route",
            Self::Experts => "experts",
            Self::GateUpProj => "gate_up_proj",
            Self::SwiGlu => "swiglu",
            Self::DownProj => "down_proj",
            Self::OtherProj => "other products",
            Self::Other => "other ops",
            Self::LmHead => "lm_head",
        }
    }

    /// The part that each op of a recording belongs to.
    pub(crate) fn of_all(recording: &Recording) -> Vec<Self> {
        let places = ProductPlaces::of(recording);
        recording.ops.iter().map(|op| Self::of(op, &places)).collect()
    }

    fn of(op: &Op, places: &ProductPlaces) -> Self {
        match op {
            Op::Embed(_) => Self::Embed,
            Op::RmsNorm(_) | Op::AddRmsNorm(_) => Self::Norms,
            Op::QkNormRope(_) => Self::QkNormRope,
            Op::Attention(_) => Self::Attention,
            Op::CausalConv(_) | Op::GroupedConv(_) => Self::CausalConv,
            Op::DeltaGates(_) => Self::DeltaGates,
            Op::GatedDelta(_) => Self::GatedDelta,
            Op::GatedRmsNorm(_) => Self::GatedRmsNorm,
            Op::Route(_) => Self::Route,
            Op::Experts(_) => Self::Experts,
            Op::SwiGlu(_) => Self::SwiGlu,
            Op::Linear(linear) => {
                let fed = linear.projections.first().and_then(|first| places.by_reader[first.out.index()]);
                let other = if linear.x.extent == Extent::Outputs { Self::LmHead } else { Self::OtherProj };
                fed.or(places.by_writer[linear.x.index()]).unwrap_or(other)
            }
            _ => Self::Other,
        }
    }
}

/// What a product is, by the ops around it; one entry per tensor.
struct ProductPlaces {
    /// If the tensor is its result.
    by_reader: Vec<Option<PassPart>>,
    /// If the tensor is its input.
    by_writer: Vec<Option<PassPart>>,
}

impl ProductPlaces {
    fn of(recording: &Recording) -> Self {
        let none = vec![None; recording.tensors.len()];
        let mut places = Self { by_reader: none.clone(), by_writer: none };
        for op in &recording.ops {
            let (feeds, fed) = match op {
                Op::QkNormRope(_) => (Some(PassPart::QkvProj), None),
                Op::CausalConv(_) => (Some(PassPart::DeltaInProj), None),
                Op::Route(_) => (Some(PassPart::RouterProj), None),
                Op::SwiGlu(_) => (Some(PassPart::GateUpProj), Some(PassPart::DownProj)),
                Op::Attention(_) => (None, Some(PassPart::OProj)),
                Op::GatedRmsNorm(_) => (None, Some(PassPart::DeltaOutProj)),
                _ => continue,
            };
            op.reads().iter().for_each(|tensor| places.by_reader[tensor.index()] = feeds);
            op.writes().iter().for_each(|tensor| places.by_writer[tensor.index()] = fed);
        }
        places
    }
}

impl PassProfile {
    /// Profiled passes.
    pub fn passes(&self) -> u64 {
        self.passes
    }

    /// What was met, in the order of [`PassPart`].
    pub fn parts(&self) -> impl Iterator<Item = (PassPart, &PartProfile)> {
        self.parts.iter().map(|(&part, profile)| (part, profile))
    }

    /// Time of all ops of all passes.
    pub fn time(&self) -> Duration {
        self.parts.values().map(|part| part.time).sum()
    }

    pub(crate) fn add_pass(&mut self) {
        self.passes += 1;
    }

    pub(crate) fn add_op(&mut self, part: PassPart, time: Duration, dispatches: u64, work: OpWork) {
        let sum = self.parts.entry(part).or_default();
        sum.ops += 1;
        sum.dispatches += dispatches;
        sum.time += time;
        sum.weight_bytes += work.weight_bytes;
        sum.state_bytes += work.state_bytes;
        sum.macs += work.macs;
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        Activations, Capacity, Device, FloatFormat, Ops, PassInputs, PassWork, ReferenceDevice, Rows, SequenceRows,
        Tensor, Weight, WeightData, WeightFormat,
    };

    fn weight(device: &dyn Device, rows: usize, columns: usize) -> Weight {
        let values = (0..rows * columns).flat_map(|i| (i as f32 * 0.01 - 0.3).to_le_bytes());
        let format = WeightFormat::Float(FloatFormat::F32);
        let (scales, biases) = (Bytes::new(), Bytes::new());
        let (data, activations) = (values.collect(), Activations::Float);
        device.weight(WeightData { format, rows, columns, data, scales, biases, activations }).unwrap()
    }

    /// A feed-forward block between an embedding and a head.
    fn block(device: &dyn Device) -> (Recording, Tensor) {
        let mut ops = Ops::new(Capacity { rows: 4, outputs: 2 });
        let (table, gate, up) = (weight(device, 10, 4), weight(device, 6, 4), weight(device, 6, 4));
        let down = weight(device, 4, 6);
        let x = ops.embed(&table).unwrap();
        let [gate, up] = ops.linear(x, [(&gate, None), (&up, None)]).unwrap();
        let hidden = ops.swiglu(gate, up).unwrap();
        let [y] = ops.linear(hidden, [(&down, None)]).unwrap();
        let norm = device.param(vec![1.0; 4]).unwrap();
        let (_, normed) = ops.add_rms_norm(x, y, &norm, 1e-6).unwrap();
        let wanted = ops.gather_outputs(normed).unwrap();
        let [logits] = ops.linear(wanted, [(&table, None)]).unwrap();
        ops.keep(logits);
        (ops.finish(), logits)
    }

    #[test]
    fn a_recording_knows_its_work() {
        let (recording, _) = block(&ReferenceDevice::new());
        let expected = PassWork { weight_bytes: 4 * (4 + 3 * 24 + 40), macs_per_row: 3 * 24, macs_per_output: 40 };
        assert_eq!(recording.work(), expected);
    }

    /// A feed-forward block of outputs is no head, and is counted for outputs.
    #[test]
    fn a_block_of_outputs_is_told_from_the_head() {
        let device = ReferenceDevice::new();
        let mut ops = Ops::new(Capacity { rows: 4, outputs: 2 });
        let (table, gate, down) = (weight(&device, 10, 4), weight(&device, 6, 4), weight(&device, 4, 6));
        let x = ops.embed(&table).unwrap();
        let wanted = ops.gather_outputs(x).unwrap();
        let [gate, up] = ops.linear(wanted, [(&gate, None), (&gate, None)]).unwrap();
        let hidden = ops.swiglu(gate, up).unwrap();
        let [y] = ops.linear(hidden, [(&down, None)]).unwrap();
        ops.linear(y, [(&table, None)]).unwrap();
        let recording = ops.finish();
        use PassPart::{DownProj, Embed, GateUpProj, LmHead, Other, SwiGlu};
        assert_eq!(PassPart::of_all(&recording), [Embed, Other, GateUpProj, SwiGlu, DownProj, LmHead]);
        let expected = PassWork { weight_bytes: 4 * (4 + 3 * 24 + 40), macs_per_row: 0, macs_per_output: 3 * 24 + 40 };
        assert_eq!(recording.work(), expected);
    }

    #[test]
    fn a_profile_counts_the_ops_and_changes_no_bit() {
        let device = ReferenceDevice::new();
        let (recording, logits) = block(&device);
        let mut pass = device.prepare(recording).unwrap();
        let rows = Rows::new(&[SequenceRows::chain(0, &[1, 2, 3])]).unwrap();
        let inputs = PassInputs { rows: &rows, outputs: &[0, 2], inputs: &[] };
        pass.run(&inputs, &[]).unwrap();
        let plain = pass.read(logits).unwrap().to_vec();

        let mut profile = PassProfile::default();
        pass.profile(&inputs, &[], &mut profile).unwrap();
        pass.profile(&inputs, &[], &mut profile).unwrap();
        assert_eq!(pass.read(logits).unwrap(), plain);
        assert_eq!(profile.passes(), 2);
        let found: Vec<_> =
            profile.parts().map(|(part, sum)| (part.name(), sum.ops, sum.macs, sum.weight_bytes)).collect();
        let expected = [
            ("embed", 2, 0, 2 * 3 * 16),
            ("norms", 2, 0, 0),
            ("gate_up_proj", 2, 2 * 3 * 48, 2 * 4 * 48),
            ("swiglu", 2, 0, 0),
            ("down_proj", 2, 2 * 3 * 24, 2 * 4 * 24),
            ("other ops", 2, 0, 0),
            ("lm_head", 2, 2 * 2 * 40, 2 * 4 * 40),
        ];
        assert_eq!(found, expected);
        assert!(profile.time() > Duration::ZERO);
    }

    #[test]
    fn a_run_that_is_refused_is_not_counted() {
        let device = ReferenceDevice::new();
        let mut pass = device.prepare(block(&device).0).unwrap();
        let rows = Rows::new(&[SequenceRows::chain(0, &[99])]).unwrap();
        let mut profile = PassProfile::default();
        let inputs = PassInputs { rows: &rows, outputs: &[], inputs: &[] };
        assert!(pass.profile(&inputs, &[], &mut profile).is_err());
        assert_eq!(profile, PassProfile::default());
    }
}
