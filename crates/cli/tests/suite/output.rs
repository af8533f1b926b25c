//! Where things are printed, and in what form.

use serde_json::{Map, Value};

use crate::support::{fixture, json, pleach, run};

const LABELS: [&str; 9] = [
    "time to first token",
    "prefill speed",
    "generation speed",
    "tokens per forward pass",
    "memory used",
    "total energy",
    "input energy per token",
    "output energy per token",
    "duration",
];

#[test]
fn the_footer_has_nine_lines_in_order() {
    let run = run(&mut pleach(["run", &fixture("tiny-llama"), "hi", "--max-tokens", "8", "--ignore-eos"]));
    assert_eq!(run.code, Some(0));
    let lines: Vec<(&str, &str)> = run.stderr.lines().map(|line| line.split_once(':').unwrap()).collect();
    let (labels, values): (Vec<&str>, Vec<&str>) = lines.into_iter().unzip();
    assert_eq!(labels, LABELS);

    for (label, (value, unit)) in labels.iter().zip(values.iter().zip([
        &["ms", "s"][..],
        &["tokens/s"],
        &["tokens/s"],
        &["tokens"],
        &["MiB", "GiB"],
        &["J"],
        &["J"],
        &["J"],
        &["ms", "s"],
    ])) {
        assert_eq!(label.len() + 1 + (value.len() - value.trim_start().len()), 25, "values stand below each other");
        let value = value.trim_start();
        let is_reading = value.split_once(' ').is_some_and(|(n, u)| n.parse::<f64>().is_ok() && unit.contains(&u));
        let is_reason = label.contains("energy") && value.starts_with("not available: ");
        assert!(is_reading || is_reason, "{label}: {value}");
    }
}

#[test]
fn quiet_leaves_the_answer_alone() {
    let loud = run(&mut pleach(["run", &fixture("tiny-llama"), "hi", "--max-tokens", "8"]));
    let quiet = run(&mut pleach(["run", &fixture("tiny-llama"), "hi", "--max-tokens", "8", "--quiet"]));
    assert_eq!((quiet.code, quiet.stderr.as_str()), (Some(0), ""));
    assert_eq!(quiet.stdout, loud.stdout);
    assert!(quiet.stdout.ends_with('\n'));
}

#[test]
fn verbose_says_what_was_run() {
    let run = run(&mut pleach(["run", &fixture("tiny-qwen35"), "hi", "--max-tokens", "2", "--verbose"]));
    let labels: Vec<&str> = run.stderr.lines().map(|line| line.split(':').next().unwrap()).collect();
    let before = [
        "model",
        "architecture",
        "files",
        "device",
        "context",
        "weights",
        "state",
        "skipped tensors",
        "loading",
        "prompt",
        "answer",
        "seed",
        "drafting",
    ];
    assert_eq!(labels, [&before[..], &LABELS].concat());
    assert!(run.stderr.contains("cut off by `--max-tokens`"), "{}", run.stderr);
}

#[test]
fn thoughts_are_marked_in_a_pipe() {
    let run = run(&mut pleach(["run", &fixture("tiny-qwen35"), "hi", "--max-tokens", "6", "--temperature", "0"]));
    assert!(run.stdout.starts_with("<think>\n"), "{}", run.stdout);
    assert!(run.stdout.ends_with("\n</think>\n"), "{}", run.stdout);
    assert!(!run.stdout.contains('\x1b'));
    assert!(!run.stderr.contains('\x1b'));
}

