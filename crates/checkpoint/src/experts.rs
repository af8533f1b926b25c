//! Fused expert tensors, cut into one matrix per expert without copying.

use std::path::Path;

use crate::{
    CheckpointError, ModelConfig, MoeConfig,
    fields::shorten,
    pool::{Pool, Stored},
};

/// The four fused forms, by the end of their canonical name, and the matrices that each expert has in them in order.
const FUSED: [(&str, &[&str]); 4] = [
    (".mlp.experts.gate_up_proj", &["gate_proj", "up_proj"]),
    (".mlp.experts.gate_proj", &["gate_proj"]),
    (".mlp.experts.up_proj", &["up_proj"]),
    (".mlp.experts.down_proj", &["down_proj"]),
];

/// The part of a name between a layer and a fused matrix, as MLX writes it.
const MLX_EXPERTS: &str = ".mlp.switch_mlp.";

/// Replaces each fused expert tensor of `pool` by its experts' matrices.
pub(crate) fn unfuse(pool: &mut Pool, model: &ModelConfig, config: &Path) -> Result<(), CheckpointError> {
    let Some(moe) = &model.moe else { return Ok(()) };
    let fused: Vec<String> = pool.names().filter(|name| fused_form(name).is_some()).map(str::to_owned).collect();
    for name in fused {
        let (Some(stored), Some((prefix, matrices))) = (pool.remove(&name), fused_form(&name)) else { continue };
        check(&stored, matrices, model, moe, config)?;
        for expert in 0..moe.num_experts {
            for (index, matrix) in matrices.iter().enumerate() {
                let part = expert_part(&stored, expert * matrices.len() + index, moe.num_experts * matrices.len());
                pool.insert(format!("{prefix}.mlp.experts.{expert}.{matrix}.weight"), part)?;
            }
        }
    }
    Ok(())
}

/// The layer's prefix and the matrices in a fused tensor; `None` for any other tensor.
fn fused_form(name: &str) -> Option<(String, &'static [&'static str])> {
    let plain = match name.split_once(MLX_EXPERTS) {
        Some((prefix, matrix)) => format!("{prefix}.mlp.experts.{}", matrix.strip_suffix(".weight")?),
        None => name.to_owned(),
    };
    let (prefix, matrices) =
        FUSED.iter().find_map(|(suffix, matrices)| Some((plain.strip_suffix(suffix)?, *matrices)))?;
    Some((prefix.to_owned(), matrices))
}

/// Checks that the tensor holds what `num_experts` matrices of the config's sizes take.
fn check(
    stored: &Stored,
    matrices: &[&str],
    model: &ModelConfig,
    moe: &MoeConfig,
    config: &Path,
) -> Result<(), CheckpointError> {
    let (experts, hidden, width) = (moe.num_experts, model.hidden_size, moe.moe_intermediate_size);
    let (rule, expected) = match matrices {
        ["down_proj"] => ("[num_experts, hidden_size, moe_intermediate_size]", vec![experts, hidden, width]),
        [_] => ("[num_experts, moe_intermediate_size, hidden_size]", vec![experts, width, hidden]),
        _ => ("[num_experts, 2 * moe_intermediate_size, hidden_size]", vec![experts, 2 * width, hidden]),
    };
    if stored.shape == expected {
        return stored.format().map(drop);
    }
    Err(CheckpointError::Shape {
        name: shorten(&stored.source_name),
        file: stored.file.to_path_buf(),
        config: config.to_owned(),
        rule,
        found: stored.shape.clone(),
        expected,
    })
}

/// Matrix `index` of the `count` equal ones that follow each other in a tensor.
fn expert_part(stored: &Stored, index: usize, count: usize) -> Stored {
    let (experts_rows, columns) = (stored.shape[0] * stored.shape[1], stored.shape[2]);
    Stored {
        source_name: stored.source_name.clone(),
        file: stored.file.clone(),
        shape: vec![experts_rows / count, columns],
        element: stored.element,
        data: stored.data.part(index, count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fused_forms_are_known_by_name() {
        let prefix = |name: &str| fused_form(name).map(|(prefix, matrices)| (prefix, matrices.len()));
        assert_eq!(prefix("layers.0.mlp.experts.gate_up_proj"), Some(("layers.0".to_owned(), 2)));
        assert_eq!(prefix("layers.0.mlp.switch_mlp.down_proj.weight"), Some(("layers.0".to_owned(), 1)));
        assert_eq!(prefix("mtp.layers.0.mlp.experts.up_proj"), Some(("mtp.layers.0".to_owned(), 1)));
        assert_eq!(prefix("layers.0.mlp.experts.7.up_proj.weight"), None);
        assert_eq!(prefix("layers.0.mlp.up_proj.weight"), None);
    }
}
