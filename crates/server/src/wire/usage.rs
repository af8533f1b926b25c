//! What an answer took, and how likely its tokens were.

use pleach_engine::{Engine, TokenEvent};
use serde_json::{Value, json};

use crate::answer::Totals;
use crate::stream::data;

/// `usage` of chat and completions.
///
/// `spec_verify_ct` counts the passes after the prompt's: tokens divided by it are the tokens of a pass.
pub(crate) fn openai(totals: &Totals) -> Value {
    json!({
        "prompt_tokens": totals.prompt_tokens,
        "completion_tokens": totals.output_tokens,
        "total_tokens": totals.prompt_tokens + totals.output_tokens,
        "prompt_tokens_details": { "cached_tokens": totals.cached_tokens },
        "completion_tokens_details": {
            "reasoning_tokens": totals.reasoning_tokens,
            "accepted_prediction_tokens": totals.accepted,
            "rejected_prediction_tokens": totals.drafted - totals.accepted.min(totals.drafted),
        },
        "spec_verify_ct": totals.passes,
    })
}

/// What ends a stream of chat and completions: `chunk`, which has no choices, with what the answer took, if that was asked for,
/// and the mark of the end.
pub(crate) fn last_frames(chunk: Option<Value>, totals: &Totals) -> Vec<String> {
    let with_usage = chunk.map(|mut chunk| {
        chunk["usage"] = openai(totals);
        chunk["timings"] = timings(totals);
        data(&chunk)
    });
    with_usage.into_iter().chain(["data: [DONE]\n\n".to_owned()]).collect()
}

/// `timings`, under llama.cpp's names; milliseconds.
pub(crate) fn timings(totals: &Totals) -> Value {
    let read = totals.prompt_tokens.saturating_sub(totals.cached_tokens);
    // The first token comes from the prompt's last pass.
    let written = totals.output_tokens.saturating_sub(totals.num_texts);
    json!({
        "cache_n": totals.cached_tokens,
        "prompt_n": read,
        "prompt_ms": totals.prefill_ms,
        "prompt_per_token_ms": ratio(totals.prefill_ms, read as f64),
        "prompt_per_second": ratio(read as f64 * 1e3, totals.prefill_ms),
        "predicted_n": totals.output_tokens,
        "predicted_ms": totals.generation_ms,
        "predicted_per_token_ms": ratio(totals.generation_ms, written as f64),
        "predicted_per_second": ratio(written as f64 * 1e3, totals.generation_ms),
        "draft_n": totals.drafted,
        "draft_n_accepted": totals.accepted,
    })
}

/// 0 where nothing was measured, as clients expect a number.
fn ratio(of: f64, to: f64) -> f64 {
    if to > 0.0 { of / to } else { 0.0 }
}

/// JSON has no infinity; this is what other servers write for a token without any chance.
const IMPOSSIBLE: f32 = -9999.0;

/// `logprobs` of chat.
pub(crate) fn chat_logprobs(tokens: &[TokenEvent], engine: &Engine) -> Value {
    if tokens.is_empty() {
        return Value::Null;
    }
    let entry = |bytes: &[u8], log_prob: f32| json!({ "token": String::from_utf8_lossy(bytes), "logprob": log_prob.max(IMPOSSIBLE), "bytes": bytes });
    let content = tokens.iter().filter_map(|token| {
        let log_probs = token.log_probs.as_ref()?;
        let mut item = entry(&token.bytes, log_probs.log_prob);
        let top = log_probs.top.iter();
        item["top_logprobs"] = top
            .map(|&(id, log_prob)| entry(&engine.tokenizer().token_bytes(id).unwrap_or_default(), log_prob))
            .collect();
        Some(item)
    });
    json!({ "content": content.collect::<Value>(), "refusal": null })
}

/// `logprobs` of completions; `offset` is the place of the first token in the text, in characters.
pub(crate) fn completion_logprobs(tokens: &[TokenEvent], engine: &Engine, mut offset: usize) -> Value {
    if tokens.is_empty() {
        return Value::Null;
    }
    let spell = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (mut texts, mut log_probs, mut tops, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for token in tokens {
        let Some(known) = &token.log_probs else { continue };
        let text = spell(&token.bytes);
        offsets.push(offset);
        offset += text.chars().count();
        texts.push(text);
        log_probs.push(known.log_prob.max(IMPOSSIBLE));
        let pairs = known.top.iter().map(|&(id, log_prob)| {
            (spell(&engine.tokenizer().token_bytes(id).unwrap_or_default()), Value::from(log_prob.max(IMPOSSIBLE)))
        });
        tops.push(Value::Object(pairs.collect()));
    }
    json!({ "tokens": texts, "token_logprobs": log_probs, "top_logprobs": tops, "text_offset": offsets })
}
