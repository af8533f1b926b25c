//! Floats to integer codes: the activations of a pass, and weights for drafters, tests and tools.
//!
//! [`int8`] is part of the contract of [`Linear`](crate::ops::Linear): every device quantizes activations to exactly
//! these codes. All roundings are to nearest, ties to even.

use bytes::Bytes;
use half::{bf16, f16};

use crate::{Activations, FloatFormat, KernelError, WeightData, WeightFormat};

/// Symmetric 8-bit codes of `values` with one scale, which is returned: `value ≈ scale · code`, codes in −127..=127.
///
/// ```text
/// scale = max|values| / 127        code = round(value / scale)
/// ```
///
/// Zeros give scale 0. A NaN or infinite value gives a scale that is NaN or infinite, so whatever is computed from the
/// codes is not finite either.
pub fn int8(values: &[f32], codes: &mut [i8]) -> f32 {
    // `f32::max` would drop a NaN.
    let max = values.iter().map(|value| value.abs()).fold(0.0, |max, x| if x > max || x.is_nan() { x } else { max });
    let scale = max / 127.0;
    for (code, &value) in codes.iter_mut().zip(values) {
        // The cast saturates, and takes the NaN of 0 / 0 to 0.
        *code = round((value / scale).clamp(-127.0, 127.0)) as i8;
    }
    scale
}

/// Adding this to a float of a magnitude below 2²² rounds it to the nearest integer, ties to even.
pub(crate) const ROUND: f32 = 12_582_912.0;

/// `x`, of a magnitude below 2²², rounded. `round_ties_even` is a function call where SSE4.1 is not known to be there.
fn round(x: f32) -> f32 {
    x + ROUND - ROUND
}

/// Symmetric 8-bit codes of one key or value head with the scale of an 8-bit cache, which is returned.
///
/// ```text
/// scale = bf16(max|values| / 127)        code = round(value / scale)
/// ```
///
/// A product of a code and a scale of 8 bits of precision is exact in f32, and quantizing such products gives the same
/// codes and scale again, so a cache can be saved as floats and restored. A head without a value above `1e-30` counts
/// as zeros; a NaN or infinite value gives a scale that is NaN or infinite.
#[inline(always)]
pub fn int8_head(values: &[f32], codes: &mut [i8]) -> bf16 {
    // As integers, the magnitudes of floats keep their order, and NaN is the largest.
    let max = values.iter().map(|x| x.to_bits() & 0x7FFF_FFFF).fold(0, u32::max);
    let max = f32::from_bits(max);
    let scale = if max < 1e-30 { bf16::ZERO } else { bf16::from_f32(max / 127.0) };
    let divisor = scale.to_f32();
    if divisor == 0.0 || !divisor.is_finite() {
        codes.fill(0);
        return scale;
    }
    for (code, &value) in codes.iter_mut().zip(values) {
        let rounded = value / divisor + ROUND;
        *code = ((rounded.to_bits() as i32) - (ROUND.to_bits() as i32)).clamp(-127, 127) as i8;
    }
    scale
}

/// Symmetric 8-bit codes with one scale per `group_size` values.
#[derive(Clone, Debug, PartialEq)]
pub struct Int8Codes {
    /// One per value.
    pub codes: Vec<i8>,
    /// One per group.
    pub scales: Vec<f32>,
}

/// Quantizes each `group_size` values with [`int8`]: a row's length gives one scale per row, 32 one per group.
pub fn int8_groups(values: &[f32], group_size: usize) -> Int8Codes {
    let group_size = group_size.max(1);
    let mut codes = vec![0; values.len()];
    let groups = values.chunks(group_size).zip(codes.chunks_mut(group_size));
    let scales = groups.map(|(values, codes)| int8(values, codes)).collect();
    Int8Codes { codes, scales }
}

impl Int8Codes {
    /// The codes as a weight of format [`WeightFormat::Int8PerRow`]; there is one scale per row.
    ///
    /// # Errors
    /// [`KernelError::WeightBlocks`] or [`KernelError::WeightBytes`] if rows of `columns` codes do not fit.
    pub fn into_weight(self, columns: usize, activations: Activations) -> Result<WeightData, KernelError> {
        let data = WeightData {
            format: WeightFormat::Int8PerRow,
            rows: self.scales.len(),
            columns,
            data: self.codes.iter().map(|&code| code as u8).collect(),
            scales: floats(&self.scales, FloatFormat::F32),
            biases: Bytes::new(),
            activations,
        };
        data.check()?;
        Ok(data)
    }
}

