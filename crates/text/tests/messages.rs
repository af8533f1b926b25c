//! Message shapes that clients send, and what comes of templates that refuse or break.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use pleach_text::{
    ChatRequest, ChatTemplate, Content, Message, Part, Role, SpecialTokenStrings, TextError, opens_reasoning,
};
use serde_json::{Value, json};

mod common;

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, &SpecialTokenStrings::default()).unwrap()
}

fn fixture(name: &str) -> ChatTemplate {
    template(&String::from_utf8(common::bytes(&format!("chat/{name}.jinja"))).unwrap())
}

fn request(messages: Value) -> ChatRequest {
    ChatRequest::new(serde_json::from_value(messages).unwrap())
}

fn prompt(template: &ChatTemplate, messages: Value) -> String {
    template.render(&request(messages)).unwrap().prompt
}

fn failure(source: &str) -> String {
    let messages = vec![Message::text(Role::User, "hi")];
    template(source).render(&ChatRequest::new(messages)).unwrap_err().to_string()
}

#[test]
fn tm_01_late_system_messages_are_merged_to_the_front_and_noted() {
    let late = json!([
        {"role": "system", "content": "first"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "system", "content": "second"},
        {"role": "developer", "content": [{"type": "text", "text": "third"}]},
        {"role": "user", "content": "c"},
    ]);
    let merged = json!([
        {"role": "system", "content": "first\n\nsecond\n\nthird"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]);
    let strict = fixture("qwen35");
    let rendered = strict.render(&request(late.clone())).unwrap();
    assert_eq!(rendered.prompt, prompt(&strict, merged));
    let notes: Vec<String> = rendered.notes.iter().map(ToString::to_string).collect();
    assert_eq!(notes, ["the chat template takes a system message only at the start: 2 later ones were merged into it"]);

    // A template that takes them keeps them where they are.
    let lenient = fixture("qwen3").render(&request(late)).unwrap();
    assert!(lenient.notes.is_empty());
    assert!(lenient.prompt.contains("b<|im_end|>\n<|im_start|>system\nsecond<|im_end|>\n"), "{}", lenient.prompt);
}

#[test]
fn tm_01_what_merging_does_not_cure_is_still_an_error() {
    let no_user = json!([{"role": "assistant", "content": "a"}, {"role": "system", "content": "b"}]);
    let error = fixture("qwen35").render(&request(no_user)).unwrap_err();
    assert!(
        matches!(&error, TextError::TemplateRefused { message, .. } if message == "No user query found in messages.")
    );
}

#[test]
fn tm_03_a_template_that_takes_one_system_and_one_user_still_chats() {
    let strict = template(
        "{% if messages|length != 2 or messages[0].role != 'system' %}{{ raise_exception('two only') }}{% endif %}\
         {{ messages[0].content }}|{{ messages[1].content }}",
    );
    let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]);
    assert_eq!(prompt(&strict, messages), "s|u");
}

#[test]
fn tm_05_arguments_are_decoded_once() {
    let history = |arguments: Value| {
        json!([
            {"role": "user", "content": "go"},
            {"role": "assistant", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
            ]},
            {"role": "tool", "content": "ok", "tool_call_id": "1"},
        ])
    };
    for name in ["qwen35", "qwen3"] {
        let template = fixture(name);
        let decoded = prompt(&template, history(json!({"unit": "°C", "n": 1})));
        assert_eq!(prompt(&template, history(json!("{\"unit\": \"°C\", \"n\": 1}"))), decoded);
        let empty = prompt(&template, history(json!({})));
        assert_eq!(prompt(&template, history(json!(""))), empty);
        assert_eq!(prompt(&template, history(Value::Null)), empty);
    }
    // Twice encoded is what the client said: a string.
    let twice = request(history(json!("\"{\\\"n\\\": 1}\"")));
    assert_eq!(twice.messages[1].tool_calls[0].function.arguments, json!("\"{\\\"n\\\": 1}\""));
}

