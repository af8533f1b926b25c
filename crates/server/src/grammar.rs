//! Grammars: from JSON Schema and tools to masks over the model's vocabulary.

mod narrower;
mod positive;
mod rule;
mod schema;
mod vocabulary;

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use pleach_engine::Engine;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;

pub(crate) use self::rule::Rule;
use crate::ServeError;
use crate::error::ApiError;
use crate::tools::{CallStyle, Tool, grammar as tool_grammar};

/// White space between the parts of a JSON text. A bound, because small models that are kept from ending their text write
/// blanks without end.
const WHITE_SPACE: &str = r"[\x20\x0A\x0D\x09]{1,40}";

/// Stack for a value of a schema. The grammar engine follows references and goes through the properties of an object by
/// recursion: measured in chains of references, at most 2 KiB a value.
const STACK_BYTES_PER_VALUE: usize = 8 << 10;
/// Stack for everything else.
const STACK_BYTES: usize = 2 << 20;
/// What all grammars of one request may take. The bounds of schemas keep nearly all below a second; some patterns that are all
/// demanded of one text have no end.
const PATIENCE: Duration = Duration::from_secs(5);
/// Grammars that are compiled at the same time, with those that nobody waits for any more: the grammar engine cannot be told to
/// stop.
const MOST_COMPILED: usize = 4;

/// Makes grammars for one model.
pub(crate) struct Grammars {
    factory: Arc<ParserFactory>,
    /// Each thread that compiles holds one until it ends.
    places: Arc<Semaphore>,
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
        Ok(Self {
            factory: Arc::new(factory),
            places: Arc::new(Semaphore::new(MOST_COMPILED)),
            vocab_size: engine.info().vocab_size,
            stop_tokens: engine.stop_tokens().to_vec(),
        })
    }

    /// The grammar of JSON texts that a schema allows.
    ///
    /// # Errors
    /// A schema that is too large, or that asks for what cannot be enforced; the message says where.
    pub(crate) fn json(&self, schema: &Value, path: &str) -> Result<Rule, ApiError> {
        schema::check(schema, path)?;
        let until = Instant::now() + PATIENCE;
        self.compile(from_schema(schema), until).map_err(|refusal| {
            let Refusal::Fault(detail) = refusal else { return refusal.told_of(path, "invalid_json_schema") };
            let place = schema::blame(schema, path, |part| {
                // What is too large by itself, or comes too late to be tried, is not what the error is about.
                !matches!(self.compile(from_schema(part), until), Err(Refusal::Fault(_)))
            });
            Refusal::Fault(detail).told_of(&place, "invalid_json_schema")
        })
    }

    /// The grammar of calls of the given tools. Arguments of a tool whose schema cannot be enforced may be any object.
    ///
    /// # Errors
    /// No tool, or more than the grammar engine takes.
    pub(crate) fn calls(&self, tools: &[&Tool], style: CallStyle, parallel: bool) -> Result<Rule, ApiError> {
        let until = Instant::now() + PATIENCE;
        let usable = tools.iter().map(|tool| self.with_usable_schema(tool, until)).collect::<Result<Vec<Tool>, _>>();
        let told = |refusal: Refusal| refusal.told_of("tools", "invalid_tools");
        let grammar = tool_grammar::lark(&usable.map_err(told)?, style, parallel);
        self.compile(TopLevelGrammar::from_lark(grammar), until).map_err(told)
    }

    /// One tool with an odd schema must not sink the request.
    fn with_usable_schema(&self, tool: &Tool, until: Instant) -> Result<Tool, Refusal> {
        // Nobody is told what is wrong with it, so what `json` does to find that out is saved.
        let is_usable = match schema::check(&tool.parameters, "parameters") {
            Err(_) => false,
            Ok(()) => match self.compile(from_schema(&tool.parameters), until) {
                Err(busy @ Refusal::Busy) => return Err(busy),
                compiled => compiled.is_ok(),
            },
        };
        if is_usable {
            return Ok(tool.clone());
        }
        tracing::warn!(code = "tool_schema_not_enforced", "the arguments of a tool are not enforced by its schema");
        Ok(Tool { parameters: json!({ "type": "object" }), ..tool.clone() })
    }

    /// Compiles on a thread whose stack fits whatever [`schema::check`] lets pass, and waits no longer than `until`.
    fn compile(&self, grammar: TopLevelGrammar, until: Instant) -> Result<Rule, Refusal> {
        let too_long =
            || Refusal::TooLarge(format!("its grammar takes longer than {} s to compile", PATIENCE.as_secs()));
        let patience = until.checked_duration_since(Instant::now()).ok_or_else(too_long)?;
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| Refusal::Busy)?;
        let factory = Arc::clone(&self.factory);
        let (sender, compiled) = mpsc::channel();
        let work = move || {
            let _place = place;
            // Nobody waits any more for what took too long.
            let _ = sender.send(Matcher::new(factory.create_parser(grammar)));
        };
        let stack_bytes = STACK_BYTES + STACK_BYTES_PER_VALUE * schema::MAX_NODES;
        let thread = thread::Builder::new().name("grammar".to_owned()).stack_size(stack_bytes).spawn(work);
        thread.map_err(|error| {
            tracing::error!(%error, "no thread for a grammar");
            Refusal::Busy
        })?;
        let mut matcher = compiled.recv_timeout(patience).map_err(|_| too_long())?;
        match matcher.get_error() {
            Some(error) => Err(Refusal::of(&error)),
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

/// Why there is no grammar.
#[derive(Debug, PartialEq)]
enum Refusal {
    /// It is more than the grammar engine takes.
    TooLarge(String),
    /// It asks for what cannot be enforced.
    Fault(String),
    /// Too many are being compiled.
    Busy,
}

impl Refusal {
    /// What the grammar engine's message comes to, without its traces and in words that mean something here.
    fn of(error: &str) -> Self {
        const ONE_OF: &str = "Enable 'coerce_one_of' option to approximate oneOf with anyOf";
        if error.starts_with("panic:") {
            tracing::debug!(error, "the grammar engine failed");
            return Self::TooLarge(
                "its grammar has more than 65 000 symbols, or parts that cannot be compiled".to_owned(),
            );
        }
        if error.contains("too big") || error.contains("too large") {
            return Self::TooLarge(format!("its grammar cannot be compiled: {}", shortened(error)));
        }
        Self::Fault(shortened(&error.replace(ONE_OF, "its branches may overlap, so use `anyOf`")))
    }

    fn told_of(self, place: &str, code: &'static str) -> ApiError {
        match self {
            Self::TooLarge(reason) => schema::too_large(place, &reason),
            Self::Fault(detail) => {
                ApiError::bad(code, format!("`{place}` cannot be enforced as a grammar: {detail}")).at(place)
            }
            Self::Busy => {
                let message = "too many grammars are being compiled: try again in a moment";
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "grammars_busy", message).retry_after(5)
            }
        }
    }
}

