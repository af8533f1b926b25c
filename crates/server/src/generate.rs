//! The one internal form of a request for text, and its way to the scheduler.

use std::sync::Arc;
use std::time::Instant;

use pleach_engine::{CacheOwner, CancelToken, ChatRequest, EncodedPrompt, Prompt, Role, Settings};
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::app::{App, Ready};
use crate::error::ApiError;
use crate::gate::Demands;
use crate::grammar::Rule;
use crate::ids;
use crate::metrics::Metrics;
use crate::schedule::{Run, Update, Work};
use crate::tools::{Tool, ToolChoice};

/// A request for text, whatever protocol it came in.
pub(crate) struct Generate {
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) settings: Settings,
    /// Answers to each prompt.
    pub(crate) n: usize,
    pub(crate) tools: Vec<Tool>,
    pub(crate) tool_choice: ToolChoice,
    pub(crate) parallel_tool_calls: bool,
    pub(crate) format: Format,
    pub(crate) thinking: Thinking,
    /// Tokens that come before one that ends a text.
    pub(crate) min_tokens: usize,
    /// Whether the prompt is a text that the answer completes: then nothing is a thought or a call.
    pub(crate) is_raw: bool,
    /// Whether the answer goes on with the last message, the assistant's, instead of beginning a turn.
    pub(crate) continues: bool,
    /// The field that holds the prompt, for errors.
    pub(crate) prompt_field: &'static str,
}

/// The form that an answer must have.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum Format {
    #[default]
    Text,
    /// JSON that a schema allows; the path is that of the schema in the request.
    Json { schema: Value, path: String },
}

/// How much the model may think.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Thinking {
    /// Whether it may; `None` leaves it to the model's template.
    pub(crate) enabled: Option<bool>,
    /// Tokens of a thought.
    pub(crate) budget: Option<usize>,
}

/// A request that is being answered. Dropping it ends the work within one pass.
pub(crate) struct Answering {
    pub(crate) updates: UnboundedReceiver<Update>,
    pub(crate) texts: Vec<Text>,
    /// What ends each text.
    cancels: Vec<CancelToken>,
    /// What all pieces of the answer say of it.
    pub(crate) head: Head,
    pub(crate) tools: Option<Arc<[Tool]>>,
    pub(crate) parallel_tool_calls: bool,
    pub(crate) prompt_tokens: usize,
    /// Set once there is nothing more to come; a request that is dropped before has lost its client.
    pub(crate) is_over: bool,
    metrics: Arc<Metrics>,
}

/// One text of an answer.
pub(crate) struct Text {
    pub(crate) cancel: CancelToken,
    /// Its prompt, among those of the request.
    pub(crate) prompt: usize,
}

/// What is the same in all pieces of an answer.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) fingerprint: String,
    pub(crate) stop_tokens: Arc<[u32]>,
    pub(crate) reasoning_alias: bool,
}

impl Generate {
    /// Whether the answer must be one of a grammar.
    fn has_grammar(&self) -> bool {
        self.format != Format::Text || matches!(self.tool_choice, ToolChoice::Required | ToolChoice::Named(_))
    }
}

impl Answering {
    /// Whether a text is the first of its prompt, which is the one that reads it.
    pub(crate) fn leads(&self, number: usize) -> bool {
        number == 0 || self.texts[number - 1].prompt != self.texts[number].prompt
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.cancels.iter().for_each(CancelToken::cancel);
        // After the cancelling: whoever reads the count may rely on it.
        self.metrics.clients_gone.add(u64::from(!self.is_over));
    }
}

