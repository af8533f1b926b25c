//! One conversation with a model: requests, one after the other, over a state that is used again.

use std::time::Instant;

use pleach_decode::{Constraint, Generation as Writer, GenerationOptions};
use pleach_text::{Detokenizer, SpanSplitter, StopMatcher};

use crate::costly::Costly;
use crate::generation::{Generation, Parts};
use crate::output::Output;
use crate::prefix::Prefix;
use crate::{Engine, EngineError, Request};

/// Runs requests one after the other and remembers what it has read.
///
/// A prompt that starts with the tokens of the last one, or with those and the answer, is not read again from the start;
/// [`Usage::cached_tokens`](crate::Usage::cached_tokens) says how much was known. That never changes the text: a state
/// is used for exactly the tokens that it stands for. Sessions of one engine share its weights and nothing else.
#[derive(Debug)]
pub struct Session {
    engine: Engine,
    prefix: Prefix,
    /// What a drafter with a model of its own has read of the same tokens.
    costly: Option<Costly>,
}

impl Session {
    pub(crate) fn new(engine: Engine) -> Result<Self, EngineError> {
        let prefix = Prefix::new(engine.model())?;
        Ok(Self { engine, prefix, costly: None })
    }

    /// The engine that it runs on.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Tokens that its state stands for.
    pub fn tokens(&self) -> &[u32] {
        self.prefix.tokens()
    }

    /// Bytes of its state. Blocks that the copy for tried-again prompts shares are counted twice.
    pub fn size_bytes(&self) -> usize {
        self.prefix.size_bytes()
    }

    /// Starts a request. Work is done as events are asked for; dropping the iterator ends the request.
    ///
    /// ```no_run
    /// # use pleach_engine::{Engine, EngineOptions, Event, Request};
    /// # let engine = Engine::open("model.gguf".as_ref(), &EngineOptions::default())?;
    /// let mut session = engine.session()?;
    /// for event in session.generate(&Request::user("What is a pleached hedge?"))? {
    ///     if let Event::Text(text) = event? {
    ///         print!("{text}");
    ///     }
    /// }
    /// # Ok::<(), pleach_engine::EngineError>(())
    /// ```
    ///
    /// # Errors
    /// Before any work is done: a field outside its range, a prompt that is empty, has unknown tokens or leaves no room
    /// for an answer, a conversation that the chat template refuses. The session is as before.
    pub fn generate(&mut self, request: &Request) -> Result<Generation<'_>, EngineError> {
        self.start(request, None)
    }

    /// Does what [`generate`](Self::generate) does, and lets `demand` decide which tokens may come next: a grammar, a limit
    /// on the thought.
    ///
    /// It hears of every token of the output, in order, thought included, but not of a token that ends the text. Tokens that
    /// it forces are drafted; the text ends when it says so, or where a stop string or another limit is met.
    ///
    /// # Errors
    /// As [`generate`](Self::generate). A demand that leaves no token ends the request with [`EngineError::Decode`].
    pub fn generate_with(
        &mut self,
        request: &Request,
        demand: Box<dyn Constraint + Send>,
    ) -> Result<Generation<'_>, EngineError> {
        self.start(request, Some(demand))
    }

    /// Tokens of `prompt` that a request for it would not read again. Nothing is changed.
    pub fn reusable_tokens(&self, prompt: &[u32]) -> usize {
        self.prefix.usable(prompt)
    }

    fn start(
        &mut self,
        request: &Request,
        demand: Option<Box<dyn Constraint + Send>>,
    ) -> Result<Generation<'_>, EngineError> {
        let started = Instant::now();
        let settings = &request.settings;
        let stops = settings.stop_strings()?;
        let encoded = self.engine.encode_prompt(&request.prompt)?;
        settings.spec_budget.validate()?;
        let options = GenerationOptions {
            sampling: settings.sampling.resolve(self.engine.generation_config()),
            stop_tokens: if settings.ignore_eos { Vec::new() } else { self.engine.stop_tokens().to_vec() },
            max_tokens: settings.max_tokens,
            budget: if self.engine.drafter_names().is_empty() { 1 } else { settings.spec_budget.most_rows() },
            ..GenerationOptions::new(self.engine.model().config().vocab_size, self.engine.info().context)
        };
        let seed = options.sampling.seed;
        let writer = Writer::new(options, &encoded.tokens)?;
        let detokenizer = Detokenizer::new(self.engine.tokenizer().clone(), settings.special_tokens);
        let splitter = settings.split_reasoning.then(|| SpanSplitter::new(encoded.opens_reasoning));
        let cached = self.prefix.reuse(&encoded.tokens, self.engine.model())?;
        Ok(Generation::new(Parts {
            engine: &self.engine,
            prefix: &mut self.prefix,
            writer,
            drafters: self.engine.drafters(settings.spec_budget, &mut self.costly, cached),
            output: Output::new(detokenizer, StopMatcher::new(stops), splitter).with_demand(demand),
            logprobs: settings.logprobs,
            cancel: settings.cancel.clone(),
            seed,
            cached,
            started,
            notes: encoded.notes,
            prompt: encoded.tokens,
        }))
    }
}
