//! One vector for a whole text.

use std::sync::{Arc, Mutex, PoisonError};

use pleach_decode::DecodeError;
use pleach_kernels::{Rows, SequenceRows};
use pleach_model::{ModelError, Runner, Tap};

use crate::{CancelToken, Engine, EngineError};

/// How the hidden states of a text's tokens become one vector.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pooling {
    /// Their mean.
    #[default]
    Mean,
    /// That of the last token, which has seen all others: what models trained for embeddings mostly use.
    LastToken,
}

/// Runs texts for their hidden states, one at a time, with a runner of its own: those of sessions do not keep them.
#[derive(Debug, Default)]
pub(crate) struct Embedder(Mutex<Option<Runner>>);

impl Embedder {
    pub(crate) fn embed(
        &self,
        engine: &Engine,
        tokens: &[u32],
        pooling: Pooling,
        cancel: &CancelToken,
    ) -> Result<Vec<f32>, EngineError> {
        check(engine, tokens)?;
        let mut runner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let runner = match &mut *runner {
            Some(runner) => runner,
            none => none.insert(Runner::with_taps(Arc::clone(engine.shared_model()), &[Tap::Final])?),
        };
        let mut vector = pool(engine, runner, tokens, pooling, cancel)?;
        normalize(&mut vector);
        Ok(vector)
    }
}

fn check(engine: &Engine, tokens: &[u32]) -> Result<(), EngineError> {
    let (context, vocab_size) = (engine.info().context, engine.info().vocab_size);
    if tokens.is_empty() {
        return Err(DecodeError::EmptyPrompt.into());
    }
    if tokens.len() > context {
        return Err(EngineError::PromptTooLong { prompt: tokens.len(), context });
    }
    match tokens.iter().position(|&token| token as usize >= vocab_size) {
        Some(index) => Err(DecodeError::UnknownToken { index, token: tokens[index], vocab_size }.into()),
        None => Ok(()),
    }
}

/// Sums in f64 over all tokens for the mean: texts may be long.
fn pool(
    engine: &Engine,
    runner: &mut Runner,
    tokens: &[u32],
    pooling: Pooling,
    cancel: &CancelToken,
) -> Result<Vec<f32>, EngineError> {
    let mut sequence = engine.shared_model().new_sequence()?;
    let hidden_size = engine.shared_model().config().hidden_size;
    let mut sum = vec![0.0_f64; hidden_size];
    for (index, chunk) in tokens.chunks(engine.prefill_chunk()).enumerate() {
        if cancel.is_cancelled() {
            return Err(EngineError::Cancelled);
        }
        let start = index * engine.prefill_chunk();
        let rows = Rows::new(&[SequenceRows::chain(start, chunk)]).map_err(ModelError::from)?;
        // Turns are taken pass by pass, so that running texts go on in between.
        let turn = engine.runners().wait();
        runner.forward(&rows, &[], &[&sequence])?;
        drop(turn);
        let hidden = runner.tap(0)?;
        match pooling {
            Pooling::Mean => hidden.chunks_exact(hidden_size).take(chunk.len()).for_each(|row| add(&mut sum, row)),
            Pooling::LastToken => {
                sum.fill(0.0);
                add(&mut sum, &hidden[(chunk.len() - 1) * hidden_size..][..hidden_size]);
            }
        }
        runner.commit(&(0..chunk.len()).collect::<Vec<_>>(), &mut sequence)?;
    }
    Ok(sum.into_iter().map(|value| value as f32).collect())
}

fn add(sum: &mut [f64], row: &[f32]) {
    sum.iter_mut().zip(row).for_each(|(sum, &value)| *sum += f64::from(value));
}

/// To length 1, which makes the mean of the sum as well; a vector of zeros stays.
fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt();
    if length > 0.0 && length.is_finite() {
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
}
