//! Calls as grammars, for requests that demand one.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::{CallStyle, Tool, typed};
use crate::grammar::with_options;

/// A grammar in the Lark dialect of the grammar engine: one call of one of the tools, or several if `parallel`.
///
/// In the XML style, parameters come in the order of the schema; those that are not required may be left out.
pub(crate) fn lark(tools: &[Tool], style: CallStyle, parallel: bool) -> String {
    let calls: Vec<String> = (0..tools.len()).map(|index| format!("call_{index}")).collect();
    let more = if parallel { " (\"\\n\" call)*" } else { "" };
    let mut grammar = format!("start: call{more}\ncall: {}\n", calls.join(" | "));
    for (index, tool) in tools.iter().enumerate() {
        match style {
            CallStyle::Json => json_call(&mut grammar, index, tool),
            CallStyle::Xml => xml_call(&mut grammar, index, tool),
        }
    }
    grammar
}

fn json_call(grammar: &mut String, index: usize, tool: &Tool) {
    let mut arguments = tool.parameters.clone();
    let mut schema = Map::new();
    // References lead to the root of the whole schema.
    for name in ["$defs", "definitions"] {
        if let Some(definitions) = arguments.as_object_mut().and_then(|map| map.remove(name)) {
            schema.insert(name.to_owned(), definitions);
        }
    }
    let own = json!({
        "type": "object",
        "properties": { "name": { "const": tool.name }, "arguments": arguments },
        "required": ["name", "arguments"],
        "additionalProperties": false,
    });
    schema.extend(own.as_object().cloned().unwrap_or_default());
    rule(grammar, format_args!("call_{index}: \"<tool_call>\\n\" json_{index} \"\\n</tool_call>\""));
    json_rule(grammar, &format!("json_{index}"), &Value::Object(schema));
}

fn xml_call(grammar: &mut String, index: usize, tool: &Tool) {
    let required: Vec<&str> = list(&tool.parameters, "required").filter_map(Value::as_str).collect();
    let properties = tool.parameters.get("properties").and_then(Value::as_object);
    let mut body = String::new();
    for (number, (key, schema)) in properties.into_iter().flatten().enumerate() {
        let name = format!("parameter_{index}_{number}");
        let optional = if required.contains(&key.as_str()) { "" } else { "?" };
        let _ = write!(body, " {name}{optional}");
        rule(grammar, format_args!("{name}: {} value_{index}_{number}", literal(&format!("<parameter={key}>\n"))));
        value_rule(grammar, &format!("value_{index}_{number}"), schema, &tool.parameters);
    }
    let open = literal(&format!("<tool_call>\n<function={}>\n", tool.name));
    rule(grammar, format_args!("call_{index}: {open}{body} {}", literal("</function>\n</tool_call>")));
}

fn value_rule(grammar: &mut String, name: &str, schema: &Value, root: &Value) {
    const END: &str = "\n</parameter>\n";
    if typed::is_free_text(Some(schema), root) {
        return rule(grammar, format_args!("{name}[suffix={}]: /(?s:.*)/", literal(END)));
    }
    let texts: Option<Vec<String>> = schema.get("enum").map(|_| {
        let spell = |value: &Value| literal(&value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        list(schema, "enum").map(spell).collect()
    });
    match texts {
        Some(texts) if !texts.is_empty() => {
            rule(grammar, format_args!("{name}: ({}) {}", texts.join(" | "), literal(END)));
        }
        _ => {
            rule(grammar, format_args!("{name}: json_{name} {}", literal(END)));
            json_rule(grammar, &format!("json_{name}"), &with_definitions(schema, root));
        }
    }
}

fn with_definitions(schema: &Value, root: &Value) -> Value {
    let mut map = schema.as_object().cloned().unwrap_or_default();
    for name in ["$defs", "definitions"] {
        if let Some(definitions) = root.get(name) {
            map.insert(name.to_owned(), definitions.clone());
        }
    }
    Value::Object(map)
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

fn json_rule(grammar: &mut String, name: &str, schema: &Value) {
    rule(grammar, format_args!("{name}: %json {}", with_options(schema)));
}

fn rule(grammar: &mut String, rule: std::fmt::Arguments<'_>) {
    let _ = writeln!(grammar, "{rule}");
}
