//! Messages to prompts with the checkpoint's own Jinja template.

mod functions;
mod json;
mod request;

use std::{error::Error as _, thread};

use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value, syntax::SyntaxConfig};
use serde_json::Value as Json;

use self::functions::Refusal;
pub use self::request::{ChatRequest, Content, FunctionCall, Message, Part, Role, ToolCall};
use crate::{error::TextError, spans::ReasoningMarkers};

/// Name of the one template in its environment, and of a template that was given no other.
const DEFAULT_NAME: &str = "chat_template";
/// Published templates have up to 20 KB.
const MAX_SOURCE_BYTES: usize = 64 << 10;
/// Stack for a byte of source. What the engine compiles by recursion grows with the source: a chain of sums takes two bytes a
/// link, and up to 18 KB of stack a link, measured without optimization.
const STACK_BYTES_PER_SOURCE_BYTE: usize = 10 << 10;
/// Work that one rendering may do at first. The engine charges one unit for each instruction and for each 64 bytes of data made.
/// Qwen3.5's template takes 80 units a message and 120 a kilobyte: this is enough for 500 messages of a kilobyte.
const FIRST_FUEL: u64 = 100_000;
/// Work that a second rendering may do where the first did not get by with its own. It bounds memory to 64 MB as well.
const MOST_FUEL: u64 = 1_000_000;
/// Stack for a unit of fuel. A template can nest a list in itself as often as its fuel lasts, and the engine prints and frees
/// such a list by recursion: measured, at most 430 bytes a unit.
const STACK_BYTES_PER_UNIT: usize = 512;
/// Stack for everything else.
const STACK_BYTES: usize = 2 << 20;
/// Macros inside macros; published templates nest three deep.
const MAX_RECURSION: usize = 64;
/// Variables that the engine sets from the request itself.
const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

/// ChatML: what a checkpoint without a template most likely was trained on.
const CHATML: &str = "\
{%- for message in messages -%}
  {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}";

/// Spellings of the special tokens, as `tokenizer_config.json` or GGUF metadata give them. Templates read them
/// as `bos_token`, `eos_token`, `pad_token` and `unk_token`; the missing ones are undefined there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokenStrings {
    /// Beginning of text.
    pub bos: Option<String>,
    /// End of text or turn.
    pub eos: Option<String>,
    /// Padding.
    pub pad: Option<String>,
    /// Unknown characters.
    pub unknown: Option<String>,
}

/// A compiled chat template. Shared freely between threads.
///
/// Blocks are rendered with `trim_blocks` and `lstrip_blocks`, values print the Python way, and Python's string
/// and map methods, `raise_exception`, `strftime_now` (UTC) and the loop controls are there. A rendering is
/// bounded in steps, memory and recursion, so no template can hang or end the process.
#[derive(Debug)]
pub struct ChatTemplate {
    name: String,
    environment: Environment<'static>,
    special_tokens: SpecialTokenStrings,
    warnings: Vec<String>,
}

/// A rendered conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedPrompt {
    /// The text to encode, control tokens included.
    pub prompt: String,
    /// What had to be changed for the template to accept the conversation.
    pub notes: Vec<RenderNote>,
}

/// A change to a conversation that its template would not take as it was. Its display form is for logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RenderNote {
    /// The template wants its system message first.
    #[error("the chat template takes a system message only at the start: {moved} later ones were merged into it")]
    SystemMerged {
        /// System messages that were not at the start.
        moved: usize,
    },
}

impl ChatTemplate {
    /// Compiles `source`.
    ///
    /// # Errors
    /// [`TextError::TemplateSyntax`] with the line, if it is no valid template or larger than 64 KiB.
    pub fn new(source: &str, special_tokens: &SpecialTokenStrings) -> Result<Self, TextError> {
        Self::named(DEFAULT_NAME, source, special_tokens)
    }

