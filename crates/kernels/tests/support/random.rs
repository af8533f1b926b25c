//! Random values, weights and forests from a seed.

use pleach_kernels::quantize::{self, AffineGroups};
use pleach_kernels::{
    Activations, DeltaLayout, FloatFormat, KvLayout, Rows, SequenceRows, StateLayout, StateValues, WeightData,
    WeightFormat, row_bytes,
};
use pleach_kernels::{DeltaValues, KvValues};

/// Every packed format of GGUF, with the places of the half floats inside a block.
pub(crate) const GGUF_FORMATS: [(WeightFormat, &[usize]); 12] = [
    (WeightFormat::Q4_0, &[0]),
    (WeightFormat::Q4_1, &[0, 2]),
    (WeightFormat::Q5_0, &[0]),
    (WeightFormat::Q5_1, &[0, 2]),
    (WeightFormat::Q8_0, &[0]),
    (WeightFormat::Q2_K, &[80, 82]),
    (WeightFormat::Q3_K, &[108]),
    (WeightFormat::Q4_K, &[0, 2]),
    (WeightFormat::Q5_K, &[0, 2]),
    (WeightFormat::Q6_K, &[208]),
    (WeightFormat::IQ4_NL, &[0]),
    (WeightFormat::IQ4_XS, &[0]),
];

/// Every kind of weight format.
pub(crate) fn all_formats() -> Vec<WeightFormat> {
    let floats = [FloatFormat::F32, FloatFormat::F16, FloatFormat::BF16];
    let affine = |bits, group_size, scales| WeightFormat::Affine { bits, group_size, scales };
    let mut formats: Vec<_> = floats.into_iter().map(WeightFormat::Float).collect();
    formats.extend(GGUF_FORMATS.iter().map(|(format, _)| *format));
    formats.extend([
        affine(4, 32, FloatFormat::F32),
        affine(4, 64, FloatFormat::BF16),
        affine(4, 128, FloatFormat::F16),
        affine(8, 32, FloatFormat::F16),
        affine(8, 64, FloatFormat::F32),
        affine(8, 128, FloatFormat::BF16),
        WeightFormat::Int8PerRow,
    ]);
    formats
}

/// SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// In 0..1.
    pub(crate) fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Mean 0, variance 1, as good as tests need.
    pub(crate) fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }

    pub(crate) fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }

    /// `n` values around `mean`.
    pub(crate) fn around(&mut self, mean: f32, spread: f32, n: usize) -> Vec<f32> {
        (0..n).map(|_| mean + spread * self.normal()).collect()
    }

    pub(crate) fn tokens(&mut self, n: usize, vocab_size: usize) -> Vec<u32> {
        (0..n).map(|_| self.below(vocab_size) as u32).collect()
    }

    /// A weight whose elements are of the order of 0.1.
    pub(crate) fn weight(
        &mut self,
        format: WeightFormat,
        rows: usize,
        columns: usize,
        activations: Activations,
    ) -> WeightData {
        let values = self.around(0.0, 0.1, rows * columns);
        match format {
            WeightFormat::Float(float) => WeightData {
                format,
                rows,
                columns,
                data: quantize::floats(&values, float),
                scales: Default::default(),
                biases: Default::default(),
                activations,
            },
            WeightFormat::Affine { bits, group_size, scales } => {
                let codes = quantize::affine(&values, AffineGroups { bits, group_size, scales }).unwrap();
                codes.into_weight(columns, activations).unwrap()
            }
            WeightFormat::Int8PerRow => {
                quantize::int8_groups(&values, columns).into_weight(columns, activations).unwrap()
            }
            _ => self.blocks(format, rows, columns, activations),
        }
    }

    /// Random bytes with tame scales.
    fn blocks(&mut self, format: WeightFormat, rows: usize, columns: usize, activations: Activations) -> WeightData {
        let mut data: Vec<u8> = (0..rows * row_bytes(format, columns)).map(|_| self.next() as u8).collect();
        let (_, half_floats) = GGUF_FORMATS.iter().find(|(known, _)| *known == format).unwrap();
        for block in data.chunks_exact_mut(format.block_bytes()) {
            for &place in *half_floats {
                let sign = if self.below(2) == 0 { 1.0 } else { -1.0 };
                let scale = sign * (0.002 + 0.01 * self.uniform());
                block[place..place + 2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
            }
        }
        let (scales, biases) = Default::default();
        WeightData { format, rows, columns, data: data.into(), scales, biases, activations }
    }

    /// A sequence's state after `len` tokens.
    pub(crate) fn state(&mut self, layout: &StateLayout, len: usize) -> StateValues {
        let kv = |layout: &KvLayout| KvValues {
            keys: self.normals(len * layout.width()),
            values: self.normals(len * layout.width()),
        };
        let attention = layout.attention.iter().map(kv).collect();
        let delta = |layout: &DeltaLayout| DeltaValues {
            recurrent: self.normals(layout.state_elements()),
            window: self.normals((layout.conv_kernel_dim - 1) * layout.conv_channels()),
        };
        StateValues { len, attention, delta: layout.delta.iter().map(delta).collect() }
    }

    pub(crate) fn tree(&mut self, shape: Shape, n: usize) -> Vec<Option<usize>> {
        let parent = |row: usize| match shape {
            Shape::Chain => row.checked_sub(1),
            Shape::Star => (row > 0).then_some(0),
            Shape::Binary => (row > 0).then(|| (row - 1) / 2),
            Shape::Roots => None,
            // Several roots now and then, mostly near parents, so that deep and wide trees both occur.
            Shape::Random => match self.below(8) {
                0 => None,
                1..4 => row.checked_sub(1),
                _ => (row > 0).then(|| row - 1 - self.below(row.min(6))),
            },
        };
        (0..n).map(parent).collect()
    }
}

/// How the rows of a sequence hang together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Shape {
    Chain,
    Star,
    Binary,
    Roots,
    Random,
}

pub(crate) const SHAPES: [Shape; 5] = [Shape::Chain, Shape::Star, Shape::Binary, Shape::Roots, Shape::Random];

/// The rows of one sequence, owned.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    pub(crate) len: usize,
    pub(crate) tokens: Vec<u32>,
    pub(crate) parents: Vec<Option<usize>>,
}

impl Tree {
    pub(crate) fn chain(len: usize, tokens: Vec<u32>) -> Self {
        let parents = (0..tokens.len()).map(|row| row.checked_sub(1)).collect();
        Self { len, tokens, parents }
    }
}

pub(crate) fn forest(trees: &[Tree]) -> Rows {
    let parts: Vec<_> = trees.iter().map(|tree| SequenceRows::tree(tree.len, &tree.tokens, &tree.parents)).collect();
    Rows::new(&parts).unwrap()
}
