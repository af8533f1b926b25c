use super::linear::quantize_inputs;
use super::product::{Inputs, Move, Product, multiply};
use super::scratch::grow;
use super::share::{Shared, for_each_part, for_each_row};
use super::simd::{Kernel, LANES, Simd};
use super::swiglu::Gate;
use super::weight::{CpuWeight, cpu_weight};
use super::{Kernels, Team, math};
use crate::host::Run;
use crate::ops::{ExpertWeights, Experts};
use crate::{Activations, Weight};

/// Memory of the op: one entry per pair of a row and an expert that it chose, the pairs of an expert side by side.
#[derive(Debug, Default)]
pub(super) struct ExpertScratch {
    /// From the row to the pair.
    inward: Vec<Move>,
    /// From the pair to itself.
    within: Vec<Move>,
    /// Pair of each choice, `[rows, top_k]`.
    pair_of: Vec<u32>,
    /// First pair of each expert, and their number at the end.
    starts: Vec<usize>,
    /// Experts that some row chose.
    active: Vec<usize>,
    /// `[pairs, moe_intermediate_size]`.
    gate: Vec<f32>,
    up: Vec<f32>,
    hidden: Vec<f32>,
    /// `[pairs, hidden_size]`.
    down: Vec<f32>,
}

impl ExpertScratch {
    /// Grows to what a run of `rows` rows needs.
    pub(super) fn reserve(&mut self, op: &Experts, rows: usize) {
        let pairs = rows * op.chosen.width;
        let intermediate = op.experts[0].gate.rows;
        grow(&mut self.inward, pairs);
        grow(&mut self.within, pairs);
        grow(&mut self.pair_of, pairs);
        grow(&mut self.starts, op.experts.len() + 1);
        self.active.clear();
        self.active.reserve(op.experts.len());
        for memory in [&mut self.gate, &mut self.up, &mut self.hidden] {
            grow(memory, pairs * intermediate);
        }
        grow(&mut self.down, pairs * op.x.width);
    }

    /// Sorts the choices by expert, rows in order within one (a counting sort).
    fn sort(&mut self, chosen: &[i32], top_k: usize, num_experts: usize) {
        let starts = &mut self.starts[..=num_experts];
        starts.fill(0);
        for &expert in chosen {
            starts[expert as usize + 1] += 1;
        }
        self.active.clear();
        self.active.extend((0..num_experts).filter(|&expert| starts[expert + 1] > 0));
        for expert in 0..num_experts {
            starts[expert + 1] += starts[expert];
        }
        for (choice, &expert) in chosen.iter().enumerate() {
            let pair = starts[expert as usize];
            starts[expert as usize] += 1;
            let place = u32::try_from(pair).expect("a pass has far fewer than 2^32 choices");
            self.inward[pair] = Move { from: (choice / top_k) as u32, to: place };
            self.within[pair] = Move { from: place, to: place };
            self.pair_of[choice] = place;
        }
        // Filling moved each start to the next expert's.
        starts.copy_within(..num_experts, 1);
        starts[0] = 0;
    }
}

/// Two dispatches, gate and up together, then down; each matrix of a chosen expert is read once for all its rows.
pub(super) fn experts(cpu: &Kernels, op: &Experts, run: &mut Run<'_>) {
    let top_k = op.chosen.width;
    let intermediate = op.experts[0].gate.rows;
    run.write(op.out, |run, out: &mut [f32]| {
        let (x, chosen) = (run.read::<f32>(op.x), run.read::<i32>(op.chosen));
        let mut team = cpu.team();
        // The memory of the pairs is lent out of the team, which quantizes meanwhile.
        let mut memory = std::mem::take(&mut team.scratch.experts);
        memory.reserve(op, run.count(op.x));
        memory.sort(chosen, top_k, op.experts.len());
        let pairs = chosen.len();
        quantize_for(cpu, &mut team, op, x, op.x.width, gate_and_up);
        let outs = [Shared::new(&mut memory.gate), Shared::new(&mut memory.up)];
        multiply_pairs(
            cpu,
            &mut team,
            op,
            x,
            &Pairs {
                starts: &memory.starts,
                active: &memory.active,
                moves: &memory.inward,
                weights: gate_and_up,
                outs,
            },
        );
        gate_pairs(cpu, &mut team, intermediate, pairs, &mut memory);
        let hidden = &memory.hidden[..pairs * intermediate];
        quantize_for(cpu, &mut team, op, hidden, intermediate, down);
        let outs = [Shared::new(&mut memory.down)];
        multiply_pairs(
            cpu,
            &mut team,
            op,
            hidden,
            &Pairs { starts: &memory.starts, active: &memory.active, moves: &memory.within, weights: down, outs },
        );
        let weights = run.read::<f32>(op.weights);
        for_each_row(&mut team.pool, out, op.x.width, |row, out| {
            let choices = row * top_k..(row + 1) * top_k;
            let (down, pair_of, weights) = (&memory.down, &memory.pair_of[choices.clone()], &weights[choices]);
            cpu.set.run(SumChoices { down, pair_of, weights, out });
        });
        team.scratch.experts = memory;
    });
}

