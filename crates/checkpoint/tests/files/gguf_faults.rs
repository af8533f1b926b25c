//! GGUF files that lie, each with the message its reader gets. Names start with the row of the catalogue of faults that
//! the case comes from.

use std::{fs, path::Path, time::Instant};

use pleach_checkpoint::{Checkpoint, gguf::Header};

use crate::builders::{Gguf, array_value, f32_value, string, string_value, u32_value};

/// The error that a file's bytes give, and that it comes at once.
fn parse_error(bytes: &[u8]) -> String {
    let started = Instant::now();
    let error = Header::parse(bytes, bytes.len() as u64, Path::new("m.gguf")).unwrap_err().to_string();
    assert!(started.elapsed().as_millis() < 100, "{error}");
    error
}

/// The error that opening a file gives, without the folder's path.
fn open_error(gguf: &Gguf) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    fs::write(&path, gguf.build()).unwrap();
    Checkpoint::open(&path).unwrap_err().to_string().replace(&format!("{}/", dir.path().display()), "")
}

/// The error after a change of a good file.
fn open_error_after(change: impl FnOnce(&mut Gguf)) -> String {
    let mut gguf = Gguf::llama();
    change(&mut gguf);
    open_error(&gguf)
}

const HUGE: [u64; 4] = [1 << 31, 1 << 62, 1 << 63, u64::MAX];

#[test]
fn gg_01_huge_counts_are_refused_by_the_bytes_left() {
    for huge in HUGE {
        let gguf = Gguf { num_pairs: Some(huge), ..Gguf::empty() };
        let needed = huge.saturating_mul(13);
        assert_eq!(
            parse_error(&gguf.header()),
            format!(
                "`m.gguf` ends inside the {huge} metadata entries: {needed} bytes are announced at byte 24, 0 are left; the download is probably incomplete, fetch it again"
            )
        );
        let gguf = Gguf { num_tensors: Some(huge), ..Gguf::empty() };
        let needed = huge.saturating_mul(32);
        assert_eq!(
            parse_error(&gguf.header()),
            format!(
                "`m.gguf` ends inside the {huge} tensor infos: {needed} bytes are announced at byte 24, 0 are left; the download is probably incomplete, fetch it again"
            )
        );
    }
}

#[test]
fn gg_01_a_huge_key_is_refused_by_the_bytes_left() {
    for huge in HUGE {
        let mut bytes = Gguf { num_pairs: Some(1), ..Gguf::empty() }.header();
        bytes.extend(huge.to_le_bytes());
        bytes.extend([0; 60]);
        assert_eq!(
            parse_error(&bytes),
            format!(
                "`m.gguf` ends inside metadata key 0: {huge} bytes are announced at byte 32, 60 are left; the download is probably incomplete, fetch it again"
            )
        );
    }
}

#[test]
fn gg_01_a_huge_string_is_refused_by_the_bytes_left() {
    for huge in HUGE {
        let mut gguf = Gguf::empty();
        gguf.set("k", [&8u32.to_le_bytes()[..], &huge.to_le_bytes(), b"abc"].concat());
        assert_eq!(
            parse_error(&gguf.header()),
            format!(
                "`m.gguf` ends inside the value of `k`: {huge} bytes are announced at byte 45, 3 are left; the download is probably incomplete, fetch it again"
            )
        );
    }
}

#[test]
fn gg_03_a_huge_array_neither_loops_nor_grows() {
    for huge in HUGE {
        for (element, least) in [(0, 1), (4, 4), (7, 1), (8, 8), (12, 8)] {
            let mut gguf = Gguf::empty();
            gguf.set("k", array_value(element, huge, b"abc"));
            let needed = huge.saturating_mul(least);
            assert_eq!(
                parse_error(&gguf.header()),
                format!(
                    "`m.gguf` ends inside the array `k` of {huge} elements: {needed} bytes are announced at byte 49, 3 are left; the download is probably incomplete, fetch it again"
                )
            );
        }
    }
}

#[test]
fn gg_03_nested_arrays_are_refused() {
    let mut gguf = Gguf::empty();
    gguf.set("k", array_value(9, 1, &array_value(9, u64::MAX, b"")));
    assert_eq!(
        parse_error(&gguf.header()),
        "`m.gguf` is damaged or not what its name says: the element type of the array `k` is an array, expected numbers, bools or strings"
    );
}

