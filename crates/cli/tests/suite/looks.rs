//! Commands that look at models, at the machine and at the program itself.

use std::fs;

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

/// What the files take and say, and whether the drafter beside them fits.
#[cfg(unix)]
#[test]
fn a_model_is_described_and_listed() {
    let home = TempDir::new().unwrap();
    let models = home.path().join("pleach/models");
    fs::create_dir_all(&models).unwrap();
    let put = |name: &str, from: &str| std::os::unix::fs::symlink(from, models.join(name)).unwrap();
    put("mini", &checkout("models/pleach-mini"));
    put("tiny.gguf", &fixture("tiny-llama/model.gguf"));
    fs::create_dir(models.join("without-weights")).unwrap();
    fs::write(models.join("without-weights/config.json"), "{}").unwrap();
    let in_home = |arguments: &[&str]| {
        let arguments = arguments.iter().copied();
        run(pleach(arguments).env("XDG_CACHE_HOME", home.path()).env("HF_HUB_CACHE", home.path().join("hub")))
    };

    let listed = in_home(&["list"]);
    let row = |name: &str| listed.stdout.lines().find(|line| line.contains(name)).unwrap_or_default().to_owned();
    assert!(row("/mini").contains(" M ") && row("/mini").contains("ready"), "{}", listed.stdout);
    assert!(row("/tiny.gguf").contains("ready"), "{}", listed.stdout);
    assert!(row("/without-weights").ends_with("does not open: `pleach info` says why"), "{}", listed.stdout);
    let json = in_home(&["list", "--json"]);
    let listed: Value = serde_json::from_str(&json.stdout).unwrap();
    let tiny = listed.as_array().unwrap().iter().find(|row| row["model"].as_str().unwrap().contains("tiny")).unwrap();
    assert_eq!((&tiny["architecture"], &tiny["max_context"]), (&"llama".into(), &4096.into()));

    let mini = models.join("mini");
    let info = in_home(&["info", mini.to_str().unwrap()]);
    for line in
        ["quantization:            ", " bits per weight\n", "memory when loaded:      ", "largest that fits:       "]
    {
        assert!(info.stdout.contains(line), "{line}\n{}", info.stdout);
    }
    assert!(info.stdout.contains("guesses ahead:           by a drafter that fits\n"), "{}", info.stdout);
    let other = checkout("models/smollm2-135m-instruct-drafter");
    let unfit = in_home(&["inspect", mini.to_str().unwrap(), "--draft-model", &other]);
    assert!(unfit.stdout.contains(" does not fit: `dflash` cannot draft for this model: its `"), "{}", unfit.stdout);
    for broken in [models.join("without-weights").to_str().unwrap(), "/"] {
        let broken = in_home(&["info", broken]);
        assert_eq!((broken.code, broken.stdout.as_str()), (Some(1), ""), "{}", broken.stderr);
        assert!(broken.stderr.starts_with("error: cannot open the model `"), "{}", broken.stderr);
        assert!(broken.stderr.contains("\n  caused by: "), "{}", broken.stderr);
    }
}

#[cfg(unix)]
fn checkout(path: &str) -> String {
    format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn settings_come_from_a_file() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("config.toml");
    let (model, path) = (fixture("tiny-llama"), file.display().to_string());
    let with = |text: &str, arguments: &[&str]| {
        fs::write(&file, text).unwrap();
        run(pleach(arguments.iter().copied()).env("PLEACH_CONFIG", &file).env("PLEACH_SEED", "8"))
    };
    let settings = format!("# of this test\nmodel = \"{model}\"\nmax-tokens = 3\nseed = 7\n");
    let answered = with(&settings, &["-m", "hi", "--json"]);
    let object: Value = serde_json::from_str(&answered.stdout).unwrap();
    // The variable goes before the file, and a flag before both.
    assert_eq!((&object["usage"]["output_tokens"], &object["seed"]), (&3.into(), &8.into()));
    let answered = with(&settings, &["-m", "hi", "--json", "--seed", "9", "--max-tokens", "2"]);
    let object: Value = serde_json::from_str(&answered.stdout).unwrap();
    assert_eq!((&object["usage"]["output_tokens"], &object["seed"]), (&2.into(), &9.into()));

    let wrong = with("seed = 1\ntop-p = 7\n", &["list"]);
    let message = format!(
        "error: line 2 of `{path}` is wrong\n  caused by: `top-p` is 7, but must be above 0 and at most 1\n\
         hint: docs/cli.md lists the settings; a flag or an environment variable goes before them\n"
    );
    assert_eq!((wrong.code, wrong.stderr), (Some(2), message));
    let gone = run(pleach(["list"]).env("PLEACH_CONFIG", folder.path().join("none.toml")));
    assert_eq!(gone.code, Some(2));
    assert!(gone.stderr.starts_with("error: cannot read the settings in `"), "{}", gone.stderr);
    assert!(gone.stderr.ends_with("hint: PLEACH_CONFIG names another file; an empty PLEACH_CONFIG does without\n"));
}

