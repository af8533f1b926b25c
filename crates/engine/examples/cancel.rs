//! Stops a request from another thread: `cargo run --release --example cancel -- MODEL`. Enter stops the text.

use std::env;
use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::thread;

use pleach_engine::{CancelToken, Engine, EngineOptions, Event, FinishReason, Request, Settings};

fn main() -> Result<(), Box<dyn Error>> {
    let model = env::args().nth(1).ok_or("usage: cancel MODEL")?;
    let engine = Engine::open(Path::new(&model), &EngineOptions::default())?;

    let cancel = CancelToken::new();
    let settings = Settings { cancel: cancel.clone(), ..Settings::default() };
    thread::spawn(move || {
        // Stops whether a line was read or the input has ended.
        let _ = io::stdin().read_line(&mut String::new());
        cancel.cancel();
    });

    let mut out = io::stdout();
    for event in engine.session()?.generate(&Request::user("Tell me a long story.").with(settings))? {
        match event? {
            Event::Text(text) => write!(out, "{text}")?,
            Event::Finished(finished) if finished.reason == FinishReason::Cancelled => writeln!(out, " … stopped")?,
            _ => {}
        }
        out.flush()?;
    }
    Ok(())
}
