//! How much an op reads and multiplies: what its time is measured against.

use crate::ops::{CausalConv, Embed, Experts, GatedDelta, Linear};
use crate::{Extent, Op, Recording, Rows, Weight};

/// What a pass reads and multiplies at least, known before it is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassWork {
    /// Bytes of weights, as stored in their files, that a pass of one row and one output reads. More rows read the same
    /// bytes, but for experts that only they chose.
    pub weight_bytes: u64,
    /// Multiply-adds with weights per row of a pass.
    pub macs_per_row: u64,
    /// Multiply-adds with weights per row whose logits are wanted, besides those of the row: of the head, and of what follows
    /// the mixer of the last block.
    pub macs_per_output: u64,
}

/// What one op does in one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OpWork {
    pub(crate) weight_bytes: u64,
    pub(crate) state_bytes: u64,
    pub(crate) macs: u64,
}

impl Recording {
    /// What a run of this recording reads and multiplies.
    pub fn work(&self) -> PassWork {
        let mut work = PassWork::default();
        for op in &self.ops {
            let one = weight_work(op, 1);
            work.weight_bytes += one.weight_bytes;
            match extent(op) {
                Extent::Outputs => work.macs_per_output += one.macs,
                Extent::Rows => work.macs_per_row += one.macs,
            }
        }
        work
    }
}

impl OpWork {
    /// Of `op` in a run over `rows`, of which `outputs` are wanted.
    pub(crate) fn of(op: &Op, rows: &Rows, outputs: usize) -> Self {
        let count = match extent(op) {
            Extent::Outputs => outputs,
            Extent::Rows => rows.len(),
        };
        Self { state_bytes: state_bytes(op, rows), ..weight_work(op, count) }
    }
}

/// What an op with weights multiplies.
fn extent(op: &Op) -> Extent {
    match op {
        Op::Linear(Linear { x, .. }) | Op::Experts(Experts { x, .. }) => x.extent,
        _ => Extent::Rows,
    }
}

/// The part that concerns weights, over `rows` rows.
fn weight_work(op: &Op, rows: usize) -> OpWork {
    let rows = rows as u64;
    match op {
        Op::Embed(Embed { table, .. }) => {
            OpWork { weight_bytes: rows * table.stored_bytes / (table.rows as u64).max(1), ..OpWork::default() }
        }
        Op::Linear(op) if rows > 0 => total(op.projections.iter().map(|projection| &projection.weight), rows),
        Op::Experts(op) => expert_work(op, rows),
        _ => OpWork::default(),
    }
}

/// Each row multiplies with the experts that it chose; how many are read depends on how often rows agree, and is counted
/// as if they never did.
fn expert_work(op: &Experts, rows: u64) -> OpWork {
    // All experts of a layer have one shape; their formats may differ a little.
    let all = total(op.experts.iter().flat_map(|expert| [&expert.gate, &expert.up, &expert.down]), 1);
    let (num_experts, chosen) = ((op.experts.len() as u64).max(1), rows * op.chosen.width as u64);
    OpWork {
        weight_bytes: all.weight_bytes * chosen.min(num_experts) / num_experts,
        state_bytes: 0,
        macs: all.macs / num_experts * chosen,
    }
}

/// Products of `rows` rows with each of `weights`, which are read once.
fn total<'a>(weights: impl Iterator<Item = &'a Weight>, rows: u64) -> OpWork {
    weights.fold(OpWork::default(), |sum, weight| OpWork {
        weight_bytes: sum.weight_bytes + weight.stored_bytes,
        state_bytes: 0,
        macs: sum.macs + rows * (weight.rows * weight.columns) as u64,
    })
}

/// Bytes of the sequences' states that the op reads at least: each once.
fn state_bytes(op: &Op, rows: &Rows) -> u64 {
    let (sequences, f32_bytes) = (rows.num_sequences(), size_of::<f32>());
    let bytes = match op {
        Op::Attention(op) => {
            let committed: usize = (0..sequences).map(|sequence| rows.sequence_len(sequence)).sum();
            op.layout.token_bytes() * committed
        }
        Op::CausalConv(CausalConv { layout, .. }) => {
            sequences * (layout.conv_kernel_dim - 1) * layout.conv_channels() * f32_bytes
        }
        Op::GatedDelta(GatedDelta { layout, .. }) => sequences * layout.state_elements() * f32_bytes,
        _ => 0,
    };
    bytes as u64
}
