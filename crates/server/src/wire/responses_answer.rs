//! `/v1/responses`: answers, whole and in pieces.

use pleach_engine::TokenEvent;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use crate::answer::{Answer, Call, Delta, Outcome, Reason, Totals};
use crate::error::{ApiError, Dialect};
use crate::generate::Head;
use crate::ids;
use crate::stream::{Writer, named};
use crate::wire::usage;

/// The whole answer.
pub(crate) fn whole(head: &Head, echo: &Map<String, Value>, answer: &Answer, totals: &Totals) -> Value {
    let mut output = Vec::new();
    if !answer.reasoning.is_empty() {
        output.push(reasoning_item(&ids::fresh("rs_"), &answer.reasoning));
    }
    if !answer.content.is_empty() || answer.calls.is_empty() {
        output.push(message_item(&ids::fresh("msg_"), &answer.content, "completed"));
    }
    output.extend(answer.calls.iter().map(|call| call_item(&ids::fresh("fc_"), call, status_of(call))));
    let mut response = response(&ids::fresh("resp_"), head, echo, output);
    let is_cut = answer.outcome.as_ref().is_some_and(|outcome| outcome.reason == Reason::Length);
    complete(&mut response, is_cut, totals);
    response
}

fn response(id: &str, head: &Head, echo: &Map<String, Value>, output: Vec<Value>) -> Value {
    let mut response = json!({
        "id": id,
        "object": "response",
        "created_at": head.created,
        "status": "in_progress",
        "model": head.model,
        "output": output,
        "error": null,
        "incomplete_details": null,
        "previous_response_id": null,
        "store": false,
        "usage": null,
        "system_fingerprint": head.fingerprint,
    });
    for (name, value) in echo {
        response[name] = value.clone();
    }
    // The official library expects these of every answer.
    for (name, default) in [("tools", json!([])), ("tool_choice", json!("auto")), ("parallel_tool_calls", json!(true))]
    {
        if response[name].is_null() {
            response[name] = default;
        }
    }
    response
}

fn complete(response: &mut Value, is_cut: bool, totals: &Totals) {
    response["status"] = Value::from(if is_cut { "incomplete" } else { "completed" });
    if is_cut {
        response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
    }
    response["usage"] = json!({
        "input_tokens": totals.prompt_tokens,
        "input_tokens_details": { "cached_tokens": totals.cached_tokens },
        "output_tokens": totals.output_tokens,
        "output_tokens_details": { "reasoning_tokens": totals.reasoning_tokens },
        "total_tokens": totals.prompt_tokens + totals.output_tokens,
        "spec_verify_ct": totals.passes,
    });
    response["timings"] = usage::timings(totals);
}

fn message_item(id: &str, text: &str, status: &str) -> Value {
    let content = json!([text_part(text)]);
    json!({ "id": id, "type": "message", "status": status, "role": "assistant", "content": content })
}

fn text_part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

fn reasoning_item(id: &str, text: &str) -> Value {
    let content = json!([{ "type": "reasoning_text", "text": text }]);
    json!({ "id": id, "type": "reasoning", "summary": [], "content": content })
}

/// A call whose arguments were cut off is incomplete.
fn status_of(call: &Call) -> &'static str {
    let is_whole = serde_json::from_str::<IgnoredAny>(&call.arguments).is_ok();
    if is_whole { "completed" } else { "incomplete" }
}

fn call_item(id: &str, call: &Call, status: &str) -> Value {
    json!({
        "id": id, "type": "function_call", "status": status, "call_id": call.id, "name": call.name,
        "arguments": call.arguments,
    })
}

/// The answer in pieces: items open one after the other, and each closes before the next.
pub(crate) struct ResponseWriter {
    id: String,
    head: Head,
    echo: Map<String, Value>,
    sequence: u64,
    /// Items that are complete.
    output: Vec<Value>,
    open: Option<Item>,
    is_cut: bool,
}

/// The item that is being written.
struct Item {
    id: String,
    kind: Kind,
    text: String,
}

enum Kind {
    Message,
    Reasoning,
    Call { id: String, name: String },
}

impl ResponseWriter {
    pub(crate) fn new(head: Head, echo: Map<String, Value>) -> Self {
        let id = ids::fresh("resp_");
        Self { id, head, echo, sequence: 0, output: Vec::new(), open: None, is_cut: false }
    }

    fn event(&mut self, name: &str, mut value: Value) -> String {
        value["type"] = Value::from(name);
        value["sequence_number"] = Value::from(self.sequence);
        self.sequence += 1;
        named(name, &value)
    }

    fn snapshot(&self) -> Value {
        response(&self.id, &self.head, &self.echo, self.output.clone())
    }

    /// Opens an item, after closing another.
    fn begin(&mut self, kind: Kind, frames: &mut Vec<String>) {
        self.end(frames);
        let index = self.output.len();
        let (id, item) = match &kind {
            Kind::Message => {
                let id = ids::fresh("msg_");
                let mut item = message_item(&id, "", "in_progress");
                item["content"] = json!([]);
                (id, item)
            }
            Kind::Reasoning => {
                let id = ids::fresh("rs_");
                let mut item = reasoning_item(&id, "");
                item["content"] = json!([]);
                (id, item)
            }
            Kind::Call { id: call, name } => {
                let id = ids::fresh("fc_");
                let call = Call { id: call.clone(), name: name.clone(), arguments: String::new() };
                let item = call_item(&id, &call, "in_progress");
                (id, item)
            }
        };
        frames.push(self.event("response.output_item.added", json!({ "output_index": index, "item": item })));
        let part = match kind {
            Kind::Message => Some(text_part("")),
            Kind::Reasoning => Some(json!({ "type": "reasoning_text", "text": "" })),
            Kind::Call { .. } => None,
        };
        if let Some(part) = part {
            let value = json!({ "item_id": id, "output_index": index, "content_index": 0, "part": part });
            frames.push(self.event("response.content_part.added", value));
        }
        self.open = Some(Item { id, kind, text: String::new() });
    }

