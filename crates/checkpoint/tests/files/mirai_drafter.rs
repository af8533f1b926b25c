//! Drafters in Mirai's layout: the same drafter as in z-lab's, and faults of all kinds.

use std::path::Path;

use pleach_checkpoint::{
    DraftAttention, DrafterCheckpoint, DrafterConfig, DrafterLayout, TensorData, TensorFormat, drafter_beside,
};
use serde_json::{Value, json};

use crate::builders::{Entry, safetensors_raw};

/// Width 64, one layer of two heads of 4 with one key head, two taps.
pub(crate) fn config() -> Value {
    let norm =
        json!({"epsilon": 1e-6, "scale_offset": null, "upcast_mode": "only_normalization", "subtract_mean": false});
    json!({"type": "SpeculatorModelConfig", "speculator_config": {"type": "DFlashSpeculatorConfig",
    "weaver_config": null, "draft_config": {
        "model_dim": 64, "hidden_dim": 6, "block_size": 4, "mask_token_id": 7, "target_layer_ids": [1, 3],
        "num_target_layers": 6, "vocab_size": 10, "context_projection_config": {},
        "context_norm_config": norm, "output_norm_config": norm,
        "rope_config": {"type": "UnscaledRoPEConfig", "base": 1e6, "max_sequence_length": 64, "head_dim": 4},
        "layer_configs": [{
            "pre_mixer_norm_config": norm, "post_mixer_norm_config": null, "pre_mlp_norm_config": norm,
            "post_mlp_norm_config": null, "hidden_dim": null, "rope_config": null, "has_post_layer_scalar": false,
            "mixer_config": {"type": "AttentionConfig", "query_norm_config": norm, "key_norm_config": norm,
                "num_heads": 2, "num_groups": 1, "head_dim": 4, "is_causal": false, "scale": 0.5,
                "sliding_window_size": null, "logit_soft_cap": null, "has_sinks": false,
                "has_qkv_biases": false, "has_out_biases": false},
            "mlp_config": {"type": "DenseMLPConfig", "activation": {"type": "SiLU", "alpha": 1.0},
                "has_up_biases": false, "has_down_biases": false, "gate_clipping": null, "up_clipping": null},
        }],
    }}})
}

/// Floats that count up, so that each row can be told.
fn entry(name: &str, shape: &[usize]) -> Entry {
    let count = shape.iter().product::<usize>();
    let bytes = (0..count).flat_map(|i| (i as f32).to_le_bytes()).collect();
    Entry { name: format!("speculator.draft_model.{name}"), dtype: "F32", shape: shape.to_vec(), bytes }
}

fn tensors() -> Vec<Entry> {
    vec![
        entry("context_projection.weights.weights", &[64, 128]),
        entry("context_norm.scales", &[64]),
        entry("output_norm.scales", &[64]),
        entry("state_kv_projection.weights.weights", &[8, 64]),
        entry("layers.0.pre_mixer_norm.scales", &[64]),
        entry("layers.0.pre_mlp_norm.scales", &[64]),
        entry("layers.0.mixer.qkv_projection.weights.weights", &[16, 64]),
        entry("layers.0.mixer.out_projection.weights.weights", &[64, 8]),
        entry("layers.0.mixer.query_norm.scales", &[4]),
        entry("layers.0.mixer.key_norm.scales", &[4]),
        entry("layers.0.mlp.up_projection.weights.weights", &[12, 64]),
        entry("layers.0.mlp.down_projection.weights.weights", &[64, 6]),
    ]
}

/// The file, with how its matrices are stored said in the metadata.
fn file(entries: &[Entry], specs: &Value) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".to_owned(), specs.clone());
    let mut data = Vec::new();
    for entry in entries {
        let begin = data.len();
        data.extend(&entry.bytes);
        let value = json!({"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [begin, data.len()]});
        header.insert(entry.name.clone(), value);
    }
    safetensors_raw(&Value::Object(header).to_string(), &data)
}

fn open(config: &Value, entries: &[Entry], specs: &Value) -> Result<DrafterCheckpoint, String> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    std::fs::write(dir.path().join("model.safetensors"), file(entries, specs)).unwrap();
    let opened = DrafterCheckpoint::open(dir.path());
    opened.map_err(|error| error.to_string().replace(dir.path().to_str().unwrap(), "DIR"))
}