/// A weight as blocks of [`WeightFormat::Q8_0`]: per 32 elements of a row the codes of [`int8`], with their scale in f16.
///
/// # Errors
/// [`KernelError::WeightBlocks`] if a row is no whole number of blocks, and what [`WeightData::check`] says of `weight`.
pub fn q8_0(weight: &WeightData) -> Result<WeightData, KernelError> {
    in_blocks(weight, WeightFormat::Q8_0, |values, block| {
        let mut codes = [0; 32];
        block.extend(f16::from_f32(int8(values, &mut codes)).to_le_bytes());
        block.extend(codes.map(|code| code as u8));
    })
}

/// A weight as blocks of [`WeightFormat::Q4_1`]: per 32 elements of a row the codes of [`affine`], with scale and bias in f16.
///
/// # Errors
/// Those of [`q8_0`].
pub fn q4_1(weight: &WeightData) -> Result<WeightData, KernelError> {
    let groups = AffineGroups { bits: 4, group_size: 32, scales: FloatFormat::F16 };
    in_blocks(weight, WeightFormat::Q4_1, |values, block| {
        let (scale, bias) = fit_range(values, groups);
        let code = |value: f32| round(((value - bias) / scale).clamp(0.0, groups.levels())) as u8;
        block.extend([scale, bias].map(|value| f16::from_f32(value).to_le_bytes()).as_flattened());
        let (low, high) = values.split_at(16);
        block.extend(low.iter().zip(high).map(|(&low, &high)| code(low) | code(high) << 4));
    })
}

/// A weight in blocks of 32 elements of a row, which `encode` appends.
fn in_blocks(
    weight: &WeightData,
    format: WeightFormat,
    mut encode: impl FnMut(&[f32], &mut Vec<u8>),
) -> Result<WeightData, KernelError> {
    weight.check()?;
    let block = format.block_elements();
    if !weight.columns.is_multiple_of(block) {
        return Err(KernelError::WeightBlocks { format, columns: weight.columns, block });
    }
    let mut data = Vec::with_capacity(weight.rows * weight.columns / block * format.block_bytes());
    let mut values = vec![0.0; weight.columns];
    for row in 0..weight.rows {
        weight.row(row).dequantize(&mut values);
        values.chunks_exact(block).for_each(|values| encode(values, &mut data));
    }
    let [scales, biases] = [Bytes::new(), Bytes::new()];
    Ok(WeightData { format, data: data.into(), scales, biases, ..weight.clone() })
}

/// Settings of an affine quantization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AffineGroups {
    /// Bits per code: 4 or 8.
    pub bits: u8,
    /// Values per scale and bias, a multiple of 32.
    pub group_size: usize,
    /// Type that scales and biases are rounded to before the codes are chosen.
    pub scales: FloatFormat,
}

impl AffineGroups {
    /// The format of weights with these settings.
    pub const fn format(self) -> WeightFormat {
        let Self { bits, group_size, scales } = self;
        WeightFormat::Affine { bits, group_size, scales }
    }

    /// The largest code.
    fn levels(self) -> f32 {
        if self.bits == 4 { 15.0 } else { 255.0 }
    }
}

/// Unsigned codes with a scale and a bias per group: `value ≈ scale · code + bias`.
#[derive(Clone, Debug, PartialEq)]
pub struct AffineCodes {
    /// Settings.
    pub groups: AffineGroups,
    /// One per value, not packed.
    pub codes: Vec<u8>,
    /// One per group.
    pub scales: Vec<f32>,
    /// One per group.
    pub biases: Vec<f32>,
}

/// Quantizes each group over its own range.
///
/// ```text
/// scale = (max − min) / levels        bias = min        code = round((value − bias) / scale)
/// ```
///
/// # Errors
/// [`KernelError::Affine`] if the settings are not supported.
pub fn affine(values: &[f32], groups: AffineGroups) -> Result<AffineCodes, KernelError> {
    quantize_groups(values, groups, |values| {
        let (scale, bias) = fit_range(values, groups);
        (scale, bias, Box::new(move |value| (value - bias) / scale))
    })
}

/// Scale and bias that spread the codes over the range of a group.
fn fit_range(values: &[f32], groups: AffineGroups) -> (f32, f32) {
    let (min, max) = range(values);
    (round_to((max - min) / groups.levels(), groups.scales), round_to(min, groups.scales))
}

/// Quantizes each group over its range extended to 0, so that 0 has an exact code, the zero point.
///
/// ```text
/// scale = (max − min) / levels        zero = round(−min / scale)        code = round(value / scale) + zero
/// bias = −zero · scale
/// ```
///
/// # Errors
/// [`KernelError::Affine`] if the settings are not supported.
pub fn zero_point(values: &[f32], groups: AffineGroups) -> Result<AffineCodes, KernelError> {
    quantize_groups(values, groups, |values| {
        let (min, max) = range(values);
        let (min, max) = (min.min(0.0), max.max(0.0));
        let scale = round_to((max - min) / groups.levels(), groups.scales);
        let zero = if scale > 0.0 { (-min / scale).round_ties_even().clamp(0.0, groups.levels()) } else { 0.0 };
        let bias = round_to(-zero * scale, groups.scales);
        (scale, bias, Box::new(move |value| (value / scale).round_ties_even() + zero))
    })
}

