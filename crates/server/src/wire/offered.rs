//! Tools and forms of answers that a request offers or demands.

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::{Fields, nameable};
use crate::generate::Format;
use crate::tools::{Tool, ToolChoice};

const MAX_TOOLS: usize = 512;
const MAX_NAME: usize = 128;

/// The tools of a request.
#[derive(Debug, Default)]
pub(crate) struct Offered {
    pub(crate) tools: Vec<Tool>,
    /// Kinds of tools that this server does not have.
    pub(crate) ignored: Vec<String>,
    pub(crate) choice: ToolChoice,
    pub(crate) parallel: bool,
}

/// Where a protocol puts the parts of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Chat: `{type, function: {name, description, parameters}}`.
    Nested,
    /// Responses: `{type, name, description, parameters}`.
    Flat,
    /// Messages: `{name, description, input_schema}`.
    Anthropic,
}

/// Reads tools and the choice among them.
pub(crate) fn read(fields: &Fields<'_>, layout: Layout) -> Result<Offered, ApiError> {
    let mut offered =
        Offered { parallel: fields.boolean("parallel_tool_calls")?.unwrap_or(true), ..Offered::default() };
    let list = fields.list("tools")?.map_or(&[][..], Vec::as_slice);
    if list.len() > MAX_TOOLS {
        let message = format!("`tools` has {} tools, but must have at most {MAX_TOOLS}", list.len());
        return Err(ApiError::bad("invalid_value", message).at("tools"));
    }
    for (index, value) in list.iter().enumerate() {
        let path = format!("tools[{index}]");
        let tool = Fields::inside(value, &path)?;
        match tool.text("type")? {
            Some(kind) if !is_function(kind, layout) => offered.ignored.push(nameable(kind)),
            _ => offered.tools.push(read_tool(&tool, layout)?),
        }
    }
    offered.choice = match layout {
        Layout::Anthropic => anthropic_choice(fields, &mut offered.parallel)?,
        _ => choice(fields)?,
    };
    check_choice(&offered)?;
    Ok(offered)
}

fn is_function(kind: &str, layout: Layout) -> bool {
    kind == "function" || (layout == Layout::Anthropic && kind == "custom")
}

fn read_tool(tool: &Fields<'_>, layout: Layout) -> Result<Tool, ApiError> {
    let (path, parameters) = match layout {
        Layout::Nested => (tool.path("function"), "parameters"),
        Layout::Flat => (String::new(), "parameters"),
        Layout::Anthropic => (String::new(), "input_schema"),
    };
    let function = match layout {
        Layout::Nested => {
            let value = tool.get("function").ok_or_else(|| ApiError::missing(path.clone(), "the function's name"))?;
            Fields::inside(value, &path)?
        }
        _ => *tool,
    };
    let name = function.required_text("name")?;
    let is_usable = |letter: char| letter.is_alphanumeric() || "_-.:/".contains(letter);
    if name.is_empty() || name.chars().count() > MAX_NAME || !name.chars().all(is_usable) {
        let expected = format!("1 to {MAX_NAME} letters, digits or any of `_-.:/`");
        return Err(function.wrong("name", &Value::from(name), &expected));
    }
    let schema = function.object(parameters)?.cloned().map_or_else(|| json!({ "type": "object" }), Value::Object);
    let description = function.text("description")?.map(str::to_owned);
    Ok(Tool { name: name.to_owned(), description, parameters: schema })
}

fn choice(fields: &Fields<'_>) -> Result<ToolChoice, ApiError> {
    let expected = "\"none\", \"auto\", \"required\" or an object that names a function";
    match fields.get("tool_choice") {
        None => Ok(ToolChoice::Auto),
        Some(Value::String(text)) => match text.as_str() {
            "none" => Ok(ToolChoice::None),
            "auto" => Ok(ToolChoice::Auto),
            "required" | "any" => Ok(ToolChoice::Required),
            _ => Err(fields.wrong("tool_choice", &Value::from(text.as_str()), expected)),
        },
        Some(value) => {
            let name = value.pointer("/function/name").or_else(|| value.get("name")).and_then(Value::as_str);
            let name = name.ok_or_else(|| fields.wrong("tool_choice", value, expected))?;
            Ok(ToolChoice::Named(name.to_owned()))
        }
    }
}

