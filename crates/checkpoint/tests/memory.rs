//! A small file cannot make the readers reserve much memory, whatever it announces. Alone in its program, so that the
//! process's peak is this test's.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "all of this is test code; the lint's own exception covers only test functions")]

use std::path::Path;

use pleach_checkpoint::{gguf, safetensors};

/// The most address space that this process ever had, in KiB. Reserved memory counts even if it was never touched.
fn peak_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A GGUF header with one metadata entry: an array of `element`s that announces `len` of them.
fn gguf_array(element: u32, len: u64) -> Vec<u8> {
    let mut bytes = [&b"GGUF"[..], &3u32.to_le_bytes(), &0u64.to_le_bytes(), &1u64.to_le_bytes()].concat();
    bytes.extend(
        [&1u64.to_le_bytes()[..], b"k", &9u32.to_le_bytes(), &element.to_le_bytes(), &len.to_le_bytes()].concat(),
    );
    bytes.resize(100, 0);
    bytes
}

fn parse_all() {
    for shift in 0..64 {
        let huge = 1u64 << shift;
        for element in 0..13 {
            let bytes = gguf_array(element, huge);
            let _ = gguf::Header::parse(&bytes, bytes.len() as u64, Path::new("m.gguf"));
        }
        let mut counts = gguf_array(0, 1);
        counts[8..16].copy_from_slice(&huge.to_le_bytes());
        let _ = gguf::Header::parse(&counts, counts.len() as u64, Path::new("m.gguf"));
        counts[16..24].copy_from_slice(&huge.to_le_bytes());
        let _ = gguf::Header::parse(&counts, counts.len() as u64, Path::new("m.gguf"));
        let header = format!(r#"{{"w":{{"dtype":"U8","shape":[{huge}],"data_offsets":[0,{huge}]}}}}"#);
        for length in [header.len() as u64, huge] {
            let bytes = [&length.to_le_bytes()[..], header.as_bytes()].concat();
            let _ = safetensors::Header::parse(&bytes, bytes.len() as u64, Path::new("m.safetensors"));
        }
    }
}

#[test]
fn gg_01_memory_does_not_follow_announced_lengths() {
    parse_all();
    let before = peak_kib();
    parse_all();
    let grown = peak_kib() - before;
    assert!(grown < 4 * 1024, "grew by {grown} KiB");
    // The first round, which also sets up the allocator, must have stayed small too: no single length was believed.
    assert!(before < 1024 * 1024, "peak of {before} KiB");
}
