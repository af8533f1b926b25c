//! `/v1/models`.

use serde_json::{Value, json};

use crate::app::Ready;
use crate::error::ApiError;
use axum::http::StatusCode;

/// The list, which has one model.
pub(crate) fn list(ready: &Ready) -> Value {
    json!({ "object": "list", "data": [one(ready)] })
}

/// The model.
pub(crate) fn one(ready: &Ready) -> Value {
    let info = ready.engine.info();
    json!({
        "id": ready.model,
        "object": "model",
        "created": ready.created,
        "owned_by": "pleach",
        "max_model_len": info.context,
        "context_length": info.context,
        "meta": {
            "n_vocab": info.vocab_size,
            "n_ctx": info.context,
            "n_ctx_train": info.max_context,
            "n_params": info.num_parameters,
            "size": info.memory.weights_bytes,
            "architecture": info.architecture,
            "quantization": info.quantization,
            "drafters": ready.engine.drafter_names(),
        },
        "input_modalities": ["text"],
    })
}

/// Any name asks for the one model that there is; in the path of a model it must be right.
pub(crate) fn named(ready: &Ready, name: &str) -> Result<Value, ApiError> {
    if name == ready.model {
        return Ok(one(ready));
    }
    let shown: String = name.chars().take(100).collect();
    let message = format!("there is no model `{shown}`: this server has `{}`", ready.model);
    Err(ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message).at("model"))
}