#[test]
fn gg_05_ranks_past_four_are_an_error_in_every_build() {
    for rank in [0, 5, 9, 255, u32::MAX] {
        let mut gguf = Gguf::llama();
        gguf.at("output_norm.weight").rank = Some(rank);
        assert_eq!(
            parse_error(&gguf.build()),
            format!(
                "`m.gguf` is damaged or not what its name says: the rank of tensor `output_norm.weight` is {rank}, expected a number from 1 to 4"
            )
        );
    }
}

#[test]
fn gg_07_an_empty_file_lacks_its_architecture() {
    assert_eq!(
        open_error(&Gguf::empty()),
        "`m.gguf` has no `general.architecture`, and guessing it would give a different model: take the file from the model's own repository"
    );
}

#[test]
fn gg_07_other_architectures_are_named_with_the_supported_ones() {
    assert_eq!(
        open_error_after(|gguf| gguf.set("general.architecture", string_value("gemma3"))),
        "`m.gguf` holds a `gemma3` model, which is not supported: supported are llama, qwen3, qwen35, qwen35moe"
    );
}

#[test]
fn gg_07_zero_sizes_are_refused_by_key() {
    for (key, most) in [
        ("block_count", 1024),
        ("attention.head_count", 4096),
        ("embedding_length", 1 << 20),
        ("feed_forward_length", 1 << 20),
        ("context_length", 1 << 30),
    ] {
        let key = format!("llama.{key}");
        assert_eq!(
            open_error_after(|gguf| gguf.set(&key, u32_value(0))),
            format!("`{key}` in `m.gguf` is 0, expected a whole number from 1 to {most}")
        );
        assert_eq!(
            open_error_after(|gguf| gguf.remove(&key)),
            format!(
                "`m.gguf` has no `{key}`, and guessing it would give a different model: take the file from the model's own repository"
            )
        );
    }
}

#[test]
fn gg_07_no_vocabulary_is_refused() {
    assert_eq!(
        open_error_after(|gguf| gguf.tensors.clear()),
        "`m.gguf` has no `llama.vocab_size`, and guessing it would give a different model: take the file from the model's own repository"
    );
    assert_eq!(
        open_error_after(|gguf| gguf.set("tokenizer.ggml.tokens", array_value(8, 0, b""))),
        "`tokenizer.ggml.tokens` in `m.gguf` is an array of 0 String, expected from 1 to the 2 rows of the embedding"
    );
    assert_eq!(
        open_error_after(|gguf| gguf.set("tokenizer.ggml.tokens", array_value(8, 3, &string("a").repeat(3)))),
        "`tokenizer.ggml.tokens` in `m.gguf` is an array of 3 String, expected from 1 to the 2 rows of the embedding"
    );
}

#[test]
fn gg_07_sizes_that_do_not_go_together_are_refused() {
    assert_eq!(
        open_error_after(|gguf| {
            gguf.set("llama.attention.head_count", u32_value(4));
            gguf.set("llama.attention.head_count_kv", u32_value(3));
        }),
        "`llama.attention.head_count_kv` in `m.gguf` is 3, expected a divisor of the 4 heads of `llama.attention.head_count`"
    );
    assert_eq!(
        open_error_after(|gguf| gguf.set("llama.attention.head_count", u32_value(5))),
        "`llama.attention.head_count` in `m.gguf` is 5, expected a divisor of the embedding length 32"
    );
    for rotary in [3, 34] {
        assert_eq!(
            open_error_after(|gguf| gguf.set("llama.rope.dimension_count", u32_value(rotary))),
            format!(
                "`llama.rope.dimension_count` in `m.gguf` is {rotary}, expected an even number from 2 to the head size 32"
            )
        );
    }
}

#[test]
fn gg_07_theta_is_never_guessed() {
    assert_eq!(
        open_error_after(|gguf| gguf.remove("llama.rope.freq_base")),
        "`m.gguf` has no `llama.rope.freq_base`, and guessing it would give a different model: take the file from the model's own repository"
    );
    for theta in [0.0, f32::NAN, f32::INFINITY] {
        assert_eq!(
            open_error_after(|gguf| gguf.set("llama.rope.freq_base", f32_value(theta))),
            format!("`llama.rope.freq_base` in `m.gguf` is {theta:?}, expected a number from 1.0 to 1000000000000.0")
        );
    }
    assert_eq!(
        open_error_after(|gguf| gguf.set("llama.rope.scaling.type", string_value("yarn"))),
        "`llama.rope.scaling.type` in `m.gguf` is \"yarn\", expected \"none\" or \"linear\""
    );
}

#[test]
fn gg_07_a_mixture_under_a_dense_name_is_refused() {
    assert_eq!(
        open_error_after(|gguf| gguf.set("llama.expert_count", u32_value(8))),
        "`llama.expert_count` in `m.gguf` is 8, expected 0: only `qwen35moe` has experts here"
    );
}

