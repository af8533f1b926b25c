//! A model that is open.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use pleach_checkpoint::{Checkpoint, GenerationConfig};
use pleach_decode::{CostCurve, Experience, Lookup, Paced};
use pleach_model::{Model, MtpRunner, Runner};
use pleach_text::{
    AddedTokens, ChatRequest, ChatTemplate, RenderNote, Role, SpecialTokens, Tokenizer, opens_reasoning,
};

use crate::costly::{Costly, CostlyKind, CostlyRunner};
use crate::embed::{Embedder, Pooling};
use crate::fingerprint::Fingerprint;
use crate::options::ContextLimits;
use crate::running::Drafters;
use crate::speculation::WallClock;
use crate::target::Runners;
use crate::turn_ends::{Rendered, turn_ends};
use crate::turns::Turns;
use crate::{
    CancelToken, EngineError, EngineOptions, ModelInfo, Prompt, Session, Settings, SpecBudget, Speculation, drafter,
    info, vocabulary,
};

/// A model with its weights, shared by any number of sessions and threads. Cloning it is cheap.
///
/// Sessions run pass by pass in the order in which they ask, and each gives the text that it would give alone.
#[derive(Debug, Clone)]
pub struct Engine(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    model: Arc<Model>,
    /// One for all sessions: its recorded passes hold buffers, and candidate rows live there within a step.
    runners: Turns<Runners>,
    speculation: Speculation,
    /// What drafts with a model of its own.
    costly: Option<CostlyKind>,
    /// What a guess of it costs at least, as a share of a pass of the model.
    least_share: f64,
    /// What passes cost, as far as earlier requests have found out.
    costs: Mutex<CostCurve>,
    /// What the drafter has brought in earlier requests.
    experience: Mutex<Experience>,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    generation: GenerationConfig,
    stop_tokens: Vec<u32>,
    prefill_chunk: usize,
    fingerprint: Fingerprint,
    info: ModelInfo,
    /// Made when a text is first embedded.
    embedder: Embedder,
}

/// How far a model is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes of matrices, as stored in the files, that the device has.
    pub done_bytes: u64,
    /// Bytes of all weights, those of a drafter included, which count once all of them are there.
    pub total_bytes: u64,
}

/// A prompt as the model reads it.
#[derive(Debug, Clone, PartialEq)]
pub struct EncodedPrompt {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Whether the answer starts inside a thought.
    pub opens_reasoning: bool,
    /// What had to be changed for the chat template to take the conversation; usually nothing.
    pub notes: Vec<RenderNote>,
    /// Tokens before the places where a later prompt of the conversation may go on differently, in order.
    pub turn_ends: Vec<usize>,
}

impl EncodedPrompt {
    fn without_turns(tokens: Vec<u32>, opens_reasoning: bool) -> Self {
        Self { tokens, opens_reasoning, notes: Vec::new(), turn_ends: Vec::new() }
    }
}

impl Engine {
    /// Opens the model in a folder or a `.gguf` file; see [`locate`](crate::locate()) for other names.
    ///
    /// Files are mapped and checked, weights are put on the device. Nothing is run.
    ///
    /// # Errors
    /// Files that cannot be used, a tokenizer that does not belong to the weights, a context that model or memory do not
    /// allow, a device that cannot be started.
    pub fn open(path: &Path, options: &EngineOptions) -> Result<Self, EngineError> {
        Self::open_watched(path, options, &mut |_| {})
    }

