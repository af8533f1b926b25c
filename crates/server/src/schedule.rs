//! Who runs when: a bounded line in front of one thread that runs many texts at once.
//!
//! This is the seam to the engine: [`Scheduler::submit`] takes [`Work`], which gives [`Update`]s. Nothing above it knows that
//! texts share their passes.

mod line;
mod worker;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use axum::http::StatusCode;
use pleach_engine::{CacheOwner, CancelToken, DiskReader, EncodedPrompt, Engine, Event, Settings};
use tokio::sync::mpsc::UnboundedSender;

use crate::error::ApiError;
use crate::gate::{Demands, Thoughts};
use crate::metrics::Metrics;
use crate::{ServeError, ServerOptions};
use line::Line;
use worker::Worker;

/// What a client asked for, ready to run.
pub(crate) struct Work {
    /// Texts to write. Those after the first begin when its prompt was read, of which they share what they can.
    pub(crate) runs: Vec<Run>,
    pub(crate) settings: Settings,
    pub(crate) demands: Option<Demands>,
    /// Who asks.
    pub(crate) owner: CacheOwner,
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
pub(crate) struct Scheduler {
    shared: Arc<Shared>,
    disk: DiskReader,
    /// `None` only while it is being dropped.
    worker: Option<JoinHandle<()>>,
}

/// What those who ask and the thread that runs have in common.
struct Shared {
    metrics: Arc<Metrics>,
    queue: Mutex<Queue>,
    changed: Condvar,
    parallel: usize,
}

struct Queue {
    line: Line,
    /// Texts that may begin at once.
    free: usize,
    is_closed: bool,
}

impl Scheduler {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread; a prefix cache that cannot be.
    pub(crate) fn start(
        engine: Engine,
        thoughts: Arc<Thoughts>,
        metrics: Arc<Metrics>,
        options: &ServerOptions,
    ) -> Result<Self, ServeError> {
        let parallel = options.parallel.max(1);
        let line = Line::new(options.queue, options.api_keys.len());
        let queue = Mutex::new(Queue { line, free: parallel, is_closed: false });
        let shared = Arc::new(Shared { metrics, queue, changed: Condvar::new(), parallel });
        let worker = Worker::new(Arc::clone(&shared), engine, thoughts, &options.prefix_cache)?;
        let disk = worker.disk_reader();
        let builder = thread::Builder::new().name("passes".to_owned());
        let worker = builder.spawn(move || worker.serve()).map_err(|source| ServeError::Thread { source })?;
        Ok(Self { shared, disk, worker: Some(worker) })
    }

    /// Puts work in line.
    ///
    /// # Errors
    /// 429 if too much waits already; what its clients gave up does not count. 503 if the thread has ended.
    pub(crate) fn submit(&self, work: Work) -> Result<(), ApiError> {
        let mut queue = self.shared.queue();
        if queue.is_closed {
            return Err(ended());
        }
        // Work that may begin at once does not wait.
        let free = queue.free;
        if !queue.line.push(work, free) {
            return Err(self.full(&queue));
        }
        self.shared.metrics.waiting.set(queue.line.len());
        drop(queue);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Reads from disk what is known of a prompt, before its work is submitted: the thread that makes passes must not wait.
    pub(crate) fn read_ahead(&self, owner: CacheOwner, prompt: &EncodedPrompt) {
        self.disk.read_ahead(owner, &prompt.tokens);
    }

    /// Whether work of this owner would be taken now: asked before costly preparations.
    ///
    /// # Errors
    /// As of [`submit`](Self::submit).
    pub(crate) fn check_place(&self, owner: CacheOwner) -> Result<(), ApiError> {
        let mut queue = self.shared.queue();
        if queue.is_closed {
            return Err(ended());
        }
        let free = queue.free;
        if queue.line.has_place(owner, free) { Ok(()) } else { Err(self.full(&queue)) }
    }

    /// Whether there is somebody who makes passes.
    ///
    /// # Errors
    /// 503 if the thread has ended.
    pub(crate) fn check_alive(&self) -> Result<(), ApiError> {
        if self.shared.queue().is_closed { Err(ended()) } else { Ok(()) }
    }

    fn full(&self, queue: &Queue) -> ApiError {
        let (running, waiting) = (self.shared.parallel - queue.free, queue.line.len());
        let message = format!("the server writes {running} texts and {waiting} requests wait: try again in a moment");
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message).retry_after(1)
    }
}

/// What requests are told once nobody makes passes any more.
fn ended() -> ApiError {
    let message = "the server cannot run the model any more and must be started again; its log says why";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "engine_ended", message)
}

/// Nobody is there any more who would hear of what still runs. What is kept on disk is written to its end.
impl Drop for Scheduler {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Takes no more work, and tells those in line that their turn will not come.
    fn close(&self) {
        let mut queue = self.queue();
        queue.is_closed = true;
        for work in queue.line.drain() {
            let _ = work.updates.send(Update::Failed(ended()));
        }
        self.metrics.waiting.set(0);
        drop(queue);
        self.changed.notify_all();
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
