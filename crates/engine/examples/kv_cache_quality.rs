//! What 16-bit and 8-bit caches cost in quality: `cargo run --release --example kv_cache_quality -- MODEL TEXT_FILE`.
//!
//! Every token of the text is predicted from the ones before it, up to 1024 of them, with each type of cache. Printed are
//! the mean divergence of the predictions from those with an f32 cache, and how often both name the same token.

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::{env, fs};

use pleach_checkpoint::Checkpoint;
use pleach_engine::{Engine, EngineOptions};
use pleach_kernels::{CpuDevice, CpuOptions, DType, Device, Rows, SequenceRows};
use pleach_model::{LoadOptions, Model, Runner};
use pleach_text::AddedTokens;

const WINDOW: usize = 1024;
const CHUNK: usize = 128;
const CACHES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::I8];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let (Some(path), Some(text)) = (arguments.next(), arguments.next()) else {
        return Err("usage: kv_cache_quality MODEL TEXT_FILE".into());
    };
    let path = Path::new(&path);
    let engine = Engine::open(path, &EngineOptions::default())?;
    let tokens = engine.tokenizer().encode(&fs::read_to_string(text)?, AddedTokens::AsText)?;
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(CpuOptions::default())?);
    let mut runners = Vec::new();
    for kv_cache in CACHES {
        let Checkpoint { config, tensors, .. } = Checkpoint::open(path)?;
        let options = LoadOptions { kv_cache, ..LoadOptions::default() };
        runners.push(Runner::new(Arc::new(Model::load(config, tensors, Arc::clone(&device), &options)?)));
    }
    let mut divergence = [0.0; CACHES.len()];
    let (mut same, mut predictions) = ([0; CACHES.len()], 0);
    for window in tokens.chunks(WINDOW) {
        let mut sequences =
            runners.iter().map(|runner| runner.model().new_sequence()).collect::<Result<Vec<_>, _>>()?;
        for chunk in window.chunks(CHUNK) {
            let path: Vec<_> = (0..chunk.len()).collect();
            let rows = Rows::new(&[SequenceRows::chain(sequences[0].len(), chunk)])?;
            let mut exact = Vec::new();
            for (i, (runner, sequence)) in runners.iter_mut().zip(&mut sequences).enumerate() {
                runner.forward(&rows, &path, &[&*sequence])?;
                let vocab_size = runner.logits()?.len() / chunk.len();
                for (row, logits) in runner.logits()?.chunks_exact(vocab_size).enumerate() {
                    let log_probs = log_softmax(logits);
                    if i == 0 {
                        exact.push(log_probs);
                        continue;
                    }
                    let terms = exact[row].iter().zip(&log_probs).map(|(p, q)| p.exp() * (p - q));
                    divergence[i] += terms.sum::<f64>();
                    same[i] += usize::from(argmax(&exact[row]) == argmax(&log_probs));
                }
                runner.commit(&path, sequence)?;
            }
            predictions += chunk.len();
        }
    }
    let mut out = io::stdout();
    writeln!(out, "{predictions} predictions")?;
    for (i, cache) in CACHES.iter().enumerate().skip(1) {
        let (divergence, same) = (divergence[i] / predictions as f64, 100.0 * same[i] as f64 / predictions as f64);
        writeln!(out, "{cache:?}: mean KL {divergence:.2e} nats, same first choice {same:.2} %")?;
    }
    Ok(())
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    logits.iter().map(|&x| f64::from(x - max) - sum.ln()).collect()
}

fn argmax(values: &[f64]) -> usize {
    (0..values.len()).max_by(|&a, &b| values[a].total_cmp(&values[b])).unwrap_or(0)
}
