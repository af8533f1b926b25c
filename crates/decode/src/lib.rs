//! One generation step as pure logic: draft trees, acceptance, sampling. No device, no files, no threads.
//!
//! A [`Generation`] turns a prompt into tokens, one [`step`](Generation::step) at a time: **draft** a tree of guesses,
//! **verify** it in one pass of the [`Target`], **accept** the path that the target itself would have written,
//! **commit** its rows. The token at a position depends on the logits, the tokens before it, the seed and the position
//! only, so no [`Drafter`], tree or budget can change the text; plain decoding is the same loop with a tree of one row.
//!
//! ```
//! use pleach_decode::{Generation, GenerationOptions, NoDraft, Target, TreeRows, Unconstrained};
//!
//! /// A model that counts: after token `t` comes `t + 1`.
//! struct Counter(Vec<Vec<f32>>);
//!
//! impl Target for Counter {
//!     type Error = std::convert::Infallible;
//!
//!     fn verify(&mut self, rows: TreeRows<'_>) -> Result<(), Self::Error> {
//!         let likes = |token| (0..10).map(|next| f32::from(next == token + 1)).collect();
//!         self.0 = rows.tokens.iter().map(|&token| likes(token)).collect();
//!         Ok(())
//!     }
//!     fn logits(&self, row: usize) -> &[f32] {
//!         &self.0[row]
//!     }
//!     fn commit(&mut self, _rows: &[usize]) -> Result<(), Self::Error> {
//!         Ok(())
//!     }
//! }
//!
//! let options = GenerationOptions { stop_tokens: vec![7], ..GenerationOptions::new(10, 100) };
//! let mut generation = Generation::new(options, &[2, 3])?;
//! while generation.stopped().is_none() {
//!     generation.step(&mut Counter(Vec::new()), &mut NoDraft, &mut Unconstrained)?;
//! }
//! assert_eq!(generation.history().generated(), [4, 5, 6, 7]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod accept;
mod best_first;
mod calibration;
mod cost;
mod draft;
mod error;
mod filter;
mod generation;
mod history;
mod log_probs;
mod lookup;
mod mask;
mod math;
mod ngram;
mod noise;
mod pace;
mod params;
mod sampler;
mod stats;
mod step;
mod stop;
mod top_k;
mod tree;
mod worth;

pub use accept::{Accepted, accept};
pub use best_first::BestFirst;
pub use cost::CostCurve;
pub use draft::{DraftContext, Drafter, NoDraft};
pub use error::DecodeError;
pub use generation::{Generation, GenerationOptions};
pub use history::{Count, History};
pub use log_probs::LogProbs;
pub use lookup::Lookup;
pub use mask::{Constraint, Flow, TokenMask, Unconstrained};
pub use noise::Noise;
pub use pace::{Clock, Company, Pace, Paced, Spent};
pub use params::SamplingParams;
pub use sampler::Sampler;
pub use stats::Stats;
pub use step::{Step, StepError, Target};
pub use stop::StopReason;
pub use top_k::top_k;
pub use tree::{DraftTree, Guess, TreeBuilder, TreeRows};
pub use worth::Experience;

/// A token's number in the vocabulary.
pub type TokenId = u32;
