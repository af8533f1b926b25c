//! Header, metadata and tensor infos of one GGUF file.

use std::path::Path;

use indexmap::{IndexMap, map::Entry};

use super::{cursor::Cursor, types, value::Value};
use crate::{CheckpointError, TensorFormat, fields::shorten};

/// Most axes of a tensor.
const MAX_RANK: u32 = 4;
/// Alignment where the metadata gives none.
const DEFAULT_ALIGNMENT: u64 = 32;
/// Fewest bytes of a key and its value: two lengths and a byte.
const LEAST_PAIR_BYTES: u64 = 13;
/// Fewest bytes of a tensor info: an empty name and one axis.
const LEAST_INFO_BYTES: u64 = 32;

/// A checked header. Strings and arrays are borrowed from the file.
#[derive(Debug, Clone)]
pub struct Header<'a> {
    /// 2 or 3.
    pub version: u32,
    /// The metadata, in the file's order.
    pub metadata: IndexMap<&'a str, Value<'a>>,
    /// The tensors, in the file's order.
    pub tensors: Vec<TensorInfo<'a>>,
}

/// One tensor of a header.
#[derive(Debug, Clone)]
pub struct TensorInfo<'a> {
    /// The name.
    pub name: &'a str,
    /// The row-major shape: the file's axes in reverse, so that a matrix is `[out, in]`; no axis is 0.
    pub shape: Vec<usize>,
    /// The format.
    pub format: TensorFormat,
    /// First byte in the file.
    pub begin: usize,
    /// First byte in the file after the tensor.
    pub end: usize,
}

impl<'a> Header<'a> {
    /// Reads and checks the header of a file of `file_len` bytes.
    ///
    /// `bytes` is the file from its start, at least up to the end of the header; `file` is the name that errors give.
    /// Memory used is a small multiple of the header's own size: arrays are not decoded, and every count is compared
    /// with the bytes left before it is believed.
    ///
    /// # Errors
    ///
    /// Another format or version, a length that passes the end of the file, a tensor in an unsupported format, or
    /// tensors that overlap or do not fit into the file.
    pub fn parse(bytes: &'a [u8], file_len: u64, file: &'a Path) -> Result<Self, CheckpointError> {
        let mut cursor = Cursor::new(bytes, file);
        let version = read_version(&mut cursor)?;
        let num_tensors = cursor.u64(format_args!("the number of tensors"))?;
        let num_pairs = cursor.u64(format_args!("the number of metadata entries"))?;
        let metadata = read_metadata(&mut cursor, num_pairs, file)?;
        let alignment = alignment(&metadata, &cursor)?;
        cursor.check_count(num_tensors, LEAST_INFO_BYTES, format_args!("the {num_tensors} tensor infos"))?;
        let infos = (0..num_tensors).map(|index| RawInfo::read(&mut cursor, index)).collect::<Result<Vec<_>, _>>()?;
        let data_begin = (cursor.position() as u64).next_multiple_of(alignment);
        let data = Data { begin: data_begin, alignment, file_len };
        let tensors = infos.into_iter().map(|info| info.check(&data, file)).collect::<Result<Vec<_>, _>>()?;
        check_tensors(&tensors, file)?;
        Ok(Self { version, metadata, tensors })
    }
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, CheckpointError> {
    let magic = cursor.array::<4>(format_args!("the magic"))?;
    if &magic != b"GGUF" {
        return Err(cursor.malformed(format_args!("the magic"), format_args!("`{}`", magic.escape_ascii()), "`GGUF`"));
    }
    let version = cursor.u32(format_args!("the version"))?;
    let what = format_args!("the version");
    match version {
        2 | 3 => Ok(version),
        1 => Err(cursor.malformed(what, format_args!("1, which is obsolete"), "2 or 3; convert the model again")),
        _ if matches!(version.swap_bytes(), 1..=3) => Err(cursor.malformed(
            what,
            format_args!("big-endian"),
            "2 or 3 in a little-endian file; convert the model again",
        )),
        other => Err(cursor.malformed(what, format_args!("{other}"), "2 or 3")),
    }
}

fn read_metadata<'a>(
    cursor: &mut Cursor<'a>,
    num_pairs: u64,
    file: &Path,
) -> Result<IndexMap<&'a str, Value<'a>>, CheckpointError> {
    cursor.check_count(num_pairs, LEAST_PAIR_BYTES, format_args!("the {num_pairs} metadata entries"))?;
    let mut metadata = IndexMap::new();
    for index in 0..num_pairs {
        let key = cursor.string(format_args!("metadata key {index}"))?;
        let value = Value::read(cursor, key)?;
        match metadata.entry(key) {
            Entry::Vacant(entry) => entry.insert(value),
            Entry::Occupied(_) => {
                return Err(CheckpointError::Duplicate {
                    file: file.to_owned(),
                    what: "metadata key",
                    name: shorten(key),
                });
            }
        };
    }
    Ok(metadata)
}

