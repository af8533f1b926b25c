//! Fused expert tensors, cut into one matrix per expert without copying.

use std::path::Path;

use crate::{
    CheckpointError, ModelConfig, MoeConfig,
    fields::shorten,
    pool::{Pool, Stored},
};

/// The four fused matrices, and the matrices that each expert has in them in order.
const FUSED: [(&str, &[&str]); 4] = [
    ("gate_up_proj", &["gate_proj", "up_proj"]),
    ("gate_proj", &["gate_proj"]),
    ("up_proj", &["up_proj"]),
    ("down_proj", &["down_proj"]),
];

/// Fewest bytes of one expert's matrix, so that a small file cannot make many tensors of a fused one. While a checkpoint
/// opens, names and shape of one matrix take 650 bytes (measured on x86-64: `tests/expert_memory.rs`), at most three times
/// what they describe. Published experts have 100 KB and more.
const MIN_EXPERT_BYTES: usize = 256;

/// Replaces the fused expert tensors of the model's own layers by their experts' matrices. One under any other name
/// stays whole: no part of the model reads it.
pub(crate) fn unfuse(pool: &mut Pool, model: &ModelConfig, config: &Path) -> Result<(), CheckpointError> {
    let Some(moe) = &model.moe else { return Ok(()) };
    let trunk = (0..model.num_hidden_layers).map(|layer| format!("layers.{layer}"));
    let prediction = (0..model.num_mtp_layers).map(|layer| format!("mtp.layers.{layer}"));
    for layer in trunk.chain(prediction) {
        for (fused, matrices) in FUSED {
            for name in fused_names(&layer, fused) {
                let Some(stored) = pool.remove(&name) else { continue };
                check_shape(&stored, matrices, model, moe, config)?;
                check_size(&stored, moe.num_experts * matrices.len())?;
                cut(pool, &stored, &layer, matrices, moe.num_experts)?;
            }
        }
    }
    Ok(())
}

/// A fused matrix as Hugging Face (and GGUF, by its table of names) and as MLX spell it.
fn fused_names(layer: &str, fused: &str) -> [String; 2] {
    [format!("{layer}.mlp.experts.{fused}"), format!("{layer}.mlp.switch_mlp.{fused}.weight")]
}

/// Adds the matrices of each expert in `stored`, which the caller has checked.
fn cut(
    pool: &mut Pool,
    stored: &Stored,
    layer: &str,
    matrices: &[&str],
    num_experts: usize,
) -> Result<(), CheckpointError> {
    for expert in 0..num_experts {
        for (index, matrix) in matrices.iter().enumerate() {
            let part = expert_part(stored, expert * matrices.len() + index, num_experts * matrices.len());
            pool.insert(format!("{layer}.mlp.experts.{expert}.{matrix}.weight"), part)?;
        }
    }
    Ok(())
}

/// Checks that the tensor holds what `num_experts` matrices of the config's sizes take.
fn check_shape(
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

/// Checks that each of the `count` matrices has bytes enough to be worth a description of its own.
fn check_size(stored: &Stored, count: usize) -> Result<(), CheckpointError> {
    let size_bytes = stored.data.size_bytes() / count;
    if size_bytes >= MIN_EXPERT_BYTES {
        return Ok(());
    }
    Err(CheckpointError::Malformed {
        file: stored.file.to_path_buf(),
        what: format!("the size of one expert's matrix in `{}`", shorten(&stored.source_name)),
        found: format!("{size_bytes} bytes"),
        expected: format!("at least {MIN_EXPERT_BYTES}"),
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
