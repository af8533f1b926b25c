//! Drafters with random weights for the fixtures' models: their guesses are as bad as guesses can be.

use std::path::Path;

use serde_json::{Map, Value, json};

/// Guesses after the last token.
pub const MAX_DEPTH: usize = 7;

/// Tokens that a random drafter scores.
const DRAFT_VOCABULARY: usize = 200;

/// What a drafter must know of its target.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub hidden_size: usize,
    pub vocab_size: usize,
    pub num_layers: usize,
}

/// A safetensors file while it is written.
struct Tensors {
    entries: Map<String, Value>,
    data: Vec<u8>,
    state: u64,
}

impl Tensors {
    fn new(seed: u64) -> Self {
        Self { entries: Map::new(), data: Vec::new(), state: seed }
    }

    fn add(&mut self, name: &str, shape: &[usize], dtype: &str, words: impl Iterator<Item = [u8; 4]>) {
        let begin = self.data.len();
        self.data.extend(words.flatten());
        let place = json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, self.data.len()]});
        self.entries.insert(name.to_owned(), place);
    }

    /// Numbers around `mean`, as far from it as keeps the size of what a matrix of this shape multiplies.
    fn random(&mut self, name: &str, shape: &[usize], mean: f32) {
        let spread = 2.0 / (*shape.last().unwrap() as f32).sqrt();
        let mut state = self.state;
        let words: Vec<_> = (0..shape.iter().product::<usize>())
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (mean + spread * ((state >> 40) as f32 / 8_388_608.0 - 1.0)).to_le_bytes()
            })
            .collect();
        self.state = state;
        self.add(name, shape, "F32", words.into_iter());
    }

    fn norm(&mut self, name: &str, size: usize) {
        self.random(&format!("{name}.weight"), &[size], 1.0);
    }

    fn matrix(&mut self, name: &str, shape: [usize; 2]) {
        self.random(&format!("{name}.weight"), &shape, 0.0);
    }

    fn biased(&mut self, name: &str, shape: [usize; 2]) {
        self.matrix(name, shape);
        self.random(&format!("{name}.bias"), &shape[..1], 0.0);
    }

    fn write(self, path: &Path) {
        let header = Value::Object(self.entries).to_string();
        std::fs::write(path, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &self.data].concat()).unwrap();
    }
}

/// Writes a drafter and a Weaver for it.
pub fn write(dir: &Path, shape: Shape, seed: u64) {
    write_drafter(dir, shape, seed);
    write_weaver(dir, shape.hidden_size, seed + 1);
}

fn write_drafter(dir: &Path, Shape { hidden_size, vocab_size, num_layers }: Shape, seed: u64) {
    let (layers, heads, head_dim, width) = (2, 2, 32, 64);
    let taps = [0, num_layers - 1];
    let config = json!({
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": MAX_DEPTH + 1,
        "num_target_layers": num_layers, "dflash_config": {"target_layer_ids": taps, "mask_token_id": 3},
        "hidden_size": hidden_size, "intermediate_size": width, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": 1, "head_dim": head_dim, "vocab_size": vocab_size,
        "rope_theta": 1e4, "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "attention_bias": false,
        "hidden_act": "silu", "tie_word_embeddings": true, "use_sliding_window": false,
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let mut tensors = Tensors::new(seed);
    tensors.matrix("fc", [hidden_size, taps.len() * hidden_size]);
    tensors.norm("hidden_norm", hidden_size);
    tensors.norm("norm", hidden_size);
    for layer in 0..layers {
        let name = |part: &str| format!("layers.{layer}.{part}");
        tensors.norm(&name("input_layernorm"), hidden_size);
        tensors.norm(&name("post_attention_layernorm"), hidden_size);
        tensors.matrix(&name("self_attn.q_proj"), [heads * head_dim, hidden_size]);
        tensors.matrix(&name("self_attn.k_proj"), [head_dim, hidden_size]);
        tensors.matrix(&name("self_attn.v_proj"), [head_dim, hidden_size]);
        tensors.matrix(&name("self_attn.o_proj"), [hidden_size, heads * head_dim]);
        tensors.norm(&name("self_attn.q_norm"), head_dim);
        tensors.norm(&name("self_attn.k_norm"), head_dim);
        tensors.matrix(&name("mlp.gate_proj"), [width, hidden_size]);
        tensors.matrix(&name("mlp.up_proj"), [width, hidden_size]);
        tensors.matrix(&name("mlp.down_proj"), [hidden_size, width]);
    }
    let step = vocab_size / DRAFT_VOCABULARY;
    let tokens = (0..DRAFT_VOCABULARY).map(|index| ((index * step) as i32).to_le_bytes());
    tensors.add("draft_to_target", &[DRAFT_VOCABULARY], "I32", tokens);
    tensors.write(&dir.join("model.safetensors"));
}

fn write_weaver(dir: &Path, d_model: usize, seed: u64) {
    let (d_rank, mlp_dim, num_layers) = (32, 48, 2);
    let config = json!({
        "d_model": d_model, "d_embed": d_model, "d_rank": d_rank, "num_layers": num_layers, "num_heads": 2,
        "mlp_dim": mlp_dim, "K": MAX_DEPTH, "candidate_pool_size": 20, "rope_base": 1e4, "encoder_mode": 3,
        "score_head": 4, "activation": "swiglu",
    });
    std::fs::write(dir.join("weaver.json"), config.to_string()).unwrap();
    let mut tensors = Tensors::new(seed);
    let norm = |tensors: &mut Tensors, name: &str, size: usize| {
        tensors.norm(name, size);
        tensors.random(&format!("{name}.bias"), &[size], 0.0);
    };
    norm(&mut tensors, "embed_norm", d_model);
    norm(&mut tensors, "output_norm", d_model);
    norm(&mut tensors, "out_norm", d_rank);
    tensors.biased("token_in", [d_rank, d_model]);
    tensors.biased("proposal_in", [d_rank, d_model]);
    tensors.matrix("lm_head_query_in", [d_model, d_rank]);
    for block in 0..num_layers {
        let name = |part: &str| format!("blocks.{block}.{part}");
        norm(&mut tensors, &name("norm_attn"), d_rank);
        norm(&mut tensors, &name("norm_mlp"), d_rank);
        tensors.matrix(&name("qkv_proj"), [3 * d_rank, d_rank]);
        tensors.matrix(&name("o_proj"), [d_rank, d_rank]);
        tensors.biased(&name("gate_up_proj"), [2 * mlp_dim, d_rank]);
        tensors.biased(&name("down_proj"), [d_rank, mlp_dim]);
    }
    tensors.write(&dir.join("weaver.safetensors"));
}