/// Scale, bias and the not yet rounded code of a value.
type GroupCoder = (f32, f32, Box<dyn Fn(f32) -> f32>);

fn quantize_groups(
    values: &[f32],
    groups: AffineGroups,
    coder: impl Fn(&[f32]) -> GroupCoder,
) -> Result<AffineCodes, KernelError> {
    groups.format().check()?;
    let mut all = AffineCodes { groups, codes: Vec::new(), scales: Vec::new(), biases: Vec::new() };
    for values in values.chunks(groups.group_size) {
        let (scale, bias, code) = coder(values);
        // The cast takes the NaN of a group without range to code 0, which stands for its bias.
        let codes = values.iter().map(|&value| code(value).round_ties_even().clamp(0.0, groups.levels()) as u8);
        all.codes.extend(codes);
        all.scales.push(scale);
        all.biases.push(bias);
    }
    Ok(all)
}

impl AffineCodes {
    /// The codes as a weight, packed from the low bits.
    ///
    /// # Errors
    /// [`KernelError::WeightBlocks`] or [`KernelError::WeightBytes`] if rows of `columns` codes do not fit.
    pub fn into_weight(self, columns: usize, activations: Activations) -> Result<WeightData, KernelError> {
        let rows = self.codes.len().checked_div(columns).unwrap_or(0);
        let data = match self.groups.bits {
            4 => self.codes.chunks(2).map(|pair| pair[0] | pair.get(1).copied().unwrap_or(0) << 4).collect(),
            _ => self.codes,
        };
        let data = WeightData {
            format: self.groups.format(),
            rows,
            columns,
            data: Bytes::from(data),
            scales: floats(&self.scales, self.groups.scales),
            biases: floats(&self.biases, self.groups.scales),
            activations,
        };
        data.check()?;
        Ok(data)
    }
}

fn range(values: &[f32]) -> (f32, f32) {
    values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(min, max), &value| (min.min(value), max.max(value)))
}

fn round_to(value: f32, format: FloatFormat) -> f32 {
    match format {
        FloatFormat::F32 => value,
        FloatFormat::F16 => f16::from_f32(value).to_f32(),
        FloatFormat::BF16 => bf16::from_f32(value).to_f32(),
    }
}

