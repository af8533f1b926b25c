//! One request of a session while it runs.

use std::fmt;
use std::marker::PhantomData;

use pleach_text::RenderNote;

use crate::forest::Forest;
use crate::running::{Phase, Running};
use crate::{Engine, EngineError, Event, Session};

/// The events of one request, each made when it is asked for.
///
/// The last event is [`Event::Finished`] or an error; after either there are no more. Dropping the iterator early ends
/// the request and leaves the session usable.
pub struct Generation<'s> {
    engine: Engine,
    running: Running,
    forest: Forest,
    /// A session runs one request at a time.
    session: PhantomData<&'s mut Session>,
}

impl Generation<'_> {
    pub(crate) fn new(engine: Engine, running: Running) -> Self {
        Self { engine, running, forest: Forest::default(), session: PhantomData }
    }

    /// What had to be changed for the chat template to take the conversation; usually nothing.
    pub fn notes(&self) -> &[RenderNote] {
        &self.running.prompt().notes
    }

    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> &[u32] {
        &self.running.prompt().tokens
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Event, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(event) = self.running.take_event() {
                return Some(event);
            }
            if self.running.phase() == Phase::Over {
                return None;
            }
            self.forest.step(&self.engine, &mut [&mut self.running]);
        }
    }
}

impl fmt::Debug for Generation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Generation").field(&self.running).finish()
    }
}
