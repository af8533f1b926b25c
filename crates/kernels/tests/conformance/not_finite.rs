//! NaN and infinity: they come out as what they are, and nothing panics.

use pleach_kernels::{Activations, Capacity, Device, Ops, PassInputs, Rows, SequenceRows, State, StateLayout, Tensor};

use crate::support::devices;
use crate::support::model::{Kind, Model, USUAL};
use crate::support::random::{Random, Tree, all_formats, forest};

const CAPACITY: Capacity = Capacity { rows: 8, outputs: 1 };

/// Records one op over one input.
type RecordOne<'a> = dyn Fn(&mut Ops, Tensor) -> Tensor + 'a;

/// Runs `record` over one input of `width` columns and three rows, of which the middle one has `poison` in it.
fn poisoned(
    device: &dyn Device,
    width: usize,
    poison: f32,
    record: impl Fn(&mut Ops, Tensor) -> Tensor,
) -> Vec<Vec<f32>> {
    let mut ops = Ops::new(CAPACITY);
    let x = ops.input(width);
    let out = record(&mut ops, x);
    ops.keep(out);
    let mut pass = device.prepare(ops.finish()).unwrap();
    let rows = Rows::new(&[SequenceRows::chain(0, &[0, 0, 0])]).unwrap();
    let mut values = Random::new(1).normals(3 * width);
    values[width + width / 2] = poison;
    pass.run(&PassInputs { rows: &rows, outputs: &[], inputs: &[(x, &values)] }, &[]).unwrap();
    pass.read(out).unwrap().chunks_exact(out.width).map(<[f32]>::to_vec).collect()
}

#[test]
fn products_of_every_format() {
    for device in devices() {
        for format in all_formats() {
            for activations in [Activations::Float, Activations::Int8PerGroup, Activations::Int8PerRow] {
                let weight = device.weight(Random::new(2).weight(format, 5, 256, activations)).unwrap();
                for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let rows = poisoned(&*device, 256, poison, |ops, x| ops.linear(x, [(&weight, None)]).unwrap()[0]);
                    let name = format!("{} {format} {activations:?} {poison}", device.describe());
                    assert!(rows[1].iter().all(|y| !y.is_finite()), "{name}: {:?}", rows[1]);
                    if poison.is_nan() {
                        assert!(rows[1].iter().all(|y| y.is_nan()), "{name}: {:?}", rows[1]);
                    }
                    assert!(rows[0].iter().chain(&rows[2]).all(|y| y.is_finite()), "{name}");
                }
            }
        }
    }
}

#[test]
fn norms_and_gates() {
    for device in devices() {
        let weight = device.param(vec![1.0; 16]).unwrap();
        let ops: [&RecordOne<'_>; 4] = [
            &|ops, x| ops.rms_norm(x, &weight, 1e-6).unwrap(),
            &|ops, x| ops.add_rms_norm(x, x, &weight, 1e-6).unwrap().1,
            &|ops, x| ops.gated_rms_norm(x, x, &weight, 1e-6).unwrap(),
            &|ops, x| ops.hadamard(x, &weight, 16).unwrap(),
        ];
        for (place, record) in ops.into_iter().enumerate() {
            let rows = poisoned(&*device, 16, f32::NAN, record);
            assert!(rows[1].iter().all(|y| y.is_nan()), "{}: op {place}", device.describe());
            assert!(rows[0].iter().chain(&rows[2]).all(|y| y.is_finite()), "{}: op {place}", device.describe());
        }
        let rows = poisoned(&*device, 16, f32::NAN, |ops, x| ops.swiglu(x, x).unwrap());
        assert_eq!(rows[1].iter().filter(|y| y.is_nan()).count(), 1, "{}", device.describe());
    }
}

#[test]
fn routing_by_logits_that_are_not_numbers() {
    for device in devices() {
        for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let rows = poisoned(&*device, 6, poison, |ops, x| ops.route(x, 3, true).unwrap().1);
            assert_eq!(rows[1].iter().any(|y| y.is_nan()), poison != f32::NEG_INFINITY, "{}", device.describe());
            assert!((rows[0].iter().sum::<f32>() - 1.0).abs() < 1e-6);
        }
    }
}

/// A whole model whose state is poisoned: one sequence is lost, its neighbor in the pass is not.
#[test]
fn a_poisoned_sequence_does_not_touch_its_neighbor() {
    for device in devices() {
        for kind in [USUAL, Kind { activations: Activations::Float, ..USUAL }] {
            let mut model = Model::new(&*device, kind, CAPACITY);
            let layout: StateLayout = model.layout.clone();
            let healthy = crate::support::case::restored(&*device, &layout, &Random::new(3).state(&layout, 5));
            let mut values = Random::new(3).state(&layout, 5);
            values.attention[0].keys[3] = f32::NAN;
            values.delta[0].recurrent[0] = f32::NAN;
            let mut sick = crate::support::case::restored(&*device, &layout, &values);

            let rows = forest(&[Tree::chain(5, vec![1, 2]), Tree::chain(5, vec![1, 2])]);
            let states: [&dyn State; 2] = [&*healthy, &*sick];
            let together = model.run(&rows, &states);
            let alone = model.run(&forest(&[Tree::chain(5, vec![1, 2])]), &[&*healthy]);
            assert_eq!(together[..2], alone[..], "{}", device.describe());
            assert!(together[2].iter().all(|y| y.is_nan()), "{}", device.describe());

            model.run(&forest(&[Tree::chain(5, vec![1, 2])]), &[&*sick]);
            model.pass.commit(&[0, 1], &mut *sick).unwrap();
            assert_eq!(sick.len(), 7);
        }
    }
}