fn from_schema(schema: &Value) -> TopLevelGrammar {
    TopLevelGrammar::from_json_schema(with_options(schema))
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
        Value::Bool(false) => Map::from_iter([("enum".to_owned(), json!([]))]),
        _ => Map::new(),
    };
    map.insert("x-guidance".to_owned(), json!({ "whitespace_pattern": WHITE_SPACE }));
    Value::Object(map)
}

/// A reason on one line, at most 300 characters of it.
fn shortened(error: &str) -> String {
    let reason = error.split("<backtrace>").next().unwrap_or_default();
    reason.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use pleach_engine::{AddedTokens, EngineOptions};

    use super::*;

    fn llama() -> (Engine, Grammars) {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny-llama");
        let engine = Engine::open(&model, &EngineOptions::default()).unwrap();
        let grammars = Grammars::new(&engine).unwrap();
        (engine, grammars)
    }

    /// The longest chains that the bounds allow; each once overflowed the stack, which ends the process.
    #[test]
    fn chains_fit_the_stack() {
        let (_, grammars) = llama();
        let chain = |link: fn(Value) -> Value| {
            let num_links = schema::MAX_REFERENCES - 1;
            let mut links: Map<String, Value> = (0..num_links)
                .map(|n| (format!("n{n}"), link(json!({ "$ref": format!("#/$defs/n{}", n + 1) }))))
                .collect();
            links.insert(format!("n{num_links}"), json!({ "type": "null" }));
            json!({ "$ref": "#/$defs/n0", "$defs": links })
        };
        let properties: Map<String, Value> =
            (0..schema::MAX_PROPERTIES).map(|n| (format!("p{n}"), json!({ "const": 1 }))).collect();
        for schema in [
            chain(|next| next),
            chain(|next| json!({ "allOf": [next] })),
            chain(|next| json!({ "additionalProperties": next })),
            json!({ "type": "object", "properties": properties, "additionalProperties": false }),
        ] {
            schema::check(&schema, "s").unwrap();
            // Whether it is taken depends on how busy the machine is; that the process goes on does not.
            let until = Instant::now() + Duration::from_secs(60);
            assert!(!matches!(grammars.compile(from_schema(&schema), until), Err(Refusal::Busy)));
        }
    }

    #[test]
    fn nobody_waits_for_a_grammar_without_end() {
        let (_, grammars) = llama();
        let patterns: Vec<Value> = (0..50).map(|n| json!({ "type": "string", "pattern": format!("a{n}") })).collect();
        let schema = json!({ "allOf": patterns });
        let compile = || grammars.compile(from_schema(&schema), Instant::now() + Duration::from_millis(50)).err();
        for _ in 0..MOST_COMPILED {
            assert_eq!(compile(), Some(Refusal::TooLarge("its grammar takes longer than 5 s to compile".to_owned())));
        }
        assert_eq!(compile(), Some(Refusal::Busy));
        assert_eq!(grammars.json(&json!({}), "s").err().unwrap().status, 503);
    }

    #[test]
    fn reasons_are_told_whole_and_in_our_words() {
        assert_eq!(
            Refusal::of("cannot: regex parse error:\n    (\n    ^\nerror: unclosed group\n<backtrace>\nx"),
            Refusal::Fault("cannot: regex parse error: ( ^ error: unclosed group".to_owned())
        );
        let panicked = Refusal::of("panic: assertion failed: grammar.symbols.len()").told_of("s", "c");
        assert_eq!(
            (panicked.code, panicked.message.as_str()),
            (
                Some("schema_too_complex"),
                "`s` is too large a schema: its grammar has more than 65 000 symbols, or parts that cannot be compiled"
            )
        );
        let (_, grammars) = llama();
        let schema = json!({ "oneOf": [{ "type": "object" }, { "type": "object" }] });
        let message = grammars.json(&schema, "s").err().unwrap().message;
        assert!(message.ends_with("its branches may overlap, so use `anyOf`"), "{message}");
    }

    /// Blanks without end would hold a place until the context is full.
    #[test]
    fn white_space_has_an_end() {
        let (engine, grammars) = llama();
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
