//! `/v1/messages`: answers, whole and in pieces.

use pleach_engine::TokenEvent;
use serde_json::{Value, json};

use crate::answer::{Answer, Call, Delta, Reason, Totals};
use crate::error::{ApiError, Dialect};
use crate::generate::Head;
use crate::ids;
use crate::stream::{Writer, named};
use crate::wire::responses::arguments;
use crate::wire::usage;

fn stop_reason(reason: &Reason) -> (&'static str, Value) {
    match reason {
        Reason::Stop => ("end_turn", Value::Null),
        Reason::StopString(text) => ("stop_sequence", Value::from(text.as_str())),
        Reason::Length => ("max_tokens", Value::Null),
        Reason::ToolCalls => ("tool_use", Value::Null),
    }
}

/// Here the tokens from the cache are not among the input tokens.
fn usage_of(totals: &Totals) -> Value {
    json!({
        "input_tokens": totals.prompt_tokens.saturating_sub(totals.cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": totals.cached_tokens,
        "output_tokens": totals.output_tokens,
        "spec_verify_ct": totals.passes,
    })
}

/// The whole answer.
pub(crate) fn whole(head: &Head, answer: &Answer, totals: &Totals) -> Value {
    let mut content = Vec::new();
    if !answer.reasoning.is_empty() {
        content.push(json!({ "type": "thinking", "thinking": answer.reasoning, "signature": "" }));
    }
    let reason = answer.outcome.as_ref().map_or(&Reason::Stop, |outcome| &outcome.reason);
    // Input is an object in this protocol: there is none for half a call, which must not look like a whole one either.
    let is_whole = |call: &&Call| *reason != Reason::Length || is_object(&call.arguments);
    let calls: Vec<Value> = answer.calls.iter().filter(is_whole).map(tool_use).collect();
    if !answer.content.is_empty() || calls.is_empty() {
        content.push(json!({ "type": "text", "text": answer.content }));
    }
    content.extend(calls);
    let (stop_reason, stop_sequence) = stop_reason(reason);
    json!({
        "id": ids::fresh("msg_"),
        "type": "message",
        "role": "assistant",
        "model": head.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": stop_sequence,
        "usage": usage_of(totals),
        "timings": usage::timings(totals),
    })
}

fn is_object(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object())
}

fn tool_use(call: &Call) -> Value {
    json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": arguments(&call.arguments) })
}

/// The answer in pieces: blocks open one after the other.
pub(crate) struct MessageWriter {
    head: Head,
    prompt_tokens: usize,
    /// Blocks that are complete.
    num_blocks: usize,
    open: Option<Block>,
    reason: Reason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    Tool,
}

impl MessageWriter {
    pub(crate) fn new(head: Head, prompt_tokens: usize) -> Self {
        Self { head, prompt_tokens, num_blocks: 0, open: None, reason: Reason::Stop }
    }

    /// Makes `block` the open one; calls are each a block of their own.
    fn enter(&mut self, block: Block, start: Value, frames: &mut Vec<String>) {
        if self.open == Some(block) && block != Block::Tool {
            return;
        }
        self.leave(frames);
        let index = self.num_blocks;
        frames.push(event("content_block_start", json!({ "index": index, "content_block": start })));
        self.open = Some(block);
    }

    fn add(&self, delta: Value, frames: &mut Vec<String>) {
        frames.push(event("content_block_delta", json!({ "index": self.num_blocks, "delta": delta })));
    }

    fn leave(&mut self, frames: &mut Vec<String>) {
        let Some(block) = self.open.take() else { return };
        if block == Block::Thinking {
            self.add(json!({ "type": "signature_delta", "signature": "" }), frames);
        }
        frames.push(event("content_block_stop", json!({ "index": self.num_blocks })));
        self.num_blocks += 1;
    }
}

fn event(name: &str, mut value: Value) -> String {
    value["type"] = Value::from(name);
    named(name, &value)
}

impl Writer for MessageWriter {
    fn open(&mut self) -> Vec<String> {
        let message = json!({
            "id": ids::fresh("msg_"),
            "type": "message",
            "role": "assistant",
            "model": self.head.model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage_of(&Totals::new(self.prompt_tokens)),
        });
        vec![event("message_start", json!({ "message": message })), event("ping", json!({}))]
    }

    fn change(&mut self, _text: usize, delta: Delta, _tokens: Vec<TokenEvent>) -> Vec<String> {
        let mut frames = Vec::new();
        match delta {
            Delta::Progress(_) => {}
            Delta::Reasoning(text) => {
                let start = json!({ "type": "thinking", "thinking": "", "signature": "" });
                self.enter(Block::Thinking, start, &mut frames);
                self.add(json!({ "type": "thinking_delta", "thinking": text }), &mut frames);
            }
            Delta::Content(text) => {
                self.enter(Block::Text, json!({ "type": "text", "text": "" }), &mut frames);
                self.add(json!({ "type": "text_delta", "text": text }), &mut frames);
            }
            Delta::CallBegins { id, name, .. } => {
                let start = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                self.enter(Block::Tool, start, &mut frames);
            }
            Delta::CallArguments { text, .. } => {
                self.add(json!({ "type": "input_json_delta", "partial_json": text }), &mut frames);
            }
            Delta::Finished(outcome) => {
                self.leave(&mut frames);
                self.reason = outcome.reason;
            }
        }
        frames
    }

    fn close(&mut self, totals: &Totals) -> Vec<String> {
        let (stop_reason, stop_sequence) = stop_reason(&self.reason);
        let delta = json!({ "stop_reason": stop_reason, "stop_sequence": stop_sequence });
        let usage = usage_of(totals);
        let timings = usage::timings(totals);
        vec![
            event("message_delta", json!({ "delta": delta, "usage": usage, "timings": timings })),
            event("message_stop", json!({})),
        ]
    }

    fn fail(&mut self, error: &ApiError) -> Vec<String> {
        vec![named("error", &error.body(Dialect::Anthropic))]
    }
}
