//! `/tokenize` and `/detokenize`, in the forms of llama.cpp and vLLM.

use pleach_engine::{AddedTokens, ChatRequest, EngineError, Prompt, SpecialTokens};
use serde_json::{Value, json};

use crate::app::Ready;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::wire::{chat, completions};

/// `content` or `prompt` as a text, or `messages` as a conversation.
pub(crate) fn tokenize(body: &Value, ready: &Ready) -> Result<Value, ApiError> {
    let fields = Fields::top(body)?;
    let tokenizer = ready.engine.tokenizer();
    let text = match fields.text("content")? {
        None => fields.text("prompt")?,
        given => given,
    };
    let tokens = match (text, fields.get("messages")) {
        (Some(text), _) => {
            let special = fields.boolean("add_special")?.or(fields.boolean("add_special_tokens")?).unwrap_or(false);
            let added = match fields.boolean("parse_special")?.unwrap_or(true) {
                true => AddedTokens::Parse,
                false => AddedTokens::AsText,
            };
            let tokens = tokenizer.encode(text, added).map_err(EngineError::from)?;
            if special { [tokenizer.raw_text_prefix(), &tokens].concat() } else { tokens }
        }
        (None, Some(_)) => chat_tokens(body, ready)?,
        (None, None) => return Err(ApiError::missing("content", "the text to encode, or `messages`")),
    };
    let mut answer = json!({ "count": tokens.len(), "max_model_len": ready.engine.info().context });
    answer["tokens"] = match fields.boolean("with_pieces")?.unwrap_or(false) {
        true => tokens.iter().map(|&id| json!({ "id": id, "piece": piece(ready, id) })).collect(),
        false => Value::from(tokens),
    };
    Ok(answer)
}

fn chat_tokens(body: &Value, ready: &Ready) -> Result<Vec<u32>, ApiError> {
    let call = chat::read(body)?;
    match call.generate.prompts.into_iter().next() {
        Some(Prompt::Chat(chat)) => Ok(count_chat(chat, ready)?),
        _ => Ok(Vec::new()),
    }
}

/// The tokens of a conversation as the model reads it.
pub(crate) fn count_chat(chat: ChatRequest, ready: &Ready) -> Result<Vec<u32>, EngineError> {
    ready.engine.encode(&Prompt::Chat(chat))
}

/// A text, or its bytes if it is none by itself.
fn piece(ready: &Ready, id: u32) -> Value {
    let bytes = ready.engine.tokenizer().token_bytes(id).unwrap_or_default();
    String::from_utf8(bytes).map_or_else(|error| Value::from(error.into_bytes()), Value::from)
}

/// `tokens` to text.
pub(crate) fn detokenize(body: &Value, ready: &Ready) -> Result<Value, ApiError> {
    let fields = Fields::top(body)?;
    let list = fields.list("tokens")?.ok_or_else(|| ApiError::missing("tokens", "a list of tokens"))?;
    let tokens = match list.is_empty() {
        true => Vec::new(),
        false => match completions::prompts(&fields, "tokens")?.into_iter().next() {
            Some(Prompt::Tokens(tokens)) => tokens,
            _ => return Err(ApiError::field("tokens[0]", &list[0], "the number of a token")),
        },
    };
    let vocab_size = ready.engine.info().vocab_size;
    if let Some(index) = tokens.iter().position(|&id| id as usize >= vocab_size) {
        let found = Value::from(tokens[index]);
        return Err(ApiError::field(format!("tokens[{index}]"), &found, &format!("below {vocab_size}")));
    }
    let text = ready.engine.tokenizer().decode(&tokens, SpecialTokens::Keep);
    Ok(json!({ "content": text, "prompt": text }))
}
