//! The parser of calls, at every cut of what models write.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// What the pieces come to: text and calls, and whether each ended.
#[derive(Debug, Default, PartialEq)]
struct Read {
    text: String,
    calls: Vec<(String, String)>,
    num_ended: usize,
}

fn tools() -> Arc<[Tool]> {
    let tool = |name: &str, parameters: Value| Tool { name: name.to_owned(), description: None, parameters };
    Arc::new([
        tool(
            "get_weather",
            json!({ "type": "object", "properties": {
                "city": { "type": "string" }, "days": { "type": "integer" }, "zip": { "type": "string" },
                "metric": { "type": "boolean" }, "tags": { "type": "array" },
            } }),
        ),
        tool("now", json!({ "type": "object", "properties": {} })),
    ])
}

fn read<'a>(pieces: impl IntoIterator<Item = &'a str>, ended: bool) -> Read {
    let mut parser = CallParser::new(tools());
    let mut all: Vec<Piece> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    all.extend(parser.finish(ended));
    let mut read = Read::default();
    for piece in all {
        match piece {
            Piece::Text(text) => {
                assert!(!text.is_empty());
                read.text.push_str(&text);
            }
            Piece::Begin(name) => read.calls.push((name, String::new())),
            Piece::Arguments(text) => read.calls.last_mut().unwrap().1.push_str(&text),
            Piece::End => read.num_ended += 1,
        }
    }
    assert_eq!(read.num_ended, read.calls.len());
    read
}

/// Reads a text whole, cut at every place, and letter by letter: all must be the same.
fn every_cut(text: &str) -> Read {
    let whole = read([text], true);
    for (at, _) in text.char_indices() {
        assert_eq!(read([&text[..at], &text[at..]], true), whole, "cut at {at} of {text:?}");
    }
    let letters: Vec<String> = text.chars().map(String::from).collect();
    assert_eq!(read(letters.iter().map(String::as_str), true), whole, "letter by letter");
    whole
}

fn arguments(read: &Read, call: usize) -> Value {
    serde_json::from_str(&read.calls[call].1).unwrap_or_else(|error| panic!("{error}: {:?}", read.calls[call]))
}

#[test]
fn an_xml_call_is_read_with_types() {
    let read = every_cut(
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nSão \"Paulo\"\n\n2\n</parameter>\n<parameter=days>\n3\n</parameter>\n\
         <parameter=zip>\n02134\n</parameter>\n<parameter=metric>\ntrue\n</parameter>\n<parameter=tags>\n[\"a\", 1]\n</parameter>\n\
         </function>\n</tool_call>",
    );
    assert_eq!(read.text, "");
    assert_eq!(read.calls[0].0, "get_weather");
    assert_eq!(
        arguments(&read, 0),
        json!({ "city": "São \"Paulo\"\n\n2", "days": 3, "zip": "02134", "metric": true, "tags": ["a", 1] })
    );
}

#[test]
fn a_json_call_is_read_as_it_stands() {
    let read = every_cut(
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"a}\\\"{\", \"days\": 3, \"x\": [{}]}}\n</tool_call>",
    );
    assert_eq!((read.text.as_str(), read.calls[0].0.as_str()), ("", "get_weather"));
    assert_eq!(read.calls[0].1, "{\"city\": \"a}\\\"{\", \"days\": 3, \"x\": [{}]}");
}

#[test]
fn a_json_call_may_have_its_parts_in_any_order_and_form() {
    let of = |text: &str| {
        let read = every_cut(&format!("<tool_call>{text}</tool_call>"));
        assert_eq!(read.text, "");
        (read.calls[0].0.clone(), arguments(&read, 0))
    };
    let expected = ("now".to_owned(), json!({ "a": 1 }));
    assert_eq!(of("{\"arguments\": {\"a\": 1}, \"name\": \"now\"}"), expected);
    assert_eq!(of("{\"name\":\"now\",\"parameters\":{\"a\":1}}"), expected);
    assert_eq!(of("{\"name\": \"now\", \"arguments\": \"{\\\"a\\\": 1}\"}"), expected);
    assert_eq!(of("{\"id\": 7, \"name\": \"now\", \"x\": null, \"arguments\": {\"a\": 1}}"), expected);
    assert_eq!(of("{\"name\": \"now\"}").1, json!({}));
    assert_eq!(of("{\"name\": \"now\", \"arguments\": null}").1, json!({}));
}

