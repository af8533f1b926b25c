//! The promises of the crate, tried on models without weights.

#[cfg(test)]
mod distribution;
#[cfg(test)]
mod edges;
#[cfg(test)]
mod lossless;
#[cfg(test)]
mod pace;
#[cfg(test)]
mod support;
