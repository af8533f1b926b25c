//! The models on every device: golden values, row independence, loading.

#![allow(clippy::unwrap_used, reason = "an error should stop the test where it happens")]

#[path = "suite/dflash.rs"]
mod dflash;
#[path = "suite/fixtures.rs"]
mod fixtures;
#[path = "suite/load.rs"]
mod load;
#[path = "suite/random_drafter.rs"]
mod random_drafter;
#[path = "suite/rows.rs"]
mod rows;
#[path = "suite/support.rs"]
mod support;
