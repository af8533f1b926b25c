//! Metadata values, borrowed from the file.

use std::fmt;

use super::cursor::Cursor;
use crate::{CheckpointError, fields::shorten};

/// A metadata value. Whole numbers of every width are widened.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// `uint8` to `uint64`.
    Unsigned(u64),
    /// `int8` to `int64`.
    Signed(i64),
    /// `float32` and `float64`.
    Float(f64),
    /// `bool`.
    Bool(bool),
    /// `string`.
    String(&'a str),
    /// `array` of any of the above.
    Array(Array<'a>),
}

/// An array whose elements are decoded when they are asked for; its length was checked against the file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Array<'a> {
    /// The type of every element.
    pub element: ValueType,
    /// Number of elements.
    pub len: usize,
    bytes: &'a [u8],
}

/// The type of a value, numbered as in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the format's own names")]
pub enum ValueType {
    Uint8,
    Int8,
    Uint16,
    Int16,
    Uint32,
    Int32,
    Float32,
    Bool,
    String,
    Array,
    Uint64,
    Int64,
    Float64,
}

const TYPES: [ValueType; 13] = [
    ValueType::Uint8,
    ValueType::Int8,
    ValueType::Uint16,
    ValueType::Int16,
    ValueType::Uint32,
    ValueType::Int32,
    ValueType::Float32,
    ValueType::Bool,
    ValueType::String,
    ValueType::Array,
    ValueType::Uint64,
    ValueType::Int64,
    ValueType::Float64,
];

impl ValueType {
    /// Fewest bytes of a value: all of a number's, the length's for strings and arrays.
    fn least_bytes(self) -> u64 {
        match self {
            Self::Uint8 | Self::Int8 | Self::Bool => 1,
            Self::Uint16 | Self::Int16 => 2,
            Self::Uint32 | Self::Int32 | Self::Float32 => 4,
            Self::Uint64 | Self::Int64 | Self::Float64 | Self::String => 8,
            Self::Array => 12,
        }
    }

    fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Self, CheckpointError> {
        let number = cursor.u32(format_args!("the type of `{}`", shorten(key)))?;
        TYPES.get(number as usize).copied().ok_or_else(|| {
            let what = format_args!("the value type of `{}`", shorten(key));
            cursor.malformed(what, format_args!("{number}"), "a number from 0 to 12")
        })
    }
}

impl<'a> Value<'a> {
    /// Reads a type and a value of it.
    pub(super) fn read(cursor: &mut Cursor<'a>, key: &str) -> Result<Self, CheckpointError> {
        match ValueType::read(cursor, key)? {
            ValueType::Array => Array::read(cursor, key).map(Self::Array),
            scalar => Self::read_scalar(cursor, scalar, key),
        }
    }

    fn read_scalar(cursor: &mut Cursor<'a>, scalar: ValueType, key: &str) -> Result<Self, CheckpointError> {
        let key = shorten(key);
        let what = format_args!("the value of `{key}`");
        Ok(match scalar {
            ValueType::Uint8 => Self::Unsigned(u8::from_le_bytes(cursor.array(what)?).into()),
            ValueType::Int8 => Self::Signed(i8::from_le_bytes(cursor.array(what)?).into()),
            ValueType::Uint16 => Self::Unsigned(u16::from_le_bytes(cursor.array(what)?).into()),
            ValueType::Int16 => Self::Signed(i16::from_le_bytes(cursor.array(what)?).into()),
            ValueType::Uint32 => Self::Unsigned(cursor.u32(what)?.into()),
            ValueType::Int32 => Self::Signed(i32::from_le_bytes(cursor.array(what)?).into()),
            ValueType::Float32 => Self::Float(f32::from_le_bytes(cursor.array(what)?).into()),
            ValueType::Uint64 => Self::Unsigned(cursor.u64(what)?),
            ValueType::Int64 => Self::Signed(i64::from_le_bytes(cursor.array(what)?)),
            ValueType::Float64 => Self::Float(f64::from_le_bytes(cursor.array(what)?)),
            ValueType::String => Self::String(cursor.string(what)?),
            ValueType::Bool => match cursor.array(what)? {
                [0] => Self::Bool(false),
                [1] => Self::Bool(true),
                [other] => return Err(cursor.malformed(what, format_args!("the byte {other}"), "0 or 1 for a bool")),
            },
            ValueType::Array => return Err(nested(cursor, &key)),
        })
    }
}

impl<'a> Array<'a> {
    /// Reads the element type and the length, and steps over the elements.
    fn read(cursor: &mut Cursor<'a>, key: &str) -> Result<Self, CheckpointError> {
        let element = ValueType::read(cursor, key)?;
        if element == ValueType::Array {
            return Err(nested(cursor, &shorten(key)));
        }
        let key = shorten(key);
        let len = cursor.u64(format_args!("the length of the array `{key}`"))?;
        let what = format_args!("the array `{key}` of {len} elements");
        cursor.check_count(len, element.least_bytes(), what)?;
        let before = cursor.position();
        if element != ValueType::String {
            // The product was checked just above.
            let bytes = cursor.take(len * element.least_bytes(), what)?;
            return Ok(Self { element, len: len as usize, bytes });
        }
        let mut walked = cursor.fork();
        for _ in 0..len {
            walked.string_bytes(what)?;
        }
        let bytes = cursor.take((walked.position() - before) as u64, what)?;
        Ok(Self { element, len: len as usize, bytes })
    }

    /// The elements, in order. A string that is no UTF-8 is given as `None`.
    pub fn iter(&self) -> impl Iterator<Item = Option<Value<'a>>> {
        let element = self.element;
        let mut cursor = Cursor::new(self.bytes, std::path::Path::new(""));
        (0..self.len).map(move |_| Value::read_scalar(&mut cursor, element, "").ok())
    }
}

fn nested(cursor: &Cursor<'_>, key: &str) -> CheckpointError {
    cursor.malformed(
        format_args!("the element type of the array `{key}`"),
        format_args!("an array"),
        "numbers, bools or strings",
    )
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(number) => write!(f, "{number}"),
            Self::Signed(number) => write!(f, "{number}"),
            Self::Float(number) => write!(f, "{number:?}"),
            Self::Bool(flag) => write!(f, "{flag}"),
            Self::String(text) => write!(f, "\"{}\"", shorten(text)),
            Self::Array(array) => write!(f, "an array of {} {:?}", array.len, array.element),
        }
    }
}