/// Values as the little-endian bytes of a float type, rounded to nearest.
pub fn floats(values: &[f32], format: FloatFormat) -> Bytes {
    let mut bytes = Vec::with_capacity(values.len() * format.size_bytes());
    for &value in values {
        match format {
            FloatFormat::F32 => bytes.extend(value.to_le_bytes()),
            FloatFormat::F16 => bytes.extend(f16::from_f32(value).to_le_bytes()),
            FloatFormat::BF16 => bytes.extend(bf16::from_f32(value).to_le_bytes()),
        }
    }
    Bytes::from(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantized(values: &[f32]) -> (Vec<i8>, f32) {
        let mut codes = vec![0; values.len()];
        let scale = int8(values, &mut codes);
        (codes, scale)
    }

    #[test]
    fn rounding_is_that_of_the_standard_library() {
        for x in [0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.499_999_97, 126.5, -126.5, 127.0, f32::MIN_POSITIVE] {
            assert_eq!(round(x), x.round_ties_even(), "{x}");
        }
        assert!(round(f32::NAN).is_nan());
    }

    #[test]
    fn ties_go_to_even() {
        assert_eq!(quantized(&[127.0, 0.5, 1.5, -2.5, -127.0]), (vec![127, 0, 2, -2, -127], 1.0));
    }

    /// What a cache of integers gives back can be saved as floats and restored.
    #[test]
    fn quantizing_a_quantized_head_changes_nothing() {
        for seed in 1..200u32 {
            let values: Vec<f32> = (1..65u32)
                .map(|i| {
                    (i.wrapping_mul(seed.wrapping_mul(2_654_435_761)) as f32 / 1e9).sin()
                        * 1.37_f32.powi(seed as i32 % 60 - 30)
                })
                .collect();
            let mut codes = vec![0; 64];
            let scale = int8_head(&values, &mut codes);
            let restored: Vec<f32> = codes.iter().map(|&code| scale.to_f32() * f32::from(code)).collect();
            let mut again = vec![0; 64];
            assert_eq!((int8_head(&restored, &mut again), &again), (scale, &codes), "seed {seed}");
            let most = values.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
            for (value, restored) in values.iter().zip(restored) {
                assert!((value - restored).abs() <= most / 250.0, "seed {seed}: {value} became {restored}");
            }
        }
    }

    #[test]
    fn heads_that_are_zero_or_not_finite_say_so_in_their_scale() {
        let mut codes = [1; 2];
        assert_eq!((int8_head(&[0.0, 1e-31], &mut codes), codes), (bf16::ZERO, [0; 2]));
        assert!(int8_head(&[f32::NAN, 1.0], &mut codes).is_nan());
        assert_eq!((int8_head(&[f32::NEG_INFINITY, 1.0], &mut codes), codes), (bf16::INFINITY, [0; 2]));
    }

    #[test]
    fn zeros_have_no_scale() {
        assert_eq!(quantized(&[0.0; 3]), (vec![0; 3], 0.0));
    }

    #[test]
    fn what_is_not_finite_stays_visible_in_the_scale() {
        assert!(quantized(&[1.0, f32::NAN, 2.0]).1.is_nan());
        assert_eq!(quantized(&[1.0, f32::NEG_INFINITY]).1, f32::INFINITY);
    }

    #[test]
    fn a_constant_group_is_exact() {
        let groups = AffineGroups { bits: 4, group_size: 32, scales: FloatFormat::F32 };
        for quantize in [affine, zero_point] {
            let weight = quantize(&[-0.75; 64], groups).unwrap().into_weight(32, Activations::Float).unwrap();
            let mut values = [0.0; 32];
            weight.row(1).dequantize(&mut values);
            assert!(values.iter().all(|value| (value + 0.75).abs() < 1e-6));
        }
    }

    /// Two rows of 64 values, and the weight that they are.
    fn two_rows() -> (Vec<f32>, WeightData) {
        let values: Vec<f32> = (0..128).map(|i| (i as f32 * 0.37).sin() * (1.0 + i as f32)).collect();
        let data = WeightData {
            format: WeightFormat::Float(FloatFormat::F32),
            rows: 2,
            columns: 64,
            data: floats(&values, FloatFormat::F32),
            scales: Bytes::new(),
            biases: Bytes::new(),
            activations: Activations::Int8PerGroup,
        };
        (values, data)
    }

    #[test]
    fn blocks_of_4_bits_have_the_codes_of_affine_groups() {
        let (mut values, data) = two_rows();
        // A group without range.
        values[32..64].fill(0.75);
        let data = WeightData { data: floats(&values, FloatFormat::F32), ..data };
        let blocks = q4_1(&data).unwrap();
        blocks.check().unwrap();
        let groups = AffineGroups { bits: 4, group_size: 32, scales: FloatFormat::F16 };
        let same = affine(&values, groups).unwrap().into_weight(64, data.activations).unwrap();
        for row in 0..2 {
            let [mut found, mut expected] = [[0.0; 64]; 2];
            blocks.row(row).dequantize(&mut found);
            same.row(row).dequantize(&mut expected);
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn blocks_of_8_bits_keep_two_digits_of_each_value() {
        let (values, data) = two_rows();
        let blocks = q8_0(&data).unwrap();
        blocks.check().unwrap();
        let mut back = [0.0; 64];
        blocks.row(1).dequantize(&mut back);
        for (block, stored) in back.chunks(32).zip(values[64..].chunks(32)) {
            let most = stored.iter().fold(0.0f32, |most, value| most.max(value.abs()));
            assert!(block.iter().zip(stored).all(|(a, b)| (a - b).abs() < most / 200.0), "{block:?} {stored:?}");
        }
        let ragged = WeightData { rows: 4, columns: 32, ..data.clone() };
        assert!(q8_0(&ragged).is_ok());
        let ragged = WeightData { rows: 8, columns: 16, ..data };
        let refused = q8_0(&ragged).unwrap_err();
        assert!(matches!(refused, KernelError::WeightBlocks { columns: 16, block: 32, .. }), "{refused}");
    }

    #[test]
    fn zero_has_an_exact_code() {
        let groups = AffineGroups { bits: 4, group_size: 32, scales: FloatFormat::F32 };
        let values: Vec<f32> = (0..32).map(|i| if i == 7 { 0.0 } else { i as f32 - 3.3 }).collect();
        let weight = zero_point(&values, groups).unwrap().into_weight(32, Activations::Float).unwrap();
        let mut back = [1.0; 32];
        weight.row(0).dequantize(&mut back);
        assert_eq!(back[7], 0.0);
    }

    #[test]
    fn other_widths_are_refused() {
        let groups = AffineGroups { bits: 3, group_size: 64, scales: FloatFormat::F32 };
        let error = affine(&[0.0; 64], groups).unwrap_err();
        assert_eq!(
            error.to_string(),
            "affine weights of 3 bits in groups of 64 are not supported: expected 4 or 8 bits and groups of a multiple of 32"
        );
    }
}
