//! DFlash drafters with random weights, made for any model of the fixtures.

#![allow(dead_code, unreachable_pub, reason = "each test program that has this module uses a part of it")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// What varies from drafter to drafter. The default is DFlash as first published: full attention.
#[derive(Clone, Debug, Default)]
pub struct Kind {
    /// Window of the first layer; the second is full attention.
    pub window: Option<usize>,
    /// `is_causal` of the config.
    pub is_causal: Option<bool>,
    /// Taps and channels per group of DFlash2's convolutions.
    pub conv: Option<(usize, usize)>,
    /// Rank and candidates of DFlash2's selector.
    pub selector: Option<(usize, usize)>,
    /// Every how many-th token can be guessed.
    pub every: Option<usize>,
    /// Whether the files are in Mirai's layout.
    pub mirai: bool,
}

pub const BLOCK: usize = 8;
pub const HEADS: usize = 4;
pub const KEY_HEADS: usize = 2;
pub const HEAD_DIM: usize = 16;
pub const WIDTH: usize = 48;
pub const MASK: u32 = 500;
pub const LAYERS: usize = 2;

/// A drafter on disk, with the values of its tensors by z-lab's names.
pub struct RandomDrafter {
    pub dir: tempfile::TempDir,
    pub tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    pub taps: Vec<usize>,
    pub hidden: usize,
    pub vocab: usize,
    pub kind: Kind,
}

