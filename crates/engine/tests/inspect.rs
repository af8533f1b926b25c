//! A model looked into is the model that opens.

#![allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]

use std::path::PathBuf;

use pleach_engine::{Engine, EngineError, EngineOptions, KvCacheType, inspect};

fn fixture(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "..", "fixtures", name].iter().collect()
}

#[test]
fn an_inspection_tells_what_opening_does() {
    let models = ["tiny-llama", "tiny-llama/model.gguf", "tiny-qwen3", "tiny-qwen35", "tiny-qwen35-moe"];
    for model in models {
        for kv_cache in [KvCacheType::F16, KvCacheType::Q8] {
            let options = EngineOptions { kv_cache, ..EngineOptions::default() };
            let (path, engine) = (fixture(model), Engine::open(&fixture(model), &options).unwrap());
            let inspection = inspect(&path, &options).unwrap();
            assert_eq!(inspection.info.memory, engine.info().memory, "{model}");
            assert_eq!(inspection.info.num_parameters, engine.info().num_parameters, "{model}");
            assert_eq!(inspection.info.device, engine.info().device, "{model}");
            assert_eq!(inspection.info.context, engine.info().context, "{model}");
            assert_eq!(inspection.has_chat_template, engine.has_chat_template());
            assert!(!inspection.files.is_empty() && inspection.tensors.len() > 10);
            let bytes: usize = inspection.formats.iter().map(|share| share.size_bytes).sum();
            assert_eq!(bytes, inspection.info.memory.weights_bytes);
        }
    }
}

#[test]
fn what_does_not_open_is_not_inspected() {
    let error = inspect(&fixture("quant"), &EngineOptions::default()).unwrap_err();
    assert!(matches!(error, EngineError::Checkpoint { .. }), "{error}");
}