#[test]
fn gg_09_every_cut_of_the_header_is_an_error() {
    let mut gguf = Gguf::llama();
    gguf.set("k.array", array_value(5, 3, &[7; 12]));
    let header = gguf.header();
    for cut in 0..header.len() {
        let error = parse_error(&header[..cut]);
        assert!(error.starts_with("`m.gguf` ends inside "), "cut at {cut}: {error}");
    }
}

#[test]
fn gg_09_every_cut_of_the_data_is_an_error() {
    let bytes = Gguf::llama().build();
    let header_len = Gguf::llama().header().len();
    for cut in (header_len..bytes.len()).step_by(97) {
        let error = parse_error(&bytes[..cut]);
        assert!(error.contains("ends inside tensor `"), "cut at {cut}: {error}");
    }
    assert_eq!(
        parse_error(&bytes[..bytes.len() - 1]),
        format!(
            "`m.gguf` ends inside tensor `blk.0.ffn_down.weight`: 8192 bytes are announced at byte {}, 8191 are left; the download is probably incomplete, fetch it again",
            bytes.len() - 8192
        )
    );
}

#[test]
fn gg_11_magic_versions_and_byte_order() {
    let bytes_with = |version: u32| Gguf { version, ..Gguf::llama() }.build();
    let prefix = "`m.gguf` is damaged or not what its name says:";
    assert_eq!(
        parse_error(&bytes_with(1)),
        format!("{prefix} the version is 1, which is obsolete, expected 2 or 3; convert the model again")
    );
    assert_eq!(
        parse_error(&bytes_with(3u32.swap_bytes())),
        format!("{prefix} the version is big-endian, expected 2 or 3 in a little-endian file; convert the model again")
    );
    assert_eq!(parse_error(&bytes_with(4)), format!("{prefix} the version is 4, expected 2 or 3"));
    assert_eq!(parse_error(b"<html>404"), format!("{prefix} the magic is `<htm`, expected `GGUF`"));
}

#[test]
fn gg_11_types_of_values_and_tensors() {
    let prefix = "`m.gguf` is damaged or not what its name says:";
    let mut gguf = Gguf::empty();
    gguf.set("k", vec![13, 0, 0, 0, 0]);
    assert_eq!(
        parse_error(&gguf.header()),
        format!("{prefix} the value type of `k` is 13, expected a number from 0 to 12")
    );
    gguf.set("k", vec![7, 0, 0, 0, 2]);
    assert_eq!(
        parse_error(&gguf.header()),
        format!("{prefix} the value of `k` is the byte 2, expected 0 or 1 for a bool")
    );
    let advice =
        "take a file in F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL or IQ4_XS";
    for (type_id, name) in [(16, "IQ2_XXS"), (39, "MXFP4"), (u32::MAX, "type 4294967295")] {
        let mut gguf = Gguf::llama();
        gguf.at("blk.0.attn_q.weight").type_id = type_id;
        assert_eq!(
            parse_error(&gguf.build()),
            format!("tensor `blk.0.attn_q.weight` in `m.gguf` is stored as {name}, which is not supported: {advice}")
        );
    }
}

#[test]
fn gg_11_sizes_that_overflow_or_cut_a_block() {
    let prefix = "`m.gguf` is damaged or not what its name says:";
    let mut gguf = Gguf::llama();
    gguf.at("blk.0.attn_q.weight").axes = vec![1 << 40, 1 << 40];
    assert_eq!(
        parse_error(&gguf.build()),
        format!(
            "{prefix} the shape of tensor `blk.0.attn_q.weight` is [1099511627776, 1099511627776], expected rows of whole F32 blocks of 1, less than 2^64 bytes in all"
        )
    );
    let mut gguf = Gguf::llama();
    gguf.at("blk.0.attn_q.weight").axes = vec![u64::MAX, 1];
    assert!(parse_error(&gguf.build()).contains("less than 2^64 bytes in all"));
    let mut gguf = Gguf::llama();
    gguf.at("blk.0.attn_q.weight").axes = vec![32, 0];
    assert_eq!(
        parse_error(&gguf.build()),
        format!("{prefix} axis 1 of tensor `blk.0.attn_q.weight` is 0, expected at least 1")
    );
    let mut gguf = Gguf::llama();
    gguf.at("blk.0.attn_q.weight").type_id = 12;
    assert_eq!(
        parse_error(&gguf.build()),
        format!(
            "{prefix} the shape of tensor `blk.0.attn_q.weight` is [32, 32], expected rows of whole Q4_K blocks of 256, less than 2^64 bytes in all"
        )
    );
}