/// A slip in the name of a model that is there.
#[cfg(unix)]
#[test]
fn a_name_that_is_close_is_offered() {
    let home = TempDir::new().unwrap();
    let models = home.path().join("pleach/models");
    fs::create_dir_all(&models).unwrap();
    let model = models.join("tiny-llama.gguf");
    std::os::unix::fs::symlink(fixture("tiny-llama/model.gguf"), &model).unwrap();
    fs::create_dir_all(home.path().join("hub/models--org--Some-Model-1B")).unwrap();
    let in_home = |name: &str| {
        let mut command = pleach(["inspect", name, "--offline"]);
        run(command.env("XDG_CACHE_HOME", home.path()).env("HF_HUB_CACHE", home.path().join("hub"))).stderr
    };
    assert_eq!(in_home("tiny-llama"), "");
    assert!(in_home("tiny_llama").ends_with("\nhint: did you mean `tiny-llama`?\n"));
    assert!(in_home("org/some-model-1b").ends_with("\nhint: did you mean `org/Some-Model-1B`?\n"));
    assert!(in_home("org/other").ends_with("hint: `pleach pull` fetches it when the network may be used\n"));
}

#[test]
fn the_machine_is_looked_at() {
    let home = TempDir::new().unwrap();
    let mut command = pleach(["doctor", "--json"]);
    command.env("HF_HOME", home.path()).env("HF_TOKEN", "hf_secret").env("PLEACH_THREADS", "1");
    let looked = run(command
        .env_remove("ALL_PROXY")
        .env_remove("all_proxy")
        .env_remove("NO_PROXY")
        .env_remove("no_proxy")
        .env("HTTPS_PROXY", "http://user:secret@proxy.example:3128"));
    assert_eq!(looked.code, Some(0), "{}", looked.stderr);
    let object: Value = serde_json::from_str(&looked.stdout).unwrap();
    assert!(object["device"].as_str().unwrap().contains("thread"));
    assert!(object["read_bytes_per_s"].as_f64().is_some_and(|rate| rate > 1e6), "{object}");
    assert_eq!(object["hub"]["token"], true);
    assert_eq!(object["hub"]["proxy"], "proxy.example:3128");
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
fn help_is_a_command_and_a_flag() {
    let page = |arguments: &[&str]| run(&mut pleach(arguments.iter().copied()));
    assert_eq!(page(&["help"]), page(&["--help"]));
    for command in ["run", "bench", "server"] {
        let help = page(&["help", command]);
        assert_eq!((help.code, help.stderr.as_str()), (Some(0), ""));
        assert_eq!(help.stdout, page(&[command, "--help"]).stdout);
    }
    let unknown = page(&["help", "hello"]);
    assert_eq!(unknown.code, Some(2));
    assert_eq!(unknown.stderr, "error: there is no command `hello`\nhint: `pleach help` lists commands and flags\n");
}

#[test]
fn a_server_for_others_needs_a_key() {
    for name in ["serve", "server"] {
        let run = run(&mut pleach([name, &fixture("tiny-llama"), "--host", "0.0.0.0", "--port", "0", "--log", "off"]));
        assert_eq!(run.code, Some(2), "{}", run.stderr);
        assert!(run.stderr.contains("no key is asked for: give `--api-key-file`"), "{}", run.stderr);
    }
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
