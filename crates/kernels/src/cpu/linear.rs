use super::activations::{ActivationGroup, quantize};
use super::product::{Inputs, Product, multiply};
use super::scratch::grow;
use super::share::Shared;
use super::weight::cpu_weight;
use super::{Kernels, Team};
use crate::host::{Run, param_values};
use crate::ops::{Linear, Projection};
use crate::{Activations, GROUP};

/// Projections of one dispatch.
const TOGETHER: usize = 8;

/// Speed: bound by the bytes of the weights for few rows, by integer products for many; see `product.rs`.
pub(super) fn linear(cpu: &Kernels, op: &Linear, run: &mut Run<'_>) {
    let mut team = cpu.team();
    let x = run.read::<f32>(op.x);
    for activations in [Activations::Int8PerGroup, Activations::Int8PerRow] {
        let weights = op.projections.iter().map(|projection| cpu_weight(&projection.weight));
        if weights.into_iter().any(|weight| weight.activations() == Some(activations)) {
            quantize_inputs(cpu, &mut team, x, op.x.width, activations);
        }
    }
    let rows = run.count(op.x);
    team.scratch.reserve_moves(rows);
    for projections in op.projections.chunks(TOGETHER) {
        with_outputs(projections, run, [None; TOGETHER], 0, &mut |run, outs| {
            let Team { pool, scratch, ahead, .. } = &mut *team;
            let inputs = Inputs { x: run.read(op.x), per_group: &scratch.per_group, per_row: &scratch.per_row };
            let moves = &scratch.moves[..rows];
            multiply(cpu, pool, ahead, &mut scratch.tiles, inputs, projections.len(), &|i| {
                let Projection { weight, bias, .. } = &projections[i];
                let out = outs[i].expect("every projection of the chunk has its output");
                Product { weight: cpu_weight(weight), bias: bias.as_ref().map(param_values), moves, out }
            });
        });
    }
}

/// Quantizes all rows of `x` into the scratch memory of their precision.
pub(super) fn quantize_inputs(cpu: &Kernels, team: &mut Team, x: &[f32], columns: usize, activations: Activations) {
    let Team { pool, scratch, .. } = team;
    let memory: &mut Vec<ActivationGroup> =
        if activations == Activations::Int8PerRow { &mut scratch.per_row } else { &mut scratch.per_group };
    let groups = x.len() / GROUP;
    grow(memory, groups);
    quantize(cpu.set, pool, x, columns, activations, &mut memory[..groups]);
}

/// What [`with_outputs`] calls at the end.
type WithOutputs<'f> = &'f mut dyn FnMut(&Run<'_>, &[Option<Shared<'_, f32>>; TOGETHER]);

/// Takes the outputs of all projections out of the run, one by one, and calls `then` with them.
fn with_outputs(
    projections: &[Projection],
    run: &mut Run<'_>,
    outs: [Option<Shared<'_, f32>>; TOGETHER],
    taken: usize,
    then: WithOutputs<'_>,
) {
    let Some(projection) = projections.get(taken) else {
        return then(run, &outs);
    };
    run.write(projection.out, |run, out: &mut [f32]| {
        let mut outs = outs;
        outs[taken] = Some(Shared::new(out));
        with_outputs(projections, run, outs, taken + 1, then);
    });
}
