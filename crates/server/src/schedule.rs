//! Who runs when: a bounded queue in front of threads that each run one request at a time.
//!
//! This is the seam to the engine: [`Scheduler::submit`] takes [`Work`], which gives [`Update`]s. Nothing above it knows
//! that a request has a thread and a session; passes of several requests are interleaved by the engine.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use pleach_engine::{CancelToken, EncodedPrompt, Engine, EngineError, Event, Prompt, Request, Session, Settings};
use tokio::sync::mpsc::UnboundedSender;

use crate::error::ApiError;
use crate::gate::{Demands, Gate, Thoughts};
use crate::metrics::Metrics;
use crate::{ServeError, ServerOptions};

/// What a client asked for, ready to run.
pub(crate) struct Work {
    /// Texts to write, one after the other: they share what they can of their prompts.
    pub(crate) runs: Vec<Run>,
    pub(crate) settings: Settings,
    pub(crate) demands: Option<Demands>,
    /// Never waits: a client that reads slowly must not hold up passes, and an answer is bounded by the context.
    pub(crate) updates: UnboundedSender<Update>,
    pub(crate) submitted: Instant,
}

/// One text to write.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) prompt: Arc<EncodedPrompt>,
    pub(crate) seed: Option<u64>,
    /// Ends this text alone.
    pub(crate) cancel: CancelToken,
}

/// What has happened to a piece of work.
#[derive(Debug)]
pub(crate) enum Update {
    /// Something happened in the text of this number.
    Event(usize, Event),
    /// The work has failed; nothing comes after.
    Failed(ApiError),
}

impl Work {
    fn is_cancelled(&self) -> bool {
        self.updates.is_closed() || self.runs.iter().all(|run| run.cancel.is_cancelled())
    }
}

/// Runs work.
pub(crate) struct Scheduler(Arc<Shared>);

struct Shared {
    engine: Engine,
    thoughts: Arc<Thoughts>,
    metrics: Arc<Metrics>,
    queue: Mutex<Queue>,
    changed: Condvar,
    most_waiting: usize,
    num_workers: usize,
    reuses: bool,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Work>,
    /// Sessions that nobody uses, those used last at the end.
    idle: Vec<Session>,
    is_closed: bool,
}

impl Scheduler {
    /// Starts the threads.
    ///
    /// # Errors
    /// No memory for a session, no thread.
    pub(crate) fn start(
        engine: Engine,
        thoughts: Arc<Thoughts>,
        metrics: Arc<Metrics>,
        options: &ServerOptions,
    ) -> Result<Self, ServeError> {
        let num_workers = options.parallel.max(1);
        let idle = (0..num_workers).map(|_| engine.session()).collect::<Result<_, _>>()?;
        let queue = Mutex::new(Queue { idle, ..Queue::default() });
        let (most_waiting, reuses) = (options.queue, options.prefix_cache);
        let changed = Condvar::new();
        let shared = Arc::new(Shared { engine, thoughts, metrics, queue, changed, most_waiting, num_workers, reuses });
        let scheduler = Self(shared);
        for number in 0..num_workers {
            let shared = Arc::clone(&scheduler.0);
            let builder = thread::Builder::new().name(format!("request {number}"));
            builder.spawn(move || shared.serve()).map_err(|source| ServeError::Thread { source })?;
        }
        Ok(scheduler)
    }

    /// Puts work in line.
    ///
    /// # Errors
    /// 429 if too much waits already; what its clients gave up does not count.
    pub(crate) fn submit(&self, work: Work) -> Result<(), ApiError> {
        let mut queue = self.0.queue();
        queue.waiting.retain(|work| !work.is_cancelled());
        // Work that a thread is free to take does not wait.
        if queue.waiting.len() >= self.0.most_waiting + queue.idle.len() {
            let message = format!(
                "the server runs {} requests and {} wait: try again in a moment",
                self.0.num_workers,
                queue.waiting.len()
            );
            let status = axum::http::StatusCode::TOO_MANY_REQUESTS;
            return Err(ApiError::new(status, "queue_full", message).retry_after(1));
        }
        queue.waiting.push_back(work);
        self.0.metrics.waiting.set(queue.waiting.len());
        drop(queue);
        self.0.changed.notify_one();
        Ok(())
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.0.queue().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a thread does all its life.
    fn serve(&self) {
        while let Some((work, session)) = self.take() {
            self.metrics.queued.observe(work.submitted.elapsed());
            self.metrics.running.add(1);
            let session = session.filter(|_| self.reuses);
            let kept = self.run(&work, session);
            self.metrics.running.sub(1);
            // A session that a panic spoiled is replaced; without memory for another, the next work tries again.
            if let Some(session) = kept.or_else(|| self.engine.session().ok()) {
                self.queue().idle.push(session);
            }
        }
    }

    /// The next work, and of the idle sessions the one that knows most of its prompt; `None` once the server is gone.
    fn take(&self) -> Option<(Work, Option<Session>)> {
        let mut queue = self.queue();
        loop {
            while let Some(work) = queue.waiting.pop_front() {
                self.metrics.waiting.set(queue.waiting.len());
                if !work.is_cancelled() {
                    let session = queue.take_session(&work);
                    return Some((work, session));
                }
            }
            if queue.is_closed {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Runs work to its end; returns its session unless that was spoiled.
    fn run(&self, work: &Work, session: Option<Session>) -> Option<Session> {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut session = session.map_or_else(|| self.engine.session(), Ok)?;
            self.write(work, &mut session)?;
            Ok::<_, EngineError>(session)
        }));
        match outcome {
            Ok(Ok(session)) => Some(session),
            Ok(Err(error)) => {
                self.fail(work, error.into());
                None
            }
            Err(_panic) => {
                tracing::error!("a request met a fault of the engine");
                self.fail(work, ApiError::internal("the engine met a fault of its own; this request is lost"));
                None
            }
        }
    }

    fn fail(&self, work: &Work, error: ApiError) {
        self.metrics.failed.add(1);
        tracing::warn!(code = error.code, "a request failed while it ran");
        let _ = work.updates.send(Update::Failed(error));
    }

    fn write(&self, work: &Work, session: &mut Session) -> Result<(), EngineError> {
        for (number, run) in work.runs.iter().enumerate() {
            if work.is_cancelled() {
                return Ok(());
            }
            let mut settings = work.settings.clone();
            settings.cancel = run.cancel.clone();
            settings.sampling.seed = run.seed;
            let request = Request { prompt: Prompt::Tokens(run.prompt.tokens.clone()), settings };
            let generation = match &work.demands {
                Some(demands) => {
                    let gate = Gate::new(Arc::clone(&self.thoughts), demands, run.prompt.opens_reasoning);
                    session.generate_with(&request, Box::new(gate))?
                }
                None => session.generate(&request)?,
            };
            for event in generation {
                let event = event?;
                if let Event::Finished(finished) = &event {
                    self.metrics.finish(finished);
                }
                // Nobody listens once the client has gone; it has cancelled the run, which ends by itself.
                let _ = work.updates.send(Update::Event(number, event));
            }
        }
        Ok(())
    }
}

impl Queue {
    fn take_session(&mut self, work: &Work) -> Option<Session> {
        let prompt = &work.runs.first()?.prompt.tokens;
        let known = self.idle.iter().map(|session| session.reusable_tokens(prompt));
        // Of several that know as much, the one that was used longest ago.
        let best = known.enumerate().max_by_key(|&(index, known)| (known, std::cmp::Reverse(index)))?.0;
        Some(self.idle.remove(best))
    }
}
