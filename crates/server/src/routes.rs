//! Paths and what answers them.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};

use crate::answer::collect;
use crate::app::App;
use crate::error::ApiError;
use crate::page::Page;
use crate::wire::chat_answer::ChatWriter;
use crate::wire::completions::CompletionWriter;
use crate::wire::messages::Purpose;
use crate::wire::messages_answer::MessageWriter;
use crate::wire::responses_answer::ResponseWriter;
use crate::wire::{
    chat, chat_answer, completions, embeddings, messages, messages_answer, models, responses, responses_answer, tokens,
};
use crate::{Router, body, generate, guard, openapi, stream};

type Shared = State<Arc<App>>;

/// All routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for prefix in ["", "/v1"] {
        router = router
            .route(&format!("{prefix}/chat/completions"), post(answer_chat))
            .route(&format!("{prefix}/completions"), post(answer_completion))
            .route(&format!("{prefix}/responses"), post(answer_response))
            .route(&format!("{prefix}/messages"), post(answer_message))
            .route(&format!("{prefix}/messages/count_tokens"), post(count_tokens))
            .route(&format!("{prefix}/embeddings"), post(answer_embeddings))
            .route(&format!("{prefix}/models"), get(list_models))
            .route(&format!("{prefix}/models/{{*name}}"), get(show_model))
            .route(&format!("{prefix}/tokenize"), post(tokenize))
            .route(&format!("{prefix}/detokenize"), post(detokenize))
            .route(&format!("{prefix}/health"), get(health));
    }
    let page = Page::new();
    router
        .route("/", get(move || async move { page.response() }))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(describe))
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), guard::check))
        .with_state(app)
}

