//! From files to device weights: quantized formats, conventions, refusals.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use half::bf16;
use pleach_checkpoint::Checkpoint;
use pleach_kernels::quantize::{AffineGroups, affine, floats};
use pleach_kernels::{Activations, DType, FloatFormat, ReferenceDevice, Rows, SequenceRows};
use pleach_model::{LoadOptions, MAX_ROWS, Model, ModelError, MtpRunner, Runner, Tap};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors, serialize_to_file};
use serde_json::{Value, json};

use crate::support::{EXACT, assert_close, devices, fixture, load};

/// Tensors of a checkpoint in the making.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// What happens to the matrices of a model whose copy is written.
#[derive(Clone, Copy)]
enum Copied {
    /// Codes, scales and biases, as MLX stores them.
    Codes,
    /// The f32 values that the codes stand for.
    Values,
}

const GROUP_SIZE: usize = 32;

/// Writes a copy of a tiny model with its matrices rounded to `bits`; layer 0's `down_proj` always gets 8.
fn write_quantized(from: &str, dir: &Path, bits: u8, copied: Copied) {
    let stored = fs::read(fixture(from).join("model.safetensors")).unwrap();
    let mut tensors = Tensors::new();
    for (name, view) in SafeTensors::deserialize(&stored).unwrap().tensors() {
        let shape = view.shape().to_vec();
        if shape.len() != 2 {
            tensors.insert(name, (view.dtype(), shape, view.data().to_vec()));
            continue;
        }
        let bits = if name.ends_with("layers.0.mlp.down_proj.weight") { 8 } else { bits };
        let values: Vec<_> = view.data().chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect();
        match copied {
            Copied::Codes => insert_codes(&mut tensors, &name, &shape, &values, bits),
            Copied::Values => {
                let bytes = floats(&rounded(&values, bits), FloatFormat::F32).to_vec();
                tensors.insert(name, (Dtype::F32, shape, bytes));
            }
        }
    }
    let views = tensors
        .iter()
        .map(|(name, (dtype, shape, bytes))| (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    serialize_to_file(views, None, &dir.join("model.safetensors")).unwrap();
    write_config(from, dir, bits, copied);
}

fn write_config(from: &str, dir: &Path, bits: u8, copied: Copied) {
    let mut config: Value = serde_json::from_slice(&fs::read(fixture(from).join("config.json")).unwrap()).unwrap();
    if let Copied::Codes = copied {
        let eight = json!({"bits": 8, "group_size": GROUP_SIZE});
        config["quantization"] = json!({"bits": bits, "group_size": GROUP_SIZE, "model.layers.0.mlp.down_proj": eight});
    }
    fs::write(dir.join("config.json"), serde_json::to_vec(&config).unwrap()).unwrap();
    fs::copy(fixture(from).join("tokenizer.json"), dir.join("tokenizer.json")).unwrap();
}

fn groups(bits: u8) -> AffineGroups {
    AffineGroups { bits, group_size: GROUP_SIZE, scales: FloatFormat::BF16 }
}

/// The values that the codes of `values` stand for.
fn rounded(values: &[f32], bits: u8) -> Vec<f32> {
    let coded = affine(values, groups(bits)).unwrap();
    let value =
        |(i, &code): (usize, &u8)| f32::from(code) * coded.scales[i / GROUP_SIZE] + coded.biases[i / GROUP_SIZE];
    coded.codes.iter().enumerate().map(value).collect()
}

fn insert_codes(tensors: &mut Tensors, name: &str, shape: &[usize], values: &[f32], bits: u8) {
    let [rows, columns] = *shape else { panic!("{name} is a matrix") };
    let weight = affine(values, groups(bits)).unwrap().into_weight(columns, Activations::Float).unwrap();
    let module = name.strip_suffix(".weight").unwrap();
    let parts = [
        ("weight", Dtype::U32, columns * usize::from(bits) / 32, weight.data),
        ("scales", Dtype::BF16, columns / GROUP_SIZE, weight.scales),
        ("biases", Dtype::BF16, columns / GROUP_SIZE, weight.biases),
    ];
    for (part, dtype, columns, bytes) in parts {
        tensors.insert(format!("{module}.{part}"), (dtype, vec![rows, columns], bytes.to_vec()));
    }
}

fn logits(model: &Arc<Model>) -> Vec<f32> {
    let ids = [5, 400, 31, 77, 12, 300];
    let mut runner = Runner::new(Arc::clone(model));
    let sequence = model.new_sequence().unwrap();
    let rows = Rows::new(&[SequenceRows::chain(0, &ids)]).unwrap();
    runner.forward(&rows, &[0, 1, 2, 3, 4, 5], &[&sequence]).unwrap();
    runner.logits().unwrap().to_vec()
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn open(dir: &Path, device: Arc<dyn pleach_kernels::Device>, options: &LoadOptions) -> Arc<Model> {
    let checkpoint = Checkpoint::open(dir).unwrap();
    Arc::new(Model::load(checkpoint.config, checkpoint.tensors, device, options).unwrap())
}

#[test]
fn quantized_weights_give_the_logits_of_their_dequantized_values() {
    for (from, bits) in [("tiny-llama", 4), ("tiny-qwen3", 4), ("tiny-qwen3", 8)] {
        let (codes, values) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write_quantized(from, codes.path(), bits, Copied::Codes);
        write_quantized(from, values.path(), bits, Copied::Values);
        for device in devices() {
            let expected = logits(&open(values.path(), Arc::clone(&device), &EXACT));
            let found = logits(&open(codes.path(), Arc::clone(&device), &EXACT));
            assert_close(&format!("{from}, {bits} bits"), &found, &expected, 1e-3);

            // Int8 activations round each group of 32 to 1/254 of its range: a small, bounded change of direction.
            let int8 = LoadOptions { activations: Activations::Int8PerGroup, kv_cache: DType::F16 };
            let found = logits(&open(codes.path(), device, &int8));
            let similarity = cosine(&found, &expected);
            assert!(similarity > 0.9995, "{from}, {bits} bits: cosine {similarity}");
            assert!(found != expected, "int8 activations were not used");
        }
    }
}

#[test]
fn the_memory_plan_counts_files_states_and_caches() {
    let model = load("tiny-qwen35", Arc::new(ReferenceDevice::new()), &LoadOptions::default());
    let plan = model.memory_plan();
    // 6 DeltaNet layers: 4 heads of 32 x 32, and 3 inputs of 256 channels, f32.
    assert_eq!(plan.state_bytes, 6 * 4 * (4 * 32 * 32 + 3 * 256));
    // 2 attention layers: keys and values of 2 heads of 64, f16.
    assert_eq!(plan.token_bytes, 2 * 2 * 2 * 64 * 2);
    let file = fs::metadata(fixture("tiny-qwen35/model.safetensors")).unwrap().len();
    assert!(plan.weights_bytes < file as usize && plan.weights_bytes > file as usize * 9 / 10);
}

#[test]
fn a_model_without_a_head_has_no_head_to_run() {
    let model = load("tiny-llama", Arc::new(ReferenceDevice::new()), &EXACT);
    assert!(matches!(model.new_mtp_sequence(), Err(ModelError::NoMtpHead)));
    let error = MtpRunner::new(model).unwrap_err();
    assert_eq!(error.to_string(), "the model has no multi-token-prediction head");
}

#[test]
fn a_tap_must_name_a_layer() {
    let model = load("tiny-llama", Arc::new(ReferenceDevice::new()), &EXACT);
    let error = Runner::with_taps(model, &[Tap::Layer(4)]).unwrap_err();
    assert_eq!(error.to_string(), "tap 4 does not exist, 4 are possible");
}

#[test]
fn a_failed_run_leaves_nothing_to_read() {
    let model = load("tiny-llama", Arc::new(ReferenceDevice::new()), &EXACT);
    let mut runner = Runner::new(Arc::clone(&model));
    let mut sequence = model.new_sequence().unwrap();
    assert!(matches!(runner.logits(), Err(ModelError::NotRun)));

    let outside = Rows::new(&[SequenceRows::chain(0, &[1, 512])]).unwrap();
    let error = runner.forward(&outside, &[1], &[&sequence]).unwrap_err();
    let ModelError::Kernel(source) = error else { panic!("{error}") };
    assert_eq!(source.to_string(), "token 512 of row 1 is outside the vocabulary of 512 entries");
    assert!(matches!(runner.commit(&[0], &mut sequence), Err(ModelError::NotRun)));

    let late = Rows::new(&[SequenceRows::chain(3, &[1])]).unwrap();
    let error = runner.forward(&late, &[0], &[&sequence]).unwrap_err();
    let ModelError::Kernel(source) = error else { panic!("{error}") };
    assert_eq!(source.to_string(), "the state of sequence 0 stands for 0 tokens, but its rows continue after 3");

    let long = vec![1; MAX_ROWS + 1];
    let long = Rows::new(&[SequenceRows::chain(0, &long)]).unwrap();
    assert!(matches!(runner.forward(&long, &[], &[&sequence]), Err(ModelError::TooManyRows { found: 513, most: 512 })));
}
