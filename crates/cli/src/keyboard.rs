//! Keys that are pressed while an answer is written: they wait for the next line and do not show in the answer.

#[cfg(not(unix))]
mod other;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
pub(crate) use other::{Keyboard, Silence};
#[cfg(unix)]
pub(crate) use unix::{Keyboard, Silence};