fn json_response(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// Names the kinds of tools that were left out.
fn with_ignored(mut response: Response, ignored: &[String]) -> Response {
    if ignored.is_empty() {
        return response;
    }
    tracing::info!(kinds = ignored.len(), "tools of other kinds than functions are left out");
    if let Ok(value) = HeaderValue::from_str(&ignored.join(", ")) {
        response.headers_mut().insert("x-pleach-ignored-tools", value);
    }
    response
}

async fn answer_chat(State(app): Shared, request: Request) -> Result<Response, ApiError> {
    let owner = guard::owner(&app.options, &request);
    let call = chat::read(&body::read(request, &app).await?)?;
    let running = generate::start(&app, call.generate, owner).await?;
    let response = if call.stream.stream {
        let writer = ChatWriter::new(Arc::clone(&app), running.head.clone(), running.texts.len(), call.stream);
        stream::respond(running, Box::new(writer), app.options.keep_alive)
    } else {
        let (running, answers, totals) = collect(running).await?;
        json_response(&chat_answer::whole(&app, &running.head, &answers, &totals))
    };
    Ok(with_ignored(response, &call.ignored_tools))
}

async fn answer_completion(State(app): Shared, request: Request) -> Result<Response, ApiError> {
    let owner = guard::owner(&app.options, &request);
    let call = completions::read(&body::read(request, &app).await?)?;
    let echo = call.echo.unwrap_or_default();
    let running = generate::start(&app, call.generate, owner).await?;
    let echo: Vec<String> = echo.iter().map(|prompt| completions::echoed(prompt, &app)).collect();
    if call.stream.stream {
        let before = running.texts.iter().map(|text| echo.get(text.prompt).cloned().unwrap_or_default()).collect();
        let writer = CompletionWriter::new(Arc::clone(&app), running.head.clone(), call.stream, before);
        return Ok(stream::respond(running, Box::new(writer), app.options.keep_alive));
    }
    let (running, answers, totals) = collect(running).await?;
    Ok(json_response(&completions::whole(&app, &running.head, &answers, &totals, &echo)))
}

async fn answer_response(State(app): Shared, request: Request) -> Result<Response, ApiError> {
    let owner = guard::owner(&app.options, &request);
    let call = responses::read(&body::read(request, &app).await?)?;
    let running = generate::start(&app, call.generate, owner).await?;
    let response = if call.stream {
        let writer = ResponseWriter::new(running.head.clone(), call.echo);
        stream::respond(running, Box::new(writer), app.options.keep_alive)
    } else {
        let (running, answers, totals) = collect(running).await?;
        json_response(&responses_answer::whole(&running.head, &call.echo, &answers[0], &totals))
    };
    Ok(with_ignored(response, &call.ignored_tools))
}

async fn answer_message(State(app): Shared, request: Request) -> Response {
    let answer = async {
        let owner = guard::owner(&app.options, &request);
        let body = body::read(request, &app).await?;
        let call = messages::read(&body, Purpose::Answer, app.options.drop_billing_line)?;
        let running = generate::start(&app, call.generate, owner).await?;
        let response = if call.stream {
            let writer = MessageWriter::new(running.head.clone(), running.prompt_tokens);
            stream::respond(running, Box::new(writer), app.options.keep_alive)
        } else {
            let (running, answers, totals) = collect(running).await?;
            json_response(&messages_answer::whole(&running.head, &answers[0], &totals))
        };
        Ok(with_ignored(response, &call.ignored_tools))
    };
    answer.await.unwrap_or_else(in_anthropic)
}

async fn count_tokens(State(app): Shared, request: Request) -> Response {
    let answer = async {
        let body = body::read(request, &app).await?;
        let call = messages::read(&body, Purpose::Count, app.options.drop_billing_line)?;
        let prompt = call.generate.prompts.into_iter().next();
        let prompt = prompt.ok_or_else(|| ApiError::missing("messages", "a list with at least one message"))?;
        let shared = Arc::clone(&app);
        let count = app.prepare(move || Ok(shared.ready()?.engine.encode(&prompt)?.len())).await?;
        Ok(json_response(&json!({ "input_tokens": count })))
    };
    answer.await.unwrap_or_else(in_anthropic)
}

fn in_anthropic(error: ApiError) -> Response {
    error.into_response_in(crate::error::Dialect::Anthropic)
}

async fn answer_embeddings(State(app): Shared, request: Request) -> Result<Response, ApiError> {
    let body = body::read(request, &app).await?;
    Ok(json_response(&embeddings::answer(app, body).await?))
}

async fn tokenize(State(app): Shared, request: Request) -> Result<Response, ApiError> {
    let body = body::read(request, &app).await?;
    let shared = Arc::clone(&app);
    Ok(json_response(&app.prepare(move || tokens::tokenize(&body, shared.ready()?)).await?))
}

async fn detokenize(State(app): Shared, request: Request) -> Result<Response, ApiError> {
    let body = body::read(request, &app).await?;
    let shared = Arc::clone(&app);
    Ok(json_response(&app.prepare(move || tokens::detokenize(&body, shared.ready()?)).await?))
}

async fn list_models(State(app): Shared) -> Result<Response, ApiError> {
    Ok(json_response(&models::list(app.ready()?)))
}

async fn show_model(State(app): Shared, name: Result<Path<String>, PathRejection>) -> Result<Response, ApiError> {
    let message = "the path must be UTF-8 where its `%` are decoded";
    let Path(name) = name.map_err(|_| ApiError::bad("invalid_path", message))?;
    Ok(json_response(&models::named(app.ready()?, &name)?))
}

async fn health(State(app): Shared) -> Result<Response, ApiError> {
    app.running()?;
    Ok(json_response(&json!({ "status": "ok" })))
}

async fn metrics(State(app): Shared) -> Response {
    let page = app.metrics.page(app.running().is_ok());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
}

async fn describe() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], openapi::DOCUMENT).into_response()
}

async fn unknown_path(uri: Uri) -> Response {
    let path: String = uri.path().chars().take(100).collect();
    let message = format!("there is nothing at `{path}`; /openapi.json lists what there is");
    ApiError::new(StatusCode::NOT_FOUND, "not_found", message).into_response_in(guard::dialect(&path))
}

async fn unknown_method(method: Method, uri: Uri) -> Response {
    let path: String = uri.path().chars().take(100).collect();
    let message = format!("`{path}` does not take {method}; /openapi.json says what it takes");
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message).into_response_in(guard::dialect(&path))
}
