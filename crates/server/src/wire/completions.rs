//! `/v1/completions`: texts that go on.

use std::sync::Arc;

use pleach_engine::{Prompt, SpecialTokens, TokenEvent};
use serde_json::{Value, json};

use crate::answer::{Answer, Delta, Totals};
use crate::app::App;
use crate::error::{ApiError, Dialect};
use crate::fields::Fields;
use crate::generate::{Generate, Head, Thinking};
use crate::ids;
use crate::stream::{Writer, data};
use crate::tools::ToolChoice;
use crate::wire::chat_answer::finish_reason;
use crate::wire::sampling::{self, StreamOptions};
use crate::wire::{offered, usage};

/// A request of this protocol.
pub(crate) struct CompletionCall {
    pub(crate) generate: Generate,
    pub(crate) stream: StreamOptions,
    /// The prompts, to be repeated before their answers.
    pub(crate) echo: Option<Vec<Prompt>>,
}

/// Reads a request.
///
/// # Errors
/// The first field at fault.
pub(crate) fn read(body: &Value) -> Result<CompletionCall, ApiError> {
    let fields = Fields::top(body)?;
    fields.text("model")?;
    let prompts = prompts(&fields, "prompt")?;
    if fields.text("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::unsupported("suffix", "models are asked to go on with a text, not to fill a gap in it"));
    }
    let mut settings = sampling::settings(&fields)?;
    settings.max_tokens = fields.limit("max_tokens")?;
    settings.logprobs = match fields.get("logprobs") {
        // Some clients send the boolean of chat.
        Some(Value::Bool(wanted)) => wanted.then_some(0),
        _ => fields.whole("logprobs", 0, 20)?.map(|count| count as usize),
    };
    let n = sampling::n(&fields)?;
    let best_of = fields.whole("best_of", 1, 128)?.unwrap_or(1);
    if best_of > n as i64 {
        return Err(ApiError::unsupported("best_of", "answers are not compared; ask for several with `n`"));
    }
    let echo = fields.boolean("echo")?.unwrap_or(false);
    if echo && settings.logprobs.is_some() {
        return Err(ApiError::unsupported("echo", "log-probabilities of prompts are not given; leave out `logprobs`"));
    }
    Ok(CompletionCall {
        echo: echo.then(|| prompts.clone()),
        generate: Generate {
            prompts,
            settings,
            n,
            tools: Vec::new(),
            tool_choice: ToolChoice::None,
            parallel_tool_calls: false,
            format: offered::format(fields.get("response_format"), "response_format")?,
            thinking: Thinking::default(),
            min_tokens: sampling::min_tokens(&fields)?,
            is_raw: true,
            continues: false,
            prompt_field: "prompt",
        },
        stream: sampling::stream_options(&fields)?,
    })
}

/// A text, a list of texts, tokens, or a list of lists of tokens.
pub(crate) fn prompts(fields: &Fields<'_>, name: &str) -> Result<Vec<Prompt>, ApiError> {
    let expected = "a string, a list of strings, a list of tokens or a list of such lists";
    match fields.get(name) {
        None => Err(ApiError::missing(fields.path(name), expected)),
        Some(Value::String(text)) => Ok(vec![Prompt::Text(text.clone())]),
        Some(Value::Array(items)) if items.is_empty() => Err(fields.wrong(name, &json!([]), expected)),
        Some(list @ Value::Array(items)) if items[0].is_number() => Ok(vec![tokens(list, name)?]),
        Some(Value::Array(items)) => {
            let one = |(index, item): (usize, &Value)| match item {
                Value::String(text) => Ok(Prompt::Text(text.clone())),
                list => tokens(list, &format!("{name}[{index}]")),
            };
            items.iter().enumerate().map(one).collect()
        }
        Some(other) => Err(fields.wrong(name, other, expected)),
    }
}

fn tokens(list: &Value, path: &str) -> Result<Prompt, ApiError> {
    let items = list.as_array().ok_or_else(|| ApiError::field(path, list, "a string or a list of tokens"))?;
    let token = |(index, item): (usize, &Value)| {
        let id = item.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| ApiError::field(format!("{path}[{index}]"), item, "the number of a token"))
    };
    Ok(Prompt::Tokens(items.iter().enumerate().map(token).collect::<Result<_, _>>()?))
}