fn plain_bytes(drafter: &mut DrafterCheckpoint, name: &str) -> Vec<f32> {
    let tensor = drafter.tensors.take(name).unwrap();
    let TensorData::Plain(bytes) = tensor.data else { panic!("{name} is not plain") };
    bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
}

#[test]
fn modules_get_the_names_of_z_lab() {
    let mut drafter = open(&config(), &tensors(), &json!({})).unwrap();
    let config = &drafter.config;
    assert_eq!((config.block_size, config.mask_token_id, config.num_target_layers), (4, 7, 6));
    assert_eq!(
        (config.target_layer_ids.as_slice(), config.attention.as_slice()),
        (&[1, 3][..], &[DraftAttention::FULL][..])
    );
    assert_eq!((config.model.num_attention_heads, config.model.num_key_value_heads, config.model.head_dim), (2, 1, 4));
    assert_eq!((config.model.rope.theta, config.model.rms_norm_eps), (1e6, 1e-6));
    assert_eq!(drafter.tensors.len(), 14);
    // Queries, keys and values stand one below the other; of the MLP `up` stands first.
    let rows = |values: Vec<f32>| (values[0] as usize / 64, values.len() / 64);
    for (name, first, count) in [
        ("layers.0.self_attn.q_proj.weight", 0, 8),
        ("layers.0.self_attn.k_proj.weight", 8, 4),
        ("layers.0.self_attn.v_proj.weight", 12, 4),
        ("layers.0.mlp.up_proj.weight", 0, 6),
        ("layers.0.mlp.gate_proj.weight", 6, 6),
    ] {
        assert_eq!(rows(plain_bytes(&mut drafter, name)), (first, count), "{name}");
    }
}

#[test]
fn the_folder_beside_a_model_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let speculator = dir.path().join("speculator");
    assert_eq!(drafter_beside(dir.path()), None);
    std::fs::create_dir(&speculator).unwrap();
    std::fs::write(speculator.join("config.json"), "{\"speculator_config\": ").unwrap();
    assert_eq!(drafter_beside(dir.path()), None, "half a file is none");
    std::fs::write(speculator.join("config.json"), config().to_string()).unwrap();
    assert_eq!(drafter_beside(dir.path()), Some(speculator.clone()));
    assert_eq!(DrafterLayout::of(&speculator), Some(DrafterLayout::Mirai));
}