fn alignment(metadata: &IndexMap<&str, Value<'_>>, cursor: &Cursor<'_>) -> Result<u64, CheckpointError> {
    match metadata.get("general.alignment") {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::Unsigned(alignment)) if alignment.is_power_of_two() && (8..=1 << 16).contains(alignment) => {
            Ok(*alignment)
        }
        Some(other) => {
            let what = format_args!("`general.alignment`");
            Err(cursor.malformed(what, format_args!("{other}"), "a power of two from 8 to 65536"))
        }
    }
}

/// The part of the file that holds tensors.
struct Data {
    begin: u64,
    alignment: u64,
    file_len: u64,
}

/// A tensor info as the file has it.
struct RawInfo<'a> {
    name: &'a str,
    shape: Vec<usize>,
    type_id: u32,
    offset: u64,
}

impl<'a> RawInfo<'a> {
    fn read(cursor: &mut Cursor<'a>, index: u64) -> Result<Self, CheckpointError> {
        let name = cursor.string(format_args!("the name of tensor {index}"))?;
        let shown = shorten(name);
        let rank = cursor.u32(format_args!("the rank of tensor `{shown}`"))?;
        if !(1..=MAX_RANK).contains(&rank) {
            let what = format_args!("the rank of tensor `{shown}`");
            return Err(cursor.malformed(what, format_args!("{rank}"), "a number from 1 to 4"));
        }
        let mut shape = Vec::new();
        for axis in 0..rank {
            let what = format_args!("axis {axis} of tensor `{shown}`");
            let size = cursor.u64(what)?;
            match usize::try_from(size) {
                Ok(size) if size > 0 => shape.push(size),
                _ => return Err(cursor.malformed(what, format_args!("{size}"), "at least 1")),
            }
        }
        shape.reverse();
        let type_id = cursor.u32(format_args!("the type of tensor `{shown}`"))?;
        let offset = cursor.u64(format_args!("the offset of tensor `{shown}`"))?;
        Ok(Self { name, shape, type_id, offset })
    }

    /// Checks one tensor by itself: its format, whole blocks, and its place in the file.
    fn check(self, data: &Data, file: &Path) -> Result<TensorInfo<'a>, CheckpointError> {
        let Self { name, shape, type_id, offset } = self;
        let malformed = |what: &str, found: String, expected: String| CheckpointError::Malformed {
            file: file.to_owned(),
            what: format!("the {what} of tensor `{}`", shorten(name)),
            found,
            expected,
        };
        let format = types::format(type_id).ok_or_else(|| CheckpointError::UnsupportedFormat {
            file: file.to_owned(),
            tensor: shorten(name),
            found: types::name(type_id),
            advice: types::ADVICE,
        })?;
        let size = format.size_bytes(&shape).ok_or_else(|| {
            let expected =
                format!("rows of whole {format} blocks of {}, less than 2^64 bytes in all", format.block_len());
            malformed("shape", format!("{shape:?}"), expected)
        })?;
        if !offset.is_multiple_of(data.alignment) {
            return Err(malformed("offset", offset.to_string(), format!("a multiple of {}", data.alignment)));
        }
        let begin = data.begin.saturating_add(offset);
        let left = data.file_len.saturating_sub(begin);
        match (usize::try_from(begin), size as u64 <= left) {
            (Ok(begin), true) => Ok(TensorInfo { name, shape, format, begin, end: begin + size }),
            _ => Err(CheckpointError::Truncated {
                file: file.to_owned(),
                what: format!("tensor `{}`", shorten(name)),
                offset: begin,
                needed: size as u64,
                left,
            }),
        }
    }
}

/// Checks tensors against each other: names are unique and bytes belong to one tensor only.
fn check_tensors(tensors: &[TensorInfo<'_>], file: &Path) -> Result<(), CheckpointError> {
    let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(CheckpointError::Duplicate { file: file.to_owned(), what: "tensor", name: shorten(pair[0]) });
    }
    let mut places: Vec<&TensorInfo<'_>> = tensors.iter().collect();
    places.sort_unstable_by_key(|tensor| tensor.begin);
    match places.windows(2).find(|pair| pair[1].begin < pair[0].end) {
        None => Ok(()),
        Some(pair) => Err(CheckpointError::Malformed {
            file: file.to_owned(),
            what: format!("the first byte of tensor `{}`", shorten(pair[1].name)),
            found: pair[1].begin.to_string(),
            expected: format!("at least {}, where tensor `{}` ends", pair[0].end, shorten(pair[0].name)),
        }),
    }
}
