//! Ctrl-C.

use std::io::{self, IsTerminal as _};
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pleach_engine::CancelToken;

use crate::error::{CliError, INTERRUPTED};
use crate::keyboard::{Keyboard, Silence};
use crate::progress::{CLEAR, print};

/// What Ctrl-C does: it stops the work that can be stopped, and ends the process where there is none, as while a model
/// loads, and where it was pressed before.
#[derive(Debug, Clone)]
pub(crate) struct Interrupts {
    work: Arc<Mutex<Option<CancelToken>>>,
    keyboard: Keyboard,
}

impl Interrupts {
    /// From now on Ctrl-C comes here. The process has one handler.
    pub(crate) fn listen() -> Result<Self, CliError> {
        let interrupts = Self { work: Arc::default(), keyboard: Keyboard::new().map_err(CliError::Signals)? };
        let handler = interrupts.clone();
        ctrlc::set_handler(move || handler.interrupt()).map_err(CliError::Interrupt)?;
        Ok(interrupts)
    }

    /// A token that the next Ctrl-C cancels.
    pub(crate) fn stoppable(&self) -> CancelToken {
        let work = CancelToken::new();
        *self.current() = Some(work.clone());
        work
    }

    /// Until the end of what it returns, keys that are pressed do not show.
    pub(crate) fn silence(&self) -> Silence {
        self.keyboard.silence()
    }

    fn interrupt(&self) {
        match &*self.current() {
            Some(work) if !work.is_cancelled() => work.cancel(),
            _ => {
                self.keyboard.restore();
                if io::stderr().is_terminal() {
                    // Whatever note of progress stood there.
                    print(CLEAR);
                }
                process::exit(i32::from(INTERRUPTED));
            }
        }
    }

    fn current(&self) -> MutexGuard<'_, Option<CancelToken>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
