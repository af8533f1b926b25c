//! Golden values from `fixtures/`.

use std::path::Path;

use safetensors::{Dtype, SafeTensors};

/// One file of golden values.
pub(crate) struct Fixture {
    name: String,
    bytes: Vec<u8>,
}

impl Fixture {
    pub(crate) fn open(name: &str) -> Self {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).join(name);
        let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { name: name.to_owned(), bytes }
    }

    pub(crate) fn f32(&self, tensor: &str) -> Vec<f32> {
        self.elements(tensor, Dtype::F32, f32::from_le_bytes)
    }

    pub(crate) fn i32(&self, tensor: &str) -> Vec<i32> {
        self.elements(tensor, Dtype::I32, i32::from_le_bytes)
    }

    pub(crate) fn u8(&self, tensor: &str) -> Vec<u8> {
        self.elements(tensor, Dtype::U8, u8::from_le_bytes)
    }

    pub(crate) fn i8(&self, tensor: &str) -> Vec<i8> {
        self.elements(tensor, Dtype::I8, i8::from_le_bytes)
    }

    pub(crate) fn f64(&self, tensor: &str) -> Vec<f64> {
        super::wide(&self.f32(tensor))
    }

    pub(crate) fn shape(&self, tensor: &str) -> Vec<usize> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        file.tensor(tensor).unwrap_or_else(|error| panic!("{}: {tensor}: {error}", self.name)).shape().to_vec()
    }

    pub(crate) fn has(&self, tensor: &str) -> bool {
        SafeTensors::deserialize(&self.bytes).unwrap().tensor(tensor).is_ok()
    }

    fn elements<T, const N: usize>(&self, tensor: &str, dtype: Dtype, convert: impl Fn([u8; N]) -> T) -> Vec<T> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let view = file.tensor(tensor).unwrap_or_else(|error| panic!("{}: {tensor}: {error}", self.name));
        assert_eq!(view.dtype(), dtype, "{}: {tensor}", self.name);
        let (elements, _) = view.data().as_chunks::<N>();
        elements.iter().map(|&bytes| convert(bytes)).collect()
    }
}
