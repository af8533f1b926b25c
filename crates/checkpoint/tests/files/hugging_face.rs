//! Folders in Hugging Face's layout.

use pleach_checkpoint::{
    Architecture, Checkpoint, Convention, LayerType, RopePairing, RopeScaling, SkippedTensor, SourceKind, TensorData,
    TensorFormat, TokenizerSource, ValueHeadOrder,
};

use crate::{fixture, shape};

#[test]
fn tiny_qwen35_opens_with_its_vision_tensors_listed() {
    let checkpoint = Checkpoint::open(&fixture("tiny-qwen35")).unwrap();
    let config = &checkpoint.config;
    assert_eq!(config.architecture, Architecture::Qwen35);
    let linear = LayerType::LinearAttention;
    assert_eq!(config.layer_types[..4], [linear, linear, linear, LayerType::FullAttention]);
    assert!(config.attn_output_gate && !config.tie_word_embeddings);
    assert_eq!((config.rope.theta, config.rope.rotary_dim), (1e7, 16));
    assert_eq!(config.rope.pairing, RopePairing::Halves);
    let linear = config.linear_attention.as_ref().unwrap();
    assert_eq!((linear.num_key_heads, linear.num_value_heads, linear.conv_dim()), (2, 4, 256));
    assert_eq!(linear.value_head_order, ValueHeadOrder::Grouped);
    assert_eq!(config.num_mtp_layers, 1);
    assert_eq!(checkpoint.source, SourceKind::HuggingFace);

    // 3 of the root, 6 GDN layers of 14, 2 attention layers of 11, 4 and 11 of the prediction head.
    assert_eq!(checkpoint.tensors.len(), 3 + 6 * 14 + 2 * 11 + 15);
    let reason = "part of the vision tower, which text does not pass";
    let skipped = |name: &str| SkippedTensor { name: name.to_owned(), reason };
    assert_eq!(
        checkpoint.skipped,
        [skipped("model.visual.merger.norm.bias"), skipped("model.visual.pos_embed.weight")]
    );
    assert_eq!(shape(&checkpoint, "layers.3.self_attn.q_proj.weight"), [512, 64]);
    assert_eq!(shape(&checkpoint, "layers.0.linear_attn.conv1d.weight"), [256, 4]);
    assert_eq!(shape(&checkpoint, "mtp.fc.weight"), [64, 128]);
}

#[test]
fn tiny_qwen35_says_how_values_are_meant() {
    let mut checkpoint = Checkpoint::open(&fixture("tiny-qwen35")).unwrap();
    let mut meant = |name: &str| {
        let tensor = checkpoint.tensors.take(name).unwrap();
        (tensor.convention, tensor.format)
    };
    let bf16 = TensorFormat::BF16;
    for norm in [
        "norm.weight",
        "layers.0.input_layernorm.weight",
        "layers.3.post_attention_layernorm.weight",
        "layers.3.self_attn.q_norm.weight",
        "layers.3.self_attn.k_norm.weight",
        "mtp.norm.weight",
        "mtp.pre_fc_norm_embedding.weight",
        "mtp.pre_fc_norm_hidden.weight",
        "mtp.layers.0.self_attn.q_norm.weight",
    ] {
        assert_eq!(meant(norm), (Convention::ZeroCenteredNorm, bf16), "{norm}");
    }
    assert_eq!(meant("layers.0.linear_attn.norm.weight"), (Convention::AsIs, TensorFormat::F32));
    assert_eq!(meant("layers.0.linear_attn.A_log"), (Convention::NegExpLog, TensorFormat::F32));
    assert_eq!(meant("layers.0.linear_attn.dt_bias"), (Convention::AsIs, bf16));
    assert_eq!(meant("embed_tokens.weight"), (Convention::AsIs, bf16));
}

#[test]
fn tiny_qwen35_has_its_text_side() {
    let checkpoint = Checkpoint::open(&fixture("tiny-qwen35")).unwrap();
    assert_eq!(checkpoint.generation.eos_token_ids, [470, 472]);
    assert_eq!(checkpoint.generation.eos_token.as_deref(), Some("<|im_end|>"));
    assert_eq!(checkpoint.generation.top_k, Some(20));
    assert!(checkpoint.chat_template.unwrap().contains("<|im_start|>"));
    let TokenizerSource::Json { bytes, tokenizer_config, .. } = checkpoint.tokenizer else {
        panic!("a folder has JSON")
    };
    assert!(bytes.starts_with(b"{") && tokenizer_config.is_some());
    assert!(checkpoint.files[0].path.ends_with("config.json"));
    assert_eq!(checkpoint.files.len(), 6);
}

#[test]
fn tiny_moe_experts_are_slices_of_the_fused_tensors() {
    let checkpoint = Checkpoint::open(&fixture("tiny-qwen35-moe")).unwrap();
    let moe = checkpoint.config.moe.as_ref().unwrap();
    assert_eq!((moe.num_experts, moe.num_experts_per_tok, moe.norm_topk_prob), (8, 3, true));
    assert_eq!(checkpoint.config.intermediate_size, 0);
    assert_eq!(checkpoint.config.num_mtp_layers, 0);
    assert!(checkpoint.skipped.is_empty());

    let start = |name: &str| {
        let tensor = checkpoint.tensors.get(name).unwrap();
        let TensorData::Plain(bytes) = &tensor.data else { panic!("bf16 is plain") };
        assert_eq!(bytes.len(), tensor.shape.iter().product::<usize>() * 2);
        (bytes.as_ptr() as usize, tensor.shape.clone(), tensor.source_name.clone())
    };
    let (gate, gate_shape, source) = start("layers.1.mlp.experts.0.gate_proj.weight");
    assert_eq!((gate_shape, source.as_str()), (vec![32, 128], "model.layers.1.mlp.experts.gate_up_proj"));
    assert_eq!(start("layers.1.mlp.experts.0.up_proj.weight").0, gate + 32 * 128 * 2);
    assert_eq!(start("layers.1.mlp.experts.5.gate_proj.weight").0, gate + 5 * 64 * 128 * 2);
    let (down, down_shape, _) = start("layers.1.mlp.experts.0.down_proj.weight");
    assert_eq!(down_shape, [128, 32]);
    assert_eq!(start("layers.1.mlp.experts.7.down_proj.weight").0, down + 7 * 128 * 32 * 2);
}

#[test]
fn tiny_qwen3_and_llama_open_with_plain_norms() {
    let qwen3 = Checkpoint::open(&fixture("tiny-qwen3")).unwrap();
    assert_eq!(qwen3.config.architecture, Architecture::Qwen3);
    assert_eq!((qwen3.config.rope.rotary_dim, qwen3.config.rope.scaling.clone()), (64, RopeScaling::None));
    assert_eq!(qwen3.tensors.len(), 2 + 3 * 11);
    assert!(qwen3.skipped.is_empty());
    assert!(qwen3.tensors.iter().all(|tensor| tensor.convention == Convention::AsIs));

    let llama = Checkpoint::open(&fixture("tiny-llama")).unwrap();
    assert_eq!(llama.config.architecture, Architecture::Llama);
    assert!(llama.config.tie_word_embeddings && !llama.config.has_qk_norm());
    assert_eq!(llama.tensors.len(), 2 + 4 * 9);
    assert_eq!(llama.generation.eos_token_ids, [2]);
    assert_eq!((llama.config.bos_token_id, llama.config.pad_token_id), (Some(1), None));
}
