//! The header of a safetensors file, checked to the last byte before any tensor is looked at.
//!
//! A file is an 8-byte little-endian length, a JSON object of that length (tensor name → dtype, shape and byte range),
//! and the data that the ranges point into. The ranges must cover the data exactly: no overlap, no hole.

use std::{collections::BTreeMap, fmt, path::Path};

use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Number;

use crate::{
    CheckpointError, TensorFormat,
    fields::{parse_json, shorten},
};

/// Longest header accepted; those of published models stay under 10 MB.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Most axes of a tensor.
const MAX_RANK: usize = 8;
/// Bytes of the length before the header.
const LENGTH_BYTES: usize = 8;

/// A checked header.
#[derive(Debug, Clone)]
pub struct Header {
    /// The tensors, in the order of their data.
    pub tensors: Vec<TensorInfo>,
    /// The `format` entry of the metadata: `pt` or `mlx` in practice.
    pub format: Option<String>,
    /// How Mirai's files store their matrices: the matrix's name → a description in JSON, from the metadata's entries that
    /// end in `.spec`.
    pub specs: BTreeMap<String, String>,
}

/// One tensor of a header.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    /// The name.
    pub name: String,
    /// The element type.
    pub dtype: Dtype,
    /// The row-major shape; no axis is 0.
    pub shape: Vec<usize>,
    /// First byte in the file.
    pub begin: usize,
    /// First byte in the file after the tensor.
    pub end: usize,
}

/// Element types of the format. Only floats and MLX's words of codes are computed with; the others can be skipped over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[allow(non_camel_case_types, missing_docs, reason = "the format's own names")]
pub enum Dtype {
    BOOL,
    U8,
    I8,
    F8_E4M3,
    F8_E5M2,
    F8_E8M0,
    U16,
    I16,
    F16,
    BF16,
    U32,
    I32,
    F32,
    U64,
    I64,
    F64,
    C64,
}

impl Dtype {
    /// Bytes of an element.
    pub fn size_bytes(self) -> usize {
        match self {
            Self::BOOL | Self::U8 | Self::I8 | Self::F8_E4M3 | Self::F8_E5M2 | Self::F8_E8M0 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::C64 => 8,
        }
    }

    /// The format of a tensor of such elements, where this engine computes with it.
    pub fn as_tensor_format(self) -> Option<TensorFormat> {
        match self {
            Self::F32 => Some(TensorFormat::F32),
            Self::F16 => Some(TensorFormat::F16),
            Self::BF16 => Some(TensorFormat::BF16),
            _ => None,
        }
    }
}

impl Header {
    /// Reads and checks the header of a file of `file_len` bytes.
    ///
    /// `bytes` is the file from its start, at least up to the end of the header; `file` is the name that errors give.
    /// Memory used is a small multiple of the header's own size, which is checked against the file first.
    ///
    /// # Errors
    ///
    /// A length, shape, type or byte range that contradicts the file or another one.
    pub fn parse(bytes: &[u8], file_len: u64, file: &Path) -> Result<Self, CheckpointError> {
        let (json, data_begin) = split_header(bytes, file_len, file)?;
        let RawHeader { entries, metadata: RawMetadata { format, specs } } = parse_json(json, file)?;
        let data_len = file_len - data_begin;
        let mut tensors = entries
            .into_iter()
            .map(|(name, entry)| check_entry(name, &entry, data_begin, data_len, file))
            .collect::<Result<Vec<_>, _>>()?;
        check_unique(&tensors, file)?;
        tensors.sort_by_key(|tensor| (tensor.begin, tensor.end));
        check_cover(&tensors, data_begin, file_len, file)?;
        Ok(Self { tensors, format, specs })
    }
}

/// The JSON text and the first byte of the data.
fn split_header<'a>(bytes: &'a [u8], file_len: u64, file: &Path) -> Result<(&'a [u8], u64), CheckpointError> {
    let truncated = |what: &str, offset: u64, needed: u64, left: u64| CheckpointError::Truncated {
        file: file.to_owned(),
        what: what.to_owned(),
        offset,
        needed,
        left,
    };
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(truncated("the header's length", 0, LENGTH_BYTES as u64, bytes.len() as u64));
    };
    let length = u64::from_le_bytes(*length);
    if !(2..=MAX_HEADER_BYTES).contains(&length) {
        return Err(CheckpointError::Malformed {
            file: file.to_owned(),
            what: "the header's length".to_owned(),
            found: length.to_string(),
            expected: format!("a number from 2 to {MAX_HEADER_BYTES}"),
        });
    }
    let left = (rest.len() as u64).min(file_len.saturating_sub(LENGTH_BYTES as u64));
    if length > left {
        return Err(truncated("the header", LENGTH_BYTES as u64, length, left));
    }
    // Fits: the length is at most that of a slice in memory.
    Ok((&rest[..length as usize], LENGTH_BYTES as u64 + length))
}