fn gate_and_up(expert: &ExpertWeights) -> [&Weight; 2] {
    [&expert.gate, &expert.up]
}

fn down(expert: &ExpertWeights) -> [&Weight; 1] {
    [&expert.down]
}

/// Quantizes `x` in each precision that some expert asks for.
fn quantize_for<'a, const N: usize>(
    cpu: &Kernels,
    team: &mut Team,
    op: &'a Experts,
    x: &[f32],
    columns: usize,
    weights: impl Fn(&'a ExpertWeights) -> [&'a Weight; N],
) {
    for activations in [Activations::Int8PerGroup, Activations::Int8PerRow] {
        let mut all = op.experts.iter().flat_map(&weights);
        if all.any(|weight| cpu_weight(weight).activations() == Some(activations)) {
            quantize_inputs(cpu, team, x, columns, activations);
        }
    }
}

/// `N` products per chosen expert.
struct Pairs<'m, F, const N: usize> {
    starts: &'m [usize],
    active: &'m [usize],
    moves: &'m [Move],
    weights: F,
    outs: [Shared<'m, f32>; N],
}

fn multiply_pairs<'a, F, const N: usize>(
    cpu: &Kernels,
    team: &mut Team,
    op: &'a Experts,
    x: &[f32],
    pairs: &Pairs<'_, F, N>,
) where
    F: Fn(&'a ExpertWeights) -> [&'a Weight; N] + Sync,
{
    let Team { pool, scratch, ahead, .. } = team;
    let inputs = Inputs { x, per_group: &scratch.per_group, per_row: &scratch.per_row };
    multiply(cpu, pool, ahead, &mut scratch.tiles, inputs, N * pairs.active.len(), &|i| {
        let expert = pairs.active[i / N];
        let weight: &CpuWeight = cpu_weight((pairs.weights)(&op.experts[expert])[i % N]);
        let moves = &pairs.moves[pairs.starts[expert]..pairs.starts[expert + 1]];
        Product { weight, bias: None, moves, out: pairs.outs[i % N] }
    });
}

fn gate_pairs(cpu: &Kernels, team: &mut Team, intermediate: usize, pairs: usize, memory: &mut ExpertScratch) {
    let ExpertScratch { gate, up, hidden, .. } = memory;
    for_each_part(&mut team.pool, &mut hidden[..pairs * intermediate], intermediate, 4096, |_, pair, out| {
        let part = pair * intermediate..(pair + 1) * intermediate;
        cpu.set.run(Gate { gate: &gate[part.clone()], up: &up[part], out });
    });
}

/// `out = Σ_j weights[j] · down[pair_of[j]]`, in the order of `j`.
struct SumChoices<'a> {
    down: &'a [f32],
    pair_of: &'a [u32],
    weights: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for SumChoices<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.out.len();
        for (i, out) in self.out.chunks_mut(LANES).enumerate() {
            let mut sum = s.splat(0.0);
            for (&pair, &weight) in self.pair_of.iter().zip(self.weights) {
                let start = pair as usize * width + i * LANES;
                let down = math::load_part(s, &self.down[start..start + out.len()]);
                sum = s.fma(s.splat(weight), down, sum);
            }
            math::store_part(s, sum, out);
        }
    }
}
