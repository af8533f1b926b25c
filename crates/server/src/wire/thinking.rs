//! Fields that say how much the model may think, in every known spelling.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::generate::Thinking;

/// Largest `chat_template_kwargs`, as JSON.
const MAX_KWARGS_BYTES: usize = 64 << 10;

/// Efforts with the tokens of a thought that they stand for; `None` for no thought at all, and for no limit.
const EFFORTS: [(&str, bool, Option<usize>); 7] = [
    ("none", false, None),
    ("minimal", true, Some(512)),
    ("low", true, Some(2048)),
    ("medium", true, Some(8192)),
    ("high", true, None),
    ("xhigh", true, None),
    ("max", true, None),
];

/// What the request says of thinking, and the variables for the template that follow from it.
///
/// Of several spellings the more exact one counts: a budget over an effort, a template variable over both.
pub(crate) fn read(fields: &Fields<'_>) -> Result<(Thinking, Map<String, Value>), ApiError> {
    let mut kwargs = kwargs(fields)?;
    let mut thinking = Thinking::default();
    if let Some(effort) = fields.text("reasoning_effort")? {
        thinking = of_effort(effort, "reasoning_effort")?;
        kwargs.entry("reasoning_effort").or_insert_with(|| Value::from(effort));
    }
    nested(fields, "reasoning", "max_tokens", &mut thinking)?;
    nested(fields, "thinking", "budget_tokens", &mut thinking)?;
    for name in ["reasoning_budget", "thinking_budget", "thinking_budget_tokens"] {
        if let Some(budget) = fields.whole(name, -1, i64::from(u32::MAX))? {
            limit(&mut thinking, budget);
        }
    }
    let variable = match kwargs.get("enable_thinking") {
        Some(Value::Bool(enabled)) => Some(*enabled),
        _ => fields.boolean("enable_thinking")?,
    };
    thinking.enabled = variable.or(thinking.enabled);
    if let Some(enabled) = thinking.enabled {
        kwargs.entry("enable_thinking").or_insert(Value::Bool(enabled));
    }
    if thinking.enabled == Some(false) {
        thinking.budget = Some(0);
    }
    Ok((thinking, kwargs))
}

fn kwargs(fields: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let kwargs = fields.object("chat_template_kwargs")?.cloned().unwrap_or_default();
    let found = Value::Object(kwargs.clone()).to_string().len();
    if found > MAX_KWARGS_BYTES {
        let message = format!("`chat_template_kwargs` has {found} bytes, but must have at most {MAX_KWARGS_BYTES}");
        return Err(ApiError::bad("invalid_value", message).at("chat_template_kwargs"));
    }
    Ok(kwargs)
}

/// `reasoning: {effort, max_tokens, enabled}` and `thinking: {type, budget_tokens}`.
fn nested(fields: &Fields<'_>, name: &str, budget: &str, thinking: &mut Thinking) -> Result<(), ApiError> {
    let Some(value) = fields.get(name) else { return Ok(()) };
    let path = fields.path(name);
    let inner = Fields::inside(value, &path)?;
    if let Some(effort) = inner.text("effort")? {
        *thinking = of_effort(effort, &inner.path("effort"))?;
    }
    thinking.enabled = inner.boolean("enabled")?.or(thinking.enabled);
    match inner.text("type")? {
        Some("enabled" | "adaptive") => thinking.enabled = Some(true),
        Some("disabled") => thinking.enabled = Some(false),
        Some(other) => {
            let expected = "\"enabled\", \"adaptive\" or \"disabled\"";
            return Err(inner.wrong("type", &Value::from(other), expected));
        }
        None => {}
    }
    if let Some(budget) = inner.whole(budget, -1, i64::from(u32::MAX))? {
        limit(thinking, budget);
    }
    Ok(())
}

fn of_effort(effort: &str, path: &str) -> Result<Thinking, ApiError> {
    let known = EFFORTS.iter().find(|(name, ..)| *name == effort);
    let &(_, enabled, budget) = known.ok_or_else(|| {
        let names: Vec<String> = EFFORTS.iter().map(|(name, ..)| format!("\"{name}\"")).collect();
        ApiError::field(path, &Value::from(effort), &format!("one of {}", names.join(", ")))
    })?;
    Ok(Thinking { enabled: Some(enabled), budget })
}

/// -1 is no limit, 0 no thought.
fn limit(thinking: &mut Thinking, budget: i64) {
    thinking.budget = usize::try_from(budget).ok();
    if budget == 0 {
        thinking.enabled = Some(false);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(body: Value) -> (Option<bool>, Option<usize>) {
        let (thinking, kwargs) = read(&Fields::top(&body).unwrap()).unwrap();
        assert_eq!(kwargs.get("enable_thinking").and_then(Value::as_bool), thinking.enabled);
        (thinking.enabled, thinking.budget)
    }

    #[test]
    fn every_spelling_turns_thinking_off() {
        for body in [
            json!({ "reasoning_effort": "none" }),
            json!({ "enable_thinking": false }),
            json!({ "chat_template_kwargs": { "enable_thinking": false } }),
            json!({ "reasoning": { "enabled": false } }),
            json!({ "thinking": { "type": "disabled" } }),
            json!({ "reasoning_budget": 0 }),
        ] {
            assert_eq!(of(body), (Some(false), Some(0)));
        }
    }

    #[test]
    fn budgets_come_from_efforts_and_numbers() {
        assert_eq!(of(json!({})), (None, None));
        assert_eq!(of(json!({ "reasoning_effort": "low" })), (Some(true), Some(2048)));
        assert_eq!(of(json!({ "reasoning_effort": "high" })), (Some(true), None));
        assert_eq!(of(json!({ "thinking": { "type": "enabled", "budget_tokens": 100 } })), (Some(true), Some(100)));
        assert_eq!(of(json!({ "reasoning_effort": "low", "thinking_budget": -1 })), (Some(true), None));
    }

    #[test]
    fn unknown_efforts_are_refused() {
        let body = json!({ "reasoning": { "effort": "huge" } });
        let message = read(&Fields::top(&body).unwrap()).unwrap_err().message;
        assert!(message.starts_with("`reasoning.effort` is \"huge\", but must be one of \"none\", "), "{message}");
    }
}
