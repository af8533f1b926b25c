//! Fields that say how tokens are drawn, under all their names.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};

use pleach_engine::{MAX_LOGPROBS, Sampling, Settings};
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;

/// Everything but the limits of tokens and the reports.
pub(crate) fn settings(fields: &Fields<'_>) -> Result<Settings, ApiError> {
    let sampling = Sampling {
        temperature: fields.number("temperature")?,
        top_k: fields.whole("top_k", -1, i64::from(u32::MAX))?.map(|k| usize::try_from(k).unwrap_or(0)),
        top_p: fields.number("top_p")?,
        min_p: fields.number("min_p")?,
        repetition_penalty: match fields.number("repetition_penalty")? {
            None => fields.number("repeat_penalty")?,
            given => given,
        },
        presence_penalty: fields.number("presence_penalty")?,
        frequency_penalty: fields.number("frequency_penalty")?,
        penalty_window: window(fields)?,
        logit_bias: logit_bias(fields)?,
        seed: Some(fields.seed("seed")?.unwrap_or_else(random)),
    };
    Ok(Settings {
        sampling,
        stop: stop(fields, "stop")?,
        ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
        ..Settings::default()
    })
}

/// A seed for those who give none: they want another answer each time.
fn random() -> u64 {
    // Other programs read it as a double, so it has no more bits than one holds.
    RandomState::new().build_hasher().finish() >> 11
}

/// llama.cpp's `repeat_last_n`: -1 for all tokens. 0, which turns penalties off there, has no other meaning here.
fn window(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    let window = fields.whole("repeat_last_n", -1, i64::from(u32::MAX))?;
    Ok(window.and_then(|window| usize::try_from(window).ok()).filter(|&window| window > 0))
}

/// A string or a list of strings; `""` and `[]` are none.
pub(crate) fn stop(fields: &Fields<'_>, name: &str) -> Result<Vec<String>, ApiError> {
    let expected = "a string or a list of strings";
    match fields.get(name) {
        None => Ok(Vec::new()),
        Some(Value::String(text)) if text.is_empty() => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![text.clone()]),
        Some(Value::Array(items)) => {
            let text = |(index, item): (usize, &Value)| {
                let path = format!("{}[{index}]", fields.path(name));
                item.as_str().map(str::to_owned).ok_or_else(|| ApiError::field(path, item, "a string"))
            };
            items.iter().enumerate().map(text).collect()
        }
        Some(other) => Err(fields.wrong(name, other, expected)),
    }
}

fn logit_bias(fields: &Fields<'_>) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(map) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let pair = |(key, value): (&String, &Value)| {
        let path = format!("logit_bias.{key}");
        let token = key.parse().map_err(|_| {
            let message = format!("`logit_bias` has the key \"{key}\", but its keys must be token numbers");
            ApiError::bad("invalid_value", message).at("logit_bias")
        })?;
        let bias = value.as_f64().ok_or_else(|| ApiError::field(path, value, "a number from -100 to 100"))?;
        Ok((token, bias as f32))
    };
    map.iter().map(pair).collect()
}

/// `logprobs` and `top_logprobs` of chat.
pub(crate) fn logprobs(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    let top = fields.whole("top_logprobs", 0, MAX_LOGPROBS as i64)?.map(|top| top as usize);
    match (fields.boolean("logprobs")?.unwrap_or(false), top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::unsupported("top_logprobs", "`logprobs` must be true with it")),
    }
}

/// Answers to each prompt; the server's options have the most.
pub(crate) fn n(fields: &Fields<'_>) -> Result<usize, ApiError> {
    Ok(fields.count("n")?.unwrap_or(1))
}

/// Tokens that a text has at least, unless a stop string or a limit ends it.
pub(crate) fn min_tokens(fields: &Fields<'_>) -> Result<usize, ApiError> {
    Ok(fields.whole("min_tokens", 0, i64::from(u32::MAX))?.map_or(0, |least| least as usize))
}

/// How a stream is told.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StreamOptions {
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    /// llama.cpp's `return_progress`.
    pub(crate) progress: bool,
}

pub(crate) fn stream_options(fields: &Fields<'_>) -> Result<StreamOptions, ApiError> {
    let path = fields.path("stream_options");
    let include_usage = match fields.get("stream_options") {
        Some(options) => Fields::inside(options, &path)?.boolean("include_usage")?.unwrap_or(false),
        None => false,
    };
    Ok(StreamOptions {
        stream: fields.boolean("stream")?.unwrap_or(false),
        include_usage,
        progress: fields.boolean("return_progress")?.unwrap_or(false),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Value) -> Result<Settings, String> {
        settings(&Fields::top(&body).unwrap()).map_err(|error| error.message)
    }

    #[test]
    fn null_is_absent() {
        let names = [
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "seed",
            "stop",
            "logit_bias",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "repeat_penalty",
            "repeat_last_n",
            "ignore_eos",
        ];
        let body: serde_json::Map<String, Value> = names.iter().map(|name| ((*name).to_owned(), Value::Null)).collect();
        let mut read = read(Value::Object(body)).unwrap();
        assert!(read.sampling.seed.take().is_some());
        let default = Settings { cancel: read.cancel.clone(), ..Settings::default() };
        assert_eq!(read, default);
    }

    #[test]
    fn names_of_several_servers_are_read() {
        let read = read(json!({ "repeat_penalty": 1.5, "top_k": -1, "stop": ["a", "b"], "logit_bias": { "5": -100 } }));
        let read = read.unwrap();
        assert_eq!((read.sampling.repetition_penalty, read.sampling.top_k), (Some(1.5), Some(0)));
        assert_eq!((read.stop, read.sampling.logit_bias), (vec!["a".to_owned(), "b".to_owned()], vec![(5, -100.0)]));
    }

    #[test]
    fn refusals_name_the_field() {
        assert_eq!(read(json!({ "stop": [1] })).unwrap_err(), "`stop[0]` is 1, but must be a string");
        assert_eq!(
            read(json!({ "top_k": -2 })).unwrap_err(),
            "`top_k` is -2, but must be a whole number from -1 to 4294967295"
        );
        assert_eq!(
            read(json!({ "logit_bias": { "x": 1 } })).unwrap_err(),
            "`logit_bias` has the key \"x\", but its keys must be token numbers"
        );
    }
}
