//! The OpenAI and Anthropic protocols over HTTP for an engine: a router, and what listens.
//!
//! [`Server`] owns one model and answers for it: chat completions, completions, responses, messages, embeddings, models,
//! tokens, health and metrics. Requests become one internal form, whatever protocol they came in; one thread runs them, all
//! in each pass, and keeps what it has read; answers stream as they are written. A closed connection ends its request within
//! one pass, and whatever fails stays with its request.
//!
//! ```no_run
//! use pleach_engine::{Engine, EngineOptions};
//! use pleach_server::{Server, ServerOptions};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::new(ServerOptions::default());
//! let listener = server.bind("127.0.0.1:8000".parse()?).await?;
//! server.open_with(|| Engine::open("model.gguf".as_ref(), &EngineOptions::default()));
//! server.serve(listener, async { drop(tokio::signal::ctrl_c().await) }).await?;
//! # Ok(())
//! # }
//! ```

mod answer;
mod app;
mod body;
mod error;
mod fields;
mod gate;
mod generate;
mod grammar;
mod guard;
mod ids;
mod listen;
mod metrics;
mod openapi;
mod options;
mod page;
mod routes;
mod schedule;
mod stream;
mod tools;
mod wire;

pub use app::Server;
pub use error::ServeError;
pub use options::{ServerOptions, read_api_keys};

// What the signatures above are made of.
pub use axum::Router;
