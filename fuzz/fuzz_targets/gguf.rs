//! Any bytes as a GGUF header: an error or a header whose every range lies inside the file.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use pleach_checkpoint::gguf::{Header, Value};

fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = Header::parse(bytes, bytes.len() as u64, Path::new("fuzz.gguf")) else { return };
    for tensor in &header.tensors {
        assert!(tensor.begin < tensor.end && tensor.end <= bytes.len());
        assert_eq!(tensor.format.size_bytes(&tensor.shape), Some(tensor.end - tensor.begin));
    }
    for value in header.metadata.values() {
        if let Value::Array(array) = value {
            assert_eq!(array.iter().count(), array.len);
        }
    }
});
