//! Safetensors files that lie, each with the message its reader gets. Names start with the row of the catalogue of
//! faults that the case comes from.

use std::{fs, path::Path};

use pleach_checkpoint::{Checkpoint, CheckpointError, safetensors::Header};
use serde_json::json;

use crate::{
    builders::{copy_without_weights, safetensors_raw},
    fixture,
};

fn parse(bytes: &[u8]) -> Result<Header, CheckpointError> {
    Header::parse(bytes, bytes.len() as u64, Path::new("m.safetensors"))
}

/// An error and its cause.
fn chain(error: &CheckpointError) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}

/// The error for a file of one header text and `data_len` bytes of data.
fn error(header: &str, data_len: usize) -> String {
    chain(&parse(&safetensors_raw(header, &vec![0; data_len])).unwrap_err())
}

/// A header of one tensor `w`.
fn one(dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
}

const PREFIX: &str = "`m.safetensors` is damaged or not what its name says:";

#[test]
fn a_good_header_is_read() {
    let header = parse(&safetensors_raw(&one("F16", "[2,3]", "[0,12]"), &[0; 12])).unwrap();
    let tensor = &header.tensors[0];
    assert_eq!((tensor.name.as_str(), tensor.shape.as_slice(), tensor.end - tensor.begin), ("w", &[2, 3][..], 12));
}

#[test]
fn sf_01_shape_and_offsets_that_disagree() {
    assert_eq!(
        error(&one("F32", "[1000,1000]", "[0,4]"), 4),
        format!(
            "{PREFIX} the byte count of tensor `w` is 4, expected the 4000000 bytes of F32 elements of shape [1000, 1000]"
        )
    );
    assert_eq!(
        error(&one("F32", "[1]", "[0,4000]"), 4000),
        format!("{PREFIX} the byte count of tensor `w` is 4000, expected the 4 bytes of F32 elements of shape [1]")
    );
    assert_eq!(
        error(&one("F32", "[4294967296,4294967296]", "[0,4]"), 4),
        format!(
            "{PREFIX} the byte count of tensor `w` is 4, expected the more than 2^64 bytes of F32 elements of shape [4294967296, 4294967296]"
        )
    );
}

#[test]
fn sf_01_shapes_that_are_none() {
    for shape in ["[0]", "[-1]", "[1.5]", "[18446744073709551616]"] {
        let error = error(&one("F32", shape, "[0,4]"), 4);
        assert!(
            error.contains("the shape of tensor `w` is [")
                && error.ends_with("expected at most 8 whole numbers from 1 on"),
            "{error}"
        );
    }
    let long = format!("[{}]", vec!["1"; 100_000].join(","));
    assert_eq!(
        error(&one("F32", &long, "[0,4]"), 4),
        format!(
            "{PREFIX} the shape of tensor `w` is [1, 1, 1, 1, 1, 1, 1, 1, ... 99992 more], expected at most 8 whole numbers from 1 on"
        )
    );
}

#[test]
fn sf_03_header_lengths() {
    let with_length =
        |length: u64| [&length.to_le_bytes()[..], &one("F32", "[1]", "[0,4]").into_bytes(), &[0; 4]].concat();
    let file_len = with_length(0).len() as u64;
    for length in [0, 1, u64::MAX, 1 << 63, 100_000_001] {
        assert_eq!(
            chain(&parse(&with_length(length)).unwrap_err()),
            format!("{PREFIX} the header's length is {length}, expected a number from 2 to 100000000")
        );
    }
    for length in [file_len, file_len + 1, file_len - 7] {
        assert_eq!(
            chain(&parse(&with_length(length)).unwrap_err()),
            format!(
                "`m.safetensors` ends inside the header: {length} bytes are announced at byte 8, {} are left; the download is probably incomplete, fetch it again",
                file_len - 8
            )
        );
    }
    let cut = chain(&parse(&with_length(7)).unwrap_err());
    assert!(cut.starts_with("`m.safetensors` is not the JSON expected there: tensor `w`: EOF while parsing"), "{cut}");
    assert_eq!(
        chain(&parse(&[1, 2, 3]).unwrap_err()),
        "`m.safetensors` ends inside the header's length: 8 bytes are announced at byte 0, 3 are left; the download is probably incomplete, fetch it again"
    );
}

#[test]
fn sf_05_offsets_that_are_none() {
    for (offsets, shown) in [
        ("[]", "[]"),
        ("[5]", "[5]"),
        ("[9,3]", "[9, 3]"),
        ("[-1,4]", "[-1, 4]"),
        ("[0,4,8]", "[0, 4, 8]"),
        ("[0,5]", "[0, 5]"),
        ("[0.0,4.0]", "[0.0, 4.0]"),
        ("[0,18446744073709551615]", "[0, 18446744073709551615]"),
    ] {
        assert_eq!(
            error(&one("F32", "[1]", offsets), 4),
            format!("{PREFIX} the data_offsets of tensor `w` is {shown}, expected [begin, end] with begin <= end <= 4")
        );
    }
    assert!(
        error(&one("F32", "[1]", "5"), 4).contains("tensor `w`: invalid type: integer `5`, expected a list of numbers")
    );
}

