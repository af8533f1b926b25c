//! Reads the golden fixtures.

use serde::de::DeserializeOwned;

/// The bytes of a file under `fixtures/`.
pub(crate) fn bytes(path: &str) -> Vec<u8> {
    let path = format!("{}/../../fixtures/{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("cannot read `{path}`: {error}"))
}

/// A JSON file under `fixtures/`.
#[allow(dead_code, reason = "not every test file reads one")]
pub(crate) fn json<T: DeserializeOwned>(path: &str) -> T {
    serde_json::from_slice(&bytes(path)).unwrap()
}
