//! Faults where work begins, and what is left of a server whose thread has ended.

use std::path::Path;
use std::sync::{Condvar, Mutex};
use std::time::Instant;

use pleach_engine::{CancelToken, EngineOptions, Settings};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::super::line::Line;
use super::super::{Queue, Run, Scheduler};
use super::*;
use crate::ServerOptions;

fn scheduler() -> Scheduler {
    let engine = engine();
    let thoughts = Arc::new(Thoughts::new(&engine));
    Scheduler::start(engine, thoughts, Arc::default(), &ServerOptions::default()).unwrap()
}

fn engine() -> Engine {
    let model = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-llama"));
    Engine::open(model, &EngineOptions::default()).unwrap()
}

/// Work with a text for each of the prompts.
fn work(prompts: &[&[u32]]) -> (Work, UnboundedReceiver<Update>) {
    let run = |tokens: &&[u32]| {
        let prompt =
            EncodedPrompt { tokens: tokens.to_vec(), opens_reasoning: false, notes: Vec::new(), turn_ends: Vec::new() };
        Run { prompt: Arc::new(prompt), seed: None, cancel: CancelToken::new() }
    };
    let (updates, answer) = unbounded_channel();
    let settings = Settings { max_tokens: Some(3), ..Settings::default() };
    let runs = prompts.iter().map(run).collect();
    let owner = CacheOwner::default();
    (Work { runs, settings, demands: None, owner, updates, submitted: Instant::now() }, answer)
}

/// Texts that have finished, and how the work failed if it did.
fn outcome(mut answer: UnboundedReceiver<Update>) -> (usize, Option<ApiError>) {
    let mut num_finished = 0;
    while let Some(update) = answer.blocking_recv() {
        match update {
            Update::Event(_, Event::Finished(_)) => num_finished += 1,
            Update::Event(..) => {}
            Update::Failed(error) => return (num_finished, Some(error)),
        }
    }
    (num_finished, None)
}

#[test]
fn a_text_that_cannot_begin_ends_its_work_alone() {
    let scheduler = scheduler();
    for prompts in [&[&[1, 2][..], &[], &[3]][..], &[&[]]] {
        let (broken, answer) = work(prompts);
        scheduler.submit(broken).unwrap();
        assert_eq!(outcome(answer).1.and_then(|error| error.code), Some("invalid_prompt"));
        let (whole, answer) = work(&[&[1, 2], &[1, 2]]);
        scheduler.submit(whole).unwrap();
        assert_eq!(outcome(answer), (2, None));
    }
    scheduler.check_alive().unwrap();
}

#[test]
fn a_fault_where_a_work_begins_ends_that_work_alone() {
    let scheduler = scheduler_without_thread();
    let engine = engine();
    let thoughts = Arc::new(Thoughts::new(&engine));
    let shared = Arc::clone(&scheduler.shared);
    let mut worker = Worker::new(shared, engine, thoughts, &PrefixCacheOptions::default()).unwrap();
    // Work always has a text; taking the first of none is a fault.
    let (broken, answer) = work(&[]);
    worker.begin(broken);
    assert_eq!(outcome(answer).1.map(|error| error.status.as_u16()), Some(500));
    let (whole, answer) = work(&[&[1, 2]]);
    worker.begin(whole);
    while !worker.ongoing.is_empty() {
        for (id, event) in worker.step() {
            worker.dispatch(id, event);
        }
        worker.retire();
    }
    assert_eq!((outcome(answer), scheduler.shared.metrics.running.get()), ((1, None), 0));
}

fn scheduler_without_thread() -> Scheduler {
    let queue = Queue { line: Line::new(4, 0), free: 0, is_closed: false };
    let shared = Shared { metrics: Arc::default(), queue: Mutex::new(queue), changed: Condvar::new(), parallel: 1 };
    let disk = Batch::new(engine(), &PrefixCacheOptions::default()).unwrap().disk_reader();
    Scheduler { shared: Arc::new(shared), disk, worker: None }
}

#[test]
fn nobody_waits_for_a_thread_that_has_ended() {
    let scheduler = scheduler_without_thread();
    let (waiting, answer) = work(&[&[1, 2]]);
    scheduler.submit(waiting).unwrap();
    let shared = Arc::clone(&scheduler.shared);
    let fault = catch_unwind(AssertUnwindSafe(move || {
        let _end = End(shared);
        panic!("a fault that nothing has caught");
    }));
    assert!(fault.is_err());
    let error = outcome(answer).1.unwrap();
    assert_eq!((error.status.as_u16(), error.code), (503, Some("engine_ended")));
    assert_eq!(scheduler.submit(work(&[&[1]]).0).unwrap_err(), error);
    assert_eq!(scheduler.check_place(CacheOwner::default()).unwrap_err(), error);
    assert_eq!(scheduler.check_alive().unwrap_err(), error);
    assert_eq!(scheduler.shared.metrics.waiting.get(), 0);
}
