//! The real binary on tiny models: what it answers, prints, refuses, and how it can be stopped.

#![allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]

mod answers;
mod bench;
#[cfg(unix)]
mod chat;
mod downloads;
#[path = "../../../hub/tests/suite/fake_hub.rs"]
mod fake_hub;
mod looks;
mod output;
#[cfg(unix)]
mod pty;
mod refusals;
#[cfg(unix)]
mod serving;
#[cfg(unix)]
mod stopping;
mod support;
#[cfg(unix)]
mod terminal;
