//! `pleach chat` on a terminal, key by key, and in a pipe.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use crate::pty::{CTRL_C, CTRL_D, Terminal};
use crate::support::{bare, fixture, pleach, run};

/// A conversation whose answers are short.
fn chat(flags: &[&str], home: &TempDir) -> Terminal {
    let model = fixture("tiny-qwen35");
    let history = home.path().join("history");
    let short = if flags.contains(&"--max-tokens") { &[][..] } else { &["--max-tokens", "5"] };
    let arguments = [&["chat", &model, "--no-think", "--temperature", "0"], short, flags].concat();
    let terminal = Terminal::start(&arguments, &[("PLEACH_HISTORY", history.to_str().unwrap())]);
    terminal.see("Ctrl-D leaves");
    terminal.see_prompt();
    terminal
}

/// Asks, and waits until the answer was written.
fn ask(terminal: &mut Terminal, question: &str) {
    terminal.line(question);
    terminal.see_prompt();
}

fn saved(path: &std::path::Path) -> Vec<(String, String)> {
    let messages: Vec<Value> = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let text = |message: &Value, field: &str| message[field].as_str().unwrap().to_owned();
    messages.iter().map(|message| (text(message, "role"), text(message, "content"))).collect()
}

#[test]
fn bytes_that_are_no_text_do_not_end_the_conversation() {
    let home = TempDir::new().unwrap();
    let mut terminal = chat(&[], &home);
    terminal.bytes(b"caf\xe9\r");
    terminal.see("what was typed is not UTF-8 text, and was left out");
    terminal.see_prompt();
    ask(&mut terminal, "/undo");
    terminal.see("there is nothing to take back");
}

#[test]
fn every_command_does_what_it_says() {
    let home = TempDir::new().unwrap();
    let file = home.path().join("talk.json");
    let path = file.to_str().unwrap();
    let mut terminal = chat(&[], &home);

    ask(&mut terminal, "/help");
    terminal.see("/retry              another answer to the last question");
    ask(&mut terminal, "/stats");
    terminal.see("there was no answer yet");
    ask(&mut terminal, "/undo");
    terminal.see("there is nothing to take back");
    ask(&mut terminal, "/system");
    terminal.see("no instructions; /system TEXT gives some");
    ask(&mut terminal, "/system Be very short.");
    terminal.see("instructions are set");

    ask(&mut terminal, "first question");
    terminal.see("cut off by max-tokens");
    ask(&mut terminal, "/stats");
    terminal.see("tokens per forward pass");
    ask(&mut terminal, "second question");
    ask(&mut terminal, "/undo");
    terminal.see("took back: second question");
    ask(&mut terminal, "/retry");
    terminal.see("at temperature 0 the answer is always the same");
    ask(&mut terminal, &format!("/save {path}"));
    terminal.see("saved 3 messages");
    let messages = saved(&file);
    assert_eq!(messages[0], ("system".to_owned(), "Be very short.".to_owned()));
    assert_eq!(messages[1], ("user".to_owned(), "first question".to_owned()));

    ask(&mut terminal, "/set temperature 0.9");
    terminal.see("temperature         0.9");
    ask(&mut terminal, "/set top-p 3");
    terminal.see("but must be above 0 and at most 1");
    ask(&mut terminal, "/set tempature");
    terminal.see("did you mean `temperature`?");
    ask(&mut terminal, "/set max-tokens 3");
    ask(&mut terminal, "/set");
    terminal.see("max-tokens          3");
    ask(&mut terminal, "/think hide");
    terminal.see("thinking is off, thoughts are hidden");
    ask(&mut terminal, "/think on");
    terminal.see("thinking is on, thoughts are hidden");
    ask(&mut terminal, "/stats on");
    terminal.see("statistics follow each answer");
    ask(&mut terminal, "/stats off");

    ask(&mut terminal, "/clear");
    terminal.see("the conversation is empty now");
    ask(&mut terminal, "/retry");
    terminal.see("there is no question to ask again");
    ask(&mut terminal, &format!("/load {path}"));
    terminal.see("loaded 3 messages");
    ask(&mut terminal, "/load /no/such/file");
    terminal.see("cannot read `/no/such/file`");
    ask(&mut terminal, "/fly");
    terminal.see("there is no command `/fly`");
    terminal.line("/exit");
    assert_eq!(terminal.end(), 0);
}