    /// The same; `progress` is told how far the weights are, each time that a matrix is on the device.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_watched(
        path: &Path,
        options: &EngineOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, EngineError> {
        options.validate()?;
        let checkpoint =
            Checkpoint::open(path).map_err(|source| EngineError::Checkpoint { path: path.to_owned(), source })?;
        let tokenizer = vocabulary::tokenizer(&checkpoint, path)?;
        let template = vocabulary::chat_template(&checkpoint, &tokenizer, path)?;
        let stop_tokens = vocabulary::stop_tokens(&checkpoint, &tokenizer);
        let about = info::describe(path, &checkpoint, &tokenizer, template.as_ref());

        let device = options.open_device()?;
        let Checkpoint { config, tensors, generation, files, .. } = checkpoint;
        let fingerprint = Fingerprint::of(&config, &files, tensors.iter(), options, &device.arithmetic());
        // A drafter reads its target's output matrix as it is stored. The bytes are those of the mapped file.
        let head = tensors.get("lm_head.weight").or_else(|| tensors.get("embed_tokens.weight")).cloned();
        let model_bytes: u64 = tensors.iter().map(|tensor| tensor.size_bytes() as u64).sum();
        let total_bytes = model_bytes + drafter::weight_bytes(path, options);
        let mut loaded = |bytes| progress(LoadProgress { done_bytes: bytes as u64, total_bytes });
        let model = Arc::new(Model::load_watched(config, tensors, device, &options.load_options(), &mut loaded)?);
        let plan = model.memory_plan();
        // Pages of a mapped file count as available, although such a device reads them in every pass.
        let untaken_bytes = if model.device().reads_stored_weights() { plan.weights_bytes } else { 0 };
        let limits = ContextLimits::of(model.config(), &plan, untaken_bytes);
        let context = options.context.resolve(&limits)?;
        let mut info = about.with_plan(model.device().describe(), plan, context, &limits);
        let target = drafter::Target { model: &model, tokenizer: &tokenizer, head: head.as_ref() };
        let draft = drafter::open(path, &target, options, &mut info.warnings)?;
        progress(LoadProgress { done_bytes: total_bytes, total_bytes });
        let runners = runners(&model, draft, options.speculation)?;
        Ok(Self(Arc::new(Inner {
            least_share: runners.costly.as_ref().map_or(0.0, |costly| costly.least_share(&model)),
            costly: runners.costly.as_ref().map(CostlyRunner::kind),
            runners: Turns::new(runners),
            speculation: options.speculation,
            costs: Mutex::default(),
            experience: Mutex::default(),
            model,
            tokenizer,
            template,
            generation,
            stop_tokens,
            prefill_chunk: options.prefill_chunk,
            fingerprint,
            info,
            embedder: Embedder::default(),
        })))
    }

    /// A session that has read nothing yet.
    ///
    /// # Errors
    /// What the device says when its memory is full.
    pub fn session(&self) -> Result<Session, EngineError> {
        Ok(Session::new(self.clone()))
    }

    /// Checks what a request asks for beside its prompt, as [`Session::generate`] does before any work.
    ///
    /// # Errors
    /// A field outside its range.
    pub fn check(&self, settings: &Settings) -> Result<(), EngineError> {
        settings.stop_strings()?;
        settings.spec_budget.validate()?;
        Ok(settings.sampling.resolve(self.generation_config()).validate(self.info().vocab_size)?)
    }

    /// What was opened.
    pub fn info(&self) -> &ModelInfo {
        &self.0.info
    }

