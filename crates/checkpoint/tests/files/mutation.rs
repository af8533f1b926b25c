//! Random damage: whatever the bytes, opening returns, soon, and without a panic.

use std::{fs, path::Path, time::Instant};

use pleach_checkpoint::{Checkpoint, DrafterCheckpoint, DrafterConfig, ModelConfig, gguf, safetensors};
use proptest::prelude::*;

use crate::{builders::Gguf, fixture, mirai_drafter};

/// One change of a file's bytes.
#[derive(Debug, Clone)]
enum Mutation {
    Truncate(usize),
    Flip {
        at: usize,
        mask: u8,
    },
    /// Overwrites eight bytes, as a length would be.
    Enlarge {
        at: usize,
        length: u64,
    },
    Remove {
        at: usize,
        len: usize,
    },
    Repeat {
        at: usize,
        len: usize,
    },
}

impl Mutation {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let place = |at: usize, bytes: &[u8]| at % bytes.len().max(1);
        match *self {
            Self::Truncate(len) => bytes.truncate(place(len, bytes)),
            Self::Flip { at, mask } => {
                let at = place(at, bytes);
                bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= mask);
            }
            Self::Enlarge { at, length } => {
                let at = place(at, bytes);
                bytes.iter_mut().skip(at).zip(length.to_le_bytes()).for_each(|(byte, new)| *byte = new);
            }
            Self::Remove { at, len } => {
                let at = place(at, bytes);
                bytes.drain(at..(at + len).min(bytes.len()));
            }
            Self::Repeat { at, len } => {
                let at = place(at, bytes);
                let copy = bytes[at..(at + len).min(bytes.len())].to_vec();
                bytes.splice(at..at, copy);
            }
        }
    }
}

/// Changes inside the first `header_len` bytes, where every byte means something.
fn mutations(header_len: usize) -> impl Strategy<Value = Vec<Mutation>> {
    let at = 0..header_len;
    let length = prop_oneof![any::<u64>(), (0u32..64).prop_map(|shift| 1u64 << shift), 0u64..300];
    let one = prop_oneof![
        at.clone().prop_map(Mutation::Truncate),
        (at.clone(), any::<u8>()).prop_map(|(at, mask)| Mutation::Flip { at, mask }),
        (at.clone(), length).prop_map(|(at, length)| Mutation::Enlarge { at, length }),
        (at.clone(), 1usize..40).prop_map(|(at, len)| Mutation::Remove { at, len }),
        (at, 1usize..40).prop_map(|(at, len)| Mutation::Repeat { at, len }),
    ];
    proptest::collection::vec(one, 1..4)
}

fn damaged(mut bytes: Vec<u8>, mutations: &[Mutation]) -> Vec<u8> {
    mutations.iter().for_each(|mutation| mutation.apply(&mut bytes));
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_damaged_gguf_returns(mutations in mutations(1200)) {
        let bytes = damaged(Gguf::llama().build(), &mutations);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        fs::write(&path, bytes).unwrap();
        let started = Instant::now();
        let _ = Checkpoint::open(&path);
        prop_assert!(started.elapsed().as_secs() < 2);
    }

    #[test]
    fn a_damaged_safetensors_header_returns(mutations in mutations(4000)) {
        let bytes = damaged(fs::read(fixture("tiny-llama/model.safetensors")).unwrap(), &mutations);
        let started = Instant::now();
        let _ = safetensors::Header::parse(&bytes, bytes.len() as u64, Path::new("m.safetensors"));
        prop_assert!(started.elapsed().as_secs() < 2);
    }

    #[test]
    fn a_damaged_config_returns(mutations in mutations(1800)) {
        let bytes = damaged(fs::read(fixture("tiny-qwen35/config.json")).unwrap(), &mutations);
        let _ = ModelConfig::from_json(&bytes, Path::new("config.json"));
    }

    #[test]
    fn a_damaged_config_of_a_drafter_returns(mutations in mutations(900)) {
        let z_lab = fixture("../models/smollm2-135m-instruct-drafter/config.json");
        for bytes in [fs::read(z_lab).unwrap(), mirai_drafter::config().to_string().into_bytes()] {
            let _ = DrafterConfig::from_json(&damaged(bytes, &mutations), Path::new("config.json"));
        }
    }

    #[test]
    fn a_damaged_drafter_returns(mutations in mutations(2500)) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.json"), mirai_drafter::config().to_string()).unwrap();
        fs::write(dir.path().join("model.safetensors"), damaged(mirai_drafter::quantized_file(), &mutations)).unwrap();
        let _ = DrafterCheckpoint::open(dir.path());
    }

    #[test]
    fn any_bytes_return(bytes in proptest::collection::vec(any::<u8>(), 0..300), version in 1u32..5) {
        let _ = safetensors::Header::parse(&bytes, bytes.len() as u64, Path::new("m"));
        let _ = gguf::Header::parse(&bytes, bytes.len() as u64, Path::new("m"));
        let with_magic = [b"GGUF", &version.to_le_bytes()[..], &bytes].concat();
        let _ = gguf::Header::parse(&with_magic, with_magic.len() as u64, Path::new("m"));
    }
}

/// A header whose tensors all fit is accepted only with every range inside the file.
#[test]
fn every_single_byte_flip_of_a_gguf_header_is_survived() {
    let bytes = Gguf::llama().build();
    for at in 0..Gguf::llama().header().len() {
        for mask in [0x01, 0x80, 0xff] {
            let mut bytes = bytes.clone();
            bytes[at] ^= mask;
            if let Ok(header) = gguf::Header::parse(&bytes, bytes.len() as u64, Path::new("m.gguf")) {
                assert!(header.tensors.iter().all(|tensor| tensor.begin < tensor.end && tensor.end <= bytes.len()));
            }
        }
    }
}
