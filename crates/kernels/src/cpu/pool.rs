//! Threads that wait for work, and the work they share.
//!
//! A pass dispatches some two hundred small jobs, so a dispatch must cost about a microsecond: workers spin for a short
//! while after a job before they sleep. The spin is bounded and nobody is pinned, because with other processes on the
//! same cores an endless spin takes the time that a preempted worker needs. For the same reason a job is cut into more
//! chunks than threads, which are claimed one by one; the caller claims too, and finishes alone if nobody comes. A thread
//! first claims its own run of neighboring chunks, so that it reads memory as one stream, then what others have left.
//!
//! The synchronization is checked by `loom`: `scripts/loom.sh`.

use std::any::Any;
use std::io;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use sync::{Arc, AtomicBool, AtomicU32, AtomicUsize, JoinHandle, Mutex, Ordering, UnsafeCell};

/// The standard primitives, or those of the model checker.
mod sync {
    #[cfg(not(loom))]
    pub(super) use std::{
        sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence},
        sync::{Arc, Mutex},
        thread::{JoinHandle, Thread, park, yield_now},
    };

    #[cfg(loom)]
    pub(super) use loom::{
        cell::UnsafeCell,
        sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence},
        sync::{Arc, Mutex},
        thread::{JoinHandle, Thread, park, yield_now},
    };

    /// The standard cell with the interface of the checker's.
    #[cfg(not(loom))]
    #[derive(Debug)]
    pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    #[cfg(not(loom))]
    impl<T> UnsafeCell<T> {
        pub(super) fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        pub(super) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        pub(super) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

/// How long a thread spins before it sleeps: several times the longest gap between two jobs of a pass.
const SPIN: Duration = Duration::from_micros(20);

/// One piece of a job, and who works on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    /// Which piece, below the number of chunks of the job.
    pub(super) index: usize,
    /// Which thread, below [`Pool::num_threads`]; no two chunks have the same one at the same time.
    pub(super) worker: usize,
}

/// Threads that share the chunks of one job at a time.
#[derive(Debug)]
pub(super) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Jobs that were shared so far.
    dispatches: u64,
}

/// A job is open while workers may join it.
const OPEN: usize = 1 << (usize::BITS - 1);

struct Shared {
    /// Counts jobs; a change wakes the spinning workers.
    epoch: AtomicU32,
    /// [`OPEN`], plus the number of workers inside the job.
    state: AtomicUsize,
    /// Written only while the job is closed and nobody is inside.
    job: UnsafeCell<Option<Job>>,
    /// The runs of chunks that the threads begin with, one per thread.
    runs: Vec<Run>,
    stop: AtomicBool,
    sleepers: Vec<Sleeper>,
    /// What the first chunk that panicked said.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// How many chunks of a run are claimed, on cache lines of its own: threads mostly count in their own run.
#[derive(Default)]
#[repr(align(128))]
struct Run {
    claimed: AtomicUsize,
}

impl Run {
    /// The next chunk of a run of `len`.
    fn claim(&self, len: usize) -> Option<usize> {
        let index = self.claimed.fetch_add(1, Ordering::Relaxed);
        (index < len).then_some(index)
    }
}

/// The function of a job; its lifetime is erased because workers outlive it.
#[derive(Clone, Copy)]
struct Job {
    work: *const (dyn Fn(Chunk) + Sync),
    num_chunks: usize,
}

// SAFETY: `job` is written by the one caller of `run` while no worker is inside, and read by workers inside; entering and
// leaving go through `state` with acquire and release. The function it points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("sleepers", &self.sleepers.len()).finish_non_exhaustive()
    }
}

/// Whether a worker sleeps, and how to wake it.
#[derive(Default)]
struct Sleeper {
    asleep: AtomicBool,
    thread: Mutex<Option<sync::Thread>>,
}

impl Pool {
    /// A pool of `threads` threads, the caller of [`run`](Self::run) being one of them.
    ///
    /// # Errors
    /// What the system says if it gives no more threads.
    pub(super) fn new(threads: NonZeroUsize) -> io::Result<Self> {
        let sleepers: Vec<_> = (1..threads.get()).map(|_| Sleeper::default()).collect();
        let shared = Arc::new(Shared {
            epoch: AtomicU32::new(0),
            state: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            runs: (0..threads.get()).map(|_| Run::default()).collect(),
            stop: AtomicBool::new(false),
            sleepers,
            panic: Mutex::new(None),
        });
        // Dropping the pool stops those already started.
        let mut pool = Self { shared, threads: Vec::new(), dispatches: 0 };
        for worker in 1..threads.get() {
            let shared = Arc::clone(&pool.shared);
            pool.threads.push(spawn(move || shared.serve(worker))?);
        }
        Ok(pool)
    }

