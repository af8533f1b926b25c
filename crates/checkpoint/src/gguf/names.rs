//! GGUF tensor names and the canonical names that they stand for.

/// What a stored name stands for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// A tensor of the model, under its canonical name.
    Canonical(String),
    /// A tensor that is not needed, and why.
    Skip(&'static str),
}

/// Divisors of the rotary frequencies: a part of the config that is stored as a tensor.
pub(super) const ROPE_FREQS: &str = "rope_freqs.weight";

/// Names outside of blocks.
const ROOT: [(&str, &str); 3] = [
    ("token_embd.weight", "embed_tokens.weight"),
    ("output_norm.weight", "norm.weight"),
    ("output.weight", "lm_head.weight"),
];

/// Names inside a block, after `blk.N.` and after `layers.N.`.
const BLOCK: [(&str, &str); 39] = [
    ("attn_norm.weight", "input_layernorm.weight"),
    ("ffn_norm.weight", "post_attention_layernorm.weight"),
    ("post_attention_norm.weight", "post_attention_layernorm.weight"),
    ("attn_q.weight", "self_attn.q_proj.weight"),
    ("attn_q.bias", "self_attn.q_proj.bias"),
    ("attn_k.weight", "self_attn.k_proj.weight"),
    ("attn_k.bias", "self_attn.k_proj.bias"),
    ("attn_v.weight", "self_attn.v_proj.weight"),
    ("attn_v.bias", "self_attn.v_proj.bias"),
    ("attn_output.weight", "self_attn.o_proj.weight"),
    ("attn_output.bias", "self_attn.o_proj.bias"),
    ("attn_q_norm.weight", "self_attn.q_norm.weight"),
    ("attn_k_norm.weight", "self_attn.k_norm.weight"),
    ("attn_qkv.weight", "linear_attn.in_proj_qkv.weight"),
    ("attn_gate.weight", "linear_attn.in_proj_z.weight"),
    ("ssm_alpha.weight", "linear_attn.in_proj_a.weight"),
    ("ssm_beta.weight", "linear_attn.in_proj_b.weight"),
    ("ssm_a", "linear_attn.A_log"),
    ("ssm_dt.bias", "linear_attn.dt_bias"),
    ("ssm_conv1d.weight", "linear_attn.conv1d.weight"),
    ("ssm_norm.weight", "linear_attn.norm.weight"),
    ("ssm_out.weight", "linear_attn.out_proj.weight"),
    ("ffn_gate.weight", "mlp.gate_proj.weight"),
    ("ffn_gate.bias", "mlp.gate_proj.bias"),
    ("ffn_up.weight", "mlp.up_proj.weight"),
    ("ffn_up.bias", "mlp.up_proj.bias"),
    ("ffn_down.weight", "mlp.down_proj.weight"),
    ("ffn_down.bias", "mlp.down_proj.bias"),
    ("ffn_gate_inp.weight", "mlp.gate.weight"),
    // Fused over experts; cut into one matrix per expert later.
    ("ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"),
    ("ffn_gate_exps.weight", "mlp.experts.gate_proj"),
    ("ffn_up_exps.weight", "mlp.experts.up_proj"),
    ("ffn_down_exps.weight", "mlp.experts.down_proj"),
    ("ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"),
    ("ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"),
    ("ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"),
    ("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"),
    // Copies of the embedding and the output matrix, which a prediction head shares with the trunk: skipped.
    ("nextn.embed_tokens.weight", ""),
    ("nextn.shared_head_head.weight", ""),
];

/// Names of the prediction head that stand outside of its block in the canonical spelling.
const HEAD: [(&str, &str); 4] = [
    ("nextn.eh_proj.weight", "mtp.fc.weight"),
    ("nextn.enorm.weight", "mtp.pre_fc_norm_embedding.weight"),
    ("nextn.hnorm.weight", "mtp.pre_fc_norm_hidden.weight"),
    ("nextn.shared_head_norm.weight", "mtp.norm.weight"),
];

/// Reads a name of a model whose trunk has `num_layers` blocks; later blocks are the prediction head's.
pub(super) fn meaning(source_name: &str, num_layers: usize) -> Meaning {
    if let Some(canonical) = find(&ROOT, source_name) {
        return Meaning::Canonical(canonical.to_owned());
    }
    let Some((block, rest)) = block(source_name) else { return Meaning::Canonical(source_name.to_owned()) };
    if let Some(canonical) = find(&HEAD, rest) {
        return Meaning::Canonical(canonical.to_owned());
    }
    match find(&BLOCK, rest) {
        Some("") => Meaning::Skip("a copy that the multi-token-prediction head shares with the trunk"),
        Some(canonical) if block < num_layers => Meaning::Canonical(format!("layers.{block}.{canonical}")),
        Some(canonical) => Meaning::Canonical(format!("mtp.layers.{}.{canonical}", block - num_layers)),
        None => Meaning::Canonical(source_name.to_owned()),
    }
}

fn find<'a>(table: &[(&str, &'a str)], name: &str) -> Option<&'a str> {
    table.iter().find(|(gguf, _)| *gguf == name).map(|(_, canonical)| *canonical)
}

/// The block's number and the name inside it. A number with leading zeros or a sign is none of ours.
fn block(source_name: &str) -> Option<(usize, &str)> {
    let (number, rest) = source_name.strip_prefix("blk.")?.split_once('.')?;
    let block: usize = number.parse().ok()?;
    (block.to_string() == number).then_some((block, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_past_the_trunk_are_the_prediction_head() {
        let canonical = |name: &str| match meaning(name, 8) {
            Meaning::Canonical(canonical) => canonical,
            Meaning::Skip(reason) => panic!("{name} is skipped: {reason}"),
        };
        assert_eq!(canonical("blk.7.attn_q.weight"), "layers.7.self_attn.q_proj.weight");
        assert_eq!(canonical("blk.8.attn_q.weight"), "mtp.layers.0.self_attn.q_proj.weight");
        assert_eq!(canonical("blk.8.nextn.eh_proj.weight"), "mtp.fc.weight");
        assert_eq!(canonical("blk.0.ssm_a"), "layers.0.linear_attn.A_log");
        assert_eq!(canonical("output.weight"), "lm_head.weight");
        assert_eq!(canonical("blk.007.attn_q.weight"), "blk.007.attn_q.weight");
        assert!(matches!(meaning("blk.8.nextn.embed_tokens.weight", 8), Meaning::Skip(_)));
    }
}
