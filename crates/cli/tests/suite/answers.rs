//! What is asked, and what comes back.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{DEVICES, expected, fixture, json, pleach, run};

const MODELS: [&str; 3] = ["tiny-llama", "tiny-qwen3", "tiny-qwen35"];

/// A few greedy tokens as JSON.
fn few(arguments: &[&str], stdin: &str) -> Value {
    json([&["run"], arguments, &["--temperature", "0", "--max-tokens", "4"]].concat(), stdin)
}

#[test]
fn raw_prompts_give_the_recorded_text_on_every_device() {
    for (model, device) in MODELS.iter().flat_map(|model| DEVICES.map(|device| (model, device))) {
        let expected = expected(model);
        let prompt = expected["prompt_text"].as_str().unwrap();
        let greedy = ["--temperature", "0", "--ignore-eos", "--max-tokens", "24", "--kv-cache", "f32"];
        let run = run(pleach(["run", &fixture(model), "--raw", "-m", prompt, "--device", device]).args(greedy));
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        assert_eq!(
            run.stdout,
            format!("{}\n", expected["greedy_text_skip_special"].as_str().unwrap()),
            "{model} on {device}"
        );
    }
}

#[test]
fn a_gguf_file_gives_the_recorded_ids() {
    let expected = expected("tiny-qwen35");
    let prompt = expected["prompt_text"].as_str().unwrap();
    let model = fixture("tiny-qwen35/model.gguf");
    let flags = ["--raw", "--temperature", "0", "--ignore-eos", "--max-tokens", "24", "--kv-cache", "f32"];
    let object = json([&["run", &model, "-"], &flags[..]].concat(), prompt);
    assert_eq!(object["prompt_ids"], expected["input_ids"]);
    assert_eq!(object["output_ids"], expected["greedy_ids"]);
}

#[test]
fn a_prompt_is_the_same_however_it_comes() {
    let model = fixture("tiny-llama");
    let asked = few(&[&model, "Why is it so?"], "");
    assert_eq!(few(&["--model", &model, "Why is it so?"], "")["prompt_ids"], asked["prompt_ids"]);
    assert_eq!(few(&[&model, "-m", "Why is it so?"], "")["prompt_ids"], asked["prompt_ids"]);
    assert_eq!(few(&[&model], "Why is it so?\n")["prompt_ids"], asked["prompt_ids"]);
    assert_eq!(few(&[&model, "-"], "Why is it so?\n")["prompt_ids"], asked["prompt_ids"]);
    assert_eq!(
        few(&[&model, "Why"], "is it so?\n")["prompt_ids"],
        few(&[&model, "Why\n\nis it so?"], "")["prompt_ids"]
    );

    let short = ["--model", &model, "-m", "Why is it so?", "--temperature", "0", "--max-tokens", "4"];
    assert_eq!(json(short, "")["output_ids"], asked["output_ids"]);
}

#[test]
fn the_model_may_come_from_the_environment() {
    let command = &mut pleach(["-m", "hi", "--max-tokens", "1", "--verbose"]);
    let run = run(command.env("PLEACH_MODEL", fixture("tiny-qwen3")));
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(run.stderr.starts_with("model:                   tiny-qwen3 ("), "{}", run.stderr);
}

#[test]
fn messages_are_read_from_a_file_or_a_pipe() {
    let model = fixture("tiny-qwen35");
    let messages = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]).to_string();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("chat.json");
    fs::write(&file, &messages).unwrap();

    let asked = few(&[&model, "Why?", "--system", "Be brief."], "");
    let from_file = few(&[&model, "--messages", file.to_str().unwrap()], "");
    assert_eq!(from_file["prompt_ids"], asked["prompt_ids"]);
    assert_eq!(few(&[&model, "--messages", "-"], &messages)["prompt_ids"], asked["prompt_ids"]);
}

#[test]
fn thinking_is_a_variable_of_the_template() {
    let model = fixture("tiny-qwen35");
    let off = few(&[&model, "Why?", "--no-think"], "");
    let on = few(&[&model, "Why?", "--think"], "");
    assert_ne!(off["prompt_ids"], on["prompt_ids"]);
    assert_eq!(few(&[&model, "Why?", "--template-arg", "enable_thinking=false"], "")["prompt_ids"], off["prompt_ids"]);
    assert_eq!((on["text"].as_str(), off["reasoning"].as_str()), (Some(""), Some("")));
    assert_ne!(on["reasoning"], off["reasoning"]);
}

#[test]
fn flags_reach_the_engine() {
    let model = fixture("tiny-llama");
    let sampled = |seed| {
        let flags = ["--temperature", "1.5", "--top-k", "0", "--top-p", "1", "--max-tokens", "12", "--seed", seed];
        json([&["run", &model, "hi"], &flags[..]].concat(), "")
    };
    assert_eq!(sampled("7")["output_ids"], sampled("7")["output_ids"]);
    assert_eq!(sampled("7")["seed"], 7);
    assert_ne!(sampled("7")["output_ids"], sampled("8")["output_ids"]);

    let biased = few(&[&model, "hi", "--logit-bias", "90=100", "--ignore-eos"], "");
    assert_eq!(biased["output_ids"], json!([90, 90, 90, 90]));
    let stop = biased["text"].as_str().unwrap().chars().next().unwrap().to_string();
    let stopped = few(&[&model, "hi", "--logit-bias", "90=100", "--ignore-eos", "--stop", &stop], "");
    assert_eq!((&stopped["text"], &stopped["stop_string"]), (&json!(""), &json!(stop)));
    assert_eq!(stopped["finish_reason"], "stop");
    assert_eq!(few(&[&model, "hi", "--ctx", "256"], "")["model"]["context"], 256);
}