    /// Compiles `source` under a name for errors, such as `chat_template.jinja`.
    ///
    /// # Errors
    /// As [`ChatTemplate::new`].
    pub fn named(
        name: impl Into<String>,
        source: &str,
        special_tokens: &SpecialTokenStrings,
    ) -> Result<Self, TextError> {
        let name = name.into();
        if source.len() > MAX_SOURCE_BYTES {
            let detail = format!("it has {} bytes, expected at most {MAX_SOURCE_BYTES}", source.len());
            return Err(TextError::TemplateSyntax { template: name, line: None, detail });
        }
        let source = functions::without_generation_tags(source);
        let stack_bytes = STACK_BYTES + STACK_BYTES_PER_SOURCE_BYTE * source.len();
        let compiled = with_stack(stack_bytes, move || {
            let mut environment = environment();
            environment.add_template_owned(DEFAULT_NAME, source).map(|()| environment)
        })?;
        let syntax = |line, detail| TextError::TemplateSyntax { template: name.clone(), line, detail };
        let environment = compiled
            .unwrap_or_else(|Panicked| Err(Error::new(ErrorKind::SyntaxError, Panicked.to_string())))
            .map_err(|error| syntax(error.line(), describe(&error)))?;
        Ok(Self { name, environment, special_tokens: special_tokens.clone(), warnings: Vec::new() })
    }

    /// The template of a checkpoint that has none: plain ChatML without tools, with a warning.
    ///
    /// # Errors
    /// None in practice: the template is part of this crate.
    pub fn chatml(special_tokens: &SpecialTokenStrings) -> Result<Self, TextError> {
        let mut template = Self::named("ChatML", CHATML, special_tokens)?;
        template.warnings.push(
            "the model comes without a chat template: using plain ChatML, which it may not have been trained on"
                .to_owned(),
        );
        Ok(template)
    }

    /// Whether the template writes or looks for thoughts: its source has a marker of theirs, or the switch that turns them on.
    #[must_use]
    pub fn knows_thoughts(&self) -> bool {
        let knows = |source: &str| ReasoningMarkers::default().occur_in(source) || source.contains("enable_thinking");
        self.environment.get_template(DEFAULT_NAME).is_ok_and(|template| knows(template.source()))
    }

    /// What is doubtful about the template, to be shown to the user once; often nothing.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Renders a request.
    ///
    /// If the template refuses the conversation and it has system messages after the first place, all system messages
    /// are merged into one at the front, in order and with a blank line between, and a note says so.
    ///
    /// # Errors
    /// [`TextError::NoMessages`], [`TextError::ReservedKwarg`], [`TextError::TemplateRefused`] with the
    /// template's own words, [`TextError::TemplateTooLong`], or [`TextError::TemplateFailed`].
    pub fn render(&self, request: &ChatRequest) -> Result<RenderedPrompt, TextError> {
        let mut messages = request.template_messages();
        match self.render_messages(&messages, request) {
            Ok(prompt) => Ok(RenderedPrompt { prompt, notes: Vec::new() }),
            Err(refused @ TextError::TemplateRefused { .. }) => {
                let moved = request::merge_system_to_front(&mut messages);
                if moved == 0 {
                    return Err(refused);
                }
                let prompt = self.render_messages(&messages, request)?;
                Ok(RenderedPrompt { prompt, notes: vec![RenderNote::SystemMerged { moved }] })
            }
            Err(other) => Err(other),
        }
    }

