//! `/v1/chat/completions`: answers, whole and in pieces.

use std::sync::Arc;

use pleach_engine::{Prefill, TokenEvent};
use serde_json::{Map, Value, json};

use crate::answer::{Answer, Call, Delta, Outcome, Reason, Totals};
use crate::app::App;
use crate::error::{ApiError, Dialect};
use crate::generate::Head;
use crate::ids;
use crate::stream::{Writer, data};
use crate::wire::sampling::StreamOptions;
use crate::wire::usage;

/// `finish_reason`, and `stop_reason` as vLLM adds it.
pub(crate) fn finish_reason(reason: &Reason) -> (&'static str, Value) {
    match reason {
        Reason::Stop => ("stop", Value::Null),
        Reason::StopString(text) => ("stop", Value::from(text.as_str())),
        Reason::Length => ("length", Value::Null),
        Reason::ToolCalls => ("tool_calls", Value::Null),
    }
}

/// The whole answer.
pub(crate) fn whole(app: &App, head: &Head, answers: &[Answer], totals: &Totals) -> Value {
    let choices = answers.iter().enumerate().map(|(index, answer)| choice(app, head, index, answer));
    let seed = answers.first().and_then(|answer| Some(answer.outcome.as_ref()?.finished.seed));
    json!({
        "id": ids::fresh("chatcmpl-"),
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.fingerprint,
        "choices": choices.collect::<Value>(),
        "usage": usage::openai(totals),
        "timings": usage::timings(totals),
        "seed": seed,
    })
}

fn choice(app: &App, head: &Head, index: usize, answer: &Answer) -> Value {
    let mut message = Map::new();
    message.insert("role".to_owned(), Value::from("assistant"));
    // Beside calls, no text is null.
    let content = (!answer.content.is_empty() || answer.calls.is_empty()).then_some(answer.content.as_str());
    message.insert("content".to_owned(), Value::from(content));
    message.insert("refusal".to_owned(), Value::Null);
    if !answer.reasoning.is_empty() {
        reasoning(&mut message, &answer.reasoning, head.reasoning_alias);
    }
    if !answer.calls.is_empty() {
        message.insert("tool_calls".to_owned(), answer.calls.iter().map(call).collect());
    }
    let reason = answer.outcome.as_ref().map_or(&Reason::Stop, |outcome| &outcome.reason);
    let (finish_reason, stop_reason) = finish_reason(reason);
    let logprobs = app.ready().map_or(Value::Null, |ready| usage::chat_logprobs(&answer.tokens, &ready.engine));
    json!({
        "index": index, "message": message, "logprobs": logprobs, "finish_reason": finish_reason, "stop_reason": stop_reason,
    })
}

fn call(call: &Call) -> Value {
    json!({ "id": call.id, "type": "function", "function": { "name": call.name, "arguments": call.arguments } })
}

fn reasoning(message: &mut Map<String, Value>, text: &str, alias: bool) {
    message.insert("reasoning_content".to_owned(), Value::from(text));
    if alias {
        message.insert("reasoning".to_owned(), Value::from(text));
    }
}

/// The answer in pieces.
pub(crate) struct ChatWriter {
    app: Arc<App>,
    id: String,
    head: Head,
    num_texts: usize,
    options: StreamOptions,
}

impl ChatWriter {
    pub(crate) fn new(app: Arc<App>, head: Head, num_texts: usize, options: StreamOptions) -> Self {
        Self { app, id: ids::fresh("chatcmpl-"), head, num_texts, options }
    }

    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = json!({
            "id": self.id,
            "object": "chat.completion.chunk",
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

    fn piece(&self, index: usize, delta: Value, tokens: &[TokenEvent]) -> Value {
        let logprobs = self.logprobs(tokens);
        self.chunk(json!([{ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": null }]))
    }

    fn logprobs(&self, tokens: &[TokenEvent]) -> Value {
        self.app.ready().map_or(Value::Null, |ready| usage::chat_logprobs(tokens, &ready.engine))
    }

    fn progress(&self, index: usize, progress: &Prefill) -> Vec<String> {
        if !self.options.progress {
            return Vec::new();
        }
        let mut chunk = self.piece(index, json!({}), &[]);
        chunk["prompt_progress"] =
            json!({ "total": progress.total, "cache": progress.cached, "processed": progress.done });
        vec![data(&chunk)]
    }

    fn finish(&self, index: usize, outcome: &Outcome, tokens: &[TokenEvent]) -> Value {
        let (finish_reason, stop_reason) = finish_reason(&outcome.reason);
        let logprobs = self.logprobs(tokens);
        let mut chunk = self.chunk(json!([{
            "index": index, "delta": {}, "logprobs": logprobs, "finish_reason": finish_reason, "stop_reason": stop_reason,
        }]));
        chunk["seed"] = Value::from(outcome.finished.seed);
        // Where this is the last chunk, it carries the times, as llama.cpp's does.
        if !self.options.include_usage && self.num_texts == 1 {
            let mut totals = Totals::new(outcome.finished.usage.prompt_tokens);
            totals.take(true, &Delta::Finished(Box::new(outcome.clone())));
            chunk["timings"] = usage::timings(&totals);
        }
        chunk
    }
}

impl Writer for ChatWriter {
    fn open(&mut self) -> Vec<String> {
        let first = |index| data(&self.piece(index, json!({ "role": "assistant", "content": "" }), &[]));
        (0..self.num_texts).map(first).collect()
    }

    fn change(&mut self, text: usize, delta: Delta, tokens: Vec<TokenEvent>) -> Vec<String> {
        let delta = match delta {
            Delta::Progress(progress) => return self.progress(text, &progress),
            Delta::Finished(outcome) => return vec![data(&self.finish(text, &outcome, &tokens))],
            Delta::Content(content) => json!({ "content": content }),
            Delta::Reasoning(thought) => {
                let mut delta = Map::new();
                reasoning(&mut delta, &thought, self.head.reasoning_alias);
                Value::Object(delta)
            }
            Delta::CallBegins { index, id, name } => json!({ "tool_calls": [{
                "index": index, "id": id, "type": "function", "function": { "name": name, "arguments": "" },
            }] }),
            Delta::CallArguments { index, text } => {
                json!({ "tool_calls": [{ "index": index, "function": { "arguments": text } }] })
            }
        };
        vec![data(&self.piece(text, delta, &tokens))]
    }

    fn close(&mut self, totals: &Totals) -> Vec<String> {
        usage::last_frames(self.options.include_usage.then(|| self.chunk(json!([]))), totals)
    }

    fn fail(&mut self, error: &ApiError) -> Vec<String> {
        vec![data(&error.body(Dialect::OpenAi))]
    }
}
