//! Loading of models that Ctrl-C need not wait for.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use pleach_engine::{
    CancelToken, Ceilings, Engine, EngineError, EngineOptions, LoadProgress, Located, forget_peak, load_average,
    resident_memory,
};

use crate::error::CliError;
use crate::progress::Progress;

/// A model that is open, and the machine before it was.
pub(super) struct Loaded {
    pub(super) engine: Engine,
    pub(super) load: Duration,
    pub(super) load_average: Option<[f64; 3]>,
    /// `None` where nobody asked for it, or the device does not say.
    pub(super) ceilings: Option<Ceilings>,
    /// The largest memory of the process until then; `None` where that is forgotten.
    pub(super) peak_resident_bytes: Option<u64>,
}

/// Whether the machine is measured before the model is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Machine {
    Measured,
    Unmeasured,
}

/// What the thread tells meanwhile.
enum Message {
    Loading(LoadProgress),
    Done(Box<Result<Loaded, EngineError>>),
}

/// How often Ctrl-C is looked for.
const TICK: Duration = Duration::from_millis(50);

/// Opens the model; `None` as soon as Ctrl-C comes. The thread that loads is then left behind for the end of the process:
/// loading cannot be stopped.
pub(super) fn load(
    located: &Located,
    options: &EngineOptions,
    machine: Machine,
    cancel: &CancelToken,
    progress: &mut Progress,
) -> Result<Option<Loaded>, CliError> {
    progress.show(&format!("loading {}", located.name));
    let (sender, messages) = mpsc::channel();
    let (path, options) = (located.path.clone(), options.clone());
    thread::spawn(move || {
        let loaded = Box::new(open(&path, &options, machine, &sender));
        // Nobody listens any more after Ctrl-C.
        let _ = sender.send(Message::Done(loaded));
    });
    while !cancel.is_cancelled() {
        match messages.recv_timeout(TICK) {
            Ok(Message::Loading(loaded)) => progress.loading(&located.name, loaded),
            Ok(Message::Done(loaded)) => return loaded.map(Some).map_err(CliError::from_bench),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => unreachable!("the thread that loads says how it ended"),
        }
    }
    Ok(None)
}

fn open(
    path: &Path,
    options: &EngineOptions,
    machine: Machine,
    sender: &Sender<Message>,
) -> Result<Loaded, EngineError> {
    let load_average = load_average();
    let ceilings = if machine == Machine::Measured { options.ceilings()? } else { None };
    let peak = if forget_peak() { None } else { resident_memory().map(|memory| memory.peak_bytes) };
    let started = Instant::now();
    let engine = Engine::open_watched(path, options, &mut |loaded| drop(sender.send(Message::Loading(loaded))))?;
    Ok(Loaded { engine, load: started.elapsed(), load_average, ceilings, peak_resident_bytes: peak })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::style::Style;

    /// Ctrl-C is not kept waiting by a model, whatever becomes of it.
    #[test]
    fn ctrl_c_leaves_loading_behind() {
        let located = Located { path: "/no/such/model".into(), name: "model".to_owned() };
        let (options, cancel) = (EngineOptions::default(), CancelToken::new());
        let mut progress = Progress::new(Style { terminal: false, color: false }, true);
        let mut opened = || load(&located, &options, Machine::Unmeasured, &cancel, &mut progress);
        assert!(opened().is_err());
        cancel.cancel();
        assert!(opened().is_ok_and(|loaded| loaded.is_none()));
    }
}