/// The tensors with queries, keys and values in codes of 4 bits, two groups a row, and their description.
fn in_groups(kind: &Value, zeros: Option<(&str, &'static str, Vec<u8>)>) -> (Vec<Entry>, Value) {
    let mut entries = tensors();
    let place = entries.iter().position(|entry| entry.name.ends_with("qkv_projection.weights.weights")).unwrap();
    let name = entries[place].name.clone();
    let module = name.strip_suffix(".weights").unwrap();
    let bytes = (0..16 * 32).map(|i| (i % 251) as u8).collect();
    entries[place] = Entry { name: name.clone(), dtype: "U8", shape: vec![16, 32], bytes };
    let halves = |values: &[u16]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    // 0.5 and 2 in bf16, row by row.
    let scales = halves(&[0x3f00, 0x4000].repeat(16));
    entries.push(Entry { name: format!("{module}.scales"), dtype: "BF16", shape: vec![16, 2], bytes: scales });
    if let Some((array, dtype, bytes)) = zeros {
        let shape = vec![16, if dtype == "U8" { 1 } else { 2 }];
        entries.push(Entry { name: format!("{module}.{array}"), dtype, shape, bytes });
    }
    (entries, json!({format!("{module}.spec"): kind.to_string()}))
}

fn quantized(kind: Value, zeros: Option<(&str, &'static str, Vec<u8>)>) -> Result<DrafterCheckpoint, String> {
    let (entries, specs) = in_groups(&kind, zeros);
    open(&config(), &entries, &specs)
}

/// A file with every kind of array, its header first.
pub(crate) fn quantized_file() -> Vec<u8> {
    let stored = json!({"type": "IntSpec", "bits": 4, "group_size": 32, "is_symmetric": false});
    let (entries, specs) = in_groups(&stored, Some(("zero_points", "U8", vec![0x53; 16])));
    file(&entries, &specs)
}

fn affine(drafter: Result<DrafterCheckpoint, String>) -> (TensorFormat, Vec<u8>, Vec<u8>, Vec<u8>) {
    let tensor = drafter.unwrap().tensors.take("layers.0.self_attn.k_proj.weight").unwrap();
    assert_eq!(tensor.shape, [4, 64]);
    let TensorData::Affine { codes, scales, biases } = tensor.data else { panic!("k_proj is not in groups") };
    (tensor.format, codes.to_vec(), scales.to_vec(), biases.to_vec())
}

#[test]
fn groups_of_every_kind_become_scales_and_biases() {
    let floats = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let symmetric =
        json!({"type": "IntSpec", "bits": 4, "group_size": 32, "is_symmetric": true, "layout": "output_input"});
    let (format, codes, scales, biases) = affine(quantized(symmetric, None));
    assert_eq!(codes, (8 * 32..12 * 32).map(|i| (i % 251) as u8).collect::<Vec<_>>());
    assert_eq!(scales, floats(&[0.5, 2.0].repeat(4)));
    assert_eq!(biases, floats(&[-4.0, -16.0].repeat(4)));
    assert!(matches!(format, TensorFormat::Affine { bits: 4, group_size: 32, .. }));

    // Zero points 3 and 5 in every row, the first in the low bits.
    let stored =
        json!({"type": "IntSpec", "bits": 4, "group_size": 32, "is_symmetric": false, "layout": "output_input"});
    let zeros = Some(("zero_points", "U8", vec![0x53; 16]));
    assert_eq!(affine(quantized(stored, zeros)).3, floats(&[-1.5, -10.0].repeat(4)));

    let mlx = json!({"type": "MLXSpec", "bits": 4, "group_size": 32, "layout": "output_input"});
    let biases: Vec<u8> = (0..64).collect();
    let (_, _, _, found) = affine(quantized(mlx, Some(("biases", "BF16", biases.clone()))));
    assert_eq!(found, biases[32..48]);
}

#[test]
fn matrices_that_cannot_be_computed_with_are_refused_by_name() {
    assert_eq!(
        quantized(json!({"type": "HybridSpec", "layout": "output_input"}), None).unwrap_err(),
        "tensor `draft_model.layers.0.mixer.qkv_projection.weights` in `DIR/model.safetensors` is stored as Mirai's \
         `HybridSpec`, which is not supported: supported are plain floats, and groups of 4 or 8 bits without rotations or \
         adapters"
    );
    let spec =
        |bits: u64, group: u64| json!({"type": "IntSpec", "bits": bits, "group_size": group, "is_symmetric": false});
    let missing = quantized(spec(4, 32), None).unwrap_err();
    assert!(missing.contains("zero_points`") && missing.ends_with("is absent, expected present"), "{missing}");
    assert!(quantized(spec(3, 32), None).unwrap_err().ends_with("is 3, expected one of [4, 8]"));
    let other = quantized(spec(4, 64), Some(("zero_points", "U8", vec![0; 16]))).unwrap_err();
    assert!(other.contains("has shape [16, 2]") && other.ends_with("asks for [16, 1]"), "{other}");
    let wide = quantized(spec(8, 64), Some(("zero_points", "U8", vec![0; 16]))).unwrap_err();
    assert!(wide.contains("has shape [16, 32]"), "{wide}");
}

#[test]
fn tensors_are_held_to_the_config() {
    let mut short = tensors();
    short[6] = entry("layers.0.mixer.qkv_projection.weights.weights", &[15, 64]);
    assert_eq!(
        open(&config(), &short, &json!({})).unwrap_err(),
        "tensor `speculator.draft_model.layers.0.mixer.qkv_projection.weights.weights` in `DIR/model.safetensors` has shape \
         [15, 64], but `heads, head_dim and hidden_dim of draft_config` in `DIR/config.json` asks for [16, 64]"
    );
    let mut more = tensors();
    more.push(entry("layers.0.pre_mixer_conv.weights", &[64, 2]));
    let error = open(&config(), &more, &json!({})).unwrap_err();
    assert!(error.starts_with("tensor `speculator.draft_model.layers.0.pre_mixer_conv.weights` in"), "{error}");
    // A Weaver in the same file is somebody else's.
    let mut weaver = tensors();
    weaver.push(Entry { name: "speculator.weaver.output_norm.scales".to_owned(), ..entry("", &[4]) });
    assert_eq!(open(&config(), &weaver, &json!({})).unwrap().tensors.len(), 14);
    let mut missing = tensors();
    missing.remove(1);
    let error = open(&config(), &missing, &json!({})).unwrap_err();
    assert!(error.starts_with("tensor `hidden_norm.weight` is missing from `DIR`"), "{error}");
}

#[test]
fn settings_that_would_compute_something_else_are_refused() {
    let read = |path: &str, value: Value| {
        let mut config = config();
        *config.pointer_mut(&format!("/speculator_config{path}")).unwrap() = value;
        DrafterConfig::from_json(config.to_string().as_bytes(), Path::new("config.json")).map_err(|e| e.to_string())
    };
    let mixer = "/draft_config/layer_configs/0/mixer_config";
    let window = |causal| DraftAttention { window: Some(5), causal };
    let sliding = |size: u64, causal: bool| {
        let mut config = config();
        let mixer = config.pointer_mut(&format!("/speculator_config{mixer}")).unwrap();
        (mixer["sliding_window_size"], mixer["is_causal"]) = (json!(size), json!(causal));
        DrafterConfig::from_json(config.to_string().as_bytes(), Path::new("config.json")).unwrap().attention
    };
    assert_eq!((sliding(9, false), sliding(5, true)), (vec![window(false)], vec![window(true)]));

    for (path, value, error) in [
        (
            "/type",
            json!("OtherConfig"),
            "`speculator_config.type` in `config.json` is \"OtherConfig\", expected \"DFlashSpeculatorConfig\"",
        ),
        (
            &format!("{mixer}/scale"),
            json!(1.0),
            "`speculator_config.draft_config.layer_configs.mixer_config.scale` in `config.json` is 1, expected 0.5, the inverse root of head_dim",
        ),
        (
            &format!("{mixer}/has_sinks"),
            json!(true),
            "`speculator_config.draft_config.layer_configs.mixer_config.has_sinks` in `config.json` is true, expected false: it is not supported",
        ),
        (
            "/draft_config/rope_config/type",
            json!("YARNRoPEConfig"),
            "`speculator_config.draft_config.rope_config.type` in `config.json` is \"YARNRoPEConfig\", expected \"UnscaledRoPEConfig\"",
        ),
        (
            "/draft_config/layer_configs",
            json!([]),
            "`speculator_config.draft_config.layer_configs` in `config.json` is a list of 0, expected a list of layers",
        ),
        (
            "/draft_config/target_layer_ids",
            json!([6]),
            "`speculator_config.draft_config.target_layer_ids` in `config.json` is 6, expected a list of layers below 6",
        ),
        (
            "/draft_config/mask_token_id",
            json!(10),
            "`speculator_config.draft_config.mask_token_id` in `config.json` is 10, expected a whole number from 0 to 9",
        ),
        (
            "/draft_config/context_norm_config/epsilon",
            json!(1e-5),
            "`speculator_config.draft_config.context_norm_config.epsilon` in `config.json` is 0.00001, expected 0.000001, as in the first layer",
        ),
    ] {
        assert_eq!(read(path, value).unwrap_err(), error);
    }
    let mut convolved = config();
    convolved["speculator_config"]["draft_config"]["grouped_convolution_config"] = json!({"kernel_size": 2});
    let error = DrafterConfig::from_json(convolved.to_string().as_bytes(), Path::new("config.json")).unwrap_err();
    assert!(error.to_string().contains("`speculator_config.draft_config.grouped_convolution_config`"), "{error}");
}
