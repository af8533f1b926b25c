//! MLX's group quantization: what the config says about it, and how three stored arrays become one tensor.

use std::{collections::HashMap, path::Path};

use serde_json::Value;

use crate::{
    CheckpointError, FloatFormat, TensorData, TensorFormat,
    fields::{Fields, describe, shorten},
    names::without_wrapper,
    pool::{Element, Pool, Stored},
    safetensors::Dtype,
};

/// The `quantization` entry of a config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Quantization {
    default: Group,
    /// By canonical module name; `None` where the module is not quantized.
    overrides: HashMap<String, Option<Group>>,
}

/// The two numbers that define a group format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Group {
    bits: u8,
    group_size: usize,
}

impl Quantization {
    /// Reads `quantization`, or `quantization_config` where that is MLX's as well.
    pub(crate) fn from_config(root: &Fields<'_>) -> Result<Option<Self>, CheckpointError> {
        if let Some(fields) = root.object("quantization")? {
            return Self::read(&fields).map(Some);
        }
        let Some(fields) = root.object("quantization_config")? else { return Ok(None) };
        match fields.optional_text("quant_method")? {
            None | Some("mlx") => Self::read(&fields).map(Some),
            Some(other) => Err(fields.wrong(
                "quant_method",
                format!("\"{}\"", shorten(other)),
                "MLX's quantization (bits 4 or 8, group_size 32, 64 or 128); take the unquantized model, a GGUF file or an MLX conversion",
            )),
        }
    }

    fn read(fields: &Fields<'_>) -> Result<Self, CheckpointError> {
        let default = Group::read(fields, None)?;
        let mut overrides = HashMap::new();
        for module in fields.names() {
            let group = match fields.get(module) {
                Some(Value::Bool(true)) => Some(default),
                Some(Value::Bool(false)) => None,
                Some(Value::Object(_)) => {
                    fields.object(module)?.map(|group| Group::read(&group, Some(default))).transpose()?
                }
                _ => continue,
            };
            overrides.insert(without_wrapper(module).to_owned(), group);
        }
        Ok(Self { default, overrides })
    }

    /// The format of a module's weight; `None` where it is not quantized.
    fn group_of(&self, module: &str) -> Option<Group> {
        self.overrides.get(module).copied().unwrap_or(Some(self.default))
    }
}

impl Group {
    /// Reads `bits` and `group_size`, each falling back on `default`.
    fn read(fields: &Fields<'_>, default: Option<Self>) -> Result<Self, CheckpointError> {
        if let Some(mode) = fields.optional_text("mode")?
            && mode != "affine"
        {
            return Err(fields.wrong("mode", format!("\"{}\"", shorten(mode)), "\"affine\""));
        }
        let bits = one_of(fields, "bits", &[4, 8], default.map(|group| usize::from(group.bits)))?;
        let group_size = one_of(fields, "group_size", &[32, 64, 128], default.map(|group| group.group_size))?;
        Ok(Self { bits: if bits == 4 { 4 } else { 8 }, group_size })
    }
}

fn one_of(
    fields: &Fields<'_>,
    name: &str,
    allowed: &[usize],
    default: Option<usize>,
) -> Result<usize, CheckpointError> {
    let Some(value) = fields.get(name) else { return default.ok_or_else(|| fields.missing(name)) };
    let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
    match number.filter(|number| allowed.contains(number)) {
        Some(number) => Ok(number),
        None => Err(fields.wrong(name, describe(value), format!("one of {allowed:?}"))),
    }
}

/// Joins every `weight`, `scales` and `biases` of `pool` into one tensor of [`TensorFormat::Affine`].
///
/// A module is quantized where it has `scales`; the config must then say how.
pub(crate) fn join(pool: &mut Pool, quantization: Option<&Quantization>, config: &Path) -> Result<(), CheckpointError> {
    let modules: Vec<String> =
        pool.names().filter_map(|name| name.strip_suffix(".scales")).map(str::to_owned).collect();
    for module in modules {
        let weight = format!("{module}.weight");
        if pool.get(&weight).is_none() {
            continue;
        }
        let group = quantization.and_then(|quantization| quantization.group_of(&module)).ok_or_else(|| {
            CheckpointError::MissingField { file: config.to_owned(), field: format!("quantization (for `{module}`)") }
        })?;
        let joined = join_module(pool, &module, &weight, group, config)?;
        pool.insert(weight, joined)?;
    }
    Ok(())
}

