//! What an opened model says about itself.

#![allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]

mod support;

use pleach_engine::{ChatRequest, EngineOptions, Message, Request, Role};

use support::{expected, ids, open};

#[test]
fn a_model_is_described() {
    let engine = open("tiny-qwen35", &EngineOptions::default());
    let info = engine.info();
    assert_eq!((info.name.as_str(), info.architecture, info.file_format), ("tiny-qwen35", "qwen35", "Hugging Face"));
    assert_eq!(info.quantization, "BF16");
    assert_eq!(info.vocab_size, 512);
    assert!(info.context <= info.largest_context && info.largest_context <= info.max_context);
    assert!(info.num_parameters > 600_000);
    let skipped: Vec<_> = info.skipped.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(skipped, ["model.visual.merger.norm.bias", "model.visual.pos_embed.weight"]);
    // Two attention layers of 2 heads of 64, keys and values in 2 bytes each.
    assert_eq!(info.memory.token_bytes, 2 * 2 * 2 * 64 * 2);
    assert_eq!(info.memory.total_bytes(10), info.memory.weights_bytes + info.memory.state_bytes + 10_240);
    assert!(engine.has_chat_template());
}

#[test]
fn an_engine_is_shared_between_threads() {
    fn check<T: Send + Sync + Clone>() {}
    check::<pleach_engine::Engine>();
    fn check_session<T: Send>() {}
    check_session::<pleach_engine::Session>();
}

#[test]
fn prompts_are_encoded_as_recorded() {
    for model in ["tiny-llama", "tiny-qwen3", "tiny-qwen35"] {
        let engine = open(model, &EngineOptions::default());
        let expected = expected(model);
        let text = expected["prompt_text"].as_str().unwrap();
        assert_eq!(engine.encode(&Request::text(text).prompt).unwrap(), ids(&expected["input_ids"]), "{model}");
    }
}

#[test]
fn a_conversation_is_rendered_with_the_models_template() {
    let engine = open("tiny-qwen35", &EngineOptions::default());
    let mut chat = ChatRequest::new(vec![Message::text(Role::User, "Hello")]);
    chat.kwargs.insert("enable_thinking".to_owned(), false.into());
    assert_eq!(
        engine.render(&chat).unwrap(),
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    );
}