    /// Threads that share a job.
    pub(super) fn num_threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Jobs that were shared with other threads so far.
    pub(super) fn dispatches(&self) -> u64 {
        self.dispatches
    }

    /// Runs `work` once for each chunk index below `num_chunks`, on all threads, and returns when all are done.
    ///
    /// # Panics
    /// With the panic of a chunk, after all threads have left the job; other chunks may then not have run.
    pub(super) fn run(&mut self, num_chunks: usize, work: &(dyn Fn(Chunk) + Sync)) {
        if num_chunks <= 1 || self.threads.is_empty() {
            return (0..num_chunks).for_each(|index| work(Chunk { index, worker: 0 }));
        }
        self.dispatches += 1;
        let shared = &*self.shared;
        shared.open(work, num_chunks);
        shared.work(0, work, num_chunks);
        shared.close();
        let panic = shared.panic.lock().map_or_else(|poisoned| poisoned.into_inner().take(), |mut panic| panic.take());
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.announce();
        for thread in self.threads.drain(..) {
            // A worker catches every panic of its chunks, so there is nothing to report.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Publishes a job and wakes the workers.
    fn open(&self, work: &(dyn Fn(Chunk) + Sync), num_chunks: usize) {
        // SAFETY: only the lifetime changes; `run` returns after `close`, when no worker can reach the function.
        let work = unsafe { std::mem::transmute::<*const (dyn Fn(Chunk) + Sync), *const (dyn Fn(Chunk) + Sync)>(work) };
        // SAFETY: the job is closed and nobody is inside, so nobody reads it; `run` has the pool to itself.
        self.job.with_mut(|job| unsafe { *job = Some(Job { work, num_chunks }) });
        self.runs.iter().for_each(|run| run.claimed.store(0, Ordering::Relaxed));
        self.state.fetch_or(OPEN, Ordering::AcqRel);
        self.announce();
    }

    /// Waits until no worker is inside and none can enter.
    fn close(&self) {
        self.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spin = Spin::new();
        while self.state.load(Ordering::Acquire) != 0 {
            if !spin.again() {
                // The worker inside has been preempted: leave it the core.
                sync::yield_now();
            }
        }
    }

    /// Tells all workers that something has changed.
    fn announce(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        // Pairs with the fence in `sleep`: either the worker sees the new epoch, or we see it asleep.
        sync::fence(Ordering::SeqCst);
        for sleeper in &self.sleepers {
            if sleeper.asleep.load(Ordering::Relaxed)
                && let Ok(thread) = sleeper.thread.lock()
                && let Some(thread) = &*thread
            {
                thread.unpark();
            }
        }
    }

    /// The life of a worker.
    fn serve(&self, worker: usize) {
        let mut seen = 0;
        loop {
            seen = self.wait_for_change(worker, seen);
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            // Who comes too late for one job counts as inside for a moment, which delays `close` but harms nothing.
            if self.state.fetch_add(1, Ordering::AcqRel) & OPEN != 0 {
                // SAFETY: inside an open job, nobody writes it.
                let job = self.job.with(|job| unsafe { *job });
                if let Some(Job { work, num_chunks }) = job {
                    // SAFETY: the caller of `run` keeps the function alive until every worker has left.
                    self.work(worker, unsafe { &*work }, num_chunks);
                }
            }
            self.state.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Claims chunks until none is left.
    fn work(&self, worker: usize, work: &(dyn Fn(Chunk) + Sync), num_chunks: usize) {
        let threads = self.runs.len();
        let claim_all = || {
            for run in (worker..threads).chain(0..worker) {
                // The runs differ by at most one chunk in length.
                let (start, end) = (run * num_chunks / threads, (run + 1) * num_chunks / threads);
                while let Some(index) = self.runs[run].claim(end - start) {
                    work(Chunk { index: start + index, worker });
                }
            }
        };
        // The caller rethrows what it finds, so nobody goes on with what a panic left behind.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(claim_all)) {
            self.runs.iter().for_each(|run| run.claimed.store(num_chunks, Ordering::Relaxed));
            if let Ok(mut first) = self.panic.lock() {
                first.get_or_insert(panic);
            }
        }
    }

    /// Spins, then sleeps, until the epoch is not `seen`; returns it.
    fn wait_for_change(&self, worker: usize, seen: u32) -> u32 {
        let mut spin = Spin::new();
        loop {
            let epoch = self.epoch.load(Ordering::Acquire);
            if epoch != seen {
                return epoch;
            }
            if !spin.again() {
                self.sleep(&self.sleepers[worker - 1], seen);
            }
        }
    }

    fn sleep(&self, sleeper: &Sleeper, seen: u32) {
        if let Ok(mut thread) = sleeper.thread.lock() {
            thread.get_or_insert_with(current_thread);
        }
        sleeper.asleep.store(true, Ordering::Relaxed);
        sync::fence(Ordering::SeqCst);
        if self.epoch.load(Ordering::Acquire) == seen {
            sync::park();
        }
        sleeper.asleep.store(false, Ordering::Relaxed);
    }
}

/// A bounded busy wait.
#[cfg(not(loom))]
struct Spin {
    since: std::time::Instant,
}

#[cfg(not(loom))]
impl Spin {
    fn new() -> Self {
        Self { since: std::time::Instant::now() }
    }

    /// Waits a few cycles; `false` when the time is over.
    fn again(&mut self) -> bool {
        for _ in 0..16 {
            std::hint::spin_loop();
        }
        self.since.elapsed() < SPIN
    }
}

/// The model checker explores all waits, so it need not spin.
#[cfg(loom)]
struct Spin;

#[cfg(loom)]
impl Spin {
    fn new() -> Self {
        let _ = SPIN;
        Self
    }

    fn again(&mut self) -> bool {
        false
    }
}

#[cfg(not(loom))]
fn spawn(serve: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("pleach-cpu".to_owned()).spawn(serve)
}

#[cfg(not(loom))]
fn current_thread() -> sync::Thread {
    std::thread::current()
}

#[cfg(loom)]
fn spawn(serve: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    Ok(loom::thread::spawn(serve))
}

#[cfg(loom)]
fn current_thread() -> sync::Thread {
    loom::thread::current()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn pool(threads: usize) -> Pool {
        let threads = NonZeroUsize::new(threads).expect("the tests ask for some threads");
        Pool::new(threads).expect("the tests ask for few threads")
    }

    #[test]
    fn every_chunk_runs_once() {
        for threads in 1..5 {
            let mut pool = pool(threads);
            for num_chunks in [0, 1, 2, 7, 100] {
                let counts: Vec<_> = (0..num_chunks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(num_chunks, &|chunk| {
                    assert!(chunk.worker < threads);
                    counts[chunk.index].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn only_jobs_that_are_shared_count_as_dispatches() {
        let mut shared = pool(2);
        (0..5).for_each(|num_chunks| shared.run(num_chunks, &|_| {}));
        assert_eq!(shared.dispatches(), 3);
        let mut alone = pool(1);
        alone.run(9, &|_| {});
        assert_eq!(alone.dispatches(), 0);
    }

    #[test]
    fn sleeping_workers_come_back() {
        let mut pool = pool(3);
        for _ in 0..5 {
            std::thread::sleep(10 * SPIN);
            let count = AtomicUsize::new(0);
            pool.run(50, &|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.load(Ordering::Relaxed), 50);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_leaves_the_pool_usable() {
        let mut pool = pool(2);
        for bad in [0, 13, 31] {
            let run = AssertUnwindSafe(|| pool.run(32, &|chunk| assert!(chunk.index != bad, "chunk {bad}")));
            let panic = catch_unwind(run).unwrap_err();
            assert_eq!(panic.downcast_ref::<String>().unwrap(), &format!("chunk {bad}"));
        }
        let count = AtomicUsize::new(0);
        pool.run(32, &|_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.load(Ordering::Relaxed), 32);
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;

    fn check(threads: usize, jobs: usize, num_chunks: usize) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let mut pool = Pool::new(NonZeroUsize::new(threads).unwrap()).unwrap();
            for _ in 0..jobs {
                let counts: Vec<_> = (0..num_chunks).map(|_| std::sync::atomic::AtomicUsize::new(0)).collect();
                pool.run(num_chunks, &|chunk| {
                    counts[chunk.index].fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(std::sync::atomic::Ordering::Relaxed) == 1));
            }
        });
    }

    #[test]
    fn two_threads_share_two_jobs() {
        check(2, 2, 2);
    }

    #[test]
    fn three_threads_share_a_job() {
        check(3, 1, 2);
    }
}
