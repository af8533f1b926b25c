//! Templates that are made to break the template engine: each gives an error or a prompt, never an end of the process.

#![allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]

use pleach_text::{ChatRequest, ChatTemplate, Message, Role, SpecialTokenStrings, TextError};

/// As much as a template may have.
const MOST_BYTES: usize = 64 << 10;

fn compile(source: &str) -> Result<ChatTemplate, TextError> {
    ChatTemplate::new(source, &SpecialTokenStrings::default())
}

/// `links` after each other, as many as a template of the largest size has room for beside what stands around them.
fn chain(before: &str, link: &str, after: &str) -> String {
    let room = MOST_BYTES - before.len() - after.len();
    format!("{before}{}{after}", link.repeat(room / link.len()))
}

/// The parser of the template engine bounds its own recursion, except for signs; chains that it reads in a loop become
/// trees that are compiled and freed by recursion.
#[test]
fn a_deep_expression_does_not_overflow_the_stack() {
    let conversation = ChatRequest::new(vec![Message::text(Role::User, "hi")]);
    let signs = ["-", "not "].map(|link| chain("{{ ", link, "1 }}"));
    let chains = ["|d", "<1", ".a", "()", "[1]", " if 1"].map(|link| chain("{{ a", link, " }}"));
    let branches = [chain("{%if a%}", "{%elif a%}", "{%endif%}"), chain("{%set a=1%}", "{%set b=a%}", "")];
    // Deepest of all in bytes of stack. Shorter, since the engine folds constants of such a chain in quadratic time.
    let sums = [format!("{{{{ a{} }}}}", "+1".repeat(MOST_BYTES / 16))];
    for source in signs.iter().chain(&chains).chain(&branches).chain(&sums) {
        if let Ok(template) = compile(source) {
            // An error or a prompt: both are answers.
            let _ = template.render(&conversation);
        }
    }
}

/// What most conversations need is done on a small stack, so that a limit of addresses as `ulimit -v` sets leaves room.
#[cfg(target_os = "linux")]
#[test]
fn a_published_template_reserves_few_addresses() {
    let peak_mib = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).unwrap();
        line.trim_end_matches("kB").trim().parse::<u64>().unwrap() >> 10
    };
    let before = peak_mib();
    let source = std::fs::read_to_string("../../fixtures/chat/qwen35.jinja").unwrap();
    let conversation = ChatRequest::new(vec![Message::text(Role::User, "hi"); 300]);
    assert_eq!(
        compile(&source).unwrap().render(&conversation).unwrap().prompt.matches("user\nhi<|im_end|>").count(),
        300
    );
    let reserved = peak_mib() - before;
    assert!(reserved < 128, "{reserved} MiB");
}

#[test]
fn a_template_beyond_any_published_one_is_refused_by_its_size() {
    assert!(compile(&"x".repeat(MOST_BYTES)).is_ok());
    assert_eq!(
        compile(&"x".repeat(MOST_BYTES + 1)).unwrap_err().to_string(),
        "chat template `chat_template` does not compile: it has 65537 bytes, expected at most 65536"
    );
}
