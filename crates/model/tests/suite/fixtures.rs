//! The models against recorded activations, layer by layer and token by token, on every device.
//!
//! Tolerances are those of `fixtures/README.md` for an f32 engine.

use std::sync::Arc;

use crate::support::{EXACT, Golden, argmax, assert_close, devices, load};
use pleach_checkpoint::LayerType;
use pleach_kernels::{Device, Rows, SequenceRows};
use pleach_model::{Model, MtpRunner, Runner, Sequence, Tap};

const LOGITS: f32 = 1e-3;
const HIDDEN: f32 = 5e-4;

/// Runs `check` for a checkpoint on every device.
fn on_every_device(path: &str, golden: &str, check: impl Fn(&Arc<Model>, &Golden)) {
    let golden = Golden::open(&format!("{golden}/reference.safetensors"));
    for device in devices() {
        check(&load(path, Arc::<dyn Device>::clone(&device), &EXACT), &golden);
    }
}

/// A prompt committed in chunks of `chunk` rows; returns the logits of all its rows.
fn prefill(runner: &mut Runner, sequence: &mut Sequence, ids: &[u32], chunk: usize) -> Vec<f32> {
    let mut logits = Vec::new();
    for ids in ids.chunks(chunk) {
        let rows = Rows::new(&[SequenceRows::chain(sequence.len(), ids)]).unwrap();
        let all: Vec<_> = (0..ids.len()).collect();
        runner.forward(&rows, &all, &[sequence]).unwrap();
        logits.extend_from_slice(runner.logits().unwrap());
        runner.commit(&all, sequence).unwrap();
    }
    logits
}

/// Greedy continuation from the logits of the last prompt row; returns ids and the logits behind each.
fn greedy(runner: &mut Runner, sequence: &mut Sequence, last: &[f32], count: usize) -> (Vec<u32>, Vec<f32>) {
    let (mut ids, mut logits) = (Vec::new(), last.to_vec());
    let mut all = Vec::new();
    for _ in 0..count {
        let id = argmax(&logits);
        ids.push(id);
        all.extend_from_slice(&logits);
        logits = prefill(runner, sequence, &[id], 1);
    }
    (ids, all)
}

fn check_prompt(model: &Arc<Model>, golden: &Golden) {
    let layers = model.config().num_hidden_layers;
    let taps: Vec<_> = [Tap::Embedding].into_iter().chain((0..layers).map(Tap::Layer)).chain([Tap::Final]).collect();
    let mut runner = Runner::with_taps(Arc::clone(model), &taps).unwrap();
    let mut sequence = model.new_sequence().unwrap();
    let ids = golden.ids("input_ids");
    let logits = prefill(&mut runner, &mut sequence, &ids, ids.len());
    assert_close("hidden.embed", runner.tap(0).unwrap(), golden.floats("hidden.embed"), HIDDEN);
    for layer in 0..layers {
        let name = format!("hidden.layer.{layer}");
        assert_close(&name, runner.tap(layer + 1).unwrap(), golden.floats(&name), HIDDEN);
    }
    assert_close("hidden.final", runner.tap(layers + 1).unwrap(), golden.floats("hidden.final"), HIDDEN);
    assert_close("logits", &logits, golden.floats("logits"), LOGITS);
}

/// Caches in the order of Hugging Face checkpoints; GGUF files keep their own head order.
fn check_caches(model: &Arc<Model>, golden: &Golden) {
    let mut runner = Runner::new(Arc::clone(model));
    let mut sequence = model.new_sequence().unwrap();
    prefill(&mut runner, &mut sequence, &golden.ids("input_ids"), 7);
    let (mut attention, mut delta) = (0, 0);
    for (layer, kind) in model.config().layer_types.iter().enumerate() {
        let name = |part: &str| format!("cache.layer.{layer}.{part}");
        match kind {
            LayerType::FullAttention => {
                let (keys, values) = sequence.state().read_kv(attention).unwrap();
                assert_close(&name("key"), &keys, golden.floats(&name("key")), HIDDEN);
                assert_close(&name("value"), &values, golden.floats(&name("value")), HIDDEN);
                attention += 1;
            }
            LayerType::LinearAttention => {
                let (recurrent, conv) = sequence.state().read_delta(delta).unwrap();
                assert_close(&name("recurrent"), &recurrent, golden.floats(&name("recurrent")), HIDDEN);
                assert_close(&name("conv"), &conv, golden.floats(&name("conv")), HIDDEN);
                delta += 1;
            }
        }
    }
}

