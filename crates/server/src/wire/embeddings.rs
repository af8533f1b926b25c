//! `/v1/embeddings`: texts to vectors.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pleach_engine::{CancelToken, EngineError, Pooling, Prompt};
use serde_json::{Value, json};

use crate::app::{App, Ready, on_thread};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generate::check_tokens;
use crate::metrics::Metrics;
use crate::wire::completions;

const MAX_INPUTS: usize = 2048;

/// Whoever waits for vectors. Dropping it ends the work within one pass.
struct Client {
    cancel: CancelToken,
    metrics: Arc<Metrics>,
    is_over: bool,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.metrics.clients_gone.add(u64::from(!self.is_over));
    }
}

/// Answers a request; takes as long as the passes over its texts, which go in between those of others.
///
/// # Errors
/// The field at fault, or what a pass met.
pub(crate) async fn answer(app: Arc<App>, body: Value) -> Result<Value, ApiError> {
    let cancel = CancelToken::new();
    let mut client = Client { cancel: cancel.clone(), metrics: Arc::clone(&app.metrics), is_over: false };
    // Vectors are made one text after the other: those who wait for that wait here, which holds no thread and ends with them.
    let turn = Arc::clone(&app.embedding).acquire_owned().await;
    let answer = on_thread(move || {
        let _turn = turn;
        embed(app.ready()?, &body, &cancel)
    })
    .await;
    client.is_over = true;
    answer
}

fn embed(ready: &Ready, body: &Value, cancel: &CancelToken) -> Result<Value, ApiError> {
    let fields = Fields::top(body)?;
    let prompts = completions::prompts(&fields, "input")?;
    if prompts.len() > MAX_INPUTS {
        let message = format!("`input` has {} texts, but must have at most {MAX_INPUTS}", prompts.len());
        return Err(ApiError::bad("invalid_value", message).at("input"));
    }
    let as_base64 = choice(&fields, "encoding_format", &["float", "base64"])?.unwrap_or(0) == 1;
    let pooling = match choice(&fields, "pooling", &["mean", "last"])? {
        Some(1) => Pooling::LastToken,
        _ => Pooling::Mean,
    };
    let hidden_size = fields.whole("dimensions", 1, 1 << 20)?.map(|size| size as usize);
    // All are looked at before the first pass: a request that cannot be answered must not take one.
    let texts = prompts
        .iter()
        .enumerate()
        .map(|(index, prompt)| encode(ready, prompt, index).map_err(|error| error.at(format!("input[{index}]"))));
    let texts = texts.collect::<Result<Vec<_>, _>>()?;
    let num_tokens: usize = texts.iter().map(Vec::len).sum();
    let mut data = Vec::with_capacity(texts.len());
    for (index, tokens) in texts.iter().enumerate() {
        let vector = ready.engine.embed(tokens, pooling, cancel).map_err(|error| at(error, index))?;
        if let Some(wanted) = hidden_size.filter(|&wanted| wanted != vector.len()) {
            let message = format!("`dimensions` is {wanted}, but this model's vectors have {}", vector.len());
            return Err(ApiError::bad("invalid_value", message).at("dimensions"));
        }
        data.push(json!({ "object": "embedding", "index": index, "embedding": spell(&vector, as_base64) }));
    }
    Ok(json!({
        "object": "list",
        "data": data,
        "model": ready.model,
        "usage": { "prompt_tokens": num_tokens, "total_tokens": num_tokens },
    }))
}

fn encode(ready: &Ready, prompt: &Prompt, index: usize) -> Result<Vec<u32>, ApiError> {
    let context = ready.engine.info().context;
    let too_long = |found: String| {
        let message =
            format!("`input[{index}]` has {found} tokens, but this model's context holds {context}: shorten it");
        ApiError::bad("context_length_exceeded", message)
    };
    if let Prompt::Text(text) = prompt {
        let least = |_| too_long(format!("more than {context}"));
        ready.engine.check_length(&[text], context + 1).map_err(least)?;
    }
    let tokens = ready.engine.encode(prompt)?;
    check_tokens(&tokens, &format!("input[{index}]"), ready)?;
    if tokens.len() > context { Err(too_long(tokens.len().to_string())) } else { Ok(tokens) }
}

fn at(error: EngineError, index: usize) -> ApiError {
    ApiError::from(error).at(format!("input[{index}]"))
}

fn choice(fields: &Fields<'_>, name: &str, names: &[&str]) -> Result<Option<usize>, ApiError> {
    let Some(found) = fields.text(name)? else { return Ok(None) };
    let place = names.iter().position(|name| *name == found);
    let expected = || names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(" or ");
    place.map(Some).ok_or_else(|| fields.wrong(name, &Value::from(found), &expected()))
}

/// Numbers, or their little-endian bytes in base64, which is what the official library asks for.
fn spell(vector: &[f32], as_base64: bool) -> Value {
    if !as_base64 {
        return Value::from(vector.to_vec());
    }
    let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
    Value::from(STANDARD.encode(bytes))
}
