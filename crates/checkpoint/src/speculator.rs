//! Mirai's folder `speculator`: one `config.json` and one `model.safetensors` for all parts of a drafter.
//!
//! A part's tensors stand under `speculator.{part}.`. A matrix `x` is `x.weights.weights`, with an entry
//! `x.weights.spec` in the file's metadata that says how it is stored, and further arrays beside it where it is
//! quantized; a norm `x` is `x.scales` and perhaps `x.biases`. Parts are handed out with `x.weight` and `x.bias` instead.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use half::{bf16, f16};
use serde_json::Value;

use crate::{
    CheckpointError, FloatFormat, SourceFile, TensorData, TensorFormat,
    fields::{Fields, describe, parse_json, shorten},
    map::{MappedFile, Mapping},
    pool::{Element, Pool, Stored},
    safetensors::{Dtype, Header},
};

/// The tensors of a folder, mapped.
pub(crate) struct Speculator {
    path: PathBuf,
    /// By name, without `speculator.`.
    tensors: BTreeMap<String, Stored>,
    /// By name of the matrix, without `speculator.`.
    specs: BTreeMap<String, String>,
    /// The file, for a list of what was read.
    pub(crate) source: SourceFile,
    /// What the tensors' bytes are part of.
    pub(crate) mapping: Option<Mapping>,
}

impl Speculator {
    /// Maps the file of weights in a folder and reads its header.
    pub(crate) fn open(dir: &Path) -> Result<Self, CheckpointError> {
        let path = dir.join("model.safetensors");
        let file = MappedFile::open(&path)?;
        let header = Header::parse(&file.bytes, file.source.size_bytes, &path)?;
        let shared: Arc<Path> = path.as_path().into();
        let short = |name: &str| name.strip_prefix("speculator.").unwrap_or(name).to_owned();
        let mut tensors = BTreeMap::new();
        for tensor in header.tensors {
            let element = tensor.dtype.as_tensor_format().map_or(Element::Other(tensor.dtype), Element::Format);
            let data = TensorData::Plain(file.bytes.slice(tensor.begin..tensor.end));
            let name = short(&tensor.name);
            let stored =
                Stored { source_name: tensor.name, file: Arc::clone(&shared), shape: tensor.shape, element, data };
            if let Some(twice) = tensors.insert(name, stored) {
                return Err(CheckpointError::Duplicate {
                    file: path,
                    what: "tensor",
                    name: shorten(&twice.source_name),
                });
            }
        }
        let specs = header.specs.iter().map(|(matrix, spec)| (short(matrix), spec.clone())).collect();
        Ok(Self { path, tensors, specs, source: file.source, mapping: file.mapping })
    }

    /// Takes the tensors of a part, such as `draft_model`, named as its modules there with `weight` and `bias` behind.
    ///
    /// # Errors
    /// Matrices in a form that is not computed with; forms that contradict their arrays.
    pub(crate) fn take_part(&mut self, part: &str) -> Result<Pool, CheckpointError> {
        let prefix = format!("{part}.");
        let (own, rest): (BTreeMap<_, _>, _) =
            std::mem::take(&mut self.tensors).into_iter().partition(|(name, _)| name.starts_with(&prefix));
        self.tensors = rest;
        let mut own: BTreeMap<String, Stored> =
            own.into_iter().map(|(name, stored)| (name[prefix.len()..].to_owned(), stored)).collect();
        let mut pool = Pool::default();
        let described = self.specs.keys().filter_map(|matrix| matrix.strip_prefix(&prefix)?.strip_suffix(".weights"));
        let stored = own.keys().filter_map(|name| name.strip_suffix(".weights.weights"));
        let modules: BTreeSet<String> = described.chain(stored).map(str::to_owned).collect();
        for module in modules {
            let matrix = self.matrix(&mut own, &format!("{module}.weights"), &prefix)?;
            pool.insert(format!("{module}.weight"), matrix)?;
        }
        for (name, stored) in own {
            let name = match name.rsplit_once('.') {
                Some((module, "scales")) => format!("{module}.weight"),
                Some((module, "biases")) => format!("{module}.bias"),
                _ => name,
            };
            pool.insert(name, stored)?;
        }
        Ok(pool)
    }