    /// Adds text to the open item.
    fn add(&mut self, text: &str, frames: &mut Vec<String>) {
        let index = self.output.len();
        let Some(item) = &mut self.open else { return };
        item.text.push_str(text);
        let id = item.id.clone();
        let (name, value) = match item.kind {
            Kind::Message => (
                "response.output_text.delta",
                json!({ "item_id": id, "output_index": index, "content_index": 0, "delta": text, "logprobs": [] }),
            ),
            Kind::Reasoning => (
                "response.reasoning_text.delta",
                json!({ "item_id": id, "output_index": index, "content_index": 0, "delta": text }),
            ),
            Kind::Call { .. } => (
                "response.function_call_arguments.delta",
                json!({ "item_id": id, "output_index": index, "delta": text }),
            ),
        };
        frames.push(self.event(name, value));
    }

    /// Closes the open item.
    fn end(&mut self, frames: &mut Vec<String>) {
        let index = self.output.len();
        let Some(Item { id, kind, text }) = self.open.take() else { return };
        let place = json!({ "item_id": id, "output_index": index });
        let mut text_done = place.clone();
        let done = match kind {
            Kind::Call { id: call, name } => {
                text_done["arguments"] = Value::from(text.as_str());
                text_done["name"] = Value::from(name.as_str());
                frames.push(self.event("response.function_call_arguments.done", text_done));
                let call = Call { id: call, name, arguments: text };
                call_item(&id, &call, status_of(&call))
            }
            Kind::Message => {
                self.end_part("response.output_text.done", text_done, text_part(&text), frames);
                message_item(&id, &text, "completed")
            }
            Kind::Reasoning => {
                let part = json!({ "type": "reasoning_text", "text": text });
                self.end_part("response.reasoning_text.done", text_done, part, frames);
                reasoning_item(&id, &text)
            }
        };
        frames.push(self.event("response.output_item.done", json!({ "output_index": index, "item": done })));
        self.output.push(done);
    }

    fn end_part(&mut self, name: &str, mut place: Value, part: Value, frames: &mut Vec<String>) {
        place["content_index"] = Value::from(0);
        let mut text_done = place.clone();
        text_done["text"] = part["text"].clone();
        text_done["logprobs"] = json!([]);
        frames.push(self.event(name, text_done));
        place["part"] = part;
        frames.push(self.event("response.content_part.done", place));
    }

    fn finish(&mut self, outcome: &Outcome, frames: &mut Vec<String>) {
        if self.open.is_none() && self.output.iter().all(|item| item["type"] == "reasoning") {
            self.begin(Kind::Message, frames);
        }
        self.end(frames);
        self.is_cut = outcome.reason == Reason::Length;
    }
}

impl Writer for ResponseWriter {
    fn open(&mut self) -> Vec<String> {
        let snapshot = self.snapshot();
        ["response.created", "response.in_progress"]
            .into_iter()
            .map(|name| self.event(name, json!({ "response": snapshot })))
            .collect()
    }

    fn change(&mut self, _text: usize, delta: Delta, _tokens: Vec<TokenEvent>) -> Vec<String> {
        let mut frames = Vec::new();
        match delta {
            Delta::Progress(_) => {}
            Delta::Reasoning(text) => {
                if !matches!(&self.open, Some(Item { kind: Kind::Reasoning, .. })) {
                    self.begin(Kind::Reasoning, &mut frames);
                }
                self.add(&text, &mut frames);
            }
            Delta::Content(text) => {
                if !matches!(&self.open, Some(Item { kind: Kind::Message, .. })) {
                    self.begin(Kind::Message, &mut frames);
                }
                self.add(&text, &mut frames);
            }
            Delta::CallBegins { id, name, .. } => self.begin(Kind::Call { id, name }, &mut frames),
            Delta::CallArguments { text, .. } => self.add(&text, &mut frames),
            Delta::Finished(outcome) => self.finish(&outcome, &mut frames),
        }
        frames
    }

    fn close(&mut self, totals: &Totals) -> Vec<String> {
        let mut snapshot = self.snapshot();
        complete(&mut snapshot, self.is_cut, totals);
        let name = if self.is_cut { "response.incomplete" } else { "response.completed" };
        vec![self.event(name, json!({ "response": snapshot }))]
    }

    fn fail(&mut self, error: &ApiError) -> Vec<String> {
        let mut snapshot = self.snapshot();
        snapshot["status"] = Value::from("failed");
        snapshot["error"] = json!({ "code": "server_error", "message": error.message });
        let body = error.body(Dialect::OpenAi)["error"].clone();
        let first = json!({ "code": body["code"], "message": body["message"], "param": body["param"] });
        vec![self.event("error", first), self.event("response.failed", json!({ "response": snapshot }))]
    }
}