fn join_module(
    pool: &mut Pool,
    module: &str,
    weight: &str,
    group: Group,
    config: &Path,
) -> Result<Stored, CheckpointError> {
    let mut part = |name: &str, expected: &[usize]| {
        pool.remove(name).ok_or_else(|| CheckpointError::MissingTensor {
            name: name.to_owned(),
            file: config.parent().unwrap_or(config).to_owned(),
            config: config.to_owned(),
            rule: "quantization",
            expected: expected.to_vec(),
        })
    };
    let codes = part(weight, &[])?;
    let scales = part(&format!("{module}.scales"), &codes.shape)?;
    let biases = part(&format!("{module}.biases"), &scales.shape)?;
    let (shape, groups) = shapes(&codes, group, config)?;
    check_parameters(&scales, &scales, &groups, config)?;
    check_parameters(&biases, &scales, &groups, config)?;
    let format =
        TensorFormat::Affine { bits: group.bits, group_size: group.group_size, scales: parameter_format(&scales)? };
    let data = match (codes.data, scales.data, biases.data) {
        (TensorData::Plain(codes), TensorData::Plain(scales), TensorData::Plain(biases)) => {
            TensorData::Affine { codes, scales, biases }
        }
        // Joined tensors are taken out of the pool with their scales, so none comes here twice.
        _ => return Err(CheckpointError::NoSuchTensor { name: weight.to_owned() }),
    };
    Ok(Stored { shape, element: Element::Format(format), data, ..codes })
}

/// The shapes of the matrix and of its scales, from the shape of its words of codes.
fn shapes(codes: &Stored, group: Group, config: &Path) -> Result<(Vec<usize>, Vec<usize>), CheckpointError> {
    if codes.element != Element::Other(Dtype::U32) {
        let found = match codes.element {
            Element::Format(format) => format.to_string(),
            Element::Other(dtype) => format!("{dtype:?}"),
        };
        return Err(codes.unsupported(found, "a matrix with scales holds its codes in U32 words"));
    }
    let columns = codes.shape.last().and_then(|words| words.checked_mul(32 / usize::from(group.bits)));
    let columns = columns.filter(|columns| columns.is_multiple_of(group.group_size) && codes.shape.len() >= 2);
    let Some(columns) = columns else {
        return Err(CheckpointError::Shape {
            name: shorten(&codes.source_name),
            file: codes.file.to_path_buf(),
            config: config.to_owned(),
            rule: "[out, in * quantization.bits / 32], whole groups of quantization.group_size",
            found: codes.shape.clone(),
            expected: vec![codes.shape.first().copied().unwrap_or(1), group.group_size * usize::from(group.bits) / 32],
        });
    };
    let with_last = |last: usize| {
        let mut shape = codes.shape.clone();
        if let Some(axis) = shape.last_mut() {
            *axis = last;
        }
        shape
    };
    Ok((with_last(columns), with_last(columns / group.group_size)))
}

/// Checks scales or biases: their shape, and that they are stored like the scales.
fn check_parameters(
    stored: &Stored,
    scales: &Stored,
    expected: &[usize],
    config: &Path,
) -> Result<(), CheckpointError> {
    if stored.shape != expected {
        return Err(CheckpointError::Shape {
            name: shorten(&stored.source_name),
            file: stored.file.to_path_buf(),
            config: config.to_owned(),
            rule: "[out, in / quantization.group_size]",
            found: stored.shape.clone(),
            expected: expected.to_vec(),
        });
    }
    if stored.element != scales.element {
        let found = stored.format()?.to_string();
        return Err(stored.unsupported(found, "scales and biases of one matrix share one format"));
    }
    Ok(())
}

fn parameter_format(scales: &Stored) -> Result<FloatFormat, CheckpointError> {
    let format = scales.format()?;
    format.as_float().ok_or_else(|| scales.unsupported(format.to_string(), "scales are F32, F16 or BF16"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(config: &Value) -> Result<Option<Quantization>, CheckpointError> {
        Quantization::from_config(&Fields::of(config, Path::new("config.json")).unwrap())
    }

    #[test]
    fn overrides_are_found_under_any_wrapper() {
        let config = json!({"quantization": {
            "bits": 4, "group_size": 64, "mode": "affine",
            "language_model.model.layers.0.mlp.gate": {"bits": 8},
            "model.layers.1.mlp.gate_proj": false,
        }});
        let quantization = read(&config).unwrap().unwrap();
        assert_eq!(quantization.group_of("layers.0.mlp.gate"), Some(Group { bits: 8, group_size: 64 }));
        assert_eq!(quantization.group_of("layers.1.mlp.gate_proj"), None);
        assert_eq!(quantization.group_of("layers.2.mlp.gate_proj"), Some(Group { bits: 4, group_size: 64 }));
    }

    #[test]
    fn other_quantizations_are_refused_by_name() {
        let message = |config: Value| read(&config).unwrap_err().to_string();
        assert_eq!(
            message(json!({"quantization_config": {"quant_method": "fp8"}})),
            "`quantization_config.quant_method` in `config.json` is \"fp8\", expected MLX's quantization (bits 4 or 8, group_size 32, 64 or 128); take the unquantized model, a GGUF file or an MLX conversion"
        );
        assert_eq!(
            message(json!({"quantization": {"bits": 3, "group_size": 64}})),
            "`quantization.bits` in `config.json` is 3, expected one of [4, 8]"
        );
        assert_eq!(
            message(json!({"quantization": {"bits": 4, "group_size": 64, "mode": "mxfp4"}})),
            "`quantization.mode` in `config.json` is \"mxfp4\", expected \"affine\""
        );
    }
}