#[test]
fn calls_follow_each_other_without_phantoms() {
    let read = every_cut(
        "I look.\n\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n\
         <tool_call>\n<function=now>\n</function>\n</tool_call>\n",
    );
    assert_eq!(read.text, "I look.");
    assert_eq!(read.calls.len(), 3);
    assert!(read.calls.iter().all(|call| call == &("now".to_owned(), "{}".to_owned())));
}

#[test]
fn text_that_speaks_of_calls_is_text() {
    for text in [
        "write <tool_call> like this",
        "a <tool_call>",
        "<tool_call>\n{\"no\": 1}",
        "<tool_call>{\"name\": 7}",
        "<tool_call>{broken}",
        "a < b <function=unknown> c",
        "<function=now is no call",
        "<tool_cal",
        "  spaces \n",
        "</tool_call>",
    ] {
        let read = every_cut(text);
        assert_eq!((read.text.as_str(), read.calls.len()), (text, 0));
    }
}

#[test]
fn a_call_without_its_marker_counts_for_offered_tools() {
    let read = every_cut("ok\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>");
    assert_eq!((read.text.as_str(), arguments(&read, 0)), ("ok", json!({ "city": "Rome" })));
}

#[test]
fn a_call_that_is_cut_before_its_name_leaves_no_markup() {
    for text in [
        "<tool_call>",
        "<tool_call>\n<func",
        "<tool_call>\n<function=get_w",
        "<tool_call>\n{\"name\": \"get_w",
        "<function=get_w",
    ] {
        let (ended, cut) = (read(["Let me see.\n", text], true), read(["Let me see.\n", text], false));
        assert_eq!(ended.text, format!("Let me see.\n{text}"));
        assert_eq!((cut.text.as_str(), cut.calls.len()), ("Let me see.", 0), "{text}");
    }
}

#[test]
fn missing_ends_are_completed_only_if_the_model_ended() {
    let text = "<tool_call>\n<function=get_weather>\n<parameter=city>\nRo";
    assert_eq!(arguments(&every_cut(text), 0), json!({ "city": "Ro" }));
    let cut_off = read([text], false);
    assert!(serde_json::from_str::<Value>(&cut_off.calls[0].1).is_err(), "half a command must not look whole");
    let without_ends = "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\n</tool_call> done";
    let read = every_cut(without_ends);
    assert_eq!((arguments(&read, 0), read.text.as_str()), (json!({ "days": 3 }), " done"));
}

#[test]
fn what_stands_between_parameters_is_left_out() {
    let read = every_cut(
        "<tool_call><function=get_weather>é<b><parameter=city>Rome</parameter>, <parameter=x>y</parameter></function></tool_call>after",
    );
    assert_eq!(arguments(&read, 0), json!({ "city": "Rome", "x": "y" }));
    assert_eq!(read.text, "after");
}

/// Only a true prefix of a marker is held.
#[test]
fn text_is_shown_as_soon_as_it_is_settled() {
    let mut parser = CallParser::new(tools());
    assert_eq!(parser.push("a <too"), [Piece::Text("a".into())]);
    assert_eq!(parser.push("l>b"), [Piece::Text(" <tool>b".into())]);
    let pieces = parser.push("<tool_call>\n<function=get_weather>\n<parameter=city>\nRom");
    assert_eq!(pieces, [Piece::Begin("get_weather".into()), Piece::Arguments("{\"city\": \"Rom".into())]);
}

proptest! {
    /// Nothing that a model writes panics, and no cut changes what it says.
    #[test]
    fn any_text_reads_the_same_however_it_is_cut(
        parts in prop::collection::vec(prop_oneof![
            Just("<tool_call>"), Just("</tool_call>"), Just("<function="), Just("now>"), Just("get_weather>"), Just("</function>"),
            Just("<parameter=city>"), Just("<parameter=days>"), Just("</parameter>"), Just("\n"), Just(" "), Just("é"), Just("<"),
            Just("{\"name\": \"now\""), Just(", \"arguments\": {"), Just("}"), Just("\""), Just("\\"), Just("7"), Just("</para"),
        ], 0..16),
    ) {
        every_cut(&parts.concat());
    }
}