#[test]
fn a_paste_of_many_lines_is_one_question() {
    let home = TempDir::new().unwrap();
    let file = home.path().join("talk.json");
    let mut terminal = chat(&[], &home);
    terminal.paste("def f(x):\n    return x\n\n/help is no command here");
    terminal.see("/help is no command here");
    terminal.keys("\r");
    terminal.see("cut off");
    // Typed over several lines as well: a backslash, Alt-Enter, and quotes.
    terminal.keys("one \\\rtwo\x1b\rthree\r");
    terminal.wait("two answers", |screen| screen.matches("cut off").count() == 2);
    terminal.keys("\"\"\"\r/four\rfive\r\"\"\"\r");
    terminal.wait("three answers", |screen| screen.matches("cut off").count() == 3);
    ask(&mut terminal, &format!("/save {}", file.display()));
    terminal.see("saved 6 messages");
    let questions: Vec<String> =
        saved(&file).into_iter().filter(|(role, _)| role == "user").map(|(_, text)| text).collect();
    assert_eq!(questions, ["def f(x):\n    return x\n\n/help is no command here", "one \ntwo\nthree", "/four\nfive"]);
    terminal.keys(CTRL_D);
    assert_eq!(terminal.end(), 0);
}

/// A terminal that went away in the middle of a paste, and what terminals say when nobody has asked.
#[test]
fn neither_half_a_paste_nor_what_the_terminal_says_is_in_the_way() {
    let home = TempDir::new().unwrap();
    let mut terminal = chat(&[], &home);
    terminal.keys("\x1b[?62;1;6c\x1b]11;rgb:0000/1111/2222\x07\x1b[1;2;3;4R\x1b[200~half of a paste");
    // Pressed at once it counts as a part of the paste; nobody is that fast.
    terminal.press_until(CTRL_C, "Ctrl-C once more leaves");
    terminal.keys("/undo\r");
    terminal.see("there is nothing to take back");
    terminal.see_prompt();
    let text = terminal.text();
    assert!(!["half", "62", "rgb", "4R"].iter().any(|leaked| text.contains(leaked)), "{text}");
}

#[test]
fn ctrl_c_stops_the_answer_and_then_leaves() {
    let home = TempDir::new().unwrap();
    let file = home.path().join("talk.json");
    let mut terminal = chat(&["--max-tokens", "4000", "--ignore-eos"], &home);
    // In a line it empties the line.
    terminal.keys("half a line");
    terminal.see("half a line");
    terminal.keys(CTRL_C);
    terminal.see_prompt();

    terminal.line("a long answer");
    terminal.wait("some of the answer", is_answering);
    terminal.keys(CTRL_C);
    terminal.see_prompt();
    ask(&mut terminal, &format!("/save {}", file.display()));
    terminal.see("saved 2 messages");
    assert!(!saved(&file)[1].1.is_empty());

    // At an empty prompt the first says what the second does.
    terminal.keys(CTRL_C);
    terminal.see("Ctrl-C once more leaves");
    terminal.keys(CTRL_C);
    assert_eq!(terminal.end(), 0);
}

#[test]
fn ctrl_c_twice_stops_an_answer_and_leaves() {
    let home = TempDir::new().unwrap();
    let mut terminal = chat(&["--max-tokens", "4000", "--ignore-eos"], &home);
    terminal.line("a long answer");
    terminal.wait("some of the answer", is_answering);
    terminal.keys(CTRL_C);
    terminal.see_prompt();
    terminal.keys(CTRL_C);
    assert_eq!(terminal.end(), 0);
}

