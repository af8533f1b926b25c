//! What tells the states of one model from those of another.

use std::fmt;

use pleach_checkpoint::{ModelConfig, SourceFile, Tensor, TensorData};
use sha2::{Digest as _, Sha256};

use crate::EngineOptions;

/// To be raised with every change of the bits that passes give, or of what a state is: it tells states of one build from those of another.
const STATE_VERSION: u32 = 1;

/// Places of each run of stored bytes that are looked at.
const SAMPLES: usize = 8;

/// Bytes that are looked at in each.
const SAMPLE_BYTES: usize = 32;

/// States of equal fingerprints continue each other's texts bit for bit.
///
/// It covers the config, the sizes and times of change of the model's files, the name, shape, format and samples of the bytes of
/// every tensor, the type of stored keys and values, the precision of activations, and the instructions that compute, whose
/// rounding differs. Reading all bytes would make opening a model as slow as its disk: weights that were changed in a few places
/// are told by the times of their files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint(pub(crate) [u8; 32]);

impl Fingerprint {
    /// `device`: name of what computes.
    pub(crate) fn of<'t>(
        config: &ModelConfig,
        files: &[SourceFile],
        tensors: impl Iterator<Item = &'t Tensor>,
        options: &EngineOptions,
        device: &str,
    ) -> Self {
        let mut hash = Sha256::new();
        let version = (env!("CARGO_PKG_VERSION"), STATE_VERSION);
        let settings = (version, config, options.kv_cache, options.activations, device);
        hash.update(format!("{settings:?}"));
        for SourceFile { size_bytes, modified, .. } in files {
            hash.update(format!("{size_bytes} {modified:?}"));
        }
        for tensor in tensors {
            hash.update(format!("{:?}", (&tensor.name, &tensor.shape, tensor.format, tensor.convention)));
            match &tensor.data {
                TensorData::Plain(bytes) => sample(&mut hash, bytes),
                TensorData::Affine { codes, scales, biases } => {
                    [codes, scales, biases].into_iter().for_each(|bytes| sample(&mut hash, bytes));
                }
            }
        }
        Self(hash.finalize().into())
    }
}

/// A few bytes of evenly spread places, the first and the last among them.
fn sample(hash: &mut Sha256, bytes: &[u8]) {
    let last = bytes.len().saturating_sub(SAMPLE_BYTES);
    for place in 0..SAMPLES {
        let start = last / (SAMPLES - 1) * place + last % (SAMPLES - 1) * place / (SAMPLES - 1);
        hash.update(&bytes[start..bytes.len().min(start + SAMPLE_BYTES)]);
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_reach_both_ends() {
        let of = |bytes: &[u8]| {
            let mut hash = Sha256::new();
            sample(&mut hash, bytes);
            hash.finalize()
        };
        for len in [0, 1, 31, 32, 33, 257, 1000] {
            let bytes = vec![7; len];
            for place in [0, len.saturating_sub(1), len / 2].into_iter().filter(|&place| place < len.min(224)) {
                let mut other = bytes.clone();
                other[place] = 8;
                assert_ne!(of(&bytes), of(&other), "{len} bytes, {place}");
            }
        }
        let mut end = vec![7; 5000];
        end[4999] = 8;
        assert_ne!(of(&vec![7; 5000]), of(&end));
    }
}
