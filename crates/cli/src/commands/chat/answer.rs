//! One answer of a conversation, as it is written.

use std::io::{self, IsTerminal as _};

use pleach_engine::{ChatSession, EnergyMeter, Engine, FinishReason, Located};

use super::voice::Voice;
use crate::args::ChatFlags;
use crate::error::CliError;
use crate::footer;
use crate::interrupt::Interrupts;
use crate::loaded::Loaded;
use crate::measure::{Measured, Meter};
use crate::output::{say, say_dim};
use crate::progress::Progress;
use crate::render::Thoughts;
use crate::style::Style;

/// Asks, shows answers, and remembers what the last one took.
pub(super) struct Answerer {
    loaded: Loaded,
    interrupts: Interrupts,
    quiet: bool,
    voice: Voice,
    last: Option<Measured>,
    pub(super) thoughts: Thoughts,
    /// Whether statistics follow each answer.
    pub(super) stats: bool,
}

impl Answerer {
    pub(super) fn new(loaded: Loaded, interrupts: Interrupts, voice: Voice, look: &ChatFlags) -> Self {
        let thoughts = if look.hide_thoughts { Thoughts::Hidden } else { Thoughts::Shown };
        Self { loaded, interrupts, quiet: look.quiet, voice, last: None, thoughts, stats: look.stats }
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.loaded.engine
    }

    pub(super) fn located(&self) -> &Located {
        &self.loaded.located
    }

    /// Asks a question and shows the answer; true if Ctrl-C stopped it. What was written until then is part of the
    /// conversation.
    pub(super) fn answer(&mut self, talk: &mut ChatSession, question: &str) -> Result<bool, CliError> {
        talk.settings_mut().cancel = self.interrupts.stoppable();
        let _silence = self.interrupts.silence();
        let meter = Meter::start(EnergyMeter::open());
        let most = talk.settings_mut().max_tokens;
        let model = self.loaded.engine.info();
        let mut reply = talk.ask(question).map_err(|error| CliError::from_model(error, model))?;
        if !self.quiet {
            reply.generation().notes().iter().for_each(|note| self.voice.say(&format!("warning: {note}")));
        }
        let pieces = self.voice.pieces(reply.generation().prompt_tokens(), self.thoughts);
        let mut progress = Progress::new(Style::of_stderr(), self.quiet);
        let measured = pieces.follow(&mut reply, meter, &mut progress, &self.loaded)?;
        let reason = measured.finished.reason.clone();
        let is_at_limit = most.is_some_and(|most| measured.finished.usage.output_tokens >= most);
        self.last = Some(measured);
        if reason == FinishReason::Length && !self.quiet {
            let limit = if is_at_limit { "by max-tokens" } else { "where the context ends" };
            self.voice.say(&format!("warning: the answer was cut off {limit}"));
        }
        if self.stats {
            self.say_stats();
        }
        if self.voice == Voice::People && io::stdout().is_terminal() {
            say("");
        }
        Ok(reason == FinishReason::Cancelled)
    }

    /// The statistics of the last answer.
    pub(super) fn say_stats(&self) {
        match (&self.last, self.voice) {
            (None, voice) => voice.say("there was no answer yet"),
            (Some(measured), Voice::People) => footer::lines(measured).iter().for_each(|line| say_dim(line)),
            (Some(measured), voice) => footer::lines(measured).iter().for_each(|line| voice.say(line)),
        }
    }
}
