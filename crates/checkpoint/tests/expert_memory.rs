//! Fused experts cannot make a small file into much memory. Alone in its program, so that the process's peak is this
//! test's.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "all of this is test code; the lint's own exception covers only test functions")]

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
};

use pleach_checkpoint::Checkpoint;
use serde_json::{Map, Value, json};

const LAYERS: usize = 16;
const EXPERTS: usize = 1024;
const HIDDEN: usize = 16;
/// With `HIDDEN` columns of BF16, the smallest matrix that an expert may have: 256 bytes.
const WIDTH: usize = 8;

/// A line of the process's status, in KiB.
fn status_kib(line: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let value = status.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(':')).unwrap();
    value.trim().trim_end_matches(" kB").parse().unwrap()
}

fn config() -> Value {
    json!({
        "model_type": "qwen3_5_moe_text", "vocab_size": 2, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8, "full_attention_interval": 1,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "linear_num_key_heads": 1, "linear_num_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": true, "rope_theta": 1e4, "partial_rotary_factor": 0.5, "num_experts": EXPERTS,
        "num_experts_per_tok": 1, "moe_intermediate_size": WIDTH, "shared_expert_intermediate_size": WIDTH
    })
}

fn tensors() -> Vec<(String, Vec<usize>)> {
    let mut tensors =
        vec![("embed_tokens.weight".to_owned(), vec![2, HIDDEN]), ("norm.weight".to_owned(), vec![HIDDEN])];
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("input_layernorm.weight", vec![HIDDEN]),
            ("post_attention_layernorm.weight", vec![HIDDEN]),
            ("self_attn.q_proj.weight", vec![16, HIDDEN]),
            ("self_attn.k_proj.weight", vec![8, HIDDEN]),
            ("self_attn.v_proj.weight", vec![8, HIDDEN]),
            ("self_attn.o_proj.weight", vec![HIDDEN, 8]),
            ("self_attn.q_norm.weight", vec![8]),
            ("self_attn.k_norm.weight", vec![8]),
            ("mlp.gate.weight", vec![EXPERTS, HIDDEN]),
            ("mlp.experts.gate_up_proj", vec![EXPERTS, 2 * WIDTH, HIDDEN]),
            ("mlp.experts.down_proj", vec![EXPERTS, HIDDEN, WIDTH]),
            ("mlp.shared_expert.gate_proj.weight", vec![WIDTH, HIDDEN]),
            ("mlp.shared_expert.up_proj.weight", vec![WIDTH, HIDDEN]),
            ("mlp.shared_expert.down_proj.weight", vec![HIDDEN, WIDTH]),
            ("mlp.shared_expert_gate.weight", vec![1, HIDDEN]),
        ] {
            tensors.push((format!("layers.{layer}.{name}"), shape));
        }
    }
    tensors
}

/// Writes the model and gives the size of its weights in bytes. They are a hole in the file: all zeros.
fn write(dir: &Path) -> usize {
    let (mut header, mut end) = (Map::new(), 0);
    for (name, shape) in tensors() {
        let begin = end;
        end += shape.iter().product::<usize>() * 2;
        header.insert(name, json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}));
    }
    let header = Value::Object(header).to_string();
    let mut weights = File::create(dir.join("model.safetensors")).unwrap();
    weights.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    weights.write_all(header.as_bytes()).unwrap();
    weights.set_len((8 + header.len() + end) as u64).unwrap();
    fs::write(dir.join("config.json"), config().to_string()).unwrap();
    fs::write(dir.join("tokenizer.json"), "{}").unwrap();
    end
}

#[test]
fn memory_for_experts_does_not_outgrow_their_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let size_kib = write(dir.path()) / 1024;
    let before = status_kib("VmRSS");
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let grown = status_kib("VmHWM") - before;
    assert!(checkpoint.tensors.len() > LAYERS * EXPERTS * 3);
    assert!(grown < 3 * size_kib, "grew by {grown} KiB for a file of {size_kib} KiB");
}
