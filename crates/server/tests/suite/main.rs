//! The real server on a real socket, with tiny random models behind it.

#![allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]

mod answers;
mod cancel;
mod company;
mod faults;
mod guarded;
mod malformed;
mod protocols;
mod streams;
mod structured;
mod support;
