//! How sure a model is of each token: `cargo run --release --example log_probs -- MODEL "TEXT"`.

use std::env;
use std::error::Error;
use std::io::{self, Write};
use std::path::Path;

use pleach_engine::{Engine, EngineOptions, Event, Request, Sampling, Settings, TokenEvent};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let model = arguments.next().ok_or("usage: log_probs MODEL TEXT")?;
    let text = arguments.next().ok_or("usage: log_probs MODEL TEXT")?;

    let engine = Engine::open(Path::new(&model), &EngineOptions::default())?;
    let settings =
        Settings { sampling: Sampling::greedy(), max_tokens: Some(16), logprobs: Some(3), ..Settings::default() };
    let mut out = io::stdout();
    for event in engine.session()?.generate(&Request::text(text).with(settings))? {
        let Event::Token(TokenEvent { id, bytes, log_probs: Some(log_probs) }) = event? else { continue };
        write!(out, "{:>6.1} %  {:?}", 100.0 * log_probs.log_prob.exp(), String::from_utf8_lossy(&bytes))?;
        for (other, log_prob) in log_probs.top.iter().filter(|(other, _)| *other != id) {
            let other = engine.tokenizer().token_text(*other).unwrap_or_default();
            write!(out, "   {other:?} {:.1} %", 100.0 * log_prob.exp())?;
        }
        writeln!(out)?;
    }
    Ok(())
}
