//! Weight formats, integer products and the Hadamard transform against golden values, on every device.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod support;

use bytes::Bytes;
use pleach_kernels::quantize::{self, AffineCodes, AffineGroups};
use pleach_kernels::{Activations, FloatFormat, GROUP, Rows, SequenceRows, WeightData, WeightFormat};

use support::case::{Case, Record, plain_rows};
use support::fixture::Fixture;
use support::random::GGUF_FORMATS;
use support::{Tolerance, assert_close, bits};

/// Sums of 256 products, exact inside each group.
const PRODUCT: Tolerance = Tolerance::relative(2e-6);
const GROUP_SIZES: [usize; 3] = [32, 64, 128];
const ROWS: usize = 48;
const COLUMNS: usize = 256;
const TOKENS: usize = 6;

fn values(weight: &WeightData) -> Vec<f32> {
    let mut all = vec![0.0; weight.rows * weight.columns];
    for (i, row) in all.chunks_exact_mut(weight.columns).enumerate() {
        weight.row(i).dequantize(row);
    }
    all
}

/// Every value within one part in a million.
#[track_caller]
fn assert_relative(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let allowed = 1e-6 * expected.abs();
        assert!((found - expected).abs() <= allowed, "{what}: value {i} is {found}, expected {expected}");
    }
}

fn raw_weight(file: &Fixture, name: &str, format: WeightFormat) -> WeightData {
    let raw = file.u8(&format!("{name}.raw"));
    let shape = file.shape(&format!("{name}.values"));
    let (scales, biases) = Default::default();
    let (rows, columns) = (shape[0], shape[1]);
    WeightData { format, rows, columns, data: Bytes::from(raw), scales, biases, activations: Activations::Float }
}

/// Every block type of the fixture.
fn block_cases() -> Vec<(String, WeightFormat)> {
    let packed = GGUF_FORMATS.iter().map(|(format, _)| (format!("{format:?}"), *format));
    let floats = [FloatFormat::F16, FloatFormat::BF16];
    packed.chain(floats.map(|float| (format!("{float:?}"), WeightFormat::Float(float)))).collect()
}

#[test]
fn gguf_blocks_decode() {
    let file = Fixture::open("quant/gguf_blocks.safetensors");
    for (name, format) in block_cases() {
        let weight = raw_weight(&file, &name, format);
        assert_relative(&name, &values(&weight), &file.f32(&format!("{name}.values")));
    }
}

/// The same blocks side by side in one row, through the embedding of every device.
#[test]
fn gguf_blocks_decode_on_every_device() {
    let file = Fixture::open("quant/gguf_blocks.safetensors");
    for (name, format) in block_cases() {
        let mut weight = raw_weight(&file, &name, format);
        (weight.rows, weight.columns) = (1, weight.rows * weight.columns);
        let record: &Record<'_> = &|device, ops, _| Ok(vec![ops.embed(&device.weight(weight.clone())?)?]);
        let expected = vec![file.f64(&format!("{name}.values"))];
        let rows = Rows::new(&[SequenceRows::chain(0, &[0])]).unwrap();
        let tolerance = Tolerance::relative(1e-6);
        Case { name, rows, outputs: vec![], inputs: vec![], states: None, record, expected, tolerance }.check_golden();
    }
}

fn w4a8() -> Fixture {
    Fixture::open("quant/w4a8.safetensors")
}

fn affine_groups(group_size: usize, scales: FloatFormat) -> AffineGroups {
    AffineGroups { bits: 4, group_size, scales }
}

fn affine(file: &Fixture, group_size: usize, scales: FloatFormat) -> AffineCodes {
    quantize::affine(&file.f32("weight_rotated"), affine_groups(group_size, scales)).unwrap()
}

