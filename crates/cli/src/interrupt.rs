//! Ctrl-C.

use std::io::{self, IsTerminal as _, Write as _};
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pleach_engine::CancelToken;

use crate::error::{CliError, INTERRUPTED};

/// What Ctrl-C does: it stops the work that can be stopped, and ends the process where there is none, as while a model
/// loads, and where it was pressed before.
#[derive(Debug, Clone)]
pub(crate) struct Interrupts(Arc<Mutex<Option<CancelToken>>>);

impl Interrupts {
    /// From now on Ctrl-C comes here. The process has one handler.
    pub(crate) fn listen() -> Result<Self, CliError> {
        Self::listen_with(None)
    }

    fn listen_with(work: Option<CancelToken>) -> Result<Self, CliError> {
        let interrupts = Self(Arc::new(Mutex::new(work)));
        let handler = interrupts.clone();
        ctrlc::set_handler(move || handler.interrupt())?;
        Ok(interrupts)
    }

    /// A token that the next Ctrl-C cancels.
    pub(crate) fn stoppable(&self) -> CancelToken {
        self.current().insert(CancelToken::new()).clone()
    }

    fn interrupt(&self) {
        match &*self.current() {
            Some(work) if !work.is_cancelled() => work.cancel(),
            _ => {
                if io::stderr().is_terminal() {
                    // Whatever note of progress stood there.
                    let _ = io::stderr().write_all(b"\r\x1b[K");
                }
                process::exit(i32::from(INTERRUPTED));
            }
        }
    }

    fn current(&self) -> MutexGuard<'_, Option<CancelToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// From now on Ctrl-C cancels the token, and a second Ctrl-C ends the process at once.
pub(crate) fn listen() -> Result<CancelToken, CliError> {
    let work = CancelToken::new();
    Interrupts::listen_with(Some(work.clone()))?;
    Ok(work)
}