#[test]
fn tm_07_null_missing_and_empty_content_are_equal() {
    let call = json!([{"type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let history = |assistant: Value, tool: Value| {
        let mut messages = json!([{"role": "user", "content": "go"}, assistant, tool]);
        messages[1]["tool_calls"] = call.clone();
        messages
    };
    for name in ["qwen35", "qwen36", "qwen3"] {
        let template = fixture(name);
        let empty = json!({"role": "assistant", "content": ""});
        let expected = prompt(&template, history(empty, json!({"role": "tool", "content": ""})));
        for extra in [json!({"content": null}), json!({}), json!({"content": []})] {
            let with_role = |role: &str| {
                let mut message = extra.clone();
                message["role"] = json!(role);
                message
            };
            assert_eq!(prompt(&template, history(with_role("assistant"), with_role("tool"))), expected, "{name}");
        }
    }
}

#[test]
fn tm_09_empty_assistant_turns_are_accepted() {
    let history = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": null},
        {"role": "user", "content": "b"},
    ]);
    for name in ["qwen35", "qwen35-small", "qwen36", "qwen3", "smollm2"] {
        assert!(prompt(&fixture(name), history.clone()).contains("<|im_start|>assistant\n<|im_end|>\n"), "{name}");
    }
}

#[test]
fn tm_11_parts_are_accepted_and_developer_acts_as_system() {
    let parts = json!([
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]},
    ]);
    let plain = json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": "a b"}]);
    for name in ["qwen35", "qwen3", "smollm2"] {
        assert_eq!(prompt(&fixture(name), parts.clone()), prompt(&fixture(name), plain.clone()), "{name}");
    }
}

#[test]
fn tm_11_other_roles_and_shapes_are_named() {
    let refuse = |message: Value| serde_json::from_value::<Message>(message).unwrap_err().to_string();
    for role in ["bogus", "function", "User", ""] {
        assert_eq!(
            refuse(json!({"role": role, "content": "x"})),
            format!("unknown role `{role}`: expected `system`, `developer`, `user`, `assistant` or `tool`")
        );
    }
    assert_eq!(
        refuse(json!({"role": "user", "content": 3})),
        "`content` is null, a string or a list of parts, found a number"
    );
    assert_eq!(
        refuse(json!({"role": "user", "content": [{"type": "text"}]})),
        "a text part has a string `text`, found nothing"
    );
    assert_eq!(refuse(json!({"role": "assistant", "tool_calls": [{}]})), "missing field `function`");
}

#[test]
fn parts_that_are_not_text_are_passed_on_and_reported() {
    let image = request(json!([{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "what?"}
    ]}]));
    assert_eq!(image.non_text_part(), Some("image_url"));
    let rendered = fixture("qwen35").render(&image).unwrap().prompt;
    assert!(rendered.contains("<|vision_start|><|image_pad|><|vision_end|>what?"));
    assert!(matches!(&image.messages[0].content, Content::Parts(parts) if matches!(parts[0], Part::Other(_))));
    assert_eq!(request(json!([{"role": "user", "content": ["a", {"text": "b"}]}])).non_text_part(), None);
}

#[test]
fn an_empty_conversation_and_reserved_keywords_are_refused() {
    let template = fixture("smollm2");
    assert_eq!(
        template.render(&ChatRequest::new(Vec::new())).unwrap_err().to_string(),
        "`messages` is empty: give at least one message"
    );
    let mut request = ChatRequest::new(vec![Message::text(Role::User, "hi")]);
    request.kwargs.insert("tools".to_owned(), json!([]));
    assert_eq!(
        template.render(&request).unwrap_err().to_string(),
        "`chat_template_kwargs` sets `tools`, which is taken from the request itself: leave it out"
    );
}

#[test]
fn errors_name_the_template_the_line_and_the_words() {
    assert_eq!(
        failure("a\nb\n{{ raise_exception('no \"tools\" here') }}"),
        "chat template `chat_template` refuses the conversation at line 3: no \"tools\" here"
    );
    assert_eq!(
        failure("\n{{ messages[0].missing.deeper }}"),
        "chat template `chat_template` failed at line 2: undefined value: `messages[0].missing` is undefined"
    );
    let compile = |source: &str| {
        ChatTemplate::named("mine.jinja", source, &SpecialTokenStrings::default()).unwrap_err().to_string()
    };
    assert_eq!(
        compile("\n{% if x %}"),
        "chat template `mine.jinja` does not compile at line 2: syntax error: unexpected end of input, expected end of \
         block"
    );
    assert_eq!(
        compile(&" ".repeat((64 << 10) + 1)),
        "chat template `mine.jinja` does not compile: it has 65537 bytes, expected at most 65536"
    );
}

