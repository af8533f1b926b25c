//! Downloads from a hub that fails in every way that hubs and networks do.

#![allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]

mod cache;
mod fake_hub;
mod refusals;
mod support;
mod transfers;
