//! Packed blocks: how quantized weights are laid out, and how they decode.
//!
//! [`WeightData::row`] gives a view of one row; the view decodes either 32 elements at a time into integers
//! ([`WeightRow::group`]) or a whole row into floats ([`WeightRow::dequantize`]). Both hold for every device: a kernel
//! that unpacks blocks its own way must come to the same codes and scales.

use half::{bf16, f16};

use crate::{FloatFormat, WeightData, WeightFormat};

mod affine;
mod block32;
mod block_iq;
mod block_k;

pub(crate) use block_iq::{BlockIq4Nl, BlockIq4Xs, IQ4_VALUES};
pub(crate) use block_k::{BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K, scales_and_minimums};
pub(crate) use block32::{BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0};

/// Elements per [`Group`].
pub const GROUP: usize = 32;

/// 32 consecutive weights of one row as integers: element `i` is `scales[i / 16] · codes[i] + biases[i / 16]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// Signed codes.
    pub codes: [i8; GROUP],
    /// Scale of each half.
    pub scales: [f32; 2],
    /// Bias of each half.
    pub biases: [f32; 2],
}

impl Group {
    /// A group whose halves share one scale and one bias.
    pub(crate) fn uniform(codes: [i8; GROUP], scale: f32, bias: f32) -> Self {
        Self { codes, scales: [scale; 2], biases: [bias; 2] }
    }

    /// The 32 elements as floats.
    pub fn dequantize(&self, out: &mut [f32; GROUP]) {
        for (i, (value, &code)) in out.iter_mut().zip(&self.codes).enumerate() {
            *value = self.scales[i / 16] * f32::from(code) + self.biases[i / 16];
        }
    }
}

/// A packed block of a GGUF format: plain bytes without alignment, so that any place in a file can be viewed as blocks.
pub(crate) trait Block: bytemuck::Pod {
    /// Elements of a row that one block holds.
    const ELEMENTS: usize;

    /// Elements `32 g ..` of the block, `g` below `ELEMENTS / 32`.
    fn group(&self, g: usize) -> Group;
}

impl WeightFormat {
    /// Elements of a row that are packed together.
    pub const fn block_elements(self) -> usize {
        match self {
            Self::Float(_) => 1,
            Self::Affine { group_size, .. } => group_size,
            Self::Int8PerRow => GROUP,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::IQ4_NL => 32,
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K | Self::IQ4_XS => 256,
        }
    }

    /// Bytes of [`block_elements`](Self::block_elements) elements in [`WeightData::data`].
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::Float(float) => float.size_bytes(),
            Self::Affine { bits, group_size, .. } => group_size.saturating_mul(bits as usize) / 8,
            Self::Int8PerRow => GROUP,
            Self::Q4_0 => size_of::<BlockQ4_0>(),
            Self::Q4_1 => size_of::<BlockQ4_1>(),
            Self::Q5_0 => size_of::<BlockQ5_0>(),
            Self::Q5_1 => size_of::<BlockQ5_1>(),
            Self::Q8_0 => size_of::<BlockQ8_0>(),
            Self::Q2_K => size_of::<BlockQ2K>(),
            Self::Q3_K => size_of::<BlockQ3K>(),
            Self::Q4_K => size_of::<BlockQ4K>(),
            Self::Q5_K => size_of::<BlockQ5K>(),
            Self::Q6_K => size_of::<BlockQ6K>(),
            Self::IQ4_NL => size_of::<BlockIq4Nl>(),
            Self::IQ4_XS => size_of::<BlockIq4Xs>(),
        }
    }
}

/// Bytes of `columns` elements in [`WeightData::data`]; scales and biases kept apart are not counted.
///
/// `columns` must be a multiple of [`WeightFormat::block_elements`]. A size beyond the address space saturates, so that it never equals
/// the length of real bytes.
pub const fn row_bytes(format: WeightFormat, columns: usize) -> usize {
    match columns.checked_div(format.block_elements()) {
        Some(blocks) => blocks.saturating_mul(format.block_bytes()),
        None => 0,
    }
}

/// One row of a weight, still packed.
#[derive(Clone, Copy, Debug)]
pub struct WeightRow<'a> {
    format: WeightFormat,
    columns: usize,
    data: &'a [u8],
    scales: &'a [u8],
    biases: &'a [u8],
}

impl WeightData {
    /// A view of output feature `i`.
    ///
    /// # Panics
    /// If there is no such row, or the bytes do not fit format and shape; [`Device::weight`](crate::Device::weight)
    /// refuses such weights.
    pub fn row(&self, i: usize) -> WeightRow<'_> {
        let part =
            |bytes: &'static str, all| row_part(all, i, self.rows).unwrap_or_else(|| panic!("row {i} has no {bytes}"));
        WeightRow {
            format: self.format,
            columns: self.columns,
            data: part("data", &self.data),
            scales: part("scales", &self.scales),
            biases: part("biases", &self.biases),
        }
    }
}

/// Part `i` of `bytes` divided into `parts` equal ones.
fn row_part(bytes: &[u8], i: usize, parts: usize) -> Option<&[u8]> {
    let size = bytes.len().checked_div(parts)?;
    bytes.get(i * size..(i + 1) * size)
}

