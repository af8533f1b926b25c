//! Grammars: from JSON Schema and tools to masks over the model's vocabulary.

mod narrower;
mod positive;
mod rule;
mod schema;
mod vocabulary;

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use pleach_engine::Engine;
use serde_json::{Map, Value, json};

pub(crate) use self::rule::Rule;
use crate::ServeError;
use crate::error::ApiError;
use crate::tools::{CallStyle, Tool, grammar as tool_grammar};

/// White space between the parts of a JSON text. A bound, because small models that are kept from ending their text write
/// blanks without end.
const WHITE_SPACE: &str = r"[\x20\x0A\x0D\x09]{1,40}";

/// Makes grammars for one model.
pub(crate) struct Grammars {
    factory: ParserFactory,
    vocab_size: usize,
    stop_tokens: Vec<u32>,
}

impl Grammars {
    /// Reads the vocabulary once; a tenth of a second for large ones.
    ///
    /// # Errors
    /// [`ServeError::Grammar`] if the grammar engine does not take it.
    pub(crate) fn new(engine: &Engine) -> Result<Self, ServeError> {
        let failed = |error: &dyn std::fmt::Display| ServeError::Grammar { detail: error.to_string() };
        let mut factory =
            ParserFactory::new_simple(&vocabulary::environment(engine)).map_err(|error| failed(&error))?;
        factory.quiet();
        // Messages must not carry the text so far.
        factory.limits_mut().verbose_errors = false;
        Ok(Self { factory, vocab_size: engine.info().vocab_size, stop_tokens: engine.stop_tokens().to_vec() })
    }

    /// The grammar of JSON texts that a schema allows.
    ///
    /// # Errors
    /// A schema that is too large, or that asks for what cannot be enforced; the message says where.
    pub(crate) fn json(&self, schema: &Value, path: &str) -> Result<Rule, ApiError> {
        schema::check(schema, path)?;
        self.compile(TopLevelGrammar::from_json_schema(with_options(schema))).map_err(|detail| {
            let place = schema::blame(schema, path, |part| {
                self.compile(TopLevelGrammar::from_json_schema(with_options(part))).is_ok()
            });
            let message = format!("`{place}` cannot be enforced as a JSON Schema: {detail}");
            ApiError::bad("invalid_json_schema", message).at(place)
        })
    }

    /// The grammar of calls of the given tools. Arguments of a tool whose schema cannot be enforced may be any object.
    ///
    /// # Errors
    /// No tool, or more than the grammar engine takes.
    pub(crate) fn calls(&self, tools: &[&Tool], style: CallStyle, parallel: bool) -> Result<Rule, ApiError> {
        let usable: Vec<Tool> = tools.iter().map(|tool| self.with_usable_schema(tool)).collect();
        let grammar = tool_grammar::lark(&usable, style, parallel);
        self.compile(TopLevelGrammar::from_lark(grammar)).map_err(|detail| {
            ApiError::bad("invalid_tools", format!("`tools` cannot be enforced as a grammar: {detail}")).at("tools")
        })
    }

    /// One tool with an odd schema must not sink the request.
    fn with_usable_schema(&self, tool: &Tool) -> Tool {
        // Nobody is told what is wrong with it, so what `json` does to find that out is saved.
        let is_usable = || self.compile(TopLevelGrammar::from_json_schema(with_options(&tool.parameters))).is_ok();
        if schema::check(&tool.parameters, "parameters").is_ok() && is_usable() {
            return tool.clone();
        }
        tracing::warn!(code = "tool_schema_not_enforced", "the arguments of a tool are not enforced by its schema");
        Tool { parameters: json!({ "type": "object" }), ..tool.clone() }
    }

    fn compile(&self, grammar: TopLevelGrammar) -> Result<Rule, String> {
        let mut matcher = Matcher::new(self.factory.create_parser(grammar));
        match matcher.get_error() {
            Some(error) => Err(first_line(&error)),
            None => {
                let warnings = matcher.grammar_warnings();
                if !warnings.is_empty() {
                    tracing::debug!(count = warnings.len(), "warnings of a grammar");
                }
                Ok(Rule::new(matcher, self.vocab_size, self.stop_tokens.clone()))
            }
        }
    }
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").field("vocab_size", &self.vocab_size).finish_non_exhaustive()
    }
}

/// A schema as the grammar engine takes it, with the options of its grammar in place of any that the client wrote.
pub(crate) fn with_options(schema: &Value) -> Value {
    let mut map = match positive::spell(schema) {
        Value::Object(map) => map,
        Value::Bool(false) => Map::from_iter([("not".to_owned(), json!({}))]),
        _ => Map::new(),
    };
    map.insert("x-guidance".to_owned(), json!({ "whitespace_pattern": WHITE_SPACE }));
    Value::Object(map)
}

/// The grammar engine's reason without its traces, at most 300 characters of it.
fn first_line(error: &str) -> String {
    error.lines().next().unwrap_or_default().chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use pleach_engine::{AddedTokens, EngineOptions};

    use super::*;

    /// Blanks without end would hold a place until the context is full.
    #[test]
    fn white_space_has_an_end() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny-llama");
        let engine = Engine::open(&model, &EngineOptions::default()).unwrap();
        let grammars = Grammars::new(&engine).unwrap();
        let tool = Tool { name: "f".to_owned(), description: None, parameters: json!({ "type": "object" }) };
        let json = grammars.json(&json!({ "type": "object" }), "schema").unwrap();
        let calls = grammars.calls(&[&tool], CallStyle::Json, true).unwrap();
        let tokens = |text: &str| engine.tokenizer().encode(text, AddedTokens::Parse).unwrap();
        let [blank] = tokens("\n")[..] else { panic!("one token") };
        for (rule, begins) in [(json, "{"), (calls, "<tool_call>\n{")] {
            let mut rule = rule;
            for token in tokens(begins) {
                assert!(rule.allowed().is_allowed(token), "{begins}");
                rule.push(token);
            }
            let mut blanks = 0;
            while rule.allowed().is_allowed(blank) {
                rule.push(blank);
                blanks += 1;
                assert!(blanks <= 40, "{begins}");
            }
            assert!(blanks > 0, "{begins}");
        }
    }
}
