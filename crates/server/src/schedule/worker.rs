//! The thread that makes passes.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::thread;

use pleach_engine::{
    Batch, CacheOwner, Constraint, DiskReader, EncodedPrompt, Engine, EngineError, Event, Job, PrefixCacheOptions,
    RequestId,
};

use super::{Shared, Update, Work};
use crate::error::ApiError;
use crate::gate::{Gate, Thoughts};

/// Takes work from the line and runs it, pass by pass.
pub(super) struct Worker {
    shared: Arc<Shared>,
    thoughts: Arc<Thoughts>,
    batch: Batch,
    ongoing: Vec<Ongoing>,
    /// Number of the next work.
    next: u64,
    /// Work and text of each request.
    texts: HashMap<RequestId, (u64, usize)>,
}

/// Work of which at least one text has begun.
struct Ongoing {
    number: u64,
    work: Work,
    /// The next text to begin.
    next_run: usize,
    running: usize,
    /// Whether the last text that began has read its prompt, so that the next can go on from there.
    is_read: bool,
}

impl Ongoing {
    fn has_more(&self) -> bool {
        self.next_run < self.work.runs.len() && !self.work.is_cancelled()
    }
}

impl Worker {
    /// # Errors
    /// A prefix cache that cannot be.
    pub(super) fn new(
        shared: Arc<Shared>,
        engine: Engine,
        thoughts: Arc<Thoughts>,
        options: &PrefixCacheOptions,
    ) -> Result<Self, EngineError> {
        let batch = Batch::new(engine, options)?;
        Ok(Self { shared, thoughts, batch, ongoing: Vec::new(), next: 0, texts: HashMap::new() })
    }

    pub(super) fn disk_reader(&self) -> DiskReader {
        self.batch.disk_reader()
    }

    /// What the thread does all its life.
    pub(super) fn serve(mut self) {
        let _end = End(Arc::clone(&self.shared));
        while self.admit() {
            for (id, event) in self.step() {
                self.dispatch(id, event);
            }
            self.retire();
            self.shared.metrics.prefix_cache.set(self.batch.prefix_cache());
        }
    }

    /// Begins what may begin, and waits if there is nothing to do; `false` once the server is gone.
    fn admit(&mut self) -> bool {
        self.continue_work();
        let shared = Arc::clone(&self.shared);
        let mut queue = shared.queue();
        while !queue.is_closed {
            queue.line.drop_cancelled();
            let num_free = shared.parallel.saturating_sub(self.batch.len());
            let next = if num_free > 0 { queue.line.pop(&self.running_of_owners()) } else { None };
            shared.metrics.waiting.set(queue.line.len());
            queue.free = num_free - usize::from(next.is_some());
            if let Some(work) = next {
                // Beginning copies states, which whoever puts work in line must not wait for.
                drop(queue);
                self.begin(work);
                queue = shared.queue();
            } else if self.batch.is_empty() {
                queue = shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            } else {
                let nobody_waits = queue.line.len() == 0;
                drop(queue);
                if nobody_waits {
                    self.spread();
                }
                return true;
            }
        }
        false
    }

    /// Every work keeps the place that it has.
    fn continue_work(&mut self) {
        for number in self.numbers() {
            // A text may end before its first pass, so the next may be due at once.
            while self.find(number).is_some_and(|ongoing| ongoing.running == 0 && ongoing.has_more()) {
                self.begin_run(number);
            }
        }
        self.retire();
    }

    /// Further texts of a work take places that nobody else waits for, once they can share its prompt.
    fn spread(&mut self) {
        for number in self.numbers() {
            while self.batch.len() < self.shared.parallel
                && self.find(number).is_some_and(|ongoing| ongoing.is_read && ongoing.has_more())
            {
                self.begin_run(number);
            }
        }
    }

    fn begin(&mut self, work: Work) {
        let metrics = &self.shared.metrics;
        metrics.queued.observe(work.submitted.elapsed());
        metrics.running.add(1);
        let number = self.next;
        self.ongoing.push(Ongoing { number, work, next_run: 0, running: 0, is_read: false });
        self.next += 1;
        self.begin_run(number);
    }

