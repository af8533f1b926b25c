//! Memory that ops need besides their tensors; grown when a pass is prepared, so that no pass allocates.

use super::activations::ActivationGroup;
use super::attention::AttentionScratch;
use super::experts::ExpertScratch;
use super::gated_delta;
use super::instruction_set::InstructionSet;
use super::product::{Move, TileScratch};
use super::qk_norm_rope::Angles;
use super::weight::{CpuWeight, cpu_weight};
use crate::{Activations, GROUP, Op, Recording};

/// Saved states that a DeltaNet walk can use without allocating: branch points on one path of a token tree.
///
/// A pass whose tree has more of them grows the memory once.
const SAVED_STATES: usize = 8;

/// Scratch memory of a device, shared by its passes, which use it one op at a time.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Activations with a scale per group, `[rows, columns / 32]`.
    pub(super) per_group: Vec<ActivationGroup>,
    /// Activations with a scale per row.
    pub(super) per_row: Vec<ActivationGroup>,
    /// Row `i` to row `i`.
    pub(super) moves: Vec<Move>,
    pub(super) tiles: Vec<TileScratch>,
    pub(super) workers: Vec<WorkerScratch>,
    pub(super) experts: ExpertScratch,
    pub(super) attention: AttentionScratch,
    pub(super) angles: Angles,
}

/// Memory of one thread.
#[derive(Debug, Default)]
pub(super) struct WorkerScratch {
    /// Rows from a root to the row at work.
    pub(super) path: Vec<usize>,
    /// Small vectors: rotary angles, normalized heads, probabilities.
    pub(super) values: Vec<f32>,
    /// Recurrent states of one head: the current one, then the saved ones.
    pub(super) states: Vec<f32>,
}

/// Makes `memory` at least `len` long.
pub(super) fn grow<T: Clone + Default>(memory: &mut Vec<T>, len: usize) {
    if memory.len() < len {
        memory.resize(len, T::default());
    }
}

impl Scratch {
    pub(super) fn new(threads: usize) -> Self {
        Self {
            tiles: vec![TileScratch::default(); threads],
            workers: (0..threads).map(|_| WorkerScratch::default()).collect(),
            ..Self::default()
        }
    }

    /// Grows to what any run of `recording` needs.
    pub(super) fn reserve(&mut self, set: InstructionSet, recording: &Recording) {
        let rows = recording.capacity.rows.max(recording.capacity.outputs);
        self.reserve_moves(rows);
        for op in &recording.ops {
            match op {
                Op::Linear(op) => {
                    for projection in &op.projections {
                        self.reserve_product(set, cpu_weight(&projection.weight), rows);
                    }
                }
                Op::Experts(op) => {
                    let pairs = rows * op.chosen.width;
                    self.experts.reserve(op, rows);
                    for expert in op.experts.iter() {
                        self.reserve_product(set, cpu_weight(&expert.gate), rows);
                        self.reserve_product(set, cpu_weight(&expert.up), rows);
                        self.reserve_product(set, cpu_weight(&expert.down), pairs);
                    }
                }
                Op::QkNormRope(op) => {
                    self.reserve_values(op.shape.head_dim);
                    self.angles.reserve(op, recording.capacity.rows);
                }
                Op::Attention(op) => {
                    self.reserve_paths(recording.capacity.rows);
                    self.reserve_values(AttentionScratch::per_worker(op, recording.capacity.rows));
                    self.attention.reserve(op, recording, self.workers.len());
                }
                Op::Route(op) => self.reserve_values(op.logits.width),
                Op::GatedDelta(op) => {
                    let layout = &op.layout;
                    self.reserve_values(gated_delta::memory(layout));
                    let saved = SAVED_STATES.min(rows / 2);
                    self.reserve_states((1 + saved) * layout.key_head_dim * layout.value_head_dim);
                }
                _ => {}
            }
        }
    }

    /// Grows the list of moves of all rows.
    pub(super) fn reserve_moves(&mut self, rows: usize) {
        for row in self.moves.len()..rows {
            let row = u32::try_from(row).expect("a pass has far fewer than 2^32 rows");
            self.moves.push(Move { from: row, to: row });
        }
    }

    fn reserve_product(&mut self, set: InstructionSet, weight: &CpuWeight, rows: usize) {
        let groups = rows * weight.data.columns / GROUP;
        match weight.activations() {
            Some(Activations::Int8PerRow) => grow(&mut self.per_row, groups),
            Some(_) => grow(&mut self.per_group, groups),
            None => {}
        }
        for tile in &mut self.tiles {
            tile.reserve(set, weight, rows);
        }
    }

    fn reserve_values(&mut self, len: usize) {
        self.workers.iter_mut().for_each(|worker| grow(&mut worker.values, len));
    }

    fn reserve_paths(&mut self, rows: usize) {
        for worker in &mut self.workers {
            worker.path.clear();
            worker.path.reserve(rows);
        }
    }

    /// Grows the states of each thread to `len` floats.
    pub(super) fn reserve_states(&mut self, len: usize) {
        self.workers.iter_mut().for_each(|worker| grow(&mut worker.states, len));
    }
}
