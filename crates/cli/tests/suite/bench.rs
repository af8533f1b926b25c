//! `pleach bench`: what it prints and what it refuses. Speeds themselves are never judged.

use serde_json::Value;

use crate::support::{Run, fixture, json, pleach, run};

/// Fast tests: the reference device has no ceilings to measure.
const QUICK: [&str; 9] = ["-p", "6", "-n", "3", "--rows", "1,2", "--device", "reference", "--quiet"];

fn bench(model: &str, flags: &[&str]) -> Run {
    run(&mut pleach([&["bench", &fixture(model)], flags].concat()))
}

fn refused(code: i32, stderr: &str) -> Run {
    Run { code: Some(code), stdout: String::new(), stderr: stderr.to_owned() }
}

fn keys(object: &Value) -> Vec<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn the_object_has_every_field_that_the_manual_names() {
    let model = fixture("tiny-qwen35");
    let object = json([&["bench", &model, "-r", "3", "-d", "0,5"], &QUICK[..]].concat(), "");
    assert_eq!(keys(&object), ["version", "processor", "logical_processors", "runs"]);
    let [run] = object["runs"].as_array().unwrap().as_slice() else { panic!("one model, one run") };
    let fields = [
        "model",
        "settings",
        "interrupted",
        "load_ms",
        "peak_resident_bytes",
        "ceilings",
        "load_average",
        "activity",
        "tests",
        "profiles",
    ];
    assert_eq!(keys(run), fields);
    assert_eq!(run["interrupted"], false);
    assert_eq!(run["settings"]["device_kind"], "reference");
    assert_eq!(run["settings"]["activations"], "int8");
    assert_eq!(run["settings"]["context"], 11);
    assert!(run["ceilings"]["before"].is_null());
    assert!(run["model"]["pass_weight_bytes"].as_u64().unwrap() > 0);
    assert!(run["load_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(run["profiles"], Value::Array(vec![]));

    let tests = run["tests"].as_array().unwrap();
    let names: Vec<&str> = tests.iter().map(|test| test["name"].as_str().unwrap()).collect();
    let at_5 = ["pp6 @ d5", "tg3 @ d5", "rows 1 @ d5", "rows 2 @ d5"];
    assert_eq!(names, [&["pp6", "tg3", "rows 1", "rows 2"], &at_5[..]].concat());
    for test in tests {
        assert_eq!(test["samples_ms"].as_array().unwrap().len(), 3);
        let (ms, speed) = (&test["ms"], &test["tokens_per_s"]);
        let tokens = if test["kind"] == "decode" { 1.0 } else { test["tokens"].as_f64().unwrap() };
        let product = ms["median"].as_f64().unwrap() * speed["median"].as_f64().unwrap();
        assert!((product - 1e3 * tokens).abs() < 1e-6 * product, "{test}");
        assert!(ms["min"].as_f64() <= ms["median"].as_f64() && ms["median"].as_f64() <= ms["max"].as_f64());
        assert!(test["int8"]["per_s"].as_f64().unwrap() > 0.0);
        assert!(test["int8"]["share"].is_null());
        assert_eq!(test["read"].is_null(), test["kind"] == "prefill");
        assert_eq!(test["ratio"].is_null(), test["kind"] != "rows");
        assert_eq!(test.get("row_shape").is_some(), test["kind"] == "rows");
    }
    assert_eq!(tests[6]["ratio"]["median"], 1.0);
}

#[test]
fn a_profile_accounts_for_all_of_the_time() {
    let model = fixture("tiny-qwen35-moe");
    let object = json(["bench", &model, "-p", "6", "-r", "1", "--profile", "--device", "reference"], "");
    let profiles = object["runs"][0]["profiles"].as_array().unwrap();
    let names: Vec<&str> = profiles.iter().map(|profile| profile["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["tg32", "rows 8", "pp6"]);
    for profile in profiles {
        let parts = profile["parts"].as_array().unwrap();
        let share: f64 = parts.iter().map(|part| part["share"].as_f64().unwrap()).sum();
        assert!((share - 1.0).abs() < 1e-6, "{profile}");
        let part = |name: &str| parts.iter().find(|part| part["name"] == name);
        for name in ["embed", "qkv_proj", "gated_delta", "experts", "down_proj", "lm_head", "rest"] {
            assert!(part(name).is_some(), "{name}");
        }
        assert!(part("lm_head").unwrap()["weight_bytes"].as_f64().unwrap() > 0.0);
        assert_eq!(part("sampler").is_some(), profile["kind"] == "decode");
        assert_eq!(part("commit").is_some(), profile["kind"] != "rows");
    }
}

#[test]
fn tables_for_terminals_and_for_pages() {
    let header = ["test", "tokens/s", "min", "max", "ms", "ratio", "GB/s", "of read", "GMAC/s", "of int8"];
    let flags = ["-p", "6", "-n", "3", "--rows", "1,2", "-r", "1", "--threads", "1"];
    let page = bench("tiny-llama", &[&flags[..], &["-o", "md"]].concat());
    assert_eq!((page.code, page.stderr.as_str()), (Some(0), ""));
    let lines: Vec<&str> = page.stdout.lines().collect();
    let facts = lines.iter().take_while(|line| !line.is_empty());
    let labels: Vec<&str> = facts.map(|line| line.strip_prefix("- ").unwrap().split_once(": ").unwrap().0).collect();
    let expected = [
        "model",
        "files",
        "processor",
        "device",
        "precision",
        "loading",
        "peak memory",
        "read",
        "int8",
        "load average",
        "processor time",
    ];
    assert_eq!(labels, expected);
    assert!(page.stdout.contains("\n- precision: f16 keys and values, int8 activations\n"), "{}", page.stdout);
    let table = &lines[expected.len() + 1..];
    assert_eq!(table[0], format!("| {} |", header.join(" | ")));
    assert_eq!(table[1], format!("|---|{}", "---:|".repeat(header.len() - 1)));
    let rows = table[2..].iter().take_while(|line| !line.is_empty());
    let names: Vec<&str> = rows.map(|row| row.split(" | ").next().unwrap()).collect();
    assert_eq!(names, ["| pp6", "| tg3", "| rows 1", "| rows 2"]);

    let terminal = bench("tiny-llama", &[&["-r", "1"], &QUICK[..]].concat());
    assert_eq!((terminal.code, terminal.stderr.as_str()), (Some(0), ""));
    let columns: Vec<&str> = terminal.stdout.lines().nth(expected.len() + 1).unwrap().split_whitespace().collect();
    assert_eq!(columns, header.join(" ").split(' ').collect::<Vec<_>>());
    assert!(terminal.stdout.contains("not measured on this device"), "{}", terminal.stdout);
}

#[test]
fn every_model_is_run_with_every_number_of_threads() {
    let (llama, qwen) = (fixture("tiny-llama"), fixture("tiny-qwen3"));
    let flags = ["--threads", "1,2", "-r", "1", "-d", "3"];
    let object = json([&["bench", &llama, &qwen], &flags[..], &QUICK].concat(), "");
    let runs: Vec<(&str, u64)> = object["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| (run["model"]["architecture"].as_str().unwrap(), run["settings"]["threads"].as_u64().unwrap()))
        .collect();
    assert_eq!(runs, [("llama", 1), ("llama", 2), ("qwen3", 1), ("qwen3", 2)]);
}

#[test]
fn what_was_measured_is_printed_whatever_comes_after() {
    let folder = tempfile::TempDir::new().unwrap();
    let broken = folder.path().join("broken.gguf");
    std::fs::write(&broken, b"GGUF").unwrap();
    let models = ["bench", &fixture("tiny-llama"), broken.to_str().unwrap(), "-r", "1", "--json"];
    let run = run(&mut pleach([&models[..], &QUICK].concat()));
    assert_eq!(run.code, Some(1));
    assert!(run.stderr.starts_with(&format!("error: cannot open the model `{}`\n", broken.display())));
    let object: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(object["runs"].as_array().unwrap().len(), 1);
}

#[test]
fn values_that_are_refused() {
    let tokens = "a whole number from 1 to 16777216";
    let cases = [
        ("--prompt", "0", tokens),
        ("--prompt", "", tokens),
        ("--generate", "-1", tokens),
        ("--rows", "0", "a whole number from 1 to 512"),
        ("--rows", "513", "a whole number from 1 to 512"),
        ("--depth", "-1", "a whole number from 0 to 16777216"),
        ("--repetitions", "0", "a whole number from 1 to 1000"),
        ("--threads", "0", "a whole number from 1 to 1024"),
        ("--prefill-chunk", "0", "a whole number from 1 to 512"),
        ("--output", "csv", "`table`, `markdown` or `json`"),
        ("--row-shape", "star", "`chain` or `tree`"),
    ];
    for (flag, value, allowed) in cases {
        let message = format!("error: `{flag}` is `{value}`, but must be {allowed}\n");
        let hint = "hint: `pleach bench --help` explains every flag\n";
        assert_eq!(bench("tiny-llama", &[flag, value]), refused(2, &(message + hint)), "{flag} {value}");
    }
    let one_of_three = bench("tiny-llama", &["--rows", "1,0,2"]);
    let message = "error: `--rows` is `0`, but must be a whole number from 1 to 512\n";
    assert!(one_of_three.stderr.starts_with(message), "{}", one_of_three.stderr);
}

#[test]
fn models_that_are_not_there_are_missed_before_anything_is_measured() {
    let missing = run(&mut pleach(["bench", &fixture("tiny-llama"), "/no/such/model"]));
    let message = "error: there is no model `/no/such/model`: no file or folder has this name\n";
    let hint = "hint: a model is a folder, a `.gguf` file, or `org/name` of the Hugging Face hub\n";
    assert_eq!(missing, refused(1, &format!("{message}{hint}")));
}

#[test]
fn tests_that_do_not_fit_the_model() {
    let long = bench("tiny-llama", &["-n", "8", "-d", "4090", "--device", "reference"]);
    let message = "error: the longest test does not fit the model\n  \
        caused by: a context of 4098 tokens was asked for, but the model was made for at most 4096\n\
        hint: lower `--depth`, `--prompt` or `--generate`\n";
    assert_eq!(long, refused(1, message));
}

/// What was measured is printed, and nothing where it came to no measurement.
#[cfg(target_os = "linux")]
#[test]
fn ctrl_c_leaves_a_whole_object_or_nothing() {
    // Nothing that is printed tells when the model is there: the machine is given more time until it was enough.
    let waits = [0, 250, 1000, 4000, 16_000];
    let printed = waits.into_iter().map(std::time::Duration::from_millis).map(interrupted_bench);
    let object = printed.into_iter().find_map(|object| object).unwrap();
    assert!(object["runs"].as_array().unwrap().iter().all(|run| run["interrupted"] == true), "{object}");
}

/// What is printed by a bench that Ctrl-C ends after some time.
#[cfg(target_os = "linux")]
fn interrupted_bench(wait: std::time::Duration) -> Option<Value> {
    use std::process::Stdio;
    use std::time::Duration;

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    let mut command = crate::support::bare();
    command.args(["bench", &fixture("tiny-qwen35"), "-r", "1000", "--json"]).args(QUICK);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let catches = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        u64::from_str_radix(mask, 16).unwrap() & 1 << (Signal::SIGINT as u64 - 1) != 0
    };
    while !catches() {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(wait);
    kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    (!output.stdout.is_empty()).then(|| serde_json::from_slice(&output.stdout).unwrap())
}

/// Two prompts in two categories, the second named by its file.
fn prompts(dir: &tempfile::TempDir) -> String {
    let file = dir.path().join("greetings.jsonl");
    let lines = "{\"category\": \"code\", \"messages\": [{\"role\": \"user\", \"content\": \"def f(x):\"}], \"id\": 1}\n\n\
                 {\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}\n";
    std::fs::write(&file, lines).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn answers_with_guesses_are_measured_against_answers_without() {
    let dir = tempfile::tempdir().unwrap();
    let (model, prompts) = (fixture("tiny-qwen35"), prompts(&dir));
    let flags = ["-n", "24", "-r", "2", "--quiet", "--spec-budget", "6", "--temperature", "0.5"];
    let object = json([&["bench", &model, "--prompts", &prompts], &flags[..]].concat(), "");
    let [run] = object["runs"].as_array().unwrap().as_slice() else { panic!("one model, one run") };
    assert_eq!((&run["spec_budget"], &run["temperature"]), (&"6".into(), &0.5.into()));
    assert_eq!(run["drafters"], serde_json::json!(["ngram", "mtp"]));
    let categories = run["categories"].as_array().unwrap();
    let names: Vec<&str> = categories.iter().map(|category| category["category"].as_str().unwrap()).collect();
    assert_eq!(names, ["code", "greetings"]);
    for category in categories {
        assert_eq!((&category["prompts"], &category["different_texts"]), (&1.into(), &0.into()));
        assert!(category["tokens"].as_u64().unwrap() > 0 && category["tokens_per_pass"].as_f64().unwrap() >= 1.0);
        let ratio = |name: &str| category["ratio"][name].as_f64().unwrap();
        assert!(ratio("min") <= ratio("median") && ratio("median") <= ratio("max"), "{category}");
    }
}

#[test]
fn a_table_says_what_guesses_brought() {
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--prompts", &prompts(&dir), "-n", "8", "-r", "1", "--spec", "ngram", "--quiet"];
    let run = bench("tiny-llama", &flags);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let labels: Vec<&str> = run.stdout.lines().map(|line| line.split([':', ' ']).next().unwrap()).collect();
    let expected =
        ["model", "device", "drafters", "rows", "temperature", "load", "", "category", "code", "greetings", "all"];
    assert_eq!(labels, expected, "{}", run.stdout);
    assert!(run.stdout.lines().last().unwrap().ends_with(" same"), "{}", run.stdout);
}

#[test]
fn prompts_that_cannot_be_read_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad.jsonl");
    std::fs::write(&file, "{\"messages\": []}\n{\"message\": 1}\n").unwrap();
    let run = bench("tiny-llama", &["--prompts", file.to_str().unwrap()]);
    let message =
        format!("error: line 2 of `{}` is not a JSON object with a list of chat `messages`\n", file.display());
    assert!(run.code == Some(1) && run.stderr.starts_with(&message), "{}", run.stderr);
    let run = bench("tiny-llama", &["--prompts", "x", "-p", "3"]);
    assert_eq!(run.code, Some(2), "{}", run.stderr);
}
