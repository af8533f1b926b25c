//! Echo of a terminal, turned off for a while and turned on again whatever happens.
//!
//! The end of a [`Silence`] turns it on, also when a panic unwinds. A process that is stopped (Ctrl-Z) or terminated meanwhile
//! turns it on first, and off again when it goes on: not every shell sees to its terminal by itself.

use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, getpid, getsid, tcgetpgrp};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};

/// The terminal that standard input is, if standard output is one as well.
#[derive(Debug, Clone)]
pub(crate) struct Keyboard(Option<Arc<State>>);

#[derive(Debug)]
struct State {
    /// How the terminal was before it was silenced; `None` while it is not.
    before: Mutex<Option<Termios>>,
    /// Whether signals do what they usually do.
    at_rest: Arc<AtomicBool>,
}

/// The time in which keys do not show.
#[derive(Debug)]
pub(crate) struct Silence(Keyboard);

impl Keyboard {
    /// # Errors
    /// What the system says if it refuses handlers of signals.
    pub(crate) fn new() -> io::Result<Self> {
        let people_look_on = io::stdin().is_terminal() && io::stdout().is_terminal();
        if !people_look_on {
            return Ok(Self(None));
        }
        let state = State { before: Mutex::default(), at_rest: Arc::new(AtomicBool::new(true)) };
        let keyboard = Self(Some(Arc::new(state)));
        keyboard.listen()?;
        Ok(keyboard)
    }

    /// Turns echo off until the end of what it returns.
    pub(crate) fn silence(&self) -> Silence {
        if let Some(state) = &self.0
            && let Some(terminal) = foreground()
        {
            state.at_rest.store(false, Ordering::SeqCst);
            *state.before() = Some(terminal);
            self.apply();
        }
        Silence(self.clone())
    }

    /// Turns echo on again, if it was turned off.
    pub(crate) fn restore(&self) {
        let Some(state) = &self.0 else { return };
        if let Some(before) = state.before().take() {
            set(&before);
        }
        state.at_rest.store(true, Ordering::SeqCst);
    }

    /// Puts the terminal into the state of silence, if it is to be silent.
    fn apply(&self) {
        let Some(state) = &self.0 else { return };
        if let Some(before) = &*state.before() {
            let mut silent = before.clone();
            silent.local_flags.remove(LocalFlags::ECHO | LocalFlags::ECHONL);
            set(&silent);
        }
    }

    fn listen(&self) -> io::Result<()> {
        let Some(state) = &self.0 else { return Ok(()) };
        let mut signals = vec![SIGTERM, SIGQUIT, SIGHUP, SIGCONT];
        // A process that no shell waits for is not stopped by Ctrl-Z: nobody could wake it.
        if getsid(None) != Ok(getpid()) {
            signals.push(SIGTSTP);
        }
        for signal in signals.iter().filter(|signal| **signal != SIGCONT) {
            flag::register_conditional_default(*signal, Arc::clone(&state.at_rest))?;
        }
        let mut signals = Signals::new(signals)?;
        let keyboard = self.clone();
        thread::spawn(move || signals.forever().for_each(|signal| keyboard.signal(signal)));
        Ok(())
    }

    /// What a signal does in silence; otherwise its usual effect has come already.
    fn signal(&self, signal: i32) {
        let Some(state) = &self.0 else { return };
        let Some(before) = state.before().clone() else { return };
        match signal {
            SIGCONT => self.apply(),
            signal => {
                set(&before);
                // It does not fail for signals that it knows. After a stop, SIGCONT goes on from here.
                let _ = low_level::emulate_default_handler(signal);
            }
        }
    }
}

impl State {
    fn before(&self) -> MutexGuard<'_, Option<Termios>> {
        self.before.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        self.0.restore();
    }
}

/// The settings of the terminal, if this process has it to itself: whoever is in the background must leave it alone.
fn foreground() -> Option<Termios> {
    let stdin = io::stdin();
    (tcgetpgrp(&stdin) == Ok(getpgrp())).then(|| tcgetattr(&stdin).ok()).flatten()
}

/// Changes the terminal, and keeps what was typed. A terminal that is gone has no echo either.
fn set(settings: &Termios) {
    if foreground().is_some() {
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, settings);
    }
}
