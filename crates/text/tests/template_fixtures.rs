//! Every recorded chat-template case, verbatim and through typed messages.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use std::collections::HashMap;

use pleach_text::{ChatRequest, ChatTemplate, Message, SpecialTokenStrings, TextError};
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Deserialize)]
struct Case {
    template: String,
    name: String,
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    kwargs: Map<String, Value>,
    expected: Option<String>,
}

impl Case {
    fn request(&self, messages: Vec<Message>) -> ChatRequest {
        let mut kwargs = self.kwargs.clone();
        let add_generation_prompt = kwargs.remove("add_generation_prompt").is_some_and(|value| value == true);
        ChatRequest { messages, tools: self.tools.clone().unwrap_or_default(), kwargs, add_generation_prompt }
    }

    fn typed_messages(&self) -> Vec<Message> {
        self.messages.iter().map(|message| serde_json::from_value(message.clone()).unwrap()).collect()
    }
}

fn cases() -> Vec<Case> {
    common::json("chat/cases.json")
}

fn templates() -> HashMap<String, ChatTemplate> {
    let names = ["qwen35", "qwen35-small", "qwen36", "qwen3", "smollm2"];
    let compile = |name: &str| {
        let source = String::from_utf8(common::bytes(&format!("chat/{name}.jinja"))).unwrap();
        ChatTemplate::named(name, &source, &SpecialTokenStrings::default()).unwrap()
    };
    names.iter().map(|name| ((*name).to_owned(), compile(name))).collect()
}

/// By their markers or their switch; a word that only sounds like it is none.
#[test]
fn templates_say_whether_they_know_thoughts() {
    let templates = templates();
    let knowing = ["qwen35", "qwen35-small", "qwen36", "qwen3"];
    assert!(knowing.iter().all(|&name| templates[name].knows_thoughts()) && !templates["smollm2"].knows_thoughts());
    let rethink = ChatTemplate::new("{# rethink this #}{{ messages }}", &SpecialTokenStrings::default()).unwrap();
    assert!(!rethink.knows_thoughts());
}

#[test]
fn every_case_renders_or_fails_as_recorded() {
    let (templates, cases) = (templates(), cases());
    let mut counts = (0, 0);
    for case in &cases {
        let result = templates[&case.template].render_messages(&case.messages, &case.request(Vec::new()));
        match &case.expected {
            Some(expected) => {
                assert_eq!(&result.unwrap(), expected, "{} {}", case.template, case.name);
                counts.0 += 1;
            }
            None => {
                let error = result.expect_err(&case.name);
                let expected = matches!(error, TextError::TemplateRefused { .. } | TextError::NoMessages);
                assert!(expected, "{} {}: {error}", case.template, case.name);
                counts.1 += 1;
            }
        }
    }
    assert_eq!(counts, (154, 18));
}

#[test]
fn typed_messages_render_the_same() {
    let templates = templates();
    for case in cases() {
        // Two deliberate differences: `developer` acts as `system`, and text parts become a string, which the
        // Qwen3 template would otherwise print as nothing.
        let differs = case.name == "error_bad_role" || (case.template == "qwen3" && case.name == "content_parts");
        let Some(expected) = case.expected.as_ref().filter(|_| !differs) else {
            continue;
        };
        let rendered = templates[&case.template].render(&case.request(case.typed_messages())).unwrap();
        assert_eq!(&rendered.prompt, expected, "{} {}", case.template, case.name);
        assert!(rendered.notes.is_empty());
    }
}

#[test]
fn text_parts_reach_a_template_that_takes_only_strings() {
    let templates = templates();
    let cases = cases();
    let case = cases.iter().find(|case| case.template == "qwen3" && case.name == "content_parts").unwrap();
    let rendered = templates["qwen3"].render(&case.request(case.typed_messages())).unwrap();
    assert!(rendered.prompt.starts_with("<|im_start|>user\nHello world<|im_end|>\n"), "{}", rendered.prompt);
}