    /// Joins the arrays of a matrix; `matrix` is its name in the part, `prefix` the part's.
    fn matrix(
        &self,
        own: &mut BTreeMap<String, Stored>,
        matrix: &str,
        prefix: &str,
    ) -> Result<Stored, CheckpointError> {
        let spec_name = format!("{prefix}{matrix}.spec");
        let spec = match self.specs.get(&format!("{prefix}{matrix}")) {
            Some(spec) => {
                let spec: Value = parse_json(spec.as_bytes(), &self.path)?;
                Spec::read(&Fields::of(&spec, &self.path)?, &format!("{prefix}{matrix}"))?
            }
            None => Spec::Plain,
        };
        let values = self.array(own, matrix, "weights", &spec_name)?;
        let Spec::Groups { bits, group_size, zeros } = spec else { return Ok(values) };
        let scales = self.array(own, matrix, "scales", &spec_name)?;
        let groups = Groups { bits, group_size, values: &values, scales: &scales };
        let (shape, num_groups) = groups.shape()?;
        let (format, scales_bytes, biases) = match zeros {
            Zeros::Biases => {
                let biases = self.array(own, matrix, "biases", &spec_name)?;
                groups.check(&biases, &[shape[0], num_groups])?;
                (groups.scale_format()?, plain(&scales), plain(&biases))
            }
            Zeros::Middle => groups.affine(|_, _| 1 << (bits - 1))?,
            Zeros::Stored => {
                let zero_points = self.array(own, matrix, "zero_points", &spec_name)?;
                let row_bytes = (num_groups * usize::from(bits)).div_ceil(8);
                if zero_points.element != Element::Other(Dtype::U8) || zero_points.shape != [shape[0], row_bytes] {
                    return Err(groups.wrong_shape(&zero_points, vec![shape[0], row_bytes]));
                }
                let codes = plain(&zero_points);
                groups.affine(|row, group| code(&codes[row * row_bytes..], group, bits))?
            }
        };
        let data = TensorData::Affine { codes: plain(&values), scales: scales_bytes, biases };
        let element = Element::Format(TensorFormat::Affine { bits, group_size, scales: format });
        Ok(Stored { shape, element, data, ..values })
    }

    fn array(
        &self,
        own: &mut BTreeMap<String, Stored>,
        matrix: &str,
        name: &str,
        rule: &str,
    ) -> Result<Stored, CheckpointError> {
        own.remove(&format!("{matrix}.{name}")).ok_or_else(|| CheckpointError::Malformed {
            file: self.path.clone(),
            what: format!("tensor `{}`, which `{}` asks for,", shorten(&format!("{matrix}.{name}")), shorten(rule)),
            found: "absent".to_owned(),
            expected: "present".to_owned(),
        })
    }
}

/// How a matrix is stored.
enum Spec {
    /// As floats.
    Plain,
    /// As codes of `bits` bits with a scale per group: `(code − zero) · scale`.
    Groups { bits: u8, group_size: usize, zeros: Zeros },
}

/// Where the zero of a group is.
enum Zeros {
    /// MLX's way: a bias per group is added.
    Biases,
    /// In the middle of the codes.
    Middle,
    /// In `zero_points`, packed like codes.
    Stored,
}

impl Spec {
    fn read(fields: &Fields<'_>, matrix: &str) -> Result<Self, CheckpointError> {
        let kind = fields.optional_text("type")?.ok_or_else(|| fields.missing("type"))?;
        match fields.optional_text("layout")? {
            None | Some("output_input") => {}
            Some(other) => return Err(fields.wrong("layout", format!("\"{}\"", shorten(other)), "\"output_input\"")),
        }
        let zeros = match kind {
            "FullPrecisionSpec" => return Ok(Self::Plain),
            "MLXSpec" | "ScaleBiasSpec" => Zeros::Biases,
            "IntSpec" if fields.optional_flag("is_symmetric")? == Some(true) => Zeros::Middle,
            "IntSpec" => Zeros::Stored,
            other => {
                return Err(CheckpointError::UnsupportedFormat {
                    file: fields.file().to_owned(),
                    tensor: shorten(matrix),
                    found: format!("Mirai's `{}`", shorten(other)),
                    advice: "supported are plain floats, and groups of 4 or 8 bits without rotations or adapters",
                });
            }
        };
        let one_of = |name: &str, allowed: &[usize]| {
            let value = fields.get(name).ok_or_else(|| fields.missing(name))?;
            let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
            let number = number.filter(|number| allowed.contains(number));
            number.ok_or_else(|| fields.wrong(name, describe(value), format!("one of {allowed:?}")))
        };
        let bits = if one_of("bits", &[4, 8])? == 4 { 4 } else { 8 };
        Ok(Self::Groups { bits, group_size: one_of("group_size", &[32, 64, 128])?, zeros })
    }
}