    /// Renders messages as they are, without the checks and changes of [`ChatTemplate::render`]: for comparing
    /// with other implementations. The messages of `request` are not used.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_messages(&self, messages: &[Json], request: &ChatRequest) -> Result<String, TextError> {
        if messages.is_empty() {
            return Err(TextError::NoMessages);
        }
        let context = self.context(messages, request)?;
        let rendered = match self.render_with(FIRST_FUEL, &context)? {
            Err(Failed { out_of_fuel: true, .. }) => self.render_with(MOST_FUEL, &context)?,
            rendered => rendered,
        };
        rendered.map_err(|failed| match failed.out_of_fuel {
            true => {
                TextError::TemplateTooLong { template: self.name.clone(), messages: messages.len(), steps: MOST_FUEL }
            }
            false => failed.error,
        })
    }

    /// Renders with so much fuel, on a stack that is deep enough for all that can be nested with it.
    fn render_with(&self, fuel: u64, context: &Value) -> Result<Result<String, Failed>, TextError> {
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let stack_bytes = STACK_BYTES + STACK_BYTES_PER_UNIT * fuel as usize;
        // The engine's error may hold what was nested, so it ends on that stack as well.
        let failed = |error| Failed { out_of_fuel: is_out_of_fuel(&error), error: self.failure(&error) };
        let render = move || environment.get_template(DEFAULT_NAME)?.render(context);
        let rendered = with_stack(stack_bytes, move || render().map_err(failed))?;
        rendered.map_err(|Panicked| {
            let detail = Panicked.to_string();
            TextError::TemplateFailed { template: self.name.clone(), line: None, detail }
        })
    }

    fn context(&self, messages: &[Json], request: &ChatRequest) -> Result<Value, TextError> {
        let SpecialTokenStrings { bos, eos, pad, unknown } = &self.special_tokens;
        let tokens = [("bos_token", bos), ("eos_token", eos), ("pad_token", pad), ("unk_token", unknown)];
        let tokens = tokens.into_iter().filter_map(|(name, token)| Some((name, Value::from(token.as_deref()?))));
        if let Some(name) = request.kwargs.keys().find(|name| RESERVED.contains(&name.as_str())) {
            return Err(TextError::ReservedKwarg { name: name.clone() });
        }
        let kwargs = request.kwargs.iter().map(|(name, value)| (name.as_str(), to_value(value)));
        let tools: Option<Value> = (!request.tools.is_empty()).then(|| request.tools.iter().map(to_value).collect());
        let own = [
            ("messages", messages.iter().map(to_value).collect()),
            ("tools", tools.unwrap_or(Value::from(()))),
            ("add_generation_prompt", Value::from(request.add_generation_prompt)),
        ];
        Ok(Value::from_pairs(tokens.chain(kwargs).chain(own)))
    }

    /// Tells the template's own refusal from a fault in it.
    fn failure(&self, error: &Error) -> TextError {
        let (template, line) = (self.name.clone(), error.line());
        let mut cause = error.source();
        while let Some(error) = cause {
            if let Some(Refusal(message)) = error.downcast_ref::<Refusal>() {
                return TextError::TemplateRefused { template, line, message: message.clone() };
            }
            cause = error.source();
        }
        TextError::TemplateFailed { template, line, detail: describe(error) }
    }
}

/// A rendering that came to nothing.
struct Failed {
    error: TextError,
    /// Whether more fuel might have helped.
    out_of_fuel: bool,
}

/// The template engine met a fault of its own.
#[derive(Debug, thiserror::Error)]
#[error("the template engine failed on it")]
struct Panicked;

/// Does work of the template engine where its recursion has room, whatever the stack of the caller. Only what is used of
/// `stack_bytes` becomes memory.
fn with_stack<T: Send>(stack_bytes: usize, work: impl FnOnce() -> T + Send) -> Result<Result<T, Panicked>, TextError> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("chat template".to_owned()).stack_size(stack_bytes);
        let worker = builder.spawn_scoped(scope, work).map_err(|source| TextError::TemplateThread { source })?;
        Ok(worker.join().map_err(|_panic| Panicked))
    })
}

/// Whether a rendered prompt ends inside a reasoning span that it opened with `<think>`, so that the model's
/// text starts in the middle of its reasoning.
#[must_use]
pub fn opens_reasoning(prompt: &str) -> bool {
    ReasoningMarkers::default().left_open_by(prompt)
}

fn to_value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(yes) => Value::from(*yes),
        Json::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(to_value).collect(),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(key, value)| (key.as_str(), to_value(value)))),
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the delimiters are the default ones"));
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_recursion_limit(MAX_RECURSION);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(functions::print);
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("string", functions::string);
    environment.add_function("raise_exception", functions::raise_exception);
    environment.add_function("strftime_now", functions::strftime_now);
    environment
}

/// Whether a rendering ended because its fuel did.
fn is_out_of_fuel(error: &Error) -> bool {
    let cause = || error.source()?.downcast_ref::<Error>();
    error.kind() == ErrorKind::OutOfFuel || cause().is_some_and(is_out_of_fuel)
}

/// The engine's kind and detail, without the name and line that our own messages carry.
fn describe(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}
