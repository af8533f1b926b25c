//! A real model, where `scripts/fetch-model.sh` put it.

#![allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]

use std::env;
use std::path::PathBuf;

fn model() -> Option<PathBuf> {
    let folder = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(cache.join("pleach/models/SmolLM2-135M-Instruct.Q4_1.gguf")).filter(|path| path.is_file())
}

#[test]
fn its_speed_is_measured() {
    let Some(model) = model() else {
        println!("skipped: `scripts/fetch-model.sh` fetches the model that this test runs");
        return;
    };
    let mut command = assert_cmd::Command::new(assert_cmd::cargo::cargo_bin!("pleach"));
    command.args(["bench", "-p", "16", "-n", "4", "--rows", "1,4", "-r", "1", "--json"]).env("PLEACH_MODEL", model);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let run = &object["runs"][0];
    assert_eq!(run["model"]["file_bytes"], 98_362_432);
    // All weights but norms, and the table of embeddings a second time as the output matrix.
    assert_eq!(
        run["model"]["macs_per_row"].as_u64().unwrap() + run["model"]["macs_per_output"].as_u64().unwrap(),
        134_479_872
    );
    for test in run["tests"].as_array().unwrap() {
        assert!(test["int8"]["share"].as_f64().is_some_and(|share| share > 0.0), "{test}");
    }
}

#[test]
fn the_default_model_writes_a_function() {
    let Some(model) = model() else {
        println!("skipped: `scripts/fetch-model.sh` fetches the model that this test runs");
        return;
    };
    let mut command = assert_cmd::Command::new(assert_cmd::cargo::cargo_bin!("pleach"));
    command.env("PLEACH_MODEL", model);
    command.args(["-m", "Write a python function to merge two sorted lists", "--temperature", "0"]);
    let output = command.args(["--max-tokens", "64"]).output().unwrap();
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{stderr}");
    assert!(stdout.contains("def ") && stdout.contains("merge"), "{stdout}");
    assert_eq!(stderr.lines().count(), 9, "{stderr}");
}
