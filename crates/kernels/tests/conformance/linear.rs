//! Products with weights of every format, and the embedding.

use pleach_kernels::{Activations, FloatFormat, GROUP, Rows, SequenceRows, WeightData, WeightFormat, quantize};

use crate::support::case::{Case, Record, plain_rows};
use crate::support::random::{Random, all_formats};
use crate::support::{Tolerance, wide};

/// Sums of up to 512 products in any fixed order.
const PRODUCT: Tolerance = Tolerance { absolute: 1e-6, relative: 3e-6 };

/// Rows, columns and output features; every format finds 256 columns whole.
const SHAPES: [(usize, usize, usize); 5] = [(1, 256, 33), (2, 512, 8), (5, 256, 1), (16, 256, 17), (64, 512, 4)];

/// `x Wᵀ` by the op's contract, in f64.
pub(crate) fn product(x: &[f32], weight: &WeightData) -> Vec<f64> {
    let row = |x: &[f32]| (0..weight.rows).map(|i| dot(x, weight, i)).collect::<Vec<_>>();
    x.chunks_exact(weight.columns).flat_map(row).collect()
}

fn dot(x: &[f32], weight: &WeightData, feature: usize) -> f64 {
    let row = weight.row(feature);
    let group_size = match (weight.format, weight.activations) {
        (WeightFormat::Float(_), _) | (_, Activations::Float) => {
            let mut values = vec![0.0; weight.columns];
            row.dequantize(&mut values);
            return x.iter().zip(&values).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
        }
        (_, Activations::Int8PerGroup) => GROUP,
        (_, Activations::Int8PerRow) => x.len(),
    };
    let x = quantize::int8_groups(x, group_size);
    let element = |i: usize| {
        let group = row.group(i / GROUP);
        let (place, half) = (i % GROUP, i % GROUP / 16);
        let weight = f64::from(group.scales[half]) * f64::from(group.codes[place]) + f64::from(group.biases[half]);
        f64::from(x.scales[i / group_size]) * f64::from(x.codes[i]) * weight
    };
    (0..weight.columns).map(element).sum()
}

/// One product of the rows `x` with one weight.
fn check_weight(name: String, x: Vec<f32>, weight: &WeightData) {
    let record: &Record<'_> =
        &|device, ops, inputs| Ok(ops.linear(inputs[0], [(&device.weight(weight.clone())?, None)])?.to_vec());
    Case {
        name,
        rows: plain_rows(x.len() / weight.columns),
        outputs: vec![],
        expected: vec![product(&x, weight)],
        inputs: vec![x],
        states: None,
        record,
        tolerance: PRODUCT,
    }
    .check();
}

fn check_product(format: WeightFormat, activations: Activations) {
    for (rows, columns, features) in SHAPES {
        let mut random = Random::new((rows + columns + features) as u64);
        let weight = random.weight(format, features, columns, activations);
        let x = random.normals(rows * columns);
        check_weight(format!("linear {format}, {activations:?}, [{rows}, {columns}] by {features}"), x, &weight);
    }
}

#[test]
fn every_format_with_float_activations() {
    for format in all_formats() {
        check_product(format, Activations::Float);
    }
}

#[test]
fn every_format_with_int8_activations_per_group() {
    for format in all_formats() {
        check_product(format, Activations::Int8PerGroup);
    }
}

#[test]
fn every_format_with_int8_activations_per_row() {
    for format in all_formats() {
        check_product(format, Activations::Int8PerRow);
    }
}

/// All row counts of a tree, where kernels change their tiles.
#[test]
fn every_number_of_rows_up_to_64() {
    let mut random = Random::new(11);
    let format = WeightFormat::Affine { bits: 4, group_size: 64, scales: FloatFormat::BF16 };
    let weight = random.weight(format, 19, 128, Activations::Int8PerGroup);
    for rows in 1..=64 {
        let x = random.normals(rows * 128);
        check_weight(format!("linear of {rows} rows"), x, &weight);
    }
}