    /// Begins the next text of a work. A failure or a fault in that ends the work, which is gone then.
    fn begin_run(&mut self, number: u64) {
        let Some(ongoing) = self.ongoing.iter_mut().find(|ongoing| ongoing.number == number) else { return };
        let run_number = ongoing.next_run;
        ongoing.next_run += 1;
        ongoing.is_read = false;
        let (batch, thoughts, work) = (&mut self.batch, &self.thoughts, &ongoing.work);
        let added = catch_unwind(AssertUnwindSafe(|| batch.add(job(thoughts, work, run_number))));
        match added.unwrap_or(Err(EngineError::Fault)) {
            Ok(id) => {
                ongoing.running += 1;
                self.texts.insert(id, (number, run_number));
            }
            Err(error) => self.fail(number, error),
        }
    }

    /// The numbers of all works. A work may go at any time, so places in the list mean nothing.
    fn numbers(&self) -> Vec<u64> {
        self.ongoing.iter().map(|ongoing| ongoing.number).collect()
    }

    fn find(&self, number: u64) -> Option<&Ongoing> {
        self.ongoing.iter().find(|ongoing| ongoing.number == number)
    }

    /// One pass. Faults of a request are its own already; should one get here, all that runs is lost, and the rest goes on.
    fn step(&mut self) -> Vec<(RequestId, Result<Event, EngineError>)> {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.batch.step()));
        outcome.unwrap_or_else(|_panic| {
            tracing::error!("a pass met a fault of the engine");
            self.batch.abandon();
            self.texts.keys().map(|&id| (id, Err(EngineError::Fault))).collect()
        })
    }

    fn dispatch(&mut self, id: RequestId, event: Result<Event, EngineError>) {
        let Some(&(number, run)) = self.texts.get(&id) else { return };
        if matches!(event, Err(_) | Ok(Event::Finished(_))) {
            self.texts.remove(&id);
        }
        // The others of a work that has failed end unheard.
        let Some(ongoing) = self.ongoing.iter_mut().find(|ongoing| ongoing.number == number) else { return };
        let event = match event {
            Ok(event) => event,
            Err(error) => return self.fail(number, error),
        };
        match &event {
            Event::Finished(finished) => {
                self.shared.metrics.finish(finished);
                ongoing.running -= 1;
            }
            Event::Token(_) => ongoing.is_read = true,
            _ => {}
        }
        // Nobody listens once the client has gone; it has cancelled the run, which ends by itself.
        let _ = ongoing.work.updates.send(Update::Event(run, event));
    }

    /// Ends a work whose text has failed, the others of its texts included.
    fn fail(&mut self, number: u64, error: EngineError) {
        let Some(index) = self.ongoing.iter().position(|ongoing| ongoing.number == number) else { return };
        let error = ApiError::from(error);
        self.shared.metrics.failed.add(1);
        tracing::warn!(number, code = error.code, "a request failed while it ran");
        let Ongoing { work, .. } = self.ongoing.remove(index);
        work.runs.iter().for_each(|run| run.cancel.cancel());
        let _ = work.updates.send(Update::Failed(error));
        self.shared.metrics.running.sub(1);
    }

    /// Lets work go that is done; its client's stream of updates ends with that.
    fn retire(&mut self) {
        let running = &self.shared.metrics.running;
        self.ongoing.retain(|ongoing| {
            let is_done = ongoing.running == 0 && !ongoing.has_more();
            running.sub(u64::from(is_done));
            !is_done
        });
    }

    fn running_of_owners(&self) -> HashMap<CacheOwner, usize> {
        let mut running = HashMap::new();
        for ongoing in &self.ongoing {
            *running.entry(ongoing.work.owner).or_default() += ongoing.running;
        }
        running
    }
}

/// Whatever ends the thread, nobody waits for it afterwards.
struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        if thread::panicking() {
            tracing::error!("the thread that makes passes has met a fault; this server must be started again");
        }
        self.0.close();
        self.0.metrics.running.set(0);
    }
}

/// A text of a work as the engine takes it.
fn job(thoughts: &Arc<Thoughts>, work: &Work, run: usize) -> Job {
    let run = &work.runs[run];
    let mut settings = work.settings.clone();
    settings.cancel = run.cancel.clone();
    settings.sampling.seed = run.seed;
    let demand = work.demands.as_ref().map(|demands| {
        let gate = Gate::new(Arc::clone(thoughts), demands, run.prompt.opens_reasoning);
        Box::new(gate) as Box<dyn Constraint + Send>
    });
    Job { demand, owner: work.owner, ..Job::new(EncodedPrompt::clone(&run.prompt), settings) }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
