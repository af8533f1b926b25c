//! What is refused, word for word, with exit code 2 for wrong arguments and 1 for what failed.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::support::{Run, bare, fixture, pleach, run};

fn refused(code: i32, stderr: &str) -> Run {
    Run { code: Some(code), stdout: String::new(), stderr: stderr.to_owned() }
}

fn asked(arguments: &[&str]) -> Run {
    run(&mut pleach([&["run", &fixture("tiny-llama"), "hi"], arguments].concat()))
}

const SEE_HELP: &str = "hint: `pleach run --help` explains every flag\n";

#[test]
fn values_of_flags() {
    let cases = [
        ("--ctx", "-1", "`--ctx` is `-1`, but must be a whole number from 0 (automatic) to 1073741824"),
        ("--ctx", "8k", "`--ctx` is `8k`, but must be a whole number from 0 (automatic) to 1073741824"),
        ("--ctx", "2147483648", "`--ctx` is `2147483648`, but must be a whole number from 0 (automatic) to 1073741824"),
        ("--temperature", "nan", "`--temperature` is NaN, but must be a finite number of 0 or more"),
        ("--temperature", "-0.5", "`--temperature` is -0.5, but must be a finite number of 0 or more"),
        ("--temperature", "hot", "`--temperature` is `hot`, but must be a number"),
        ("--top-k", "-3", "`--top-k` is `-3`, but must be a whole number from 0 to 4294967295"),
        ("--top-p", "0", "`--top-p` is 0, but must be above 0 and at most 1"),
        ("--min-p", "1.5", "`--min-p` is 1.5, but must be from 0 to 1"),
        ("--repetition-penalty", "0", "`--repetition-penalty` is 0, but must be a finite number above 0"),
        ("--presence-penalty", "3", "`--presence-penalty` is 3, but must be from -2 to 2"),
        ("--frequency-penalty", "-3", "`--frequency-penalty` is -3, but must be from -2 to 2"),
        ("--logit-bias", "7", "`--logit-bias` is `7`, but must be a token's number and a value, such as `42=-5.5`"),
        ("--logit-bias", "7=101", "`--logit-bias` is 101, but must be from -100 to 100"),
        ("--logit-bias", "512=1", "`--logit-bias ID` is 512, but must be below the vocabulary's 512"),
        ("--seed", "-1", "`--seed` is `-1`, but must be a whole number from 0 to 18446744073709551615"),
        ("--max-tokens", "0", "`--max-tokens` is `0`, but must be a whole number from 1 to 4294967295"),
        ("--threads", "0", "`--threads` is `0`, but must be a whole number from 1 to 1024"),
        ("--logprobs", "21", "`--logprobs` is `21`, but must be a whole number from 0 to 20"),
        ("--stop", "", "`--stop` is ``, but must be a text"),
        ("--device", "gpu", "`--device` is `gpu`, but must be `cpu` or `reference`"),
        ("--kv-cache", "q4", "`--kv-cache` is `q4`, but must be `f32`, `f16`, `bf16` or `q8`"),
        ("--activations", "", "`--activations` is ``, but must be `int8` or `exact`"),
        (
            "--spec",
            "magic",
            "`--spec` is `magic`, but must be `auto`, `off`, `ngram`, `mtp`, `draft`, `dflash` or `weaver`",
        ),
        ("--spec-budget", "65", "`--spec-budget` is `65`, but must be `auto` or a whole number from 1 to 64"),
        (
            "--template-arg",
            "a=b",
            "`--template-arg` is `a=b`, but must be a name and JSON, such as `enable_thinking=false` or `style=\"short\"`",
        ),
    ];
    for (flag, value, message) in cases {
        assert_eq!(asked(&[flag, value]), refused(2, &format!("error: {message}\n{SEE_HELP}")), "{flag} {value}");
    }
}

#[test]
fn values_of_variables_name_the_variable() {
    let run = run(pleach(["run", &fixture("tiny-llama"), "hi"]).env("PLEACH_THREADS", "0"));
    let message = "error: `PLEACH_THREADS` is `0`, but must be a whole number from 1 to 1024\n";
    assert_eq!(run, refused(2, &format!("{message}{SEE_HELP}")));
}

