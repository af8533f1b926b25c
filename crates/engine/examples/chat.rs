//! A conversation, one line at a time: `cargo run --release --example chat -- MODEL`. An empty line asks for another
//! answer to the last question.

use std::env;
use std::error::Error;
use std::io::{self, Write};
use std::path::Path;

use pleach_engine::{ChatSession, Content, Engine, EngineOptions, Event};

fn main() -> Result<(), Box<dyn Error>> {
    let model = env::args().nth(1).ok_or("usage: chat MODEL")?;
    let engine = Engine::open(Path::new(&model), &EngineOptions::default())?;
    let mut chat = ChatSession::new(engine.session()?);
    chat.settings_mut().sampling.temperature = Some(0.7);
    let mut out = io::stdout();
    for (seed, line) in io::stdin().lines().enumerate() {
        let mut question = line?;
        if question.is_empty() {
            match chat.undo().map(|message| message.content) {
                Some(Content::Text(last)) => question = last,
                _ => continue,
            }
        }
        // Another seed, so that a question asked again is answered differently.
        chat.settings_mut().sampling.seed = Some(seed as u64);
        for event in chat.ask(&question)? {
            if let Event::Text(text) = event? {
                write!(out, "{text}")?;
                out.flush()?;
            }
        }
        writeln!(out, "\n")?;
    }
    Ok(())
}