/// Columns that are no multiple of a vector, as in the small projections of a DeltaNet layer.
#[test]
fn float_weights_of_odd_shapes() {
    let mut random = Random::new(12);
    for (rows, columns, features) in [(1, 1, 1), (3, 7, 5), (4, 48, 3), (9, 100, 130)] {
        for float in [FloatFormat::F32, FloatFormat::F16, FloatFormat::BF16] {
            let weight = random.weight(WeightFormat::Float(float), features, columns, Activations::Float);
            let x = random.normals(rows * columns);
            check_weight(format!("linear {float:?} [{rows}, {columns}] by {features}"), x, &weight);
        }
    }
}

/// Projections of one input may differ in format, size and bias.
#[test]
fn several_projections_with_biases() {
    let mut random = Random::new(13);
    let formats = [WeightFormat::Q4_1, WeightFormat::Q6_K, WeightFormat::Float(FloatFormat::BF16)];
    let weights: Vec<_> = formats
        .iter()
        .zip([40, 12, 5])
        .map(|(&format, features)| random.weight(format, features, 256, Activations::Int8PerGroup))
        .collect();
    let bias = random.normals(12);
    let x = random.normals(6 * 256);
    let record: &Record<'_> = &|device, ops, inputs| {
        let loaded: Result<Vec<_>, _> = weights.iter().map(|weight| device.weight(weight.clone())).collect();
        let (loaded, bias) = (loaded?, device.param(bias.clone())?);
        Ok(ops.linear(inputs[0], [(&loaded[0], None), (&loaded[1], Some(&bias)), (&loaded[2], None)])?.to_vec())
    };
    let mut expected: Vec<_> = weights.iter().map(|weight| product(&x, weight)).collect();
    for (i, value) in expected[1].iter_mut().enumerate() {
        *value += f64::from(bias[i % 12]);
    }
    let (name, rows) = ("linear with 3 projections".to_owned(), plain_rows(6));
    Case { name, rows, outputs: vec![], inputs: vec![x], states: None, record, expected, tolerance: PRODUCT }.check();
}

/// Rows of zeros have no scale; rows with one large value round all others to nothing.
#[test]
fn int8_activations_of_extreme_rows() {
    let weight = Random::new(14).weight(WeightFormat::Q8_0, 3, 64, Activations::Int8PerGroup);
    let mut x = vec![0.0; 3 * 64];
    x[64] = 1e30;
    x[65] = 1.0;
    x[128..].fill(-1e-30);
    let record: &Record<'_> =
        &|device, ops, inputs| Ok(ops.linear(inputs[0], [(&device.weight(weight.clone())?, None)])?.to_vec());
    let expected = product(&x, &weight);
    assert!(expected[..3].iter().all(|value| *value == 0.0));
    let (name, rows) = ("linear of extreme rows".to_owned(), plain_rows(3));
    let case = Case {
        name,
        rows,
        outputs: vec![],
        inputs: vec![x],
        states: None,
        record,
        expected: vec![expected],
        tolerance: PRODUCT,
    };
    case.check();
}

#[test]
fn embedding_of_every_format() {
    let mut random = Random::new(15);
    for format in all_formats() {
        let table = random.weight(format, 9, 256, Activations::Int8PerGroup);
        let tokens = [0, 8, 3, 3, 7];
        let rows = Rows::new(&[SequenceRows::chain(0, &tokens[..3]), SequenceRows::chain(4, &tokens[3..])]).unwrap();
        let record: &Record<'_> = &|device, ops, _| Ok(vec![ops.embed(&device.weight(table.clone())?)?]);
        let element = |i: usize| {
            let mut values = [0.0; 256];
            table.row(tokens[i] as usize).dequantize(&mut values);
            wide(&values)
        };
        let expected = (0..5).flat_map(element).collect();
        // `scale · code + bias` may be fused into one rounding.
        let (name, tolerance) = (format!("embed {format}"), Tolerance::relative(2e-7));
        Case { name, rows, outputs: vec![], inputs: vec![], states: None, record, expected: vec![expected], tolerance }
            .check();
    }
}