#[test]
fn affine_codes() {
    let file = w4a8();
    for group_size in GROUP_SIZES {
        let name = |part: &str| format!("g{group_size}.affine.{part}");
        let codes = affine(&file, group_size, FloatFormat::F32);
        assert_eq!(codes.codes, file.u8(&name("codes")));
        assert_relative(&name("scale"), &codes.scales, &file.f32(&name("scale")));
        assert_relative(&name("bias"), &codes.biases, &file.f32(&name("bias")));
        let weight = codes.into_weight(COLUMNS, Activations::Float).unwrap();
        assert_eq!(weight.data[..], file.u8(&name("packed")));
        assert_close(&name("dequant"), &values(&weight), &file.f64(&name("dequant")), Tolerance::relative(1e-6));
    }
}

#[test]
fn affine_codes_with_bf16_scales() {
    let file = w4a8();
    for group_size in GROUP_SIZES {
        let name = |part: &str| format!("g{group_size}.affine_bf16.{part}");
        let codes = affine(&file, group_size, FloatFormat::BF16);
        assert_eq!(codes.codes, file.u8(&name("codes")));
        assert_eq!(bits(&codes.scales), bits(&file.f32(&name("scale"))));
        assert_eq!(bits(&codes.biases), bits(&file.f32(&name("bias"))));
        let expected: Vec<_> = (0..ROWS * COLUMNS)
            .map(|i| {
                f64::from(codes.codes[i]) * f64::from(codes.scales[i / group_size])
                    + f64::from(codes.biases[i / group_size])
            })
            .collect();
        let weight = codes.into_weight(COLUMNS, Activations::Float).unwrap();
        assert_close(&name("values"), &values(&weight), &expected, Tolerance::relative(1e-6));
    }
}

#[test]
fn zero_point_codes() {
    let file = w4a8();
    for group_size in GROUP_SIZES {
        let name = |part: &str| format!("g{group_size}.zero_point.{part}");
        let groups = affine_groups(group_size, FloatFormat::F32);
        let codes = quantize::zero_point(&file.f32("weight_rotated"), groups).unwrap();
        assert_eq!(codes.codes, file.u8(&name("codes")));
        assert_relative(&name("scale"), &codes.scales, &file.f32(&name("scale")));
        let zeros: Vec<_> =
            codes.biases.iter().zip(&codes.scales).map(|(bias, scale)| (-bias / scale).round() as u8).collect();
        assert_eq!(zeros, file.u8(&name("zero")));
        let weight = codes.into_weight(COLUMNS, Activations::Float).unwrap();
        // `scale · code − scale · zero` instead of `scale · (code − zero)`: two roundings of numbers up to 15 scales.
        assert_close(&name("dequant"), &values(&weight), &file.f64(&name("dequant")), Tolerance::relative(1e-6));
    }
}

#[test]
fn int8_activations() {
    let file = w4a8();
    let x = quantize::int8_groups(&file.f32("x_rotated"), COLUMNS);
    assert_eq!(x.codes, file.i8("x_int8"));
    assert_relative("x_scale", &x.scales, &file.f32("x_scale"));
}

/// `Σ code · xcode` and `Σ xcode` over each `group_size` columns, from the groups as devices see them.
fn accumulators(weight: &WeightData, x: &[i8], group_size: usize) -> (Vec<i32>, Vec<i32>) {
    let dot = |codes: &[i8], x: &[i8]| codes.iter().zip(x).map(|(&c, &x)| i32::from(c) * i32::from(x)).sum::<i32>();
    let (mut acc, mut xsum) = (Vec::new(), Vec::new());
    for x in x.chunks_exact(COLUMNS) {
        xsum.extend(x.chunks_exact(group_size).map(|x| x.iter().map(|&x| i32::from(x)).sum::<i32>()));
        for row in 0..weight.rows {
            let row = weight.row(row);
            let codes: Vec<i8> = (0..COLUMNS / GROUP).flat_map(|g| row.group(g).codes).collect();
            acc.extend(codes.chunks_exact(group_size).zip(x.chunks_exact(group_size)).map(|(codes, x)| dot(codes, x)));
        }
    }
    (acc, xsum)
}

#[test]
fn integer_accumulators() {
    let file = w4a8();
    for group_size in GROUP_SIZES {
        let weight = affine(&file, group_size, FloatFormat::F32).into_weight(COLUMNS, Activations::Int8PerRow).unwrap();
        let (acc, xsum) = accumulators(&weight, &file.i8("x_int8"), group_size);
        assert_eq!(acc, file.i32(&format!("g{group_size}.w4a8.acc")));
        assert_eq!(xsum, file.i32(&format!("g{group_size}.w4a8.xsum")));
    }
}

