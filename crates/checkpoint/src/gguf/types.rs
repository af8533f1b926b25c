//! The numbers by which GGUF names element types.

use crate::TensorFormat;

/// What to do about a type that is not supported.
pub(super) const ADVICE: &str =
    "take a file in F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL or IQ4_XS";

/// The format with number `id`, where this engine computes with it.
pub(super) fn format(id: u32) -> Option<TensorFormat> {
    Some(match id {
        0 => TensorFormat::F32,
        1 => TensorFormat::F16,
        2 => TensorFormat::Q4_0,
        3 => TensorFormat::Q4_1,
        6 => TensorFormat::Q5_0,
        7 => TensorFormat::Q5_1,
        8 => TensorFormat::Q8_0,
        10 => TensorFormat::Q2_K,
        11 => TensorFormat::Q3_K,
        12 => TensorFormat::Q4_K,
        13 => TensorFormat::Q5_K,
        14 => TensorFormat::Q6_K,
        20 => TensorFormat::IQ4_NL,
        23 => TensorFormat::IQ4_XS,
        30 => TensorFormat::BF16,
        _ => return None,
    })
}

/// The name of an unsupported type, for errors.
pub(super) fn name(id: u32) -> String {
    let known = match id {
        4 => "Q4_2",
        5 => "Q4_3",
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        40 => "NVFP4",
        _ => return format!("type {id}"),
    };
    known.to_owned()
}
