//! Any bytes as a safetensors header: an error or a header whose ranges cover the file exactly.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use pleach_checkpoint::safetensors::Header;

fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = Header::parse(bytes, bytes.len() as u64, Path::new("fuzz.safetensors")) else { return };
    for pair in header.tensors.windows(2) {
        assert_eq!(pair[0].end, pair[1].begin);
    }
    for tensor in &header.tensors {
        let elements: usize = tensor.shape.iter().product();
        assert_eq!(elements * tensor.dtype.size_bytes(), tensor.end - tensor.begin);
    }
    assert!(header.tensors.last().is_none_or(|last| last.end == bytes.len()));
});