#[test]
fn the_prompt_follows_the_size_of_the_terminal() {
    let home = TempDir::new().unwrap();
    let mut terminal = chat(&[], &home);
    let long = "words that go over the edge of a narrow terminal and on and on";
    terminal.keys(long);
    terminal.see("on and on");
    terminal.resize(24, 40);
    terminal.keys(" and END");
    terminal.wait("the line on the narrow screen", |screen| {
        screen.replace('\n', "").contains("narrow terminal and on and on and END")
    });
    terminal.keys("\r");
    terminal.see("cut off");
    terminal.keys(CTRL_D);
    assert_eq!(terminal.end(), 0);
}

#[test]
fn typed_lines_are_remembered() {
    let home = TempDir::new().unwrap();
    let mut terminal = chat(&[], &home);
    ask(&mut terminal, "/system remembered words");
    terminal.keys(CTRL_D);
    assert_eq!(terminal.end(), 0);
    let mut terminal = chat(&[], &home);
    terminal.keys("\x1b[A");
    terminal.see("/system remembered words");
    // Commands are completed.
    terminal.keys(CTRL_C);
    terminal.see_prompt();
    terminal.keys("/cle\t");
    terminal.see("/clear");
}

#[test]
fn a_pleach_without_a_prompt_is_a_conversation() {
    let home = TempDir::new().unwrap();
    let model = fixture("tiny-llama");
    // An empty name keeps no history.
    let variables = [("PLEACH_HISTORY", ""), ("PLEACH_MODEL", model.as_str()), ("HOME", home.path().to_str().unwrap())];
    let mut terminal = Terminal::start(&[], &variables);
    terminal.see("tiny-llama, ");
    terminal.see_prompt();
    ask(&mut terminal, "/think on");
    terminal.see("the model's chat template has no thoughts");
    terminal.keys(CTRL_D);
    assert_eq!(terminal.end(), 0);
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

/// Keys that are pressed while an answer comes wait for the next line.
#[test]
fn what_is_typed_during_an_answer_does_not_show_in_it() {
    let home = TempDir::new().unwrap();
    let mut terminal = chat(&["--max-tokens", "2500", "--ignore-eos"], &home);
    terminal.line("a long answer");
    terminal.wait("some of the answer", is_answering);
    terminal.keys("QQQZZZ");
    terminal.wait("the end of the answer", |screen| screen.contains("cut off by max-tokens"));
    terminal.wait("the keys at the prompt alone", |screen| screen.trim_end().ends_with(">>> QQQZZZ"));
    assert_eq!(terminal.text().matches("QQQ").count(), 1, "{}", terminal.text());
}

/// A shell that leaves the terminal as it finds it gets one that shows what is typed, and the answer goes on in silence.
#[test]
fn ctrl_z_gives_the_shell_its_terminal() {
    let home = TempDir::new().unwrap();
    let model = fixture("tiny-qwen35");
    let variables = [("PLEACH_HISTORY", ""), ("HOME", home.path().to_str().unwrap()), ("PS1", "shell> ")];
    let mut terminal = Terminal::start_program("sh".as_ref(), &["-i"], &variables);
    terminal.see("shell>");
    let binary = bare().get_program().to_str().unwrap().to_owned();
    let start = |terminal: &mut Terminal| {
        terminal.keys(&format!("clear; {binary} chat {model} --no-think --max-tokens 4000 --ignore-eos\r"));
        terminal.see("Ctrl-D leaves");
        terminal.see_prompt();
        terminal.line("a long answer");
        terminal.wait("some of the answer", is_answering);
    };
    start(&mut terminal);
    terminal.keys("\x1a");
    terminal.wait("the shell", |screen| screen.trim_end().ends_with("shell>"));
    terminal.keys("clear; stty -a | grep -cw -- -echo; echo done\r");
    terminal.see("0\ndone");
    terminal.keys("fg\r");
    terminal.wait("the answer to go on", |screen| {
        screen.split_once("fg").map_or(!screen.contains("done"), |(_, rest)| rest.len() > 300)
    });
    terminal.keys("QQQ");
    terminal.keys(CTRL_C);
    terminal.see_prompt();
    assert!(!terminal.text().contains("QQQ"), "{}", terminal.text());
    // Ended from elsewhere, it leaves the terminal in order as well.
    terminal.line("once more a long answer");
    terminal.wait("some of the answer", is_answering);
    terminal.keys("\x1a");
    terminal.wait("the shell", |screen| screen.trim_end().ends_with("shell>"));
    terminal.keys("kill %1; fg; clear; stty -a | grep -cw -- -echo; echo done\r");
    terminal.see("0\ndone");
}

/// Whether some of the answer to the last question shows; the note about the prompt before it is none. A question that
/// stood there and does no more was pushed out by its answer.
fn is_answering(screen: &str) -> bool {
    screen.rsplit_once("a long answer").is_none_or(|(_, answer)| {
        let answer = answer.trim();
        answer.len() > 10 && !answer.starts_with("reading the prompt")
    })
}

/// Nothing waits for a load that nobody wants any more.
#[test]
fn ctrl_c_ends_what_is_loading() {
    let folder = TempDir::new().unwrap();
    // A hub that never answers: the process is waiting for its model.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let cache = folder.path().to_str().unwrap();
    let variables = [("HF_ENDPOINT", endpoint.as_str()), ("HF_HUB_CACHE", cache)];
    let mut terminal = Terminal::start(&["run", "org/model", "hi"], &variables);
    terminal.see("asking the hub for org/model");
    terminal.keys(CTRL_C);
    assert_eq!(terminal.end(), 130);
}

/// The screen as a person sees it.
#[test]
fn the_screen() {
    let home = TempDir::new().unwrap();
    let mut terminal = chat(&[], &home);
    ask(&mut terminal, "Why is the sky blue?");
    ask(&mut terminal, "/think");
    ask(&mut terminal, "/undo");
    insta::assert_snapshot!(terminal.text());
    assert!(terminal.formatted().contains("\x1b[2m"), "{:?}", terminal.formatted());
}

#[test]
fn programs_get_an_event_a_line() {
    let model = fixture("tiny-qwen35");
    let talked = run(pleach(["chat", &model, "--max-tokens", "5", "--no-think", "--json", "--temperature", "0"])
        .write_stdin("hello\n/undo\n/fly\n/set top-p 3\n/exit\n"));
    assert_eq!((talked.code, talked.stderr.as_str()), (Some(0), ""));
    let events: Vec<Value> = talked.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).collect::<Vec<_>>();
    assert_eq!(events[0]["type"], "ready");
    assert_eq!(events[0]["model"]["architecture"], "qwen35");
    let pieces: String = of("text").iter().map(|event| event["text"].as_str().unwrap()).collect();
    let answers = of("answer");
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0]["text"], pieces);
    assert_eq!(answers[0]["finish_reason"], "length");
    assert_eq!(answers[0]["usage"]["output_tokens"], 5);
    let notes: Vec<&str> = of("note").iter().map(|event| event["text"].as_str().unwrap()).collect();
    assert_eq!(notes, ["warning: the answer was cut off by max-tokens", "took back: hello"]);
    let errors = of("error");
    assert_eq!(errors[0]["message"], "there is no command `/fly`");
    assert_eq!(errors[0]["hint"], "/help lists commands");
    assert_eq!(errors[1]["message"], "`top-p` is 3, but must be above 0 and at most 1");
}

#[test]
fn a_pipe_talks_as_well() {
    let model = fixture("tiny-qwen35");
    let talked = run(pleach(["chat", &model, "--max-tokens", "5", "--no-think", "--quiet"])
        .write_stdin("hello\n\"\"\"\nover\nlines\n\"\"\"\n/undo\n/exit\nnever asked\n"));
    assert_eq!(talked.code, Some(0), "{}", talked.stderr);
    assert!(talked.stdout.ends_with('\n') && talked.stdout.len() > 2, "{}", talked.stdout);
    assert!(talked.stderr.ends_with("took back: over…\n"), "{}", talked.stderr);
    assert!(!talked.stdout.contains('\u{1b}') && !talked.stdout.contains(">>>"));
}