#[test]
fn wrong_variables_are_named() {
    let with = |name: &str, value: &str| run(pleach(["run", "hi"]).env(name, value));
    let message = "error: `PLEACH_TEMPERATURE` is NaN, but must be a finite number of 0 or more\n";
    assert_eq!(with("PLEACH_TEMPERATURE", "nan"), refused(2, &format!("{message}{SEE_HELP}")));
    let message = "error: `PLEACH_OFFLINE` is `maybe`, but must be `1`, `true`, `yes` or `on`, or else `0`, `false`, `no`, \
                   `off` or empty\n";
    assert_eq!(with("PLEACH_OFFLINE", "maybe"), refused(2, &format!("{message}{SEE_HELP}")));
    let missing = with("PLEACH_MODEL", "/no/such/model");
    let message = "error: the variable `PLEACH_MODEL`: there is no model `/no/such/model`: ";
    assert!(missing.code == Some(1) && missing.stderr.starts_with(message), "{}", missing.stderr);
}

#[test]
fn settings_that_cannot_be_read_are_wrong_settings() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("config.toml");
    fs::write(&file, b"seed = 1 # \xff").unwrap();
    for path in [folder.path(), &file, &folder.path().join("none")] {
        let run = run(pleach(["list"]).env("PLEACH_CONFIG", path));
        let message = format!("error: cannot read the settings in `{}`\n  caused by: ", path.display());
        assert!(run.code == Some(2) && run.stderr.starts_with(&message), "{run:?}");
        assert!(run.stderr.contains("hint: PLEACH_CONFIG names another file"), "{run:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_version_that_cannot_be_written_is_a_failure() {
    let full = fs::File::create("/dev/full").unwrap();
    assert_eq!(bare().arg("--version").stdout(full).status().unwrap().code(), Some(1));
}

#[test]
fn origins_that_no_page_has() {
    let run = run(&mut pleach(["serve", &fixture("tiny-llama"), "--port", "0", "--cors-origin", "x y"]));
    let message = "error: `--cors-origin` is `x y`, but must be a scheme and a name such as `https://example.org`, or `*` \
                   for all\nhint: `pleach serve --help` explains every flag\n";
    assert_eq!(run, refused(2, message));
}

#[test]
fn a_drafter_that_is_not_there_is_left_out_by_its_flag() {
    let weaver = asked(&["--spec", "weaver"]);
    assert!(
        weaver.stderr.ends_with("hint: leave out `--spec`, and `--draft-model` if it is given, to have one chosen\n"),
        "{}",
        weaver.stderr
    );
}

#[test]
fn arguments_that_make_no_sense() {
    let cases: [(&[&str], &str, &str); 12] = [
        (&["-m", "hi", "--top-q", "3"], "unexpected argument `--top-q` found", "did you mean `--top-p`?"),
        (
            &["hello"],
            "there is no command `hello`",
            "to ask it, `pleach -m \"hello\"`; a prompt of several words needs quotes",
        ),
        (
            &["run", "a.gguf", "why", "is"],
            "unexpected argument `is`",
            "a prompt of several words needs quotes, as in `pleach -m \"Why is the sky blue?\"`",
        ),
        (&["rum", "hello"], "unrecognized subcommand `rum`", "did you mean `run`?"),
        (
            &["-m", "hi", "--think", "--no-think"],
            "the argument `--think` cannot be used with `--no-think`",
            "`pleach run --help` explains every flag",
        ),
        (
            &["-m", "hi", "--raw", "--system", "x"],
            "the argument `--raw` cannot be used with `--system <TEXT>`",
            "`pleach run --help` explains every flag",
        ),
        (
            &["-m", "hi", "--logprobs", "2"],
            "the following required arguments were not provided: --json",
            "`pleach run --help` explains every flag",
        ),
        (
            &["run", "a.gguf", "hi", "--model", "b.gguf"],
            "the model is named twice: `a.gguf` and `b.gguf`",
            "name it either as the first argument or with `--model`",
        ),
        (
            &["run", "a.gguf", "hi", "-m", "ho"],
            "the prompt is given twice: `hi` and `ho`",
            "give it either as an argument or with `-m`; quote a prompt of several words",
        ),
        (
            &["run", "a.gguf"],
            "there is no prompt",
            "`pleach run a.gguf -m \"Why is the sky blue?\"`, or pipe text into it; `pleach chat a.gguf` talks with the model",
        ),
        (&["man", "run"], "unexpected argument `run`", "`pleach help run` explains the command `run`"),
        (&["doctor", "now"], "unexpected argument `now`", "`pleach doctor --help` says what it takes"),
    ];
    for (arguments, message, hint) in cases {
        let run = run(&mut pleach(arguments.iter().copied()));
        assert_eq!(run, refused(2, &format!("error: {message}\nhint: {hint}\n")), "{arguments:?}");
    }
}

#[test]
fn models_that_are_not_there() {
    let hint = "hint: a model is a folder, a `.gguf` file, or `org/name` of the Hugging Face hub\n";
    let missing = run(&mut pleach(["run", "/no/such/model", "hi"]));
    let message = "error: there is no model `/no/such/model`: no file or folder has this name\n";
    assert_eq!(missing, refused(1, &format!("{message}{hint}")));

    let question = run(&mut pleach(["chat", "hello there"]));
    let hint = "hint: to ask it, `pleach -m \"hello there\"`\n";
    assert!(question.code == Some(1) && question.stderr.ends_with(hint), "{}", question.stderr);

    let cache = TempDir::new().unwrap();
    let uncached = run(pleach(["run", "org/name", "hi", "--offline"]).env("HF_HUB_CACHE", cache.path()));
    let place = cache.path().display();
    let message = format!("error: `org/name` is not in `{place}`, or not all of it, and the network is not used\n");
    let hint = "hint: `pleach pull` fetches it when the network may be used\n";
    assert_eq!(uncached, refused(1, &format!("{message}{hint}")));
}

#[cfg(unix)]
#[test]
fn a_model_variable_that_is_no_text_is_not_passed_over() {
    use std::os::unix::ffi::OsStrExt as _;
    let name = std::ffi::OsStr::from_bytes(b"models/\xff");
    let run = run(pleach(["run", "hi"]).env("PLEACH_MODEL", name));
    let message = "error: `PLEACH_MODEL` is `models/\u{fffd}`, but must be UTF-8 text\n";
    assert_eq!(run, refused(2, &format!("{message}{SEE_HELP}")));
}

#[cfg(unix)]
#[test]
fn a_name_that_is_no_text_is_refused_with_a_way_out() {
    use std::os::unix::ffi::OsStrExt as _;
    let name = std::ffi::OsStr::from_bytes(b"model-\xff.gguf");
    let message = "error: the argument `model-\u{fffd}.gguf` is not UTF-8 text\n";
    let hint = "hint: if it is a file, name its folder, or a link to it that has another name\n";
    assert_eq!(run(pleach(["run"]).arg(name).arg("hi")), refused(2, &format!("{message}{hint}")));

    let folder = TempDir::new().unwrap();
    fs::copy(fixture("tiny-llama/model.gguf"), folder.path().join(name)).unwrap();
    let opened = run(&mut pleach(["run", folder.path().to_str().unwrap(), "hi", "--max-tokens", "1", "--quiet"]));
    assert_eq!((opened.code, opened.stderr.as_str()), (Some(0), ""));
}

/// What a shell may take from a process: stack, the length of files, addresses. Other systems refuse some of these limits.
#[cfg(target_os = "linux")]
#[test]
fn limits_of_the_shell_are_met_with_an_answer_or_an_error() {
    let limited = |limit: &str, arguments: &[&str]| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\"")]).arg(bare().get_program()).args(arguments);
        shell.env("PLEACH_CONFIG", "").stdin(std::process::Stdio::null());
        shell
    };
    let model = fixture("tiny-llama");
    let ask = ["run", &model, "hi", "--max-tokens", "2", "--quiet", "--ctx", "256", "--threads", "1"];
    for limit in ["-s 64", "-v 524288"] {
        let output = limited(limit, &ask).output().unwrap();
        assert_eq!(
            (output.status.code(), String::from_utf8(output.stderr).unwrap()),
            (Some(0), String::new()),
            "{limit}"
        );
    }
    let folder = TempDir::new().unwrap();
    let file = fs::File::create(folder.path().join("man")).unwrap();
    let output = limited("-f 1", &["man"]).stdout(file).stderr(std::process::Stdio::piped()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("error: cannot write the output\n  caused by: File too large"), "{stderr}");
    assert!(
        stderr.ends_with("\nhint: a limit such as that of `ulimit -f` lets the file grow no further\n"),
        "{stderr}"
    );
}