/// The text of a prompt, to be repeated.
pub(crate) fn echoed(prompt: &Prompt, app: &App) -> String {
    match (prompt, app.ready()) {
        (Prompt::Text(text), _) => text.clone(),
        (Prompt::Tokens(tokens), Ok(ready)) => ready.engine.tokenizer().decode(tokens, SpecialTokens::Skip),
        _ => String::new(),
    }
}

/// The whole answer; `echo` has the text before each answer, by prompt.
pub(crate) fn whole(app: &App, head: &Head, answers: &[Answer], totals: &Totals, echo: &[String]) -> Value {
    let choice = |(index, answer): (usize, &Answer)| {
        let reason = answer.outcome.as_ref().map(|outcome| finish_reason(&outcome.reason));
        let (finish_reason, stop_reason) = reason.unwrap_or(("stop", Value::Null));
        let before = echo.get(answer.prompt).map_or("", String::as_str);
        let logprobs =
            app.ready().map_or(Value::Null, |ready| usage::completion_logprobs(&answer.tokens, &ready.engine, 0));
        json!({
            "index": index, "text": format!("{before}{}", answer.content), "logprobs": logprobs,
            "finish_reason": finish_reason, "stop_reason": stop_reason,
        })
    };
    json!({
        "id": ids::fresh("cmpl-"),
        "object": "text_completion",
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.fingerprint,
        "choices": answers.iter().enumerate().map(choice).collect::<Value>(),
        "usage": usage::openai(totals),
        "timings": usage::timings(totals),
        "seed": answers.first().and_then(|answer| Some(answer.outcome.as_ref()?.finished.seed)),
    })
}

/// The answer in pieces.
pub(crate) struct CompletionWriter {
    app: Arc<App>,
    id: String,
    head: Head,
    options: StreamOptions,
    /// Text before each answer, by text.
    echo: Vec<String>,
    /// Characters of each text so far.
    offsets: Vec<usize>,
}

impl CompletionWriter {
    pub(crate) fn new(app: Arc<App>, head: Head, options: StreamOptions, echo: Vec<String>) -> Self {
        let offsets = vec![0; echo.len()];
        Self { app, id: ids::fresh("cmpl-"), head, options, echo, offsets }
    }

    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.head.created,
            "model": self.head.model,
            "system_fingerprint": self.head.fingerprint,
            "choices": choices,
        });
        if self.options.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn logprobs(&mut self, text: usize, tokens: &[TokenEvent]) -> Value {
        let offset = self.offsets[text];
        let characters = |token: &TokenEvent| String::from_utf8_lossy(&token.bytes).chars().count();
        self.offsets[text] += tokens.iter().map(characters).sum::<usize>();
        self.app.ready().map_or(Value::Null, |ready| usage::completion_logprobs(tokens, &ready.engine, offset))
    }
}

impl Writer for CompletionWriter {
    fn open(&mut self) -> Vec<String> {
        let repeated = self.echo.iter().enumerate().filter(|(_, text)| !text.is_empty());
        repeated
            .map(|(index, text)| {
                data(&self.chunk(json!([{ "index": index, "text": text, "logprobs": null, "finish_reason": null }])))
            })
            .collect()
    }

    fn change(&mut self, text: usize, delta: Delta, tokens: Vec<TokenEvent>) -> Vec<String> {
        let logprobs = self.logprobs(text, &tokens);
        let choice = match delta {
            Delta::Content(content) => {
                json!({ "index": text, "text": content, "logprobs": logprobs, "finish_reason": null })
            }
            Delta::Finished(outcome) => {
                let (finish_reason, stop_reason) = finish_reason(&outcome.reason);
                json!({
                    "index": text, "text": "", "logprobs": logprobs, "finish_reason": finish_reason,
                    "stop_reason": stop_reason,
                })
            }
            _ => return Vec::new(),
        };
        vec![data(&self.chunk(json!([choice])))]
    }

    fn close(&mut self, totals: &Totals) -> Vec<String> {
        usage::last_frames(self.options.include_usage.then(|| self.chunk(json!([]))), totals)
    }

    fn fail(&mut self, error: &ApiError) -> Vec<String> {
        vec![data(&error.body(Dialect::OpenAi))]
    }
}
