//! Writes the answer to one question: `cargo run --release --example generate -- MODEL "QUESTION"`.

use std::env;
use std::error::Error;
use std::io::{self, Write};

use pleach_engine::{Engine, EngineOptions, Environment, Event, Request, locate};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let model = arguments.next().ok_or("usage: generate MODEL QUESTION")?;
    let question = arguments.next().ok_or("usage: generate MODEL QUESTION")?;

    let located = locate(Some(&model), &Environment::of_process())?;
    let engine = Engine::open(&located.path, &EngineOptions::default())?;
    let mut session = engine.session()?;
    let mut out = io::stdout();
    for event in session.generate(&Request::user(question))? {
        match event? {
            Event::Text(text) => write!(out, "{text}")?,
            Event::Finished(finished) => {
                let rate = finished.timings.generation_tokens_per_s(&finished.usage).unwrap_or_default();
                writeln!(out, "\n[{} tokens, {rate:.1} tokens/s]", finished.usage.output_tokens)?;
            }
            _ => {}
        }
        out.flush()?;
    }
    Ok(())
}
