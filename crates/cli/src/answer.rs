//! Where the pieces of an answer go while it is written.

use std::io::{self, StdoutLock};

use pleach_engine::{EngineError, Event, Finished};

use crate::error::CliError;
use crate::json::{Collector, Line};
use crate::loaded::Loaded;
use crate::measure::{Measured, Meter};
use crate::output::{print_json, print_json_line};
use crate::progress::Progress;
use crate::render::{AnswerWriter, Thoughts};
use crate::style::Style;

/// One place for all pieces of one answer.
pub(crate) enum Pieces {
    /// To people, as they come.
    Text(AnswerWriter<StdoutLock<'static>>),
    /// To a program, as one object once the answer is complete.
    Object(Collector),
    /// To a program, a line each, and the object in the last.
    Lines(Collector),
}

impl Pieces {
    pub(crate) fn text(thoughts: Thoughts) -> Self {
        Self::Text(AnswerWriter::new(io::stdout().lock(), Style::of_stdout(), thoughts))
    }

    /// Hands every event to those who want to know, until the last; gives what the answer took.
    pub(crate) fn follow(
        mut self,
        events: impl Iterator<Item = Result<Event, EngineError>>,
        mut meter: Meter,
        progress: &mut Progress,
        loaded: &Loaded,
    ) -> Result<Measured, CliError> {
        let finished = self.until_finished(events, &mut meter, progress);
        progress.clear();
        // What follows on standard error starts a line, also after a failure.
        if let Self::Text(writer) = &mut self {
            writer.finish().map_err(CliError::Write)?;
        }
        let measured = Measured::new(finished?, loaded.load, meter);
        let object = |collector: Collector| collector.object(&loaded.engine, &loaded.located, &measured);
        match self {
            Self::Text(_) => {}
            Self::Object(collector) => print_json(&object(collector))?,
            Self::Lines(collector) => print_json_line(&Line::Answer(Box::new(object(collector))))?,
        }
        Ok(measured)
    }

    fn until_finished(
        &mut self,
        events: impl Iterator<Item = Result<Event, EngineError>>,
        meter: &mut Meter,
        progress: &mut Progress,
    ) -> Result<Finished, CliError> {
        for event in events {
            let event = event.map_err(CliError::from_engine)?;
            meter.event(&event);
            progress.event(&event, self.thoughts());
            if let Event::Finished(finished) = event {
                return Ok(finished);
            }
            self.event(event)?;
        }
        unreachable!("the last event of a request is that it finished, or an error")
    }

    fn event(&mut self, event: Event) -> Result<(), CliError> {
        match (&mut *self, &event) {
            (Self::Text(writer), event) => return writer.event(event).map_err(CliError::Write),
            (Self::Lines(_), Event::Reasoning(text)) => print_json_line(&Line::Reasoning { text })?,
            (Self::Lines(_), Event::Text(text)) => print_json_line(&Line::Text { text })?,
            _ => {}
        }
        if let Self::Object(collector) | Self::Lines(collector) = self {
            collector.event(event);
        }
        Ok(())
    }

    /// Whether thoughts are among the pieces that show.
    fn thoughts(&self) -> Thoughts {
        match self {
            Self::Text(writer) => writer.thoughts(),
            Self::Object(_) | Self::Lines(_) => Thoughts::Shown,
        }
    }
}