/// Checks a request, puts it in line, and says what will come of it.
///
/// # Errors
/// Whatever is wrong with it: nothing is sent before.
pub(crate) async fn start(app: &Arc<App>, generate: Generate, owner: CacheOwner) -> Result<Answering, ApiError> {
    let ready = app.ready()?;
    ready.scheduler.check_place(owner)?;
    check(app, ready, &generate)?;
    let submitted = Instant::now();
    let shared = Arc::clone(app);
    let (generate, grammar) = match generate.has_grammar() {
        false => (generate, None),
        true => app.compile(move || grammar(shared.ready()?, &generate).map(|rule| (generate, rule))).await?,
    };
    let shared = Arc::clone(app);
    app.prepare(move || prepare(&shared, generate, grammar, owner, submitted)).await
}

fn prepare(
    app: &App,
    generate: Generate,
    grammar: Option<Rule>,
    owner: CacheOwner,
    submitted: Instant,
) -> Result<Answering, ApiError> {
    let ready = app.ready()?;
    let prompts =
        generate.prompts.iter().map(|prompt| encode(ready, prompt, &generate)).collect::<Result<Vec<_>, _>>()?;
    let demands = demands(ready, &generate, grammar)?;
    prompts.iter().for_each(|prompt| ready.scheduler.read_ahead(owner, prompt));
    let tokens = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    let (runs, texts): (Vec<Run>, Vec<Text>) = plan(&prompts, &generate).into_iter().unzip();
    let cancels = runs.iter().map(|run| run.cancel.clone()).collect();
    let (sender, updates) = unbounded_channel();
    let calls = !generate.tools.is_empty() && generate.tool_choice != ToolChoice::None;
    let mut settings = generate.settings;
    settings.split_reasoning = !generate.is_raw;
    settings.spec_budget = app.options.spec_budget;
    ready.scheduler.submit(Work { runs, settings, demands, owner, updates: sender, submitted })?;
    Ok(Answering {
        updates,
        texts,
        cancels,
        head: head(app, ready),
        tools: calls.then(|| generate.tools.into()),
        parallel_tool_calls: generate.parallel_tool_calls,
        prompt_tokens: tokens,
        is_over: false,
        metrics: Arc::clone(&app.metrics),
    })
}

/// What all answers of a model say of it.
pub(crate) fn head(app: &App, ready: &Ready) -> Head {
    Head {
        created: ids::unix_time(),
        model: ready.model.clone(),
        fingerprint: ready.fingerprint.clone(),
        stop_tokens: ready.engine.stop_tokens().into(),
        reasoning_alias: app.options.reasoning_alias,
    }
}

fn check(app: &App, ready: &Ready, generate: &Generate) -> Result<(), ApiError> {
    let (found, most) = (generate.prompts.len().saturating_mul(generate.n), app.options.max_choices);
    if found > most {
        let (field, remedy) = match generate.n {
            1 => (generate.prompt_field, "give fewer prompts"),
            _ => ("n", "lower `n`"),
        };
        let message = format!("the request asks for {found} texts, but must ask for at most {most}: {remedy}");
        return Err(ApiError::bad("invalid_value", message).at(field));
    }
    Ok(ready.engine.check(&generate.settings)?)
}

fn encode(ready: &Ready, prompt: &Prompt, generate: &Generate) -> Result<Arc<EncodedPrompt>, ApiError> {
    let at_field = |error| ApiError::from_prompt(error, generate.prompt_field);
    let prompt = match prompt {
        Prompt::Chat(chat) if generate.continues => {
            ready.engine.check_messages(chat).map_err(at_field)?;
            &continued(ready, chat)?
        }
        prompt => prompt,
    };
    let encoded = ready.engine.encode_prompt(prompt).map_err(at_field)?;
    for note in &encoded.notes {
        tracing::debug!("{note}");
    }
    check_tokens(&encoded.tokens, generate.prompt_field, ready)?;
    Ok(Arc::new(encoded))
}