fn anthropic_choice(fields: &Fields<'_>, parallel: &mut bool) -> Result<ToolChoice, ApiError> {
    let Some(value) = fields.get("tool_choice") else { return Ok(ToolChoice::Auto) };
    let choice = Fields::inside(value, "tool_choice")?;
    *parallel = !choice.boolean("disable_parallel_tool_use")?.unwrap_or(false);
    match choice.required_text("type")? {
        "auto" => Ok(ToolChoice::Auto),
        "any" => Ok(ToolChoice::Required),
        "none" => Ok(ToolChoice::None),
        "tool" => Ok(ToolChoice::Named(choice.required_text("name")?.to_owned())),
        other => Err(choice.wrong("type", &Value::from(other), "\"auto\", \"any\", \"tool\" or \"none\"")),
    }
}

fn check_choice(offered: &Offered) -> Result<(), ApiError> {
    match &offered.choice {
        ToolChoice::Required if offered.tools.is_empty() => {
            Err(ApiError::unsupported("tool_choice", "a call is required, but `tools` offers no function"))
        }
        ToolChoice::Named(name) if !offered.tools.iter().any(|tool| tool.name == *name) => {
            let shown: String = name.chars().take(60).collect();
            Err(ApiError::unsupported("tool_choice", &format!("`tools` offers no function \"{shown}\"")))
        }
        _ => Ok(()),
    }
}

/// `response_format` of chat and completions, or `text.format` of responses.
pub(crate) fn format(value: Option<&Value>, path: &str) -> Result<Format, ApiError> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(Format::Text) };
    let fields = Fields::inside(value, path)?;
    match fields.required_text("type")? {
        "text" => Ok(Format::Text),
        // llama.cpp's clients put a schema here.
        "json_object" => Ok(match fields.get("schema") {
            Some(schema) => Format::Json { schema: schema.clone(), path: fields.path("schema") },
            None => Format::Json { schema: json!({ "type": "object" }), path: fields.path("type") },
        }),
        "json_schema" => {
            let nested_path = fields.path("json_schema");
            let holder = match fields.get("json_schema") {
                Some(nested) => Fields::inside(nested, &nested_path)?,
                None => fields,
            };
            let schema = holder.get("schema");
            let schema = schema.ok_or_else(|| ApiError::missing(holder.path("schema"), "a JSON Schema"))?;
            Ok(Format::Json { schema: schema.clone(), path: holder.path("schema") })
        }
        other => Err(fields.wrong("type", &Value::from(other), "\"text\", \"json_object\" or \"json_schema\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_chat(body: Value) -> Result<Offered, String> {
        read(&Fields::top(&body).unwrap(), Layout::Nested).map_err(|error| error.message)
    }

    #[test]
    fn tools_of_other_kinds_are_left_out_and_named() {
        let offered = read_chat(json!({ "tools": [
            { "type": "web_search" }, { "type": "function", "function": { "name": "f" } }, { "type": "namespace" },
        ] }));
        let offered = offered.unwrap();
        assert_eq!((offered.tools.len(), offered.ignored), (1, vec!["web_search".to_owned(), "namespace".to_owned()]));
    }

    #[test]
    fn choices_need_their_tool() {
        let tool = json!([{ "type": "function", "function": { "name": "f" } }]);
        let named = |name: &str| json!({ "type": "function", "function": { "name": name } });
        let choice = |choice: Value| read_chat(json!({ "tools": tool, "tool_choice": choice })).map(|read| read.choice);
        assert_eq!(choice(json!("required")), Ok(ToolChoice::Required));
        assert_eq!(choice(named("f")), Ok(ToolChoice::Named("f".to_owned())));
        assert_eq!(choice(named("g")).unwrap_err(), "`tool_choice` cannot be used: `tools` offers no function \"g\"");
        assert!(choice(json!("always")).unwrap_err().starts_with("`tool_choice` is \"always\", but must be \"none\""));
        assert!(read_chat(json!({ "tools": [], "tool_choice": "required" })).is_err());
    }

    #[test]
    fn forms_are_read_in_all_spellings() {
        let schema = json!({ "type": "object" });
        let path = |value: Value| match format(Some(&value), "response_format") {
            Ok(Format::Json { path, .. }) => path,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            path(json!({ "type": "json_schema", "json_schema": { "schema": schema } })),
            "response_format.json_schema.schema"
        );
        assert_eq!(path(json!({ "type": "json_schema", "name": "x", "schema": schema })), "response_format.schema");
        assert_eq!(format(Some(&json!({ "type": "text" })), "f"), Ok(Format::Text));
        assert_eq!(
            format(Some(&json!({ "type": "xml" })), "f").unwrap_err().message,
            "`f.type` is \"xml\", but must be \"text\", \"json_object\" or \"json_schema\""
        );
    }
}