impl<'a> WeightRow<'a> {
    /// Elements of the row.
    pub fn len(&self) -> usize {
        self.columns
    }

    /// Whether the row has no element.
    pub fn is_empty(&self) -> bool {
        self.columns == 0
    }

    /// Groups of the row: its length / 32 for quantized formats.
    pub fn num_groups(&self) -> usize {
        self.columns / GROUP
    }

    /// Elements `32 g ..` as integers with their scales.
    ///
    /// # Panics
    /// If the weight is stored in floats, or there is no such group.
    pub fn group(&self, g: usize) -> Group {
        match self.format {
            WeightFormat::Float(_) => panic!("float weights have no integer groups"),
            WeightFormat::Q4_0 => self.block_group::<BlockQ4_0>(g),
            WeightFormat::Q4_1 => self.block_group::<BlockQ4_1>(g),
            WeightFormat::Q5_0 => self.block_group::<BlockQ5_0>(g),
            WeightFormat::Q5_1 => self.block_group::<BlockQ5_1>(g),
            WeightFormat::Q8_0 => self.block_group::<BlockQ8_0>(g),
            WeightFormat::Q2_K => self.block_group::<BlockQ2K>(g),
            WeightFormat::Q3_K => self.block_group::<BlockQ3K>(g),
            WeightFormat::Q4_K => self.block_group::<BlockQ4K>(g),
            WeightFormat::Q5_K => self.block_group::<BlockQ5K>(g),
            WeightFormat::Q6_K => self.block_group::<BlockQ6K>(g),
            WeightFormat::IQ4_NL => self.block_group::<BlockIq4Nl>(g),
            WeightFormat::IQ4_XS => self.block_group::<BlockIq4Xs>(g),
            WeightFormat::Affine { bits, group_size, scales } => {
                let scale = scales.element(self.scales, g * GROUP / group_size);
                let bias = scales.element(self.biases, g * GROUP / group_size);
                match bits {
                    4 => affine::group4(&self.data[g * 16..][..16], scale, bias),
                    _ => affine::group8(&self.data[g * GROUP..][..GROUP], scale, bias),
                }
            }
            WeightFormat::Int8PerRow => {
                let codes = std::array::from_fn(|i| self.data[g * GROUP + i] as i8);
                Group::uniform(codes, FloatFormat::F32.element(self.scales, 0), 0.0)
            }
        }
    }

    /// The blocks of a GGUF row.
    pub(crate) fn blocks<B: Block>(&self) -> &'a [B] {
        bytemuck::cast_slice(self.data)
    }

    fn block_group<B: Block>(&self, g: usize) -> Group {
        let per_block = B::ELEMENTS / GROUP;
        self.blocks::<B>()[g / per_block].group(g % per_block)
    }

    /// All elements as floats: `scale · code + bias`, each operation rounded to f32.
    ///
    /// # Panics
    /// If `out` has another length than the row.
    pub fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), self.columns, "a row is dequantized whole");
        if let WeightFormat::Float(float) = self.format {
            return float.decode(self.data, out);
        }
        let (groups, _) = out.as_chunks_mut::<GROUP>();
        for (g, out) in groups.iter_mut().enumerate() {
            self.group(g).dequantize(out);
        }
    }
}

impl FloatFormat {
    /// Element `i` of little-endian bytes.
    pub(crate) fn element(self, bytes: &[u8], i: usize) -> f32 {
        match self {
            Self::F32 => f32::from_le_bytes(bytes_at(bytes, i)),
            Self::F16 => f16::from_le_bytes(bytes_at(bytes, i)).to_f32(),
            Self::BF16 => bf16::from_le_bytes(bytes_at(bytes, i)).to_f32(),
        }
    }

    /// As many little-endian elements as `out` holds.
    pub(crate) fn decode(self, bytes: &[u8], out: &mut [f32]) {
        for (i, value) in out.iter_mut().enumerate() {
            *value = self.element(bytes, i);
        }
    }
}

/// The bytes of element `i`; elements may lie at any address of a file.
fn bytes_at<const N: usize>(bytes: &[u8], i: usize) -> [u8; N] {
    std::array::from_fn(|byte| bytes[i * N + byte])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_whole_blocks() {
        assert_eq!(row_bytes(WeightFormat::Q4_1, 96), 60);
        assert_eq!(row_bytes(WeightFormat::Q6_K, 512), 420);
        assert_eq!(row_bytes(WeightFormat::Float(FloatFormat::BF16), 7), 14);
        assert_eq!(row_bytes(WeightFormat::Affine { bits: 4, group_size: 64, scales: FloatFormat::F16 }, 128), 64);
        assert_eq!(row_bytes(WeightFormat::Affine { bits: 4, group_size: 0, scales: FloatFormat::F16 }, 128), 0);
        assert_eq!(row_bytes(WeightFormat::Float(FloatFormat::F32), usize::MAX), usize::MAX);
    }

    #[test]
    fn halves_of_a_group_have_their_own_scale() {
        let group = Group { codes: [2; GROUP], scales: [0.5, 2.0], biases: [1.0, -1.0] };
        let mut values = [0.0; GROUP];
        group.dequantize(&mut values);
        assert_eq!((values[15], values[16]), (2.0, 3.0));
    }
}