/// Refuses tokens that are none of the model's, and none at all; `field` is where they come from.
pub(crate) fn check_tokens(tokens: &[u32], field: &str, ready: &Ready) -> Result<(), ApiError> {
    if tokens.is_empty() {
        return Err(ApiError::bad("empty_prompt", format!("`{field}` has no tokens: give it some text")).at(field));
    }
    let most = ready.engine.info().vocab_size;
    let Some(index) = tokens.iter().position(|&token| token as usize >= most) else { return Ok(()) };
    let message = format!("token {index} of `{field}` is {}, but must be below {most}", tokens[index]);
    Err(ApiError::bad("invalid_prompt", message).at(field))
}

/// The conversation up to where its last message ends, before what a template writes to end a turn.
fn continued(ready: &Ready, chat: &ChatRequest) -> Result<Prompt, ApiError> {
    let Some(last) = chat.messages.last().filter(|last| last.role == Role::Assistant) else {
        let reason = "the last message is not the assistant's";
        return Err(ApiError::unsupported("continue_final_message", reason));
    };
    let content: String = last.content.texts().collect();
    if content.trim().is_empty() {
        let messages = chat.messages[..chat.messages.len() - 1].to_vec();
        return Ok(Prompt::Chat(ChatRequest { messages, add_generation_prompt: true, ..chat.clone() }));
    }
    let chat = ChatRequest { add_generation_prompt: false, ..chat.clone() };
    let mut text = ready.engine.render(&chat)?;
    let content = content.trim_end();
    match text.rfind(content) {
        Some(start) => text.truncate(start + content.len()),
        None => {
            let reason = "the model's chat template does not show the last message as it is";
            return Err(ApiError::unsupported("continue_final_message", reason));
        }
    }
    Ok(Prompt::Tokens(ready.engine.encode_rendered(&text)?))
}

/// One run for each answer to each prompt. Further answers to a prompt draw with further seeds.
fn plan(prompts: &[Arc<EncodedPrompt>], generate: &Generate) -> Vec<(Run, Text)> {
    let answers =
        prompts.iter().enumerate().flat_map(|(index, prompt)| (0..generate.n).map(move |n| (index, prompt, n)));
    answers
        .map(|(index, prompt, n)| {
            let cancel = CancelToken::new();
            let seed = match (n, generate.settings.sampling.seed) {
                (0, seed) => seed,
                (n, seed) => Some(seed.unwrap_or(0).wrapping_add(n as u64)),
            };
            let text = Text { cancel: cancel.clone(), prompt: index };
            (Run { prompt: Arc::clone(prompt), seed, cancel }, text)
        })
        .collect()
}

fn demands(ready: &Ready, generate: &Generate, grammar: Option<Rule>) -> Result<Option<Demands>, ApiError> {
    let (budget, min_tokens) = (generate.thinking.budget, generate.min_tokens);
    if grammar.is_none() && budget.is_none() && min_tokens == 0 {
        return Ok(None);
    }
    if grammar.is_some() && min_tokens > 0 {
        return Err(ApiError::unsupported("min_tokens", "a grammar decides where the answer ends"));
    }
    let may_think = !generate.is_raw && generate.thinking.enabled != Some(false) && ready.thoughts.has_marker();
    Ok(Some(Demands { grammar, budget, may_think, min_tokens }))
}

fn grammar(ready: &Ready, generate: &Generate) -> Result<Option<Rule>, ApiError> {
    let wanted: Vec<&Tool> = match &generate.tool_choice {
        ToolChoice::Required => generate.tools.iter().collect(),
        ToolChoice::Named(name) => generate.tools.iter().filter(|tool| tool.name == *name).collect(),
        ToolChoice::Auto | ToolChoice::None => Vec::new(),
    };
    match (&generate.format, wanted.is_empty()) {
        (_, false) => {
            // One call answers a demand for one tool.
            let parallel = generate.parallel_tool_calls && generate.tool_choice == ToolChoice::Required;
            ready.grammars()?.calls(&wanted, ready.call_style, parallel).map(Some)
        }
        (Format::Json { schema, path }, true) => ready.grammars()?.json(schema, path).map(Some),
        (Format::Text, true) => Ok(None),
    }
}
