use super::stored;
use crate::blocks::GROUP;
use crate::host::{Run, param_values};
use crate::ops::Linear;
use crate::quantize::int8;
use crate::{Activations, WeightData, WeightFormat, WeightRow};

pub(super) fn linear(op: &Linear, run: &mut Run<'_>) {
    for projection in &op.projections {
        let width = projection.out.width;
        run.write(projection.out, |run, out: &mut [f32]| {
            product(stored(&projection.weight), run.read(op.x), out);
            if let Some(bias) = &projection.bias {
                let bias = param_values(bias);
                for i in 0..out.len() {
                    out[i] += bias[i % width];
                }
            }
        });
    }
}

/// `out = x Wᵀ` for the rows `x: [rows, columns]`.
pub(super) fn product(weight: &WeightData, x: &[f32], out: &mut [f32]) {
    let (columns, features) = (weight.columns.max(1), weight.rows);
    for (row, x) in x.chunks_exact(columns).enumerate() {
        let x = Activation::new(x, weight);
        for feature in 0..features {
            out[row * features + feature] = x.dot(&weight.row(feature));
        }
    }
}

/// One row of activations in the precision that a weight asks for.
enum Activation<'a> {
    Float(&'a [f32]),
    Int8 { codes: Vec<i8>, group_scales: Vec<f32> },
}

impl<'a> Activation<'a> {
    fn new(x: &'a [f32], weight: &WeightData) -> Self {
        let per_scale = match (weight.format, weight.activations) {
            (WeightFormat::Float(_), _) | (_, Activations::Float) => return Self::Float(x),
            (_, Activations::Int8PerGroup) => GROUP,
            (_, Activations::Int8PerRow) => x.len(),
        };
        let mut codes = vec![0; x.len()];
        let parts = x.chunks(per_scale).zip(codes.chunks_mut(per_scale));
        let group_scales = parts.flat_map(|(x, codes)| vec![int8(x, codes); per_scale / GROUP]).collect();
        Self::Int8 { codes, group_scales }
    }

    fn dot(&self, weight: &WeightRow<'_>) -> f32 {
        match self {
            Self::Float(x) => {
                let mut values = vec![0.0; weight.len()];
                weight.dequantize(&mut values);
                x.iter().zip(&values).map(|(x, w)| x * w).sum()
            }
            Self::Int8 { codes, group_scales } => group_scales
                .iter()
                .zip(codes.chunks_exact(GROUP))
                .enumerate()
                .map(|(g, (scale, codes))| scale * group_dot(weight, g, codes))
                .sum(),
        }
    }
}

/// `Σ over halves of scale · Σ code · xcode + bias · Σ xcode`, the inner sums exact.
fn group_dot(weight: &WeightRow<'_>, g: usize, xcodes: &[i8]) -> f32 {
    let group = weight.group(g);
    let mut sum = 0.0;
    for half in 0..2 {
        let pairs = || group.codes.iter().zip(xcodes).skip(16 * half).take(16);
        let dot: i32 = pairs().map(|(&code, &x)| i32::from(code) * i32::from(x)).sum();
        let xsum: i32 = pairs().map(|(_, &x)| i32::from(x)).sum();
        sum += group.scales[half] * dot as f32 + group.biases[half] * xsum as f32;
    }
    sum
}