impl RandomDrafter {
    pub fn path(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    /// Values of a tensor.
    pub fn values(&self, name: &str) -> &[f32] {
        &self.tensors[name].1
    }

    /// A drafter for the model in a folder.
    pub fn new(model: &Path, kind: &Kind, seed: u64) -> Self {
        let config: Value = serde_json::from_slice(&std::fs::read(model.join("config.json")).unwrap()).unwrap();
        let text = config.get("text_config").unwrap_or(&config);
        let count = |field: &str| text[field].as_u64().unwrap() as usize;
        let (hidden, vocab, layers) = (count("hidden_size"), count("vocab_size"), count("num_hidden_layers"));
        let taps = vec![0, layers - 2];
        let mut drafter = Self {
            dir: tempfile::tempdir().unwrap(),
            tensors: BTreeMap::new(),
            taps: taps.clone(),
            hidden,
            vocab,
            kind: kind.clone(),
        };
        drafter.fill(seed);
        let config = if kind.mirai { drafter.mirai_config(layers) } else { drafter.z_lab_config(layers) };
        std::fs::write(drafter.dir.path().join("config.json"), config.to_string()).unwrap();
        std::fs::write(drafter.dir.path().join("model.safetensors"), drafter.file()).unwrap();
        drafter
    }

    fn fill(&mut self, seed: u64) {
        let (hidden, mut state) = (self.hidden, seed);
        let (queries, keys) = (HEADS * HEAD_DIM, KEY_HEADS * HEAD_DIM);
        let mut add = |name: &str, shape: &[usize], mean: f32, spread: f32| {
            let values = (0..shape.iter().product::<usize>()).map(|_| mean + spread * normal(&mut state)).collect();
            self.tensors.insert(name.to_owned(), (shape.to_vec(), values));
        };
        let root = |columns: usize| (columns as f32).sqrt().recip();
        add("fc.weight", &[hidden, 2 * hidden], 0.0, root(2 * hidden));
        add("hidden_norm.weight", &[hidden], 1.0, 0.1);
        add("norm.weight", &[hidden], 1.0, 0.1);
        for layer in 0..LAYERS {
            let name = |name: &str| format!("layers.{layer}.{name}");
            add(&name("input_layernorm.weight"), &[hidden], 1.0, 0.1);
            add(&name("post_attention_layernorm.weight"), &[hidden], 1.0, 0.1);
            add(&name("self_attn.q_proj.weight"), &[queries, hidden], 0.0, root(hidden));
            add(&name("self_attn.k_proj.weight"), &[keys, hidden], 0.0, root(hidden));
            add(&name("self_attn.v_proj.weight"), &[keys, hidden], 0.0, root(hidden));
            add(&name("self_attn.o_proj.weight"), &[hidden, queries], 0.0, root(queries));
            add(&name("self_attn.q_norm.weight"), &[HEAD_DIM], 1.0, 0.1);
            add(&name("self_attn.k_norm.weight"), &[HEAD_DIM], 1.0, 0.1);
            add(&name("mlp.gate_proj.weight"), &[WIDTH, hidden], 0.0, root(hidden));
            add(&name("mlp.up_proj.weight"), &[WIDTH, hidden], 0.0, root(hidden));
            add(&name("mlp.down_proj.weight"), &[hidden, WIDTH], 0.0, root(WIDTH));
            if let Some((taps, group)) = self.kind.conv {
                for conv in ["attention_conv", "mlp_conv"] {
                    add(&name(&format!("{conv}.base_kernel")), &[2, taps, hidden], 0.5, 0.3);
                    let rows = 2 * taps * hidden / group;
                    add(&name(&format!("{conv}.kernel_projection.weight")), &[rows, hidden], 0.0, 0.3 * root(hidden));
                }
            }
        }
        if let Some((rank, _)) = self.kind.selector {
            for codebook in ["predecessor_codebook", "successor_codebook"] {
                add(&format!("candidate_selector.{codebook}"), &[self.vocab, rank], 0.0, 1.0);
            }
            add("candidate_selector.hidden_projection.weight", &[rank, hidden], 0.0, root(hidden));
        }
    }

    fn z_lab_config(&self, layers: usize) -> Value {
        let kind = &self.kind;
        let mut config = json!({
            "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": BLOCK,
            "num_target_layers": layers, "hidden_size": self.hidden, "vocab_size": self.vocab,
            "dflash_config": {"target_layer_ids": self.taps, "mask_token_id": MASK}, "intermediate_size": WIDTH,
            "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS,
            "head_dim": HEAD_DIM, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "max_position_embeddings": 4096,
        });
        if let Some(window) = kind.window {
            config["layer_types"] = json!(["sliding_attention", "full_attention"]);
            config["sliding_window"] = json!(window);
        }
        config["is_causal"] = json!(kind.is_causal);
        let own = &mut config["dflash_config"];
        if let Some((taps, group)) = kind.conv {
            (own["conv_kernel_size"], own["conv_group_size"]) = (json!(taps), json!(group));
        }
        if let Some((rank, top_k)) = kind.selector {
            (own["selector_rank"], own["selector_top_k"]) = (json!(rank), json!(top_k));
        }
        config
    }

    fn mirai_config(&self, layers: usize) -> Value {
        let norm = json!({"epsilon": 1e-6, "scale_offset": null, "subtract_mean": false});
        let layer = |window: Option<usize>| {
            json!({"pre_mixer_norm_config": norm, "pre_mlp_norm_config": norm,
                "mixer_config": {"type": "AttentionConfig", "query_norm_config": norm, "key_norm_config": norm,
                    "num_heads": HEADS, "num_groups": KEY_HEADS, "head_dim": HEAD_DIM, "is_causal": window.is_some(),
                    "sliding_window_size": window},
                "mlp_config": {"type": "DenseMLPConfig", "activation": {"type": "SiLU"}}})
        };
        json!({"type": "SpeculatorModelConfig", "speculator_config": {"type": "DFlashSpeculatorConfig", "draft_config": {
            "model_dim": self.hidden, "hidden_dim": WIDTH, "block_size": BLOCK, "mask_token_id": MASK,
            "target_layer_ids": self.taps, "num_target_layers": layers, "vocab_size": self.vocab,
            "context_norm_config": norm, "output_norm_config": norm,
            "rope_config": {"type": "UnscaledRoPEConfig", "base": 10000.0, "max_sequence_length": 4096},
            "layer_configs": [layer(self.kind.window), layer(None)],
        }}})
    }

    fn file(&self) -> Vec<u8> {
        let mut entries: Vec<(String, Vec<usize>, &'static str, Vec<u8>)> = Vec::new();
        let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>();
        if self.kind.mirai {
            for (name, sources) in self.mirai_names() {
                let parts = sources.iter().map(|source| &self.tensors[source]);
                let mut shape = self.tensors[&sources[0]].0.clone();
                shape[0] = parts.clone().map(|(shape, _)| shape[0]).sum();
                let data = parts.flat_map(|(_, values)| bytes(values)).collect();
                entries.push((format!("speculator.draft_model.{name}"), shape, "F32", data));
            }
        } else {
            for (name, (shape, values)) in &self.tensors {
                entries.push((name.clone(), shape.clone(), "F32", bytes(values)));
            }
        }
        if let Some(every) = self.kind.every {
            let listed: Vec<u32> = (0..self.vocab as u32).step_by(every).collect();
            let data = listed.iter().flat_map(|token| token.to_le_bytes()).collect();
            entries.push(("draft_to_target".to_owned(), vec![listed.len()], "I32", data));
        }
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, shape, dtype, bytes) in entries {
            let begin = data.len();
            data.extend(bytes);
            header.insert(name, json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, data.len()]}));
        }
        let header = Value::Object(header).to_string();
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
    }

    /// Mirai's tensors, each one or several of z-lab's below each other.
    fn mirai_names(&self) -> Vec<(String, Vec<String>)> {
        let one = |name: &str, source: &str| (name.to_owned(), vec![source.to_owned()]);
        let mut names = vec![
            one("context_projection.weights.weights", "fc.weight"),
            one("context_norm.scales", "hidden_norm.weight"),
            one("output_norm.scales", "norm.weight"),
        ];
        for layer in 0..LAYERS {
            let mut add = |name: &str, sources: &[&str]| {
                let sources = sources.iter().map(|source| format!("layers.{layer}.{source}.weight")).collect();
                names.push((format!("layers.{layer}.{name}"), sources));
            };
            add("pre_mixer_norm.scales", &["input_layernorm"]);
            add("pre_mlp_norm.scales", &["post_attention_layernorm"]);
            let qkv = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
            add("mixer.qkv_projection.weights.weights", &qkv);
            add("mixer.out_projection.weights.weights", &["self_attn.o_proj"]);
            add("mixer.query_norm.scales", &["self_attn.q_norm"]);
            add("mixer.key_norm.scales", &["self_attn.k_norm"]);
            add("mlp.up_projection.weights.weights", &["mlp.up_proj", "mlp.gate_proj"]);
            add("mlp.down_projection.weights.weights", &["mlp.down_proj"]);
        }
        names
    }
}

/// Mean 0, variance 1, from a generator of 64 bits.
pub fn normal(state: &mut u64) -> f32 {
    let mut uniform = || {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..12).map(|_| uniform()).sum::<f32>() - 6.0
}
