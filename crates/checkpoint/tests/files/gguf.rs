//! Good GGUF files.

use std::fs;

use pleach_checkpoint::{
    Architecture, Checkpoint, Convention, LayerType, RopePairing, RopeScaling, SourceKind, TensorData, TensorFormat,
    TokenizerSource, ValueHeadOrder,
};

use crate::{
    builders::{Gguf, string_value, u32_value},
    fixture, shape,
};

#[test]
fn tiny_qwen35_matches_its_folder() {
    let gguf = Checkpoint::open(&fixture("tiny-qwen35/model.gguf")).unwrap();
    let folder = Checkpoint::open(&fixture("tiny-qwen35")).unwrap();
    assert_eq!(gguf.source, SourceKind::Gguf);
    assert!(gguf.skipped.is_empty());

    let shapes = |checkpoint: &Checkpoint| {
        checkpoint.tensors.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect::<Vec<_>>()
    };
    assert_eq!(shapes(&gguf), shapes(&folder));

    // Only what the converter changes, and what its metadata leaves out, differs.
    let mut expected = folder.config.clone();
    expected.linear_attention.as_mut().unwrap().value_head_order = ValueHeadOrder::RoundRobin;
    expected.eos_token_ids = vec![472];
    expected.pad_token_id = Some(470);
    assert_eq!(gguf.config, expected);
    assert!(gguf.tensors.iter().all(|tensor| tensor.convention == Convention::AsIs));
}

#[test]
fn tiny_qwen35_unpermuted_tensors_hold_the_folder_s_bytes() {
    let gguf = Checkpoint::open(&fixture("tiny-qwen35/model.gguf")).unwrap();
    let folder = Checkpoint::open(&fixture("tiny-qwen35")).unwrap();
    for name in [
        "embed_tokens.weight",
        "lm_head.weight",
        "layers.3.self_attn.q_proj.weight",
        "layers.0.mlp.down_proj.weight",
        "mtp.fc.weight",
        "mtp.layers.0.self_attn.o_proj.weight",
    ] {
        let bytes = |checkpoint: &Checkpoint| match &checkpoint.tensors.get(name).unwrap().data {
            TensorData::Plain(bytes) => bytes.clone(),
            TensorData::Affine { .. } => panic!("{name} is plain"),
        };
        assert_eq!(bytes(&gguf), bytes(&folder), "{name}");
    }
}

#[test]
fn tiny_llama_rotates_neighbors() {
    let checkpoint = Checkpoint::open(&fixture("tiny-llama/model.gguf")).unwrap();
    let config = &checkpoint.config;
    assert_eq!(config.architecture, Architecture::Llama);
    assert_eq!((config.rope.pairing, config.rope.rotary_dim), (RopePairing::Neighbors, 32));
    assert!(config.tie_word_embeddings);
    assert_eq!(checkpoint.tensors.len(), 2 + 4 * 9);
    assert_eq!(checkpoint.generation.eos_token_ids, [2]);
    assert_eq!(checkpoint.generation.eos_token.as_deref(), Some("<|im_end|>"));
    assert!(checkpoint.chat_template.unwrap().starts_with("{%- for message in messages -%}"));
    let TokenizerSource::Gguf(tokenizer) = checkpoint.tokenizer else { panic!("a GGUF carries its tokenizer") };
    assert_eq!((tokenizer.model.as_str(), tokenizer.pre.as_deref()), ("gpt2", Some("smollm")));
    assert_eq!((tokenizer.tokens.len(), tokenizer.token_types.len(), tokenizer.merges.len()), (512, 512, 239));
    assert_eq!(
        (tokenizer.bos, tokenizer.eos, tokenizer.pad, tokenizer.add_bos),
        (Some(1), Some(2), Some(0), Some(false))
    );
}

/// Writes a file and opens it.
fn open(gguf: &Gguf) -> Checkpoint {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    fs::write(&path, gguf.build()).unwrap();
    Checkpoint::open(&path).unwrap()
}

#[test]
fn version_2_and_a_folder_with_one_file_open() {
    let dir = tempfile::tempdir().unwrap();
    let gguf = Gguf { version: 2, ..Gguf::llama() };
    fs::write(dir.path().join("any-name.gguf"), gguf.build()).unwrap();
    fs::write(dir.path().join("mmproj-any-name.gguf"), b"an image projector, not ours").unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.config.num_key_value_heads, 1);
    assert_eq!(checkpoint.tensors.len(), 2 + 9);
}

