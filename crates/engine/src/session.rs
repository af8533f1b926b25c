//! One conversation with a model: requests, one after the other, over states that are used again.

use std::time::Instant;

use pleach_decode::Constraint;

use crate::generation::Generation;
use crate::keeper::Keeper;
use crate::prefix_cache::{CacheOwner, Limit, SharedCache};
use crate::running::Running;
use crate::{Engine, EngineError, Request};

/// What a session keeps: in any case the ends of the last turn, the last prompt and the last answer.
const KEPT: Limit = Limit { bytes: 64 << 20, least: 3 };

/// Runs requests one after the other and remembers what it has read.
///
/// A prompt that starts as an earlier one did is read from where the session has a state: the ends of turns, of prompts and of
/// answers. [`Usage::cached_tokens`](crate::Usage::cached_tokens) says how much was known. That never changes the text: a
/// state is used for exactly the tokens that it stands for. Sessions of one engine share its weights and nothing else.
#[derive(Debug)]
pub struct Session {
    engine: Engine,
    cache: SharedCache,
}

impl Session {
    pub(crate) fn new(engine: Engine) -> Self {
        Self { engine, cache: SharedCache::new(KEPT) }
    }

    /// The engine that it runs on.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Bytes of the states that it keeps.
    pub fn size_bytes(&self) -> usize {
        self.cache.stats().bytes
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
        self.cache.reusable(CacheOwner::default(), prompt)
    }

    fn start(
        &mut self,
        request: &Request,
        demand: Option<Box<dyn Constraint + Send>>,
    ) -> Result<Generation<'_>, EngineError> {
        let started = Instant::now();
        let prompt = self.engine.encode_prompt(&request.prompt)?;
        let keeper = Keeper::new(self.cache.clone(), CacheOwner::default());
        let running = Running::new(&self.engine, prompt, &request.settings, demand, Some(keeper), started)?;
        Ok(Generation::new(self.engine.clone(), running))
    }
}