    /// Characters to tokens and back.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.0.tokenizer
    }

    /// The tokens that end a text: those of the model's configs, and its tokenizer's own.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.0.stop_tokens
    }

    /// The sampling that the model's makers suggest; it fills what a request leaves open.
    pub fn generation_config(&self) -> &GenerationConfig {
        &self.0.generation
    }

    /// Whether the model was made for conversations.
    pub fn has_chat_template(&self) -> bool {
        self.0.template.is_some()
    }

    /// Whether the model was made to think before it answers: its chat template knows of thoughts.
    pub fn has_thoughts(&self) -> bool {
        self.0.template.as_ref().is_some_and(ChatTemplate::knows_thoughts)
    }

    /// The text that the model reads for a conversation, control tokens included.
    ///
    /// # Errors
    /// [`EngineError::NoChatTemplate`]; [`EngineError::Text`] if the template refuses the messages.
    pub fn render(&self, chat: &ChatRequest) -> Result<String, EngineError> {
        Ok(self.render_with_notes(chat)?.0)
    }

    /// The tokens of a prompt: what [`Usage::prompt_tokens`](crate::Usage::prompt_tokens) counts. It may be longer than the context.
    ///
    /// # Errors
    /// As [`render`](Self::render); [`EngineError::Text`] if the vocabulary cannot express the text.
    pub fn encode(&self, prompt: &Prompt) -> Result<Vec<u32>, EngineError> {
        match prompt {
            Prompt::Chat(chat) => Ok(self.tokenizer().encode(&self.render(chat)?, AddedTokens::Parse)?),
            Prompt::Text(text) => self.encode_raw(text),
            Prompt::Tokens(tokens) => Ok(tokens.clone()),
        }
    }

    /// A prompt as the model reads it, for callers that look at it before they ask: as [`Prompt::Tokens`](crate::Prompt)
    /// its tokens give the same text. One that is far too long is refused before it costs time and memory.
    ///
    /// # Errors
    /// As [`encode`](Self::encode); [`EngineError::PromptTooLong`] and [`EngineError::PromptFarTooLong`] if it leaves no room for
    /// an answer.
    pub fn encode_prompt(&self, prompt: &Prompt) -> Result<EncodedPrompt, EngineError> {
        let context = self.info().context;
        let encoded = match prompt {
            Prompt::Chat(chat) => {
                self.check_messages(chat)?;
                let (text, notes) = self.render_with_notes(chat)?;
                let tokens = self.encode_rendered(&text)?;
                let opens_reasoning = opens_reasoning(&text);
                // Prompts that will be refused have no later ones.
                let turn_ends = match tokens.len() < context {
                    true => self.turn_ends(Rendered { chat, text: &text, tokens: &tokens }),
                    false => Vec::new(),
                };
                EncodedPrompt { tokens, opens_reasoning, notes, turn_ends }
            }
            Prompt::Text(text) => {
                self.check_length(&[text], context)?;
                EncodedPrompt::without_turns(self.encode_raw(text)?, opens_reasoning(text))
            }
            Prompt::Tokens(tokens) => {
                // A marker of a thought that is still open stands at the very end.
                const LAST: usize = 16;
                let end = &tokens[tokens.len().saturating_sub(LAST)..];
                let text = self.tokenizer().decode(end, SpecialTokens::Keep);
                EncodedPrompt::without_turns(tokens.clone(), opens_reasoning(&text))
            }
        };
        match encoded.tokens.len() {
            prompt if prompt >= context => Err(EngineError::PromptTooLong { prompt, context }),
            _ => Ok(encoded),
        }
    }

    /// The tokens of a text that a chat template has written, unless it is far too long.
    ///
    /// # Errors
    /// [`EngineError::PromptFarTooLong`]; [`EngineError::Text`] if the vocabulary cannot express the text.
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<u32>, EngineError> {
        self.check_length(&[text], self.info().context)?;
        Ok(self.tokenizer().encode(text, AddedTokens::Parse)?)
    }

    /// Refuses conversations that are far too long without rendering them.
    ///
    /// # Errors
    /// [`EngineError::PromptFarTooLong`].
    pub fn check_messages(&self, chat: &ChatRequest) -> Result<(), EngineError> {
        // Templates may leave out old thoughts and other parts of answers. What users say they write, but for blanks around it.
        let users = chat.messages.iter().filter(|message| message.role == Role::User);
        let texts: Vec<&str> = users.flat_map(|message| message.content.texts()).map(str::trim).collect();
        self.check_length(&texts, self.info().context)
    }

    /// Refuses texts that have `most` tokens or more for sure. Encoding takes a hundred times their memory.
    ///
    /// # Errors
    /// [`EngineError::PromptFarTooLong`].
    pub fn check_length(&self, texts: &[&str], most: usize) -> Result<(), EngineError> {
        /// Texts with fewer bytes for each token that there may be are quickly encoded.
        const FEW_BYTES: usize = 4;
        let bytes: usize = texts.iter().map(|text| text.len()).sum();
        if bytes / FEW_BYTES <= most {
            return Ok(());
        }
        let least = texts.iter().fold(0, |least, text| least + self.tokenizer().least_tokens(text, most - least));
        match least >= most {
            true => Err(EngineError::PromptFarTooLong { bytes, least, context: self.info().context }),
            false => Ok(()),
        }
    }

    fn turn_ends(&self, prompt: Rendered<'_>) -> Vec<usize> {
        let template = self.0.template.as_ref();
        template.map(|template| turn_ends(template, self.tokenizer(), prompt)).unwrap_or_default()
    }

    /// A text with what goes before it, unless it spells that itself.
    fn encode_raw(&self, text: &str) -> Result<Vec<u32>, EngineError> {
        let tokens = self.tokenizer().encode(text, AddedTokens::Parse)?;
        let prefix = self.tokenizer().raw_text_prefix();
        if tokens.starts_with(prefix) { Ok(tokens) } else { Ok([prefix, &tokens].concat()) }
    }

    fn render_with_notes(&self, chat: &ChatRequest) -> Result<(String, Vec<RenderNote>), EngineError> {
        let template = self.0.template.as_ref().ok_or(EngineError::NoChatTemplate)?;
        if let Some(kind) = chat.non_text_part() {
            let found = format!("a part of type `{kind}`");
            return Err(EngineError::InvalidField { field: "messages", found, allowed: "text".to_owned() });
        }
        let rendered = template.render(chat)?;
        Ok((rendered.prompt, rendered.notes))
    }

    /// One vector for a text: hidden states after the final norm, pooled and scaled to length 1; `[hidden_size]`.
    ///
    /// Passes run beside those of sessions, on the same device. `cancel` ends it within one pass.
    ///
    /// # Errors
    /// [`EngineError::PromptTooLong`], [`EngineError::Decode`] for no tokens or unknown ones, [`EngineError::Model`] if a pass
    /// fails, [`EngineError::Cancelled`].
    pub fn embed(&self, tokens: &[u32], pooling: Pooling, cancel: &CancelToken) -> Result<Vec<f32>, EngineError> {
        self.0.embedder.embed(self, tokens, pooling, cancel)
    }

    pub(crate) fn shared_model(&self) -> &Arc<Model> {
        &self.0.model
    }

    pub(crate) fn model(&self) -> &Model {
        &self.0.model
    }

    pub(crate) fn runners(&self) -> &Turns<Runners> {
        &self.0.runners
    }

    /// The drafters of one request. `costly` has read the first `cached` tokens of its prompt, if it is there.
    pub(crate) fn drafters(&self, budget: SpecBudget, costly: Option<Costly>, cached: usize) -> Drafters {
        // A request without guesses carries nothing for drafters along.
        let guesses = budget.most_rows() > 1;
        let mut costly = costly.or_else(|| self.0.costly.map(Costly::new)).filter(|_| guesses);
        if let Some(costly) = &mut costly {
            costly.resume(cached);
        }
        let lookup = (guesses && self.looks_up()).then(Lookup::new);
        let experience = *self.0.experience.lock().unwrap_or_else(PoisonError::into_inner);
        Paced::new(lookup, costly, WallClock::start(), budget.pace(), self.costs())
            .with_least_share(self.0.least_share)
            .with_experience(experience)
    }

    /// Keeps what the drafter has brought in a request.
    pub(crate) fn keep_experience(&self, request: Experience) {
        self.0.experience.lock().unwrap_or_else(PoisonError::into_inner).learn(request);
    }

    /// What passes cost, as far as is known.
    pub(crate) fn costs(&self) -> CostCurve {
        self.0.costs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps what a pass has shown of the cost of passes.
    pub(crate) fn keep_costs(&self, costs: &CostCurve) {
        self.0.costs.lock().unwrap_or_else(PoisonError::into_inner).clone_from(costs);
    }

    /// Tokens between states of a prompt that are kept for later ones: a state takes about as much memory as the keys and
    /// values of so many tokens.
    pub(crate) fn kept_spacing(&self) -> usize {
        const LEAST: usize = 512;
        let plan = &self.info().memory;
        plan.state_bytes.checked_div(plan.token_bytes).unwrap_or(usize::MAX).max(LEAST)
    }

    /// The drafters that requests have; none if they are decoded plainly.
    pub fn drafter_names(&self) -> Vec<&'static str> {
        let lookup = self.looks_up().then_some("ngram");
        lookup.into_iter().chain(self.0.costly.map(CostlyKind::name)).collect()
    }

    fn looks_up(&self) -> bool {
        matches!(self.0.speculation, Speculation::Auto | Speculation::Ngram)
    }

    /// Tells states of this model from those of others.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        self.0.fingerprint
    }

    pub(crate) fn prefill_chunk(&self) -> usize {
        self.0.prefill_chunk
    }
}