#[test]
fn biases_and_rotary_factors_are_found_by_their_tensors() {
    let mut gguf = Gguf::llama();
    for name in ["attn_q", "attn_k", "attn_v", "attn_output"] {
        gguf.tensor(&format!("blk.0.{name}.bias"), &[32]);
    }
    gguf.tensor("rope_freqs.weight", &[16]);
    gguf.tensor("someone.else's", &[3]);
    let mut bytes = gguf.build();
    let factors = bytes.len() - 32 - 64;
    for (index, chunk) in bytes[factors..factors + 64].chunks_mut(4).enumerate() {
        chunk.copy_from_slice(&(1.0 + index as f32).to_le_bytes());
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    fs::write(&path, bytes).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert!(checkpoint.config.attention_bias && !checkpoint.config.mlp_bias);
    assert_eq!(shape(&checkpoint, "layers.0.self_attn.o_proj.bias"), [32]);
    let expected = (1..=16).map(|number| number as f32).collect();
    assert_eq!(checkpoint.config.rope.scaling, RopeScaling::Factors(expected));
    assert_eq!(checkpoint.skipped.len(), 1);
    assert_eq!(checkpoint.skipped[0].name, "someone.else's");
}

#[test]
fn block_formats_keep_their_rows() {
    let mut gguf = Gguf::llama();
    let embedding = gguf.at("token_embd.weight");
    (embedding.type_id, embedding.size) = (2, 2 * 18);
    let checkpoint = open(&gguf);
    let embedding = checkpoint.tensors.get("embed_tokens.weight").unwrap();
    assert_eq!((embedding.format, embedding.shape.as_slice()), (TensorFormat::Q4_0, &[2, 32][..]));
    assert_eq!(embedding.size_bytes(), 36);
}

/// A `qwen35moe` file with one layer of each kind, experts fused over the first axis.
fn moe() -> Gguf {
    let mut gguf = Gguf::llama();
    gguf.tensors.clear();
    gguf.set("general.architecture", string_value("qwen35moe"));
    for (key, number) in [
        ("block_count", 2),
        ("context_length", 64),
        ("embedding_length", 32),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("attention.key_length", 16),
        ("rope.dimension_count", 4),
        ("full_attention_interval", 2),
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", 8),
        ("ssm.group_count", 2),
        ("ssm.time_step_rank", 2),
        ("ssm.inner_size", 16),
        ("expert_count", 3),
        ("expert_used_count", 2),
        ("expert_feed_forward_length", 32),
        ("expert_shared_feed_forward_length", 64),
    ] {
        gguf.set(&format!("qwen35moe.{key}"), u32_value(number));
    }
    let float = |number: f32| [6u32.to_le_bytes(), number.to_le_bytes()].concat();
    gguf.set("qwen35moe.attention.layer_norm_rms_epsilon", float(1e-6));
    gguf.set("qwen35moe.rope.freq_base", float(1e7));
    gguf.tensor("token_embd.weight", &[32, 2]);
    gguf.tensor("output_norm.weight", &[32]);
    gguf.tensor("output.weight", &[32, 2]);
    for (name, axes) in [
        ("0.attn_qkv.weight", &[32, 48][..]),
        ("0.attn_gate.weight", &[32, 16]),
        ("0.ssm_alpha.weight", &[32, 2]),
        ("0.ssm_beta.weight", &[32, 2]),
        ("0.ssm_conv1d.weight", &[4, 48]),
        ("0.ssm_a", &[2]),
        ("0.ssm_dt.bias", &[2]),
        ("0.ssm_norm.weight", &[8]),
        ("0.ssm_out.weight", &[16, 32]),
        ("1.attn_q.weight", &[32, 64]),
        ("1.attn_k.weight", &[32, 16]),
        ("1.attn_v.weight", &[32, 16]),
        ("1.attn_output.weight", &[32, 32]),
        ("1.attn_q_norm.weight", &[16]),
        ("1.attn_k_norm.weight", &[16]),
    ] {
        gguf.tensor(&format!("blk.{name}"), axes);
    }
    for layer in 0..2 {
        for (name, axes) in [
            ("attn_norm.weight", &[32][..]),
            ("post_attention_norm.weight", &[32]),
            ("ffn_gate_inp.weight", &[32, 3]),
            ("ffn_gate_exps.weight", &[32, 32, 3]),
            ("ffn_up_exps.weight", &[32, 32, 3]),
            ("ffn_down_exps.weight", &[32, 32, 3]),
            ("ffn_gate_shexp.weight", &[32, 64]),
            ("ffn_up_shexp.weight", &[32, 64]),
            ("ffn_down_shexp.weight", &[64, 32]),
            ("ffn_gate_inp_shexp.weight", &[32]),
        ] {
            gguf.tensor(&format!("blk.{layer}.{name}"), axes);
        }
    }
    gguf
}

#[test]
fn fused_experts_become_one_matrix_each() {
    let mut gguf = moe();
    let fused = gguf.at("blk.1.ffn_down_exps.weight");
    (fused.type_id, fused.size) = (8, 3 * 32 * 34);
    let checkpoint = open(&gguf);
    let config = &checkpoint.config;
    assert_eq!(config.layer_types, [LayerType::LinearAttention, LayerType::FullAttention]);
    assert_eq!(config.linear_attention.as_ref().unwrap().value_head_order, ValueHeadOrder::Grouped);
    assert_eq!(shape(&checkpoint, "layers.0.linear_attn.conv1d.weight"), [48, 4]);
    assert_eq!(shape(&checkpoint, "layers.0.mlp.shared_expert_gate.weight"), [1, 32]);
    let down = checkpoint.tensors.get("layers.1.mlp.experts.2.down_proj.weight").unwrap();
    assert_eq!((down.shape.as_slice(), down.format, down.size_bytes()), (&[32, 32][..], TensorFormat::Q8_0, 32 * 34));
    assert_eq!(down.source_name, "blk.1.ffn_down_exps.weight");
    assert!(checkpoint.skipped.is_empty());
}

/// Cutting what nothing reads would list each of its experts as skipped.
#[test]
fn fused_experts_of_no_layer_stay_whole() {
    let mut gguf = moe();
    // A prediction head that the metadata does not announce.
    gguf.tensor("blk.2.ffn_up_exps.weight", &[32, 32, 3]);
    gguf.tensor("blk.2.nextn.eh_proj.weight", &[64, 32]);
    gguf.tensor("extra.mlp.experts.up_proj", &[32, 32, 3]);
    let checkpoint = open(&gguf);
    let skipped: Vec<_> = checkpoint.skipped.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(skipped, ["blk.2.ffn_up_exps.weight", "blk.2.nextn.eh_proj.weight", "extra.mlp.experts.up_proj"]);
}

#[test]
fn fused_experts_smaller_than_their_description_are_refused() {
    let mut gguf = moe();
    gguf.set("qwen35moe.expert_feed_forward_length", u32_value(1));
    let fused = gguf.at("blk.0.ffn_gate_exps.weight");
    (fused.axes, fused.size) = (vec![32, 1, 3], 3 * 32 * 4);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::write(&path, gguf.build()).unwrap();
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert_eq!(
        error.replace(&format!("{}/", dir.path().display()), ""),
        "`m.gguf` is damaged or not what its name says: the size of one expert's matrix in `blk.0.ffn_gate_exps.weight` is 128 bytes, expected at least 256"
    );
}

/// The model of [`Gguf::llama`] in two files.
fn split() -> [Gguf; 2] {
    let mut first = Gguf::llama();
    let mut second = Gguf { tensors: first.tensors.split_off(5), ..Gguf::empty() };
    let u16_value = |number: u16| [&2u32.to_le_bytes()[..], &number.to_le_bytes()].concat();
    for (number, part) in [&mut first, &mut second].into_iter().enumerate() {
        part.set("split.no", u16_value(number as u16));
        part.set("split.count", u16_value(2));
        part.set("split.tensors.count", [5u32.to_le_bytes(), 11u32.to_le_bytes()].concat());
    }
    [first, second]
}

/// Writes two parts and opens the one with a number, from 1 on, or the folder for 0.
fn open_split(parts: &[Gguf; 2], number: usize) -> Result<Checkpoint, String> {
    let dir = tempfile::tempdir().unwrap();
    let paths = [1, 2].map(|number| dir.path().join(format!("m-0000{number}-of-00002.gguf")));
    for (part, path) in parts.iter().zip(&paths) {
        fs::write(path, part.build()).unwrap();
    }
    let path = if number == 0 { dir.path() } else { &paths[number - 1] };
    let place = format!("{}/", dir.path().display());
    Checkpoint::open(path).map_err(|error| error.to_string().replace(&place, ""))
}

#[test]
fn split_files_open_by_any_part() {
    for number in 0..=2 {
        let checkpoint = open_split(&split(), number).unwrap();
        assert_eq!((checkpoint.tensors.len(), checkpoint.files.len()), (11, 2));
    }
}

#[test]
fn parts_of_different_models_are_refused() {
    let mut parts = split();
    parts[1].set("split.no", u32_value(0));
    assert_eq!(
        open_split(&parts, 1).unwrap_err(),
        "`split.no` in `m-00002-of-00002.gguf` is 0, expected a whole number from 1 to 1"
    );
    let mut parts = split();
    parts[1].tensors.pop();
    assert_eq!(
        open_split(&parts, 1).unwrap_err(),
        "`split.tensors.count` in `m-00001-of-00002.gguf` is 11, expected the 10 tensors that the parts hold; fetch them all from one place"
    );
    let mut parts = split();
    let copy = parts[0].tensors[0].clone();
    parts[1].tensors[0] = copy;
    assert_eq!(
        open_split(&parts, 1).unwrap_err(),
        "`token_embd.weight` in `m-00001-of-00002.gguf` and `token_embd.weight` in `m-00002-of-00002.gguf` both stand for tensor `embed_tokens.weight`: remove the file that does not belong to the model"
    );
}

#[test]
fn a_renamed_part_is_not_taken_for_a_whole_model() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    fs::write(&path, split()[0].build()).unwrap();
    let message = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(
        message.contains("`split.count`") && message.contains("is 2, expected 1, as the file names say"),
        "{message}"
    );
}