#[test]
fn sf_05_ranges_that_overlap_or_leave_holes() {
    let two = |first: &str, second: &str| {
        format!(
            r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":{first}}},"b":{{"dtype":"U8","shape":[4],"data_offsets":{second}}}}}"#
        )
    };
    let begin = 8 + two("[0,4]", "[2,6]").len();
    assert_eq!(
        error(&two("[0,4]", "[2,6]"), 6),
        format!(
            "{PREFIX} the first byte of tensor `b` is {}, expected {}, where the tensor before it ends",
            begin + 2,
            begin + 4
        )
    );
    assert_eq!(
        error(&two("[0,4]", "[5,9]"), 9),
        format!(
            "{PREFIX} the first byte of tensor `b` is {}, expected {}, where the tensor before it ends",
            begin + 5,
            begin + 4
        )
    );
    assert_eq!(
        error(&two("[0,4]", "[4,8]"), 9),
        format!("{PREFIX} the end of the last tensor is {}, expected {}, the end of the file", begin + 8, begin + 9)
    );
}

#[test]
fn sf_05_a_name_used_twice() {
    let header =
        r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#;
    assert_eq!(error(header, 8), "tensor `a` occurs twice in `m.safetensors`: the file is damaged");
}

#[test]
fn sf_05_types_and_texts_that_are_none() {
    assert!(error(&one("F33", "[1]", "[0,4]"), 4).contains("tensor `w`: unknown variant `F33`"));
    assert!(error("[1,2]", 0).contains("invalid type: sequence, expected an object of tensors"));
    assert!(error(&"[".repeat(100_000), 0).contains("`m.safetensors` is not the JSON expected there"));
    assert!(error(r#"{"w":{"dtype":"F32","shape":[1]}}"#, 4).contains("tensor `w`: missing field `data_offsets`"));
}

/// tiny-llama in two shards with an index that `edit` changes; the error without the folder's path.
fn sharded(edit: impl FnOnce(&mut serde_json::Value)) -> Result<Checkpoint, String> {
    let dir = tempfile::tempdir().unwrap();
    copy_without_weights(&fixture("tiny-llama"), dir.path());
    let bytes = fs::read(fixture("tiny-llama/model.safetensors")).unwrap();
    let header = Header::parse(&bytes, bytes.len() as u64, Path::new("")).unwrap();
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let mut weight_map = serde_json::Map::new();
    for (tensors, shard) in header.tensors.chunks(20).zip(shards) {
        let mut data = Vec::new();
        let mut entries = serde_json::Map::new();
        for tensor in tensors {
            let begin = data.len();
            data.extend(&bytes[tensor.begin..tensor.end]);
            let entry = json!({"dtype": "BF16", "shape": tensor.shape, "data_offsets": [begin, data.len()]});
            entries.insert(tensor.name.clone(), entry);
            weight_map.insert(tensor.name.clone(), json!(shard));
        }
        fs::write(dir.path().join(shard), safetensors_raw(&serde_json::Value::Object(entries).to_string(), &data))
            .unwrap();
    }
    let mut index = json!({"metadata": {}, "weight_map": weight_map});
    edit(&mut index);
    if !index.is_null() {
        fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    }
    let place = format!("{}/", dir.path().display());
    let whole = dir.path().display().to_string();
    Checkpoint::open(dir.path()).map_err(|error| chain(&error).replace(&place, "").replace(&whole, "DIR"))
}

#[test]
fn shards_open_through_their_index() {
    let checkpoint = sharded(|_| {}).unwrap();
    assert_eq!(checkpoint.tensors.len(), 2 + 4 * 9);
    assert!(checkpoint.skipped.is_empty());
}

#[test]
fn an_index_cannot_leave_its_folder() {
    for shard in ["../model.safetensors", "/etc/passwd", "a/../../b", "..", "", "a\\b"] {
        assert_eq!(
            sharded(|index| index["weight_map"]["model.norm.weight"] = json!(shard)).unwrap_err(),
            format!(
                "`weight_map.model.norm.weight` in `model.safetensors.index.json` is \"{shard}\", expected the name of a file in the same folder"
            )
        );
    }
}

#[test]
fn an_index_and_its_shards_must_agree() {
    let error = sharded(|index| index["weight_map"]["model.norm.weight"] = json!("model-00003-of-00003.safetensors"));
    assert!(error.unwrap_err().starts_with("cannot read `model-00003-of-00003.safetensors`"));
    assert_eq!(
        sharded(|index| index["weight_map"]["lm_head.weight"] = json!("model-00001-of-00002.safetensors")).unwrap_err(),
        "`model-00001-of-00002.safetensors` is damaged or not what its name says: tensor `lm_head.weight`, which `model.safetensors.index.json` places there, is absent, expected present; index and shards are of different models"
    );
    assert_eq!(
        sharded(|index| *index = serde_json::Value::Null).unwrap_err(),
        "`DIR` holds several weight files and nothing that joins them (`model-00001-of-00002.safetensors`, `model-00002-of-00002.safetensors`): several safetensors files need `model.safetensors.index.json` beside them"
    );
}
