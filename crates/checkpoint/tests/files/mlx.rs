//! Folders as MLX writes them, built from the fixtures.

use std::{fs, path::Path};

use pleach_checkpoint::{
    Checkpoint, Convention, FloatFormat, SourceKind, TensorData, TensorFormat, safetensors::Header,
};
use serde_json::json;

use crate::{
    builders::{Entry, copy_without_weights, edit_config, safetensors},
    fixture, shape,
};

/// The tensors of a fixture.
fn entries(fixture: &Path) -> Vec<Entry> {
    let path = fixture.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let header = Header::parse(&bytes, bytes.len() as u64, &path).unwrap();
    let entry = |tensor: &pleach_checkpoint::safetensors::TensorInfo| Entry {
        name: tensor.name.clone(),
        dtype: match tensor.dtype {
            pleach_checkpoint::safetensors::Dtype::F32 => "F32",
            _ => "BF16",
        },
        shape: tensor.shape.clone(),
        bytes: bytes[tensor.begin..tensor.end].to_vec(),
    };
    header.tensors.iter().map(entry).collect()
}

/// A matrix's three quantized arrays in the place of its weight; zeros, since only shapes are looked at here.
fn quantized(entry: &Entry, bits: usize, group_size: usize) -> Vec<Entry> {
    let module = entry.name.strip_suffix(".weight").unwrap();
    let (columns, rows) = entry.shape.split_last().unwrap();
    let part = |suffix: &str, dtype: &'static str, last: usize, element: usize| {
        let shape = [rows, &[last]].concat();
        let size = shape.iter().product::<usize>() * element;
        Entry { name: format!("{module}.{suffix}"), dtype, shape, bytes: vec![0; size] }
    };
    vec![
        part("weight", "U32", columns * bits / 32, 4),
        part("scales", "BF16", columns / group_size, 2),
        part("biases", "BF16", columns / group_size, 2),
    ]
}

fn write(dir: &Path, entries: &[Entry]) {
    fs::write(dir.join("model.safetensors"), safetensors(entries)).unwrap();
}

/// tiny-llama in 4 bits, one matrix in 8 and one as it was.
fn quantized_llama(dir: &Path) {
    copy_without_weights(&fixture("tiny-llama"), dir);
    let quantize = |entry: Entry| match entry.name.as_str() {
        "model.layers.0.mlp.gate_proj.weight" => quantized(&entry, 8, 32),
        "model.layers.1.mlp.down_proj.weight" => vec![entry],
        _ if entry.shape.len() == 2 => quantized(&entry, 4, 32),
        _ => vec![entry],
    };
    let entries: Vec<Entry> = entries(&fixture("tiny-llama")).into_iter().flat_map(quantize).collect();
    write(dir, &entries);
    edit_config(dir, |config| {
        config["quantization"] = json!({
            "group_size": 32, "bits": 4,
            "model.layers.0.mlp.gate_proj": {"group_size": 32, "bits": 8},
            "model.layers.1.mlp.down_proj": false,
        });
    });
}

#[test]
fn quantized_llama_opens_with_overrides() {
    let dir = tempfile::tempdir().unwrap();
    quantized_llama(dir.path());
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.source, SourceKind::Mlx);
    assert!(checkpoint.skipped.is_empty());
    assert_eq!(checkpoint.tensors.len(), 2 + 4 * 9);

    let affine = |bits| TensorFormat::Affine { bits, group_size: 32, scales: FloatFormat::BF16 };
    let format = |name: &str| checkpoint.tensors.get(name).unwrap().format;
    assert_eq!(format("embed_tokens.weight"), affine(4));
    assert_eq!(format("layers.0.mlp.gate_proj.weight"), affine(8));
    assert_eq!(format("layers.1.mlp.down_proj.weight"), TensorFormat::BF16);
    assert_eq!(format("norm.weight"), TensorFormat::BF16);

    assert_eq!(shape(&checkpoint, "layers.0.mlp.gate_proj.weight"), [160, 96]);
    let TensorData::Affine { codes, scales, biases } =
        &checkpoint.tensors.get("layers.0.mlp.gate_proj.weight").unwrap().data
    else {
        panic!("a quantized matrix has three arrays")
    };
    assert_eq!((codes.len(), scales.len(), biases.len()), (160 * 96, 160 * 3 * 2, 160 * 3 * 2));
}