/// Checks one tensor by itself: rank, size, and that its range holds exactly its elements.
fn check_entry(
    name: String,
    entry: &RawEntry,
    data_begin: u64,
    data_len: u64,
    file: &Path,
) -> Result<TensorInfo, CheckpointError> {
    let malformed = |what: &str, found: String, expected: String| CheckpointError::Malformed {
        file: file.to_owned(),
        what: format!("{what} of tensor `{}`", shorten(&name)),
        found,
        expected,
    };
    let shape = entry.shape.as_sizes().ok_or_else(|| {
        malformed("the shape", entry.shape.to_string(), format!("at most {MAX_RANK} whole numbers from 1 on"))
    })?;
    let (begin, end) = match entry.data_offsets.as_sizes_or_zero().as_deref() {
        Some(&[begin, end]) if begin <= end && end as u64 <= data_len => (begin, end),
        _ => {
            let expected = format!("[begin, end] with begin <= end <= {data_len}");
            return Err(malformed("the data_offsets", entry.data_offsets.to_string(), expected));
        }
    };
    let elements = shape.iter().try_fold(entry.dtype.size_bytes(), |product, &axis| product.checked_mul(axis));
    if elements != Some(end - begin) {
        let announced = elements.map_or_else(|| "more than 2^64".to_owned(), |bytes| bytes.to_string());
        let expected = format!("the {announced} bytes of {:?} elements of shape {shape:?}", entry.dtype);
        return Err(malformed("the byte count", (end - begin).to_string(), expected));
    }
    let base = data_begin as usize;
    Ok(TensorInfo { name, dtype: entry.dtype, shape, begin: base + begin, end: base + end })
}

fn check_unique(tensors: &[TensorInfo], file: &Path) -> Result<(), CheckpointError> {
    let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(CheckpointError::Duplicate { file: file.to_owned(), what: "tensor", name: shorten(pair[0]) }),
        None => Ok(()),
    }
}

/// Checks that sorted ranges follow each other from the start of the data to the end of the file.
fn check_cover(tensors: &[TensorInfo], data_begin: u64, file_len: u64, file: &Path) -> Result<(), CheckpointError> {
    let malformed = |what: String, found: usize, expected: String| CheckpointError::Malformed {
        file: file.to_owned(),
        what,
        found: found.to_string(),
        expected,
    };
    let mut covered = data_begin as usize;
    for tensor in tensors {
        if tensor.begin != covered {
            let expected = format!("{covered}, where the tensor before it ends");
            return Err(malformed(
                format!("the first byte of tensor `{}`", shorten(&tensor.name)),
                tensor.begin,
                expected,
            ));
        }
        covered = tensor.end;
    }
    if covered as u64 != file_len {
        return Err(malformed(
            "the end of the last tensor".to_owned(),
            covered,
            format!("{file_len}, the end of the file"),
        ));
    }
    Ok(())
}

/// A header as its JSON says it, with names kept as often as they occur.
struct RawHeader {
    entries: Vec<(String, RawEntry)>,
    metadata: RawMetadata,
}

#[derive(Deserialize)]
struct RawEntry {
    dtype: Dtype,
    shape: Numbers,
    data_offsets: Numbers,
}

/// The entries of the metadata that anything is read from.
#[derive(Default)]
struct RawMetadata {
    format: Option<String>,
    specs: BTreeMap<String, String>,
}

/// The first numbers of a list, and how many more there were: a list cannot make us allocate for its length.
struct Numbers {
    first: Vec<Number>,
    more: usize,
}

impl Numbers {
    /// The numbers as sizes from 1 on, if they all are.
    fn as_sizes(&self) -> Option<Vec<usize>> {
        self.as_sizes_or_zero().filter(|sizes| !sizes.contains(&0))
    }

    /// The numbers as sizes, if they all are.
    fn as_sizes_or_zero(&self) -> Option<Vec<usize>> {
        if self.more > 0 {
            return None;
        }
        self.first.iter().map(|number| usize::try_from(number.as_u64()?).ok()).collect()
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<String> = self.first.iter().map(Number::to_string).collect();
        let dots = if self.more > 0 { format!(", ... {} more", self.more) } else { String::new() };
        write!(f, "[{}{dots}]", shown.join(", "))
    }
}

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Numbers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of numbers")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Numbers, A::Error> {
                let mut numbers = Numbers { first: Vec::new(), more: 0 };
                while numbers.first.len() < MAX_RANK {
                    match list.next_element()? {
                        Some(number) => numbers.first.push(number),
                        None => return Ok(numbers),
                    }
                }
                while list.next_element::<IgnoredAny>()?.is_some() {
                    numbers.more += 1;
                }
                Ok(numbers)
            }
        }
        deserializer.deserialize_seq(List)
    }
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut header = RawHeader { entries: Vec::new(), metadata: RawMetadata::default() };
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        header.metadata = map.next_value()?;
                        continue;
                    }
                    let entry = map
                        .next_value()
                        .map_err(|error| de::Error::custom(format_args!("tensor `{}`: {error}", shorten(&name))))?;
                    header.entries.push((name, entry));
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

impl<'de> Deserialize<'de> for RawMetadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawMetadata;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawMetadata, A::Error> {
                let mut metadata = RawMetadata::default();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "format" {
                        metadata.format = map.next_value()?;
                    } else if let Some(matrix) = name.strip_suffix(".spec") {
                        metadata.specs.insert(matrix.to_owned(), map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(metadata)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
