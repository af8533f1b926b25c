//! Answers several prompts at once: `cargo run --release --example batch -- MODEL "first" "second" ...`
//!
//! Each pass over the weights writes on all of the texts.

use std::collections::HashMap;
use std::io::{self, Write as _};

use pleach_engine::{Batch, Engine, EngineOptions, Event, Job, PrefixCacheOptions, Prompt, Settings};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().ok_or("name a model, then prompts")?;
    let engine = Engine::open(model.as_ref(), &EngineOptions::default())?;
    let mut batch = Batch::new(engine.clone(), &PrefixCacheOptions::default())?;
    let mut out = io::stdout().lock();
    let mut texts = HashMap::new();
    for text in arguments {
        let prompt = engine.encode_prompt(&Prompt::Text(text.clone()))?;
        let id = batch.add(Job::new(prompt, Settings { max_tokens: Some(64), ..Settings::default() }))?;
        texts.insert(id, text);
    }
    while !batch.is_empty() {
        for (id, event) in batch.step() {
            match event {
                Ok(Event::Text(piece)) => texts.entry(id).or_default().push_str(&piece),
                Ok(Event::Finished(_)) => writeln!(out, "{}\n---", texts.remove(&id).unwrap_or_default())?,
                Ok(_) => {}
                // The others go on.
                Err(error) => writeln!(out, "failed: {error}\n---")?,
            }
        }
    }
    Ok(())
}