/// Opens after a change of the config, and gives the error without the folder's path.
fn error_after(edit: impl FnOnce(&mut serde_json::Value)) -> String {
    let dir = tempfile::tempdir().unwrap();
    quantized_llama(dir.path());
    edit_config(dir.path(), edit);
    Checkpoint::open(dir.path()).unwrap_err().to_string().replace(&format!("{}/", dir.path().display()), "")
}

#[test]
fn a_config_that_does_not_fit_the_arrays_is_refused() {
    assert_eq!(
        error_after(|config| config["quantization"]["group_size"] = json!(64)),
        "tensor `model.embed_tokens.weight` in `model.safetensors` has shape [512, 12], but `[out, in * quantization.bits / 32], whole groups of quantization.group_size` in `config.json` asks for [512, 8]"
    );
    assert_eq!(
        error_after(|config| config["quantization"]["model.layers.0.mlp.gate_proj"]["bits"] = json!(4)),
        "tensor `model.layers.0.mlp.gate_proj.scales` in `model.safetensors` has shape [160, 3], but `[out, in / quantization.group_size]` in `config.json` asks for [160, 6]"
    );
    assert_eq!(
        error_after(|config| drop(config.as_object_mut().unwrap().remove("quantization"))),
        "`config.json` has no `quantization (for `embed_tokens`)`, and guessing it would give a different model: take the file from the model's own repository"
    );
}

#[test]
fn converted_qwen35_has_plain_norms() {
    let dir = tempfile::tempdir().unwrap();
    copy_without_weights(&fixture("tiny-qwen35"), dir.path());
    let mut entries = entries(&fixture("tiny-qwen35"));
    entries.retain(|entry| !entry.name.starts_with("mtp.") && !entry.name.starts_with("model.visual."));
    for entry in &mut entries {
        entry.name = match entry.name.strip_prefix("model.language_model.") {
            Some(rest) => format!("language_model.model.{rest}"),
            None => format!("language_model.{}", entry.name),
        };
        if entry.name.ends_with("conv1d.weight") {
            entry.shape.swap(1, 2);
        }
    }
    write(dir.path(), &entries);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.source, SourceKind::Mlx);
    assert_eq!(checkpoint.config.num_mtp_layers, 0);
    let convention = |name: &str| checkpoint.tensors.get(name).unwrap().convention;
    assert_eq!(convention("layers.0.input_layernorm.weight"), Convention::AsIs);
    assert_eq!(convention("layers.0.linear_attn.A_log"), Convention::NegExpLog);
    assert_eq!(shape(&checkpoint, "layers.0.linear_attn.conv1d.weight"), [256, 4]);
}

#[test]
fn quantized_experts_are_cut_in_all_three_arrays() {
    let dir = tempfile::tempdir().unwrap();
    copy_without_weights(&fixture("tiny-qwen35-moe"), dir.path());
    let fuse = |entry: Entry| -> Vec<Entry> {
        let Some((layer, matrix)) = entry.name.split_once(".mlp.experts.") else { return vec![entry] };
        let (rows, columns) = if matrix == "down_proj" { (128, 32) } else { (32, 128) };
        let names: &[&str] = if matrix == "down_proj" { &["down_proj"] } else { &["gate_proj", "up_proj"] };
        let stacked = |name: &&str| Entry {
            name: format!("{layer}.mlp.switch_mlp.{name}.weight"),
            dtype: "BF16",
            shape: vec![8, rows, columns],
            bytes: Vec::new(),
        };
        names.iter().map(stacked).flat_map(|entry| quantized(&entry, 4, 32)).collect()
    };
    let entries: Vec<Entry> = entries(&fixture("tiny-qwen35-moe")).into_iter().flat_map(fuse).collect();
    write(dir.path(), &entries);
    edit_config(dir.path(), |config| config["quantization"] = json!({"group_size": 32, "bits": 4}));
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert!(checkpoint.skipped.is_empty(), "{:?}", checkpoint.skipped);
    let expert = checkpoint.tensors.get("layers.2.mlp.experts.7.up_proj.weight").unwrap();
    assert_eq!(expert.shape, [32, 128]);
    let TensorData::Affine { codes, scales, .. } = &expert.data else { panic!("experts are quantized") };
    assert_eq!((codes.len(), scales.len()), (32 * 128 / 2, 32 * 4 * 2));
}