/// A matrix of codes.
struct Groups<'a> {
    bits: u8,
    group_size: usize,
    values: &'a Stored,
    scales: &'a Stored,
}

impl Groups<'_> {
    /// The shape of the matrix, and its groups per row, once codes and scales agree on them.
    fn shape(&self) -> Result<(Vec<usize>, usize), CheckpointError> {
        let per_byte = 8 / usize::from(self.bits);
        let (&[rows, bytes], Element::Other(Dtype::U8)) = (self.values.shape.as_slice(), self.values.element) else {
            return Err(self.wrong_shape(self.values, vec![1, self.group_size / per_byte]));
        };
        // Both are at most the bytes of the file, so the product stays far inside 64 bits.
        let columns = bytes * per_byte;
        if !columns.is_multiple_of(self.group_size) {
            return Err(self.wrong_shape(self.values, vec![rows, self.group_size / per_byte]));
        }
        let groups = columns / self.group_size;
        self.check(self.scales, &[rows, groups])?;
        Ok((vec![rows, columns], groups))
    }

    fn check(&self, parameters: &Stored, expected: &[usize]) -> Result<(), CheckpointError> {
        if parameters.shape != expected || parameters.element != self.scales.element {
            return Err(self.wrong_shape(parameters, expected.to_vec()));
        }
        Ok(())
    }

    fn wrong_shape(&self, stored: &Stored, expected: Vec<usize>) -> CheckpointError {
        CheckpointError::Shape {
            name: shorten(&stored.source_name),
            file: stored.file.to_path_buf(),
            config: stored.file.to_path_buf(),
            rule: "bits and group_size of the matrix's `spec`, codes and zero points in U8",
            found: stored.shape.clone(),
            expected,
        }
    }

    fn scale_format(&self) -> Result<FloatFormat, CheckpointError> {
        let format = self.scales.format()?;
        format.as_float().ok_or_else(|| self.scales.unsupported(format.to_string(), "scales are F32, F16 or BF16"))
    }

    /// Scales and biases `−zero · scale` in f32: exact, as a scale of 16 bits has at most 11 of them that count, a zero 8.
    fn affine(
        &self,
        zero: impl Fn(usize, usize) -> u8,
    ) -> Result<(FloatFormat, bytes::Bytes, bytes::Bytes), CheckpointError> {
        let &[_, groups] = self.scales.shape.as_slice() else {
            return Err(self.wrong_shape(self.scales, vec![1, 1]));
        };
        let scales = floats(&plain(self.scales), self.scale_format()?);
        let biases = scales.iter().enumerate().map(|(i, scale)| -f32::from(zero(i / groups, i % groups)) * scale);
        let biases: Vec<u8> = biases.flat_map(f32::to_le_bytes).collect();
        let scales: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        Ok((FloatFormat::F32, scales.into(), biases.into()))
    }
}

/// The bytes of an array that was read from the file.
fn plain(stored: &Stored) -> bytes::Bytes {
    match &stored.data {
        TensorData::Plain(bytes) => bytes.clone(),
        TensorData::Affine { codes, .. } => codes.clone(),
    }
}

/// Code `i` of a packed row, first code in the lowest bits.
fn code(row: &[u8], i: usize, bits: u8) -> u8 {
    match bits {
        4 => row[i / 2] >> (4 * (i % 2)) & 0xf,
        _ => row[i],
    }
}

fn floats(bytes: &[u8], format: FloatFormat) -> Vec<f32> {
    let halves = || bytes.as_chunks::<2>().0.iter().copied();
    match format {
        FloatFormat::F32 => bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect(),
        FloatFormat::BF16 => halves().map(|x| bf16::from_le_bytes(x).to_f32()).collect(),
        FloatFormat::F16 => halves().map(|x| f16::from_le_bytes(x).to_f32()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_packed_from_the_lowest_bits_on() {
        assert_eq!([0, 1, 2].map(|i| code(&[0xa3, 0x05], i, 4)), [3, 10, 5]);
        assert_eq!(code(&[7, 200], 1, 8), 200);
    }
}
