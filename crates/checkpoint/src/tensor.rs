//! A tensor as the files hold it, under its canonical name.

use std::ops::Range;

use bytes::Bytes;
use indexmap::IndexMap;

use crate::{CheckpointError, TensorFormat, map::Mapping};

/// One tensor of the model: its bytes as stored, and what is needed to read them.
///
/// Bytes are slices of file mappings: nothing is copied, and nothing is read from the disk until it is touched. They are
/// little endian and may start at any byte, so readers that need alignment check it (`bytemuck::try_cast_slice`) and
/// copy otherwise.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// The canonical name: the Hugging Face spelling without the wrapper's prefix (see `docs/formats.md`).
    pub name: String,
    /// The name in the file; for one expert of a fused tensor, the fused tensor's name.
    pub source_name: String,
    /// Row-major shape; a linear layer's weight is `[out, in]`. Axes are those of the canonical layout: `conv1d` is
    /// `[channels, kernel]` and a shared expert's gate `[1, hidden_size]` however many axes of length one the file has.
    pub shape: Vec<usize>,
    /// The format of the elements.
    pub format: TensorFormat,
    /// The stored bytes.
    pub data: TensorData,
    /// What to do to the stored values before use.
    pub convention: Convention,
}

/// The bytes of a tensor.
#[derive(Debug, Clone)]
pub enum TensorData {
    /// One run of bytes in the tensor's format.
    Plain(Bytes),
    /// MLX's three arrays; see [`TensorFormat::Affine`].
    Affine {
        /// Packed codes: `[out, in * bits / 32]` 32-bit words.
        codes: Bytes,
        /// `[out, in / group_size]`, in the format's `scales`.
        scales: Bytes,
        /// As `scales`.
        biases: Bytes,
    },
}

/// How stored values relate to the values that the formulas use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Convention {
    /// The stored values are the values.
    AsIs,
    /// A norm stored around zero: the weight is `1 + stored`.
    ZeroCenteredNorm,
    /// The logarithm of a decay rate (`A_log`): the rate is `-exp(stored)`.
    NegExpLog,
}

impl Tensor {
    /// Number of elements.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes in the file, scales and biases included.
    pub fn size_bytes(&self) -> usize {
        self.data.size_bytes()
    }
}

impl TensorData {
    /// Bytes in the file, scales and biases included.
    pub fn size_bytes(&self) -> usize {
        match self {
            Self::Plain(bytes) => bytes.len(),
            Self::Affine { codes, scales, biases } => codes.len() + scales.len() + biases.len(),
        }
    }

    /// The part `index` of `count` equal parts along the first axis; shares the bytes.
    ///
    /// The caller has checked that the first axis is a multiple of `count` and that `index < count`.
    pub(crate) fn part(&self, index: usize, count: usize) -> Self {
        self.rows(index..index + 1, count)
    }

    /// The rows of a matrix of `count`; shares the bytes.
    ///
    /// The caller has checked that the first axis is a multiple of `count` and that the rows are among them.
    pub(crate) fn rows(&self, rows: Range<usize>, count: usize) -> Self {
        let cut = |bytes: &Bytes| {
            let stride = bytes.len() / count;
            bytes.slice(rows.start * stride..rows.end * stride)
        };
        match self {
            Self::Plain(bytes) => Self::Plain(cut(bytes)),
            Self::Affine { codes, scales, biases } => {
                Self::Affine { codes: cut(codes), scales: cut(scales), biases: cut(biases) }
            }
        }
    }
}

/// The tensors of a checkpoint, handed out once each.
///
/// Taking by name lets the reader prove that it used everything: after loading, [`remaining`](Self::remaining) is empty.
#[derive(Debug, Default)]
pub struct TensorMap {
    tensors: IndexMap<String, Tensor>,
    /// What the tensors' bytes are part of.
    mappings: Vec<Mapping>,
}

impl TensorMap {
    /// Takes the tensor called `name` out of the map.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::NoSuchTensor`] where the map has none of that name, or no longer has it. An opened checkpoint
    /// holds every tensor that its config asks for, so this is a reader that asks for more than the config does.
    pub fn take(&mut self, name: &str) -> Result<Tensor, CheckpointError> {
        self.take_optional(name).ok_or_else(|| CheckpointError::NoSuchTensor { name: name.to_owned() })
    }

    /// Takes the tensor called `name` out of the map, if it is there.
    pub fn take_optional(&mut self, name: &str) -> Option<Tensor> {
        self.tensors.swap_remove(name)
    }

    /// The tensor called `name`, left in the map.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// The tensors not taken yet; in the order of the model until the first is taken.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.tensors.values()
    }

    /// The canonical names of the tensors not taken yet.
    pub fn remaining(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Lets go of the memory of a tensor that was taken out of this map, once its bytes were copied elsewhere.
    ///
    /// The bytes stay readable: whoever touches them again has the system bring them back from the file.
    pub fn release(&self, tensor: &Tensor) {
        let parts: [&[u8]; 3] = match &tensor.data {
            TensorData::Plain(bytes) => [bytes, &[], &[]],
            TensorData::Affine { codes, scales, biases } => [codes, scales, biases],
        };
        for mapping in &self.mappings {
            parts.iter().for_each(|part| mapping.release(part));
        }
    }

    /// Number of tensors not taken yet.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether every tensor was taken.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The map with what its tensors' bytes are part of.
    pub(crate) fn with_mappings(mut self, mappings: impl IntoIterator<Item = Mapping>) -> Self {
        self.mappings.extend(mappings);
        self
    }

    /// Adds a tensor under its name. Names come from the table of expected tensors, which lists each once.
    pub(crate) fn insert(&mut self, tensor: Tensor) {
        self.tensors.insert(tensor.name.clone(), tensor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str) -> Tensor {
        Tensor {
            name: name.to_owned(),
            source_name: name.to_owned(),
            shape: vec![4, 1],
            format: TensorFormat::F16,
            data: TensorData::Plain(Bytes::from_static(&[0, 1, 2, 3, 4, 5, 6, 7])),
            convention: Convention::AsIs,
        }
    }

    #[test]
    fn a_tensor_is_handed_out_once() {
        let mut map = TensorMap::default();
        map.insert(tensor("norm.weight"));
        assert_eq!(map.take("norm.weight").unwrap().num_elements(), 4);
        assert!(map.is_empty());
        assert_eq!(
            map.take("norm.weight").unwrap_err().to_string(),
            "tensor `norm.weight` is not in the checkpoint, or was taken before"
        );
    }

    #[test]
    fn a_part_shares_the_bytes() {
        let TensorData::Plain(half) = tensor("x").data.part(1, 2) else { panic!("plain stays plain") };
        assert_eq!(&half[..], [4, 5, 6, 7]);
    }
}