#[test]
fn variables_of_the_hub_that_cannot_be_are_named() {
    let with = |name: &str, value: &str| run(pleach(["info", "org/model"]).env(name, value));
    let message = "error: `HF_HUB_OFFLINE` is `zz`, but must be `1`, `true`, `yes` or `on`, or else `0`, `false`, `no`, \
                   `off` or empty\nhint: leave HF_HUB_OFFLINE out for `off`\n";
    assert_eq!(with("HF_HUB_OFFLINE", "zz"), refused(2, message));
    #[cfg(unix)]
    assert_eq!(
        with("HF_HUB_CACHE", "/dev/null"),
        refused(
            2,
            "error: models of the hub cannot be kept in `/dev/null`: `/dev/null` is no folder\n\
             hint: set HF_HUB_CACHE to a folder for models\n"
        )
    );
}

#[test]
fn errors_do_not_command_the_terminal() {
    let run = run(&mut pleach(["run", "/no\u{1b}[2J/model", "hi"]));
    assert!(run.stderr.starts_with("error: there is no model `/no␛[2J/model`"), "{}", run.stderr);
}

#[test]
fn a_line_break_in_a_name_does_not_break_the_line() {
    let run = run(&mut pleach(["run", "/no\nhint: rm -r\u{202e}/model", "hi"]));
    let message = "error: there is no model `/no␊hint: rm -r\u{fffd}/model`: no file or folder has this name\n";
    let hint = "hint: a model is a folder, a `.gguf` file, or `org/name` of the Hugging Face hub\n";
    assert_eq!(run, refused(1, &format!("{message}{hint}")));
}