fn check_product(name: String, weight: &WeightData, x: Vec<f32>, expected: Vec<f64>, tolerance: Tolerance) {
    let record: &Record<'_> =
        &|device, ops, inputs| Ok(ops.linear(inputs[0], [(&device.weight(weight.clone())?, None)])?.to_vec());
    let (rows, inputs, expected) = (plain_rows(TOKENS), vec![x], vec![expected]);
    Case { name, rows, outputs: vec![], inputs, states: None, record, expected, tolerance }.check_golden();
}

#[test]
fn products_of_affine_weights() {
    let file = w4a8();
    for group_size in GROUP_SIZES {
        for (activations, part) in [(Activations::Int8PerRow, "w4a8"), (Activations::Float, "w4a32")] {
            let weight = affine(&file, group_size, FloatFormat::F32).into_weight(COLUMNS, activations).unwrap();
            let name = format!("g{group_size}.{part}.y");
            let expected = file.f64(&name);
            check_product(name, &weight, file.f32("x_rotated"), expected, PRODUCT);
        }
    }
}

#[test]
fn int8_weights() {
    let file = Fixture::open("quant/w8a8.safetensors");
    let source = w4a8();
    let codes = quantize::int8_groups(&source.f32("weight"), COLUMNS);
    assert_eq!(codes.codes, file.i8("weight_int8"));
    assert_relative("weight_scale", &codes.scales, &file.f32("weight_scale"));
    let x = quantize::int8_groups(&source.f32("x"), COLUMNS);
    assert_eq!(x.codes, file.i8("x_int8"));
    assert_relative("x_scale", &x.scales, &file.f32("x_scale"));

    let weight = codes.into_weight(COLUMNS, Activations::Int8PerRow).unwrap();
    assert_eq!(accumulators(&weight, &x.codes, COLUMNS).0, file.i32("acc"));
    check_product("w8a8.y".to_owned(), &weight, source.f32("x"), file.f64("y"), PRODUCT);
}

fn check_rotation(name: &str, from: &str, to: &str, rows: usize) {
    let file = w4a8();
    let record: &Record<'_> =
        &|device, ops, inputs| Ok(vec![ops.hadamard(inputs[0], &device.param(file.f32("signs"))?, 32)?]);
    Case {
        name: name.to_owned(),
        rows: plain_rows(rows),
        outputs: vec![],
        inputs: vec![file.f32(from)],
        states: None,
        record,
        expected: vec![file.f64(to)],
        tolerance: Tolerance::absolute(2e-6),
    }
    .check_golden();
}

#[test]
fn hadamard_transform() {
    check_rotation("x_rotated", "x", "x_rotated", TOKENS);
    check_rotation("weight_rotated", "weight", "weight_rotated", ROWS);
}

/// Rotated activations meet rotated weights: the product is the plain one.
#[test]
fn a_rotation_of_both_sides_cancels() {
    let file = w4a8();
    let (scales, biases) = Default::default();
    let weight = WeightData {
        format: WeightFormat::Float(FloatFormat::F32),
        rows: ROWS,
        columns: COLUMNS,
        data: quantize::floats(&file.f32("weight_rotated"), FloatFormat::F32),
        scales,
        biases,
        activations: Activations::Float,
    };
    let record: &Record<'_> = &|device, ops, inputs| {
        let rotated = ops.hadamard(inputs[0], &device.param(file.f32("signs"))?, 32)?;
        Ok(ops.linear(rotated, [(&device.weight(weight.clone())?, None)])?.to_vec())
    };
    let (name, inputs, expected) = ("y".to_owned(), vec![file.f32("x")], vec![file.f64("y")]);
    let rows = plain_rows(TOKENS);
    Case { name, rows, outputs: vec![], inputs, states: None, record, expected, tolerance: PRODUCT }.check_golden();
}