#[test]
fn hostile_templates_end_in_an_error() {
    let endless = [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set n = namespace(x='ab') %}{% for i in range(64) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{{ 'ab' * 1000000000 }}",
        "{% set n = namespace(x=[1]) %}{% for i in range(64) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}",
        "{% set n = namespace(x='') %}{% for i in range(1000) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x | tojson }}",
        "{{ '\\n' * 1000000 | tojson(indent=999999999999) }}",
    ];
    for source in endless {
        assert!(failure(source).starts_with("chat template `chat_template` failed"), "{source}");
    }
    for source in ["{{ ((".repeat(10_000), "{{ [".repeat(10_000), "{{ a|".repeat(10_000), "{% if a %}".repeat(10_000)] {
        assert!(matches!(
            ChatTemplate::new(&source, &SpecialTokenStrings::default()),
            Err(TextError::TemplateSyntax { .. })
        ));
    }
}

/// However deep a template nests, with the fuel of the first try and with that of the second.
#[test]
fn hostile_nesting_does_not_overflow_the_stack() {
    let nested = |levels: usize, then: &str| {
        let (open, close) = ("[".repeat(40), "]".repeat(40));
        failure(&format!(
            "{{% set n = namespace(x=1) %}}{{% for a in range({levels}) %}}{{% set n.x = {open}n.x{close} %}}\
             {{% endfor %}}{then}{{{{ raise_exception('done') }}}}"
        ))
    };
    assert!(nested(100_000, "").contains("takes more than 1000000 steps for a conversation of 1 messages"));
    for levels in [1_500, 10_000] {
        assert!(nested(levels, "{{ n.x }}").ends_with("done"));
        assert!(nested(levels, "{{ n.x == [n.x] }}").ends_with("done"));
    }
}

#[test]
fn tojson_and_printing_follow_python() {
    let render = |source: &str| prompt(&template(source), json!([{"role": "user", "content": "x"}]));
    assert_eq!(
        render("{{ {'a': [1, 2.0, true, none], 'é<': 'x\\n\"'} | tojson }}"),
        r#"{"a": [1, 2.0, true, null], "é<": "x\n\""}"#
    );
    assert_eq!(
        render("{{ {'b': [], 'a': [1, {}]} | tojson(indent=2, sort_keys=true) }}"),
        "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}"
    );
    assert_eq!(render("{{ 'é😀\\x7f' | tojson(ensure_ascii=true) }}"), "\"\\u00e9\\ud83d\\ude00\\u007f\"");
    assert_eq!(
        render("{{ true }} {{ none }} {{ 1e20 }} {{ [true, 'a'] }} {{ 2.0 | string }}"),
        "True None 1e+20 [True, 'a'] 2.0"
    );
    assert_eq!(render("{{ undefined_name }}|{{ 'a-b'.split('-')[1] }}|{{ strftime_now('%Y')|length }}"), "|b|4");
    assert_eq!(render("{% generation %}a{% endgeneration %}\n{% if true %}\nb\n{% endif %}\nc\n"), "ab\nc");
}

#[test]
fn special_tokens_and_keywords_reach_the_template() {
    let tokens = SpecialTokenStrings { bos: Some("<s>".into()), ..SpecialTokenStrings::default() };
    let template = ChatTemplate::new("{{ bos_token }}{{ eos_token is defined }}{{ depth }}", &tokens).unwrap();
    let mut request = ChatRequest::new(vec![Message::text(Role::User, "hi")]);
    request.kwargs.insert("depth".to_owned(), json!(3));
    assert_eq!(template.render(&request).unwrap().prompt, "<s>False3");
}

#[test]
fn a_checkpoint_without_a_template_gets_chatml_and_a_warning() {
    let template = ChatTemplate::chatml(&SpecialTokenStrings::default()).unwrap();
    assert_eq!(
        template.warnings(),
        ["the model comes without a chat template: using plain ChatML, which it may not have been trained on"]
    );
    let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]);
    assert_eq!(
        prompt(&template, messages),
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn rs_01_the_prompt_tells_whether_it_opened_the_reasoning() {
    let open = |name: &str, thinking: Option<bool>| {
        let mut request = ChatRequest::new(vec![Message::text(Role::User, "why <think> here?")]);
        request.kwargs.extend(thinking.map(|on| ("enable_thinking".to_owned(), json!(on))));
        opens_reasoning(&fixture(name).render(&request).unwrap().prompt)
    };
    assert!(open("qwen35", None) && !open("qwen35", Some(false)));
    assert!(!open("qwen35-small", None) && open("qwen35-small", Some(true)));
    assert!(!open("qwen3", None) && !open("qwen3", Some(false)));
    assert!(!opens_reasoning("<|im_start|>user\nwhat is <think>\n<|im_end|>\n<|im_start|>assistant\n"));
}