/// A program that was installed finds the model of the checkout that it was built in, whatever folder it was built into.
#[test]
fn the_default_model_is_that_of_the_checkout() {
    let home = TempDir::new().unwrap();
    let program = home.path().join("pleach");
    fs::copy(assert_cmd::cargo::cargo_bin!("pleach"), &program).unwrap();
    let mut command = std::process::Command::new(&program);
    command
        .args(["run", "-m", "hi", "--max-tokens", "1", "--json"])
        .env_remove("PLEACH_MODEL")
        .env("PLEACH_CONFIG", "");
    command.env("HOME", home.path()).env("XDG_CACHE_HOME", home.path().join("cache"));
    let answer = run(&mut assert_cmd::Command::from_std(command));
    assert!(answer.stdout.contains(r#""name": "pleach-mini""#), "{}{}", answer.stdout, answer.stderr);
}

#[test]
fn a_broken_model_is_named_with_what_is_wrong_with_it() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("broken.gguf");
    let whole = fs::read(fixture("tiny-llama/model.gguf")).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let cut = run(&mut pleach(["run", file.to_str().unwrap(), "hi"]));
    assert_failure(&cut, &file);

    fs::write(&file, b"GGUF\xff\xff\xff\xff").unwrap();
    assert_failure(&run(&mut pleach(["run", file.to_str().unwrap(), "hi"])), &file);
}

/// A folder that a user may well name: it lies beside the models.
#[test]
fn a_drafter_in_place_of_a_model() {
    let drafter = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/smollm2-135m-instruct-drafter");
    let stderr = format!(
        "error: cannot open the model `{drafter}`\n  caused by: `{drafter}` holds a drafter, which guesses ahead for a model and \
         is none itself: open the model that it was made for\nhint: name the drafter beside its model, with `--draft-model`\n"
    );
    assert_eq!(run(&mut pleach(["run", drafter, "hi"])), refused(1, &stderr));
}

/// The chain of causes, then the hint; the words in between are the checkpoint's.
fn assert_failure(run: &Run, file: &Path) {
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
    let lines: Vec<&str> = run.stderr.lines().collect();
    assert_eq!(lines[0], format!("error: cannot open the model `{}`", file.display()));
    let causes = &lines[1..lines.len() - 1];
    assert!(!causes.is_empty() && causes.iter().all(|line| line.starts_with("  caused by: ")), "{}", run.stderr);
    let hint = "hint: docs/formats.md lists what opens; if this should, check that the download is complete";
    assert_eq!(lines[lines.len() - 1], hint);
}

#[test]
fn texts_that_cannot_be_read() {
    let model = fixture("tiny-llama");
    let missing = run(&mut pleach(["run", &model, "--messages", "/no/such/file"]));
    let cause = "  caused by: No such file or directory (os error 2)\n";
    let hint = "hint: check the name; it is looked for from the folder that you are in\n";
    #[cfg(unix)]
    assert_eq!(missing, refused(1, &format!("error: cannot read `/no/such/file`\n{cause}{hint}")));

    let malformed = run(pleach(["run", &model, "--messages", "-"]).write_stdin("{\"role\": \"user\"}"));
    assert_eq!(malformed.code, Some(1));
    assert!(
        malformed
            .stderr
            .starts_with("error: standard input is not a JSON list of chat messages\n  caused by: it is an object\n")
    );
    let empty = run(pleach(["run", "/no/such/model", "--messages", "-"]).write_stdin("[]"));
    assert!(empty.stderr.starts_with("error: there is no message in standard input\nhint: "), "{}", empty.stderr);
    assert!(malformed.stderr.ends_with("hint: expected `[{\"role\": \"user\", \"content\": \"Hello\"}]`\n"));

    // Names of this program's types are nobody's business.
    let wrong = run(pleach(["run", &model, "--messages", "-"]).write_stdin("[5]"));
    assert!(
        wrong.stderr.contains("invalid type: integer `5`, expected a message, which is an object"),
        "{}",
        wrong.stderr
    );

    for content in [r#""contnet": "why?""#, r#""content": """#, r#""content": []"#, r#""content": [""]"#] {
        let silent =
            format!(r#"[{{"role": "user", "content": "hi"}}, {{"role": "assistant"}}, {{"role": "user", {content}}}]"#);
        let silent = run(pleach(["run", &model, "--messages", "-"]).write_stdin(silent));
        let cause = "\n  caused by: message 3 is of the user and has no text in `content`\n";
        assert!(silent.code == Some(1) && silent.stderr.contains(cause), "{content}: {}", silent.stderr);
    }

    let bytes = run(pleach(["run", &model]).write_stdin(vec![b'a', 0xff]));
    let message = "error: standard input is not UTF-8 text: byte 1 is 0xff\nhint: convert it to UTF-8 first\n";
    assert_eq!(bytes, refused(1, message));
}

/// They are known to be wrong only once the model is there, and named all the same.
#[test]
fn values_that_the_model_refuses_name_their_flag() {
    let stops = vec!["--stop=x"; 65];
    let message = "error: `--stop` is given 65 times, but must be given at most 64 times\n";
    assert_eq!(asked(&stops), refused(2, &format!("{message}{SEE_HELP}")));
    let message =
        "error: `--template-arg` is `messages=...`, but must be a variable that the prompt does not set itself\n";
    assert_eq!(asked(&["--template-arg", "messages=[]"]), refused(2, &format!("{message}{SEE_HELP}")));
}

#[test]
fn contexts_that_do_not_fit() {
    let beyond = "error: a context of 5000 tokens was asked for, but the model was made for at most 4096\n";
    assert_eq!(asked(&["--ctx", "5000"]), refused(2, &format!("{beyond}hint: leave `--ctx` out to have it chosen\n")));
    let prompt = "many words ".repeat(5000);
    let longest = run(&mut pleach(["run", &fixture("tiny-llama"), "-m", &prompt, "--ctx", "4096"]));
    assert!(
        longest.stderr.ends_with("hint: shorten the prompt: the model has no longer context\n"),
        "{}",
        longest.stderr
    );
    let long = asked(&["--ctx", "10"]);
    assert_eq!(long.code, Some(1));
    assert!(long.stderr.starts_with("error: the prompt has "), "{}", long.stderr);
    assert!(
        long.stderr.ends_with(
            " tokens, but the context holds 10 with at least one of the answer\n\
        hint: shorten the prompt, or raise `--ctx`\n"
        ),
        "{}",
        long.stderr
    );
}

#[test]
fn standard_error_may_be_closed() {
    let mut child = bare();
    child.args(["run", "/no/such/model", "hi"]).stdin(std::process::Stdio::null());
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(child.stderr(writer).status().unwrap().code(), Some(1));
}
