//! Many requests at once, pass by pass.

use std::time::Instant;

use pleach_decode::Constraint;

use crate::forest::Forest;
use crate::keeper::Keeper;
use crate::prefix_cache::{CacheOwner, PrefixCacheOptions, PrefixCacheStats, SharedCache};
use crate::running::{Phase, Running};
use crate::{EncodedPrompt, Engine, EngineError, Event, Settings};

/// Runs any number of requests at once: one thread calls [`step`](Self::step) again and again.
///
/// Each step makes one pass over the weights for all of them: every text that is written brings a tree of guesses, and one of
/// the prompts that are still read brings its next chunk, shortened while texts are being written. Requests come and go between
/// any two steps. Each gives the text that it would give alone, and a failure ends the request that met it.
///
/// ```
/// # let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-llama");
/// use pleach_engine::{Batch, Engine, EngineOptions, Event, Job, PrefixCacheOptions, Prompt, Settings};
///
/// let engine = Engine::open(dir.as_ref(), &EngineOptions::default())?;
/// let mut batch = Batch::new(engine.clone(), &PrefixCacheOptions::default())?;
/// for text in ["Once", "Twice"] {
///     let prompt = engine.encode_prompt(&Prompt::Text(text.to_owned()))?;
///     batch.add(Job::new(prompt, Settings { max_tokens: Some(4), ..Settings::default() }))?;
/// }
/// let mut finished = 0;
/// while !batch.is_empty() {
///     for (_request, event) in batch.step() {
///         finished += usize::from(matches!(event?, Event::Finished(_)));
///     }
/// }
/// assert_eq!(finished, 2);
/// # Ok::<(), pleach_engine::EngineError>(())
/// ```
#[derive(Debug)]
pub struct Batch {
    engine: Engine,
    cache: Option<SharedCache>,
    requests: Vec<(RequestId, Running)>,
    forest: Forest,
    next: u64,
}

/// A request as a batch takes it.
pub struct Job {
    /// What the text continues.
    pub prompt: EncodedPrompt,
    /// How it is written.
    pub settings: Settings,
    /// What decides which tokens may come next, as in [`Session::generate_with`](crate::Session::generate_with).
    pub demand: Option<Box<dyn Constraint + Send>>,
    /// Whose earlier requests may have been read for this one.
    pub owner: CacheOwner,
}

/// Reads states from disk ahead of the requests that go on from them, so that [`Batch::add`], which the passes of others wait
/// for, finds them in memory. Whatever is not there by then is read by `add` itself.
#[derive(Debug, Clone)]
pub struct DiskReader {
    engine: Engine,
    cache: Option<SharedCache>,
}

impl DiskReader {
    /// Reads the longest state that a prompt can go on from, unless one as long is in memory. Takes as long as the disk.
    pub fn read_ahead(&self, owner: CacheOwner, prompt: &[u32]) {
        if let Some(cache) = &self.cache {
            cache.read_ahead(owner, prompt, self.engine.model());
        }
    }
}

/// Tells the requests of a batch apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(u64);

impl Job {
    /// A request without demands whose owner is nobody in particular.
    pub fn new(prompt: EncodedPrompt, settings: Settings) -> Self {
        Self { prompt, settings, demand: None, owner: CacheOwner::default() }
    }
}

impl Batch {
    /// A batch without requests, and what it is to keep of them.
    ///
    /// # Errors
    /// A share outside its range; [`EngineError::CacheDir`] if states cannot be kept in the folder.
    pub fn new(engine: Engine, options: &PrefixCacheOptions) -> Result<Self, EngineError> {
        let cache = SharedCache::open(options, engine.fingerprint())?;
        Ok(Self { engine, cache, requests: Vec::new(), forest: Forest::default(), next: 0 })
    }

    /// The engine that it runs on.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Adds a request, which is in the next step already.
    ///
    /// # Errors
    /// A field outside its range, a prompt that is empty, has unknown tokens or leaves no room for an answer; what the device
    /// says when its memory is full. The batch is as before.
    pub fn add(&mut self, job: Job) -> Result<RequestId, EngineError> {
        let Job { prompt, settings, demand, owner } = job;
        let keeper = self.cache.clone().map(|cache| Keeper::new(cache, owner));
        let mut running = Running::new(&self.engine, prompt, &settings, demand, keeper, Instant::now())?;
        self.forest.welcome(&mut running);
        let id = RequestId(self.next);
        self.next += 1;
        self.requests.push((id, running));
        Ok(id)
    }

    /// What reads states from disk for requests that will be added, on any thread.
    pub fn disk_reader(&self) -> DiskReader {
        DiskReader { engine: self.engine.clone(), cache: self.cache.clone() }
    }

    /// Ends a request: the next step gives its last event, [`FinishReason::Cancelled`](crate::FinishReason::Cancelled).
    /// A [`CancelToken`](crate::CancelToken) does the same from another thread.
    pub fn cancel(&mut self, id: RequestId) {
        let request = self.requests.iter_mut().find(|(known, _)| *known == id);
        request.into_iter().for_each(|(_, running)| running.cancel());
    }

    /// Ends all requests without a word.
    pub fn clear(&mut self) {
        self.requests.clear();
    }

    /// Ends all requests without a word after a fault: nothing is kept of what it may have spoiled.
    pub fn abandon(&mut self) {
        self.requests.drain(..).for_each(|(_, mut running)| running.fail_in_pass(EngineError::Fault));
    }

    /// Makes one pass, and gives what it brought: for each request its events in order, an error being the last as
    /// [`Event::Finished`] is. Nothing happens if there is no request.
    pub fn step(&mut self) -> Vec<(RequestId, Result<Event, EngineError>)> {
        let mut running: Vec<&mut Running> = self.requests.iter_mut().map(|(_, running)| running).collect();
        self.forest.step(&self.engine, &mut running);
        let mut events = Vec::new();
        for (id, running) in &mut self.requests {
            while let Some(event) = running.take_event() {
                events.push((*id, event));
            }
        }
        self.requests.retain(|(_, running)| running.phase() != Phase::Over);
        events
    }

    /// Requests that have not ended.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there is no request.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// What has come of keeping states.
    pub fn prefix_cache(&self) -> PrefixCacheStats {
        self.cache.as_ref().map(SharedCache::stats).unwrap_or_default()
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // No word of a prompt gets into a log by accident.
        write!(f, "Job({} tokens)", self.prompt.tokens.len())
    }
}
