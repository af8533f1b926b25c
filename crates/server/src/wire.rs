//! The protocols: requests to the internal form, answers back.

pub(crate) mod chat;
pub(crate) mod chat_answer;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod messages;
pub(crate) mod messages_answer;
pub(crate) mod models;
pub(crate) mod offered;
pub(crate) mod responses;
pub(crate) mod responses_answer;
pub(crate) mod sampling;
pub(crate) mod thinking;
pub(crate) mod tokens;
pub(crate) mod usage;