/// The runner of the model, and that of a model that drafts for it.
fn runners(model: &Arc<Model>, draft: Option<CostlyRunner>, speculation: Speculation) -> Result<Runners, EngineError> {
    let costly = match speculation {
        Speculation::Off | Speculation::Ngram => None,
        Speculation::Draft => Some(draft.ok_or_else(|| no_draft_model("draft"))?),
        Speculation::DFlash | Speculation::Weaver => {
            let name = if speculation == Speculation::DFlash { "dflash" } else { "weaver" };
            match draft.ok_or_else(|| no_draft_model(name))? {
                draft @ CostlyRunner::DFlash(_) => Some(draft),
                _ => {
                    let reason = "the draft model is a whole model".to_owned();
                    return Err(EngineError::UnfitDrafter { drafter: name, reason });
                }
            }
        }
        Speculation::Mtp => Some(mtp_runner(model)?),
        Speculation::Auto => match draft {
            Some(draft) => Some(draft),
            None => model.has_mtp().then(|| mtp_runner(model)).transpose()?,
        },
    };
    let taps = costly.as_ref().map(CostlyRunner::taps).unwrap_or_default();
    Ok(Runners { target: Runner::with_taps(Arc::clone(model), &taps)?, costly })
}

fn mtp_runner(model: &Arc<Model>) -> Result<CostlyRunner, EngineError> {
    if !model.has_mtp() {
        let (drafter, reason) = ("mtp", "it has no multi-token-prediction head".to_owned());
        return Err(EngineError::UnfitDrafter { drafter, reason });
    }
    Ok(CostlyRunner::Mtp(MtpRunner::new(Arc::clone(model))?))
}

fn no_draft_model(drafter: &'static str) -> EngineError {
    EngineError::UnfitDrafter { drafter, reason: "no draft model was named".to_owned() }
}