/// Numbers that depend on the machine or on the order of sums become words.
fn stable(object: Value) -> Value {
    let masked = |group: &Value| -> Value {
        let fields = group.as_object().unwrap().iter();
        let kind = |value: &Value| match value {
            Value::Null => "null",
            Value::Number(_) => "number",
            _ => "other",
        };
        fields.map(|(name, value)| (name.clone(), Value::from(kind(value)))).collect::<Map<_, _>>().into()
    };
    let mut object = object;
    object["timings"] = masked(&object["timings"]);
    object["speculation"]["draft_ms"] = "number".into();
    object["speculation"]["speedup"] = "number or null".into();
    object["memory"] = masked(&object["memory"]);
    object["model"]["path"] = "path".into();
    object["model"]["device"] = "device".into();
    let is_unavailable = object["energy"].is_null() && object["energy_unavailable"].is_string();
    let is_read = object["energy"]["total_j"].is_number() && object["energy_unavailable"].is_null();
    assert!(is_unavailable || is_read);
    object["energy"] = "object or null".into();
    object["energy_unavailable"] = "null or reason".into();
    for token in object["logprobs"].as_array_mut().unwrap() {
        let round = |value: &mut Value| *value = format!("{:.2}", value.as_f64().unwrap()).into();
        round(&mut token["logprob"]);
        token["top"].as_array_mut().unwrap().iter_mut().for_each(|top| round(&mut top["logprob"]));
    }
    object
}

#[test]
fn the_json_object() {
    let model = fixture("tiny-llama");
    let flags =
        ["--temperature", "0", "--ignore-eos", "--max-tokens", "2", "--device", "reference", "--kv-cache", "f32"];
    let asked = ["run", &model, "--raw", "-m", "The quick brown fox", "--logprobs", "2"];
    let object = json([&asked[..], &flags].concat(), "");
    insta::assert_json_snapshot!(stable(object));
}

/// A long answer of a small model repeats itself, so guesses come true; off, there are none.
#[test]
fn speculation_is_counted_and_changes_no_token() {
    let model = fixture("tiny-llama");
    let asked = ["run", &model, "--raw", "-m", "The quick brown fox", "--ignore-eos", "--max-tokens", "80"];
    let with = |flags: &[&'static str]| json([&asked[..], flags].concat(), "");
    let (plain, drafted) = (with(&["--spec", "off"]), with(&["--spec", "ngram", "--spec-budget", "8"]));
    assert_eq!(plain["output_ids"], drafted["output_ids"]);
    assert_eq!((&plain["speculation"], &plain["usage"]["drafted"]), (&Value::Null, &0.into()));
    assert_eq!(drafted["speculation"]["drafters"], serde_json::json!(["ngram"]));
    let usage = |name: &str| drafted["usage"][name].as_u64().unwrap();
    let sum =
        |name: &str| drafted["speculation"][name].as_array().unwrap().iter().filter_map(Value::as_u64).sum::<u64>();
    assert_eq!((usage("drafted"), usage("accepted")), (sum("drafted_by_depth"), sum("accepted_by_depth")));
    assert_eq!(usage("output_tokens"), 1 + usage("passes") + usage("accepted"));
    assert!(usage("accepted") > 5, "{drafted}");
}

#[test]
fn log_probs_are_of_the_logits_before_sampling() {
    let model = fixture("tiny-llama");
    let asked = |flags: &[&str]| {
        let common = ["run", &model, "hi", "--logprobs", "2", "--max-tokens", "1", "--ignore-eos"];
        json([&common, flags].concat(), "")["logprobs"][0].clone()
    };
    let greedy = asked(&["--temperature", "0"]);
    assert_eq!(greedy["id"], greedy["top"][0]["id"]);
    assert_eq!(greedy["logprob"], greedy["top"][0]["logprob"]);
    assert!(greedy["logprob"].as_f64().unwrap() > greedy["top"][1]["logprob"].as_f64().unwrap());
    let biased = asked(&["--temperature", "0", "--logit-bias", "90=100"]);
    assert_eq!(biased["id"], 90);
    assert_eq!(biased["top"], greedy["top"], "a bias changes the choice, not what the model thinks");
    assert_eq!(asked(&["--temperature", "2"])["top"], greedy["top"]);
}

#[test]
fn without_logprobs_there_are_ids_but_no_list() {
    let object = json(["run", &fixture("tiny-llama"), "hi", "--max-tokens", "3", "--ignore-eos"], "");
    assert_eq!(object["output_ids"].as_array().unwrap().len(), 3);
    assert!(object.get("logprobs").is_none());
}
