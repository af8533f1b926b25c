//! Commands that look at models, at the machine and at the program itself.

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{fixture, json, pleach, run};

#[test]
fn a_model_is_inspected() {
    let looked = run(&mut pleach(["inspect", &fixture("tiny-qwen35"), "--tensors"]));
    assert_eq!((looked.code, looked.stderr.as_str()), (Some(0), ""));
    let lines = [
        "architecture:            qwen35, ",
        "layers:                  8: 2 with attention, 6 with Gated DeltaNet",
        "heads:                   4 for queries, 2 for keys and values, of 64 each",
        "guesses ahead:           by its own prediction head (mtp)",
        "largest that fits:       ",
        "layers.3.self_attn.q_proj.weight",
    ];
    for line in lines {
        assert!(looked.stdout.contains(line), "{line}\n{}", looked.stdout);
    }

    let object = json(["inspect", &fixture("tiny-llama/model.gguf")], "");
    assert_eq!(
        (object["file_format"].as_str(), object["config"]["num_hidden_layers"].as_u64()),
        (Some("GGUF"), Some(4))
    );
    // Keys and values of four layers, one head of 32 elements of two bytes.
    assert_eq!(object["memory"]["token_bytes"], 4 * 2 * 32 * 2);
    assert_eq!(object["tensors"].as_array().unwrap().len(), 38);
    let small = json(["inspect", &fixture("tiny-llama/model.gguf"), "--kv-cache", "f32"], "");
    assert_eq!(small["memory"]["token_bytes"], 4 * 2 * 32 * 4);
}

#[test]
fn the_machine_is_looked_at() {
    let home = TempDir::new().unwrap();
    let mut command = pleach(["doctor", "--json"]);
    let looked = run(command.env("HF_HOME", home.path()).env("HF_TOKEN", "hf_secret").env("PLEACH_THREADS", "1"));
    assert_eq!(looked.code, Some(0), "{}", looked.stderr);
    let object: Value = serde_json::from_str(&looked.stdout).unwrap();
    assert!(object["device"].as_str().unwrap().contains("thread"));
    assert!(object["read_bytes_per_s"].as_f64().is_some_and(|rate| rate > 1e6), "{object}");
    assert_eq!(object["hub"]["token"], true);
    assert!(object["cache"]["path"].as_str().unwrap().starts_with(home.path().to_str().unwrap()));
    assert!(!looked.stdout.contains("secret"));
    let variables = object["variables"].as_array().unwrap();
    assert!(
        variables.contains(&"PLEACH_THREADS=1".into()) && variables.contains(&"HF_TOKEN is set".into()),
        "{object}"
    );
}

#[test]
fn there_are_completions_and_a_manual() {
    for (shell, word) in [("bash", "complete -F _pleach"), ("zsh", "#compdef pleach"), ("fish", "complete -c pleach")] {
        let script = run(&mut pleach(["completions", shell]));
        assert!(script.code == Some(0) && script.stdout.contains(word), "{shell}: {}", script.stderr);
        assert!(script.stdout.contains("repetition-penalty"), "{shell}");
    }
    let manual = run(&mut pleach(["man"]));
    assert!(manual.code == Some(0) && manual.stdout.contains(".TH pleach 1"), "{}", manual.stderr);
    assert!(manual.stdout.contains(".SH PLEACH PULL"));
}

#[test]
fn a_server_is_missed_in_words() {
    let run = run(&mut pleach(["server", "--model", "x", "--port", "8000", "--no-prefix-cache"]));
    let message = "error: this version has no server\n\
                   hint: `pleach chat` talks with a model, `pleach run MODEL PROMPT --json` answers programs\n";
    assert_eq!((run.code, run.stderr.as_str()), (Some(1), message));
}

/// A loop of a shell reads its list itself.
#[cfg(unix)]
#[test]
fn a_file_that_somebody_else_reads_is_left_alone() {
    use std::io::{Read as _, Write as _};
    let mut list = tempfile::tempfile().unwrap();
    list.write_all(b"first\nsecond\n").unwrap();
    let ids = |list: std::fs::File| {
        let mut command = crate::support::bare();
        command.args(["run", &fixture("tiny-llama"), "hi", "--max-tokens", "1", "--json"]).stdin(list);
        let output = command.output().unwrap();
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        object["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    use std::io::{Seek as _, SeekFrom};
    list.seek(SeekFrom::Start(6)).unwrap();
    let alone = ids(list.try_clone().unwrap());
    let mut rest = String::new();
    list.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "second\n");
    list.seek(SeekFrom::Start(0)).unwrap();
    assert!(ids(list) > alone);
}