fn check_generation(model: &Arc<Model>, golden: &Golden) {
    let vocab_size = model.config().vocab_size;
    let mut runner = Runner::new(Arc::clone(model));

    let mut sequence = model.new_sequence().unwrap();
    let logits = prefill(&mut runner, &mut sequence, &golden.ids("input_ids"), 16);
    let (ids, logits) = greedy(&mut runner, &mut sequence, &logits[logits.len() - vocab_size..], 24);
    assert_eq!(ids, golden.ids("greedy.ids"));
    assert_close("greedy.logits", &logits, golden.floats("greedy.logits"), LOGITS);

    let mut sequence = model.new_sequence().unwrap();
    let logits = prefill(&mut runner, &mut sequence, &golden.ids("long.input_ids"), 64);
    assert_close(
        "long.logits_last8",
        &logits[logits.len() - 8 * vocab_size..],
        golden.floats("long.logits_last8"),
        LOGITS,
    );
    let (ids, _) = greedy(&mut runner, &mut sequence, &logits[logits.len() - vocab_size..], 12);
    assert_eq!(ids, golden.ids("long.greedy.ids"));
}

fn check_tree(model: &Arc<Model>, golden: &Golden) {
    let mut runner = Runner::new(Arc::clone(model));
    let mut sequence = model.new_sequence().unwrap();
    prefill(&mut runner, &mut sequence, &golden.ids("input_ids"), 40);
    let (ids, parents) = (golden.ids("tree.ids"), golden.parents("tree.parents"));
    let rows = Rows::new(&[SequenceRows::tree(sequence.len(), &ids, &parents)]).unwrap();
    let all: Vec<_> = (0..rows.len()).collect();
    runner.forward(&rows, &all, &[&sequence]).unwrap();
    assert_close("tree.logits", runner.logits().unwrap(), golden.floats("tree.logits"), LOGITS);
}

fn check_mtp(model: &Arc<Model>, golden: &Golden) {
    let (hidden_size, vocab_size) = (model.config().hidden_size, model.config().vocab_size);
    let mut head = MtpRunner::new(Arc::clone(model)).unwrap();
    let mut sequence = model.new_mtp_sequence().unwrap();
    let ids = golden.ids("mtp.input_ids");
    let rows = Rows::new(&[SequenceRows::chain(0, &ids)]).unwrap();
    let all: Vec<_> = (0..ids.len()).collect();
    head.forward(&rows, golden.floats("hidden.final"), &all, &[&sequence]).unwrap();
    assert_close("mtp.logits", head.logits().unwrap(), golden.floats("mtp.logits"), LOGITS);
    assert_close("mtp.hidden", head.hidden().unwrap(), golden.floats("mtp.hidden"), HIDDEN);

    let mut logits = head.logits().unwrap()[(ids.len() - 1) * vocab_size..].to_vec();
    let mut hidden = head.hidden().unwrap()[(ids.len() - 1) * hidden_size..].to_vec();
    head.commit(&all, &mut sequence).unwrap();
    let mut drafts = Vec::new();
    for draft in 0..3 {
        assert_close(
            "mtp.draft_logits",
            &logits,
            &golden.floats("mtp.draft_logits")[draft * vocab_size..][..vocab_size],
            LOGITS,
        );
        drafts.push(argmax(&logits));
        let rows = Rows::new(&[SequenceRows::chain(sequence.len(), &drafts[draft..])]).unwrap();
        head.forward(&rows, &hidden, &[0], &[&sequence]).unwrap();
        (logits, hidden) = (head.logits().unwrap().to_vec(), head.hidden().unwrap().to_vec());
        head.commit(&[0], &mut sequence).unwrap();
    }
    assert_eq!(drafts, golden.ids("mtp.draft_ids"));
}

/// One module per checkpoint, so that a failure names the model and the check.
macro_rules! model_tests {
    ($name:ident, $path:literal, $golden:literal, [$($check:ident),+]) => {
        mod $name {
            use super::*;
            $(#[test]
            fn $check() {
                on_every_device($path, $golden, super::$check);
            })+
        }
    };
}

model_tests!(tiny_llama, "tiny-llama", "tiny-llama", [check_prompt, check_caches, check_generation, check_tree]);
model_tests!(tiny_llama_gguf, "tiny-llama/model.gguf", "tiny-llama", [check_prompt, check_generation, check_tree]);
model_tests!(tiny_qwen3, "tiny-qwen3", "tiny-qwen3", [check_prompt, check_caches, check_generation, check_tree]);
model_tests!(
    tiny_qwen35,
    "tiny-qwen35",
    "tiny-qwen35",
    [check_prompt, check_caches, check_generation, check_tree, check_mtp]
);
model_tests!(
    tiny_qwen35_gguf,
    "tiny-qwen35/model.gguf",
    "tiny-qwen35",
    [check_prompt, check_generation, check_tree, check_mtp]
);
model_tests!(
    tiny_qwen35_moe,
    "tiny-qwen35-moe",
    "tiny-qwen35-moe",
    [check_prompt, check_caches, check_generation, check_tree]
);