#[test]
fn gg_11_offsets_off_their_place() {
    let prefix = "`m.gguf` is damaged or not what its name says:";
    let mut gguf = Gguf::llama();
    gguf.at("output_norm.weight").offset = Some(7);
    assert_eq!(
        parse_error(&gguf.build()),
        format!("{prefix} the offset of tensor `output_norm.weight` is 7, expected a multiple of 32")
    );
    for offset in [1 << 40, 1 << 63, u64::MAX - 31] {
        let mut gguf = Gguf::llama();
        gguf.at("output_norm.weight").offset = Some(offset);
        assert!(
            parse_error(&gguf.build()).contains("ends inside tensor `output_norm.weight`: 128 bytes are announced")
        );
    }
    let mut gguf = Gguf::llama();
    gguf.at("output_norm.weight").offset = Some(0);
    let begin = gguf.header().len().next_multiple_of(32);
    assert_eq!(
        parse_error(&gguf.build()),
        format!(
            "{prefix} the first byte of tensor `output_norm.weight` is {begin}, expected at least {}, where tensor `token_embd.weight` ends",
            begin + 256
        )
    );
}

#[test]
fn gg_11_names_used_twice() {
    let mut gguf = Gguf::llama();
    gguf.at("output_norm.weight").name = "blk.0.attn_norm.weight".to_owned();
    assert_eq!(
        parse_error(&gguf.build()),
        "tensor `blk.0.attn_norm.weight` occurs twice in `m.gguf`: the file is damaged"
    );
    let mut gguf = Gguf::llama();
    gguf.pairs.push(("llama.block_count".to_owned(), u32_value(2)));
    assert_eq!(
        parse_error(&gguf.build()),
        "metadata key `llama.block_count` occurs twice in `m.gguf`: the file is damaged"
    );
}

#[test]
fn gg_11_alignment_that_is_none() {
    for alignment in [0, 1, 24, u32::MAX] {
        let mut gguf = Gguf::llama();
        gguf.set("general.alignment", u32_value(alignment));
        assert_eq!(
            parse_error(&gguf.build()),
            format!(
                "`m.gguf` is damaged or not what its name says: `general.alignment` is {alignment}, expected a power of two from 8 to 65536"
            )
        );
    }
}

#[test]
fn missing_and_misshapen_tensors_are_named_with_the_rule() {
    assert_eq!(
        open_error_after(|gguf| gguf.tensors.retain(|tensor| tensor.name != "blk.0.ffn_up.weight")),
        "tensor `layers.0.mlp.up_proj.weight` is missing from `m.gguf`: `[intermediate_size, hidden_size]` in `m.gguf` asks for it with shape [64, 32]; the download is incomplete, or weights and config are of different models"
    );
    assert_eq!(
        open_error_after(|gguf| gguf.set("llama.feed_forward_length", u32_value(96))),
        "tensor `blk.0.ffn_gate.weight` in `m.gguf` has shape [64, 32], but `[intermediate_size, hidden_size]` in `m.gguf` asks for [96, 32]"
    );
    assert_eq!(
        open_error_after(|gguf| {
            let norm = gguf.at("output_norm.weight");
            (norm.type_id, norm.size) = (8, 34);
        }),
        "tensor `output_norm.weight` in `m.gguf` is stored as Q8_0, which is not supported: only matrices may be quantized; this one must be F32, F16 or BF16"
    );
}

#[test]
fn a_hostile_config_cannot_ask_for_more_than_the_file_has() {
    let started = Instant::now();
    let error = open_error_after(|gguf| gguf.set("llama.block_count", u32_value(1024)));
    assert!(error.starts_with("tensor `layers.1.input_layernorm.weight` is missing from `m.gguf`"), "{error}");
    assert!(started.elapsed().as_millis() < 500);
}

/// A count of layers that is too small would make another model out of the file.
#[test]
fn tensors_of_layers_past_the_count_are_refused() {
    for (name, axes) in [("blk.1.attn_norm.weight", &[64][..]), ("blk.9.ffn_up_exps.weight", &[32, 32, 3])] {
        assert_eq!(
            open_error_after(|gguf| gguf.tensor(name, axes)),
            format!(
                "tensor `{name}` in `m.gguf` belongs to a layer past the 1 that `m.gguf` announces (`num_hidden_layers`, in GGUF `block_count`): weights and config are of different models, fetch both again"
            )
        );
    }
}
