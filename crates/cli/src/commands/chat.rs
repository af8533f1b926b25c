//! `pleach chat`: a conversation on the terminal.

mod answer;
mod command;
mod input;
mod keys;
mod settings;
mod store;
mod voice;

use std::path::Path;

use pleach_engine::{ChatSession, Content, EngineError, Message, Role, SpecBudget};

use crate::args::{ChatArgs, ChatFlags, ConversationFlags, SamplingFlags};
use crate::error::{CliError, End};
use crate::interrupt::Interrupts;
use crate::loaded::Loaded;
use crate::output::{say, say_dim};
use crate::progress::Progress;
use crate::render::Thoughts;
use crate::style::Style;

use answer::Answerer;
use command::{Command, Switch, Thinking};
use input::{Input, Line};
use settings::SettingsView;
use store::Store;
use voice::Voice;

/// A conversation with all that belongs to it.
struct Chat {
    talk: ChatSession,
    answerer: Answerer,
    store: Store,
    voice: Voice,
    /// The seed that answers are drawn with; asking again takes the next.
    seed: u64,
}

/// Talks until the user leaves.
pub(crate) fn chat(args: ChatArgs) -> Result<End, CliError> {
    let ChatArgs { name, conversation, mut model, sampling, look } = args;
    let named = match (name, model.model.take()) {
        (Some(first), Some(second)) => return Err(CliError::TwoModels { first, second }),
        (first, second) => first.or(second),
    };
    let interrupts = Interrupts::listen()?;
    let mut progress = Progress::new(Style::of_stderr(), look.quiet);
    let loaded = Loaded::open(named.as_deref(), &model, &mut progress)?;
    let mut chat = Chat::new(loaded, interrupts, &look)?;
    chat.begin(&conversation, &sampling, model.spec.spec_budget);
    if let Some(file) = &look.load {
        chat.load(file)?;
    }
    let mut input = Input::open(look.history)?;
    if input.is_terminal() && !look.quiet && !look.json {
        chat.greet();
    }
    chat.talk_until_end(&mut input)?;
    Ok(End::Done)
}

impl Chat {
    fn new(loaded: Loaded, interrupts: Interrupts, look: &ChatFlags) -> Result<Self, CliError> {
        if !loaded.engine.has_chat_template() {
            return Err(CliError::Engine(EngineError::NoChatTemplate));
        }
        let talk = ChatSession::new(loaded.engine.session().map_err(CliError::from_engine)?);
        let voice = if look.json { Voice::Program } else { Voice::People };
        voice.ready(&loaded.engine, &loaded.located)?;
        let answerer = Answerer::new(loaded, interrupts, voice, look);
        Ok(Self { talk, answerer, store: Store::default(), voice, seed: 0 })
    }

    /// Takes over what the flags ask for.
    fn begin(&mut self, conversation: &ConversationFlags, sampling: &SamplingFlags, budget: SpecBudget) {
        conversation.apply(self.talk.chat_mut());
        self.talk.set_system(conversation.system.as_deref().unwrap_or_default());
        let settings = self.talk.settings_mut();
        settings.sampling = sampling.sampling();
        settings.max_tokens = sampling.max_tokens;
        settings.stop.clone_from(&sampling.stop);
        settings.ignore_eos = sampling.ignore_eos;
        settings.spec_budget = budget;
        self.seed = settings.sampling.seed.unwrap_or_default();
    }

    fn greet(&self) {
        let info = self.answerer.engine().info();
        say(&format!("{}, {} tokens of context", self.answerer.located().name, info.context));
        say_dim("/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves");
    }

    fn talk_until_end(&mut self, input: &mut Input) -> Result<(), CliError> {
        // A Ctrl-C at an empty prompt leaves if it follows another one.
        let mut interrupted = false;
        loop {
            match input.line()? {
                Line::End => return Ok(()),
                Line::Interrupted { was_empty: true } if interrupted => return Ok(()),
                Line::Interrupted { was_empty } => {
                    interrupted = was_empty;
                    if was_empty {
                        say_dim("Ctrl-C once more leaves; so do Ctrl-D and /exit");
                    }
                }
                Line::NotText => self.voice.say("what was typed is not UTF-8 text, and was left out"),
                Line::Text(text) if text.trim().is_empty() => {}
                Line::Text(text) => match Command::parse(&text) {
                    Ok(Command::Exit) => return Ok(()),
                    Ok(command) => interrupted = self.execute(command)?,
                    Err(refusal) => {
                        interrupted = false;
                        self.voice.complain(&refusal);
                    }
                },
            }
        }
    }

    /// Does one thing; true if an answer was stopped with Ctrl-C. What the user can mend is said and ends nothing.
    fn execute(&mut self, command: Command) -> Result<bool, CliError> {
        match self.try_execute(command) {
            Err(error) if !error.ends_chat() => {
                self.voice.complain(&error);
                Ok(false)
            }
            other => other,
        }
    }

    fn try_execute(&mut self, command: Command) -> Result<bool, CliError> {
        let voice = self.voice;
        match command {
            Command::Ask(question) => return self.ask(&question),
            Command::Retry => return self.retry(),
            Command::Help => voice.say(command::HELP),
            Command::Clear => {
                self.talk.clear();
                voice.say("the conversation is empty now");
            }
            Command::Undo => match self.talk.undo() {
                Some(question) => voice.say(&format!("took back: {}", first_line(&question.content))),
                None => voice.say("there is nothing to take back"),
            },
            Command::System(None) => self.show_system(),
            Command::System(Some(text)) => {
                self.talk.set_system(&text);
                voice.say(if text.is_empty() { "no instructions" } else { "instructions are set" });
            }
            Command::Set(None) => self.settings().lines().iter().for_each(|line| voice.say(line)),
            Command::Set(Some((name, None))) => voice.say(&self.settings().get(&name)?),
            Command::Set(Some((name, Some(value)))) => {
                voice.say(&self.settings().set(&name, &value)?);
                self.seed = self.talk.settings_mut().sampling.seed.unwrap_or_default();
            }
            Command::Save { file, replace } => {
                voice.say(&self.store.save(Path::new(&file), self.talk.messages(), replace)?)
            }
            Command::Load(file) => self.load(Path::new(&file))?,
            Command::Think(thinking) => self.think(thinking),
            Command::Stats(switch) => self.stats(switch),
            Command::Exit => {}
        }
        Ok(false)
    }

    fn ask(&mut self, question: &str) -> Result<bool, CliError> {
        self.talk.settings_mut().sampling.seed = Some(self.seed);
        self.answerer.answer(&mut self.talk, question)
    }

    /// Asks the last question again. Another seed makes another answer, but for a model that takes the likeliest token.
    fn retry(&mut self) -> Result<bool, CliError> {
        let Some(question) = self.talk.undo() else {
            self.voice.say("there is no question to ask again");
            return Ok(false);
        };
        let Content::Text(text) = &question.content else {
            self.voice.say("the last question has parts that are no text, and cannot be asked again");
            self.talk.push(question);
            return Ok(false);
        };
        let makers = self.answerer.engine().generation_config();
        if self.talk.settings_mut().sampling.resolve(makers).temperature == 0.0 {
            self.voice.say("hint: at temperature 0 the answer is always the same; /set temperature 0.7 makes others");
        }
        self.seed = self.seed.wrapping_add(1);
        self.ask(text)
    }

    fn load(&mut self, file: &Path) -> Result<(), CliError> {
        let messages = self.store.load(file)?;
        let count = messages.len();
        let is_question = messages.last().is_some_and(|message| message.role == Role::User);
        self.talk.chat_mut().messages = messages;
        let next = if is_question { "; /retry answers the last one" } else { "" };
        self.voice.say(&format!("loaded {count} messages from {}{next}", file.display()));
        Ok(())
    }

    fn show_system(&self) {
        let is_system = |message: &&Message| message.role == Role::System;
        match self.talk.messages().iter().find(is_system).map(|message| &message.content) {
            Some(Content::Text(text)) => self.voice.say(text),
            _ => self.voice.say("no instructions; /system TEXT gives some"),
        }
    }

    fn think(&mut self, thinking: Thinking) {
        match thinking {
            Thinking::Show => self.answerer.thoughts = Thoughts::Shown,
            Thinking::Hide => self.answerer.thoughts = Thoughts::Hidden,
            Thinking::On if !self.answerer.engine().has_thoughts() => {
                return self.voice.say("the model's chat template has no thoughts: it cannot be asked to think");
            }
            Thinking::On | Thinking::Off => {
                let variable = "enable_thinking".to_owned();
                self.talk.chat_mut().kwargs.insert(variable, (thinking == Thinking::On).into());
            }
            Thinking::Tell => {}
        }
        let asked = match self.talk.chat_mut().kwargs.get("enable_thinking").and_then(serde_json::Value::as_bool) {
            Some(true) => "on",
            Some(false) => "off",
            None => "as the model likes",
        };
        let shown = if self.answerer.thoughts == Thoughts::Shown { "shown" } else { "hidden" };
        self.voice.say(&format!("thinking is {asked}, thoughts are {shown}"));
    }

    fn stats(&mut self, switch: Switch) {
        match switch {
            Switch::Now => self.answerer.say_stats(),
            Switch::On | Switch::Off => {
                self.answerer.stats = switch == Switch::On;
                self.voice.say(if self.answerer.stats {
                    "statistics follow each answer"
                } else {
                    "no statistics after answers"
                });
            }
        }
    }

    fn settings(&mut self) -> SettingsView<'_> {
        let engine = self.answerer.engine();
        SettingsView {
            makers: engine.generation_config(),
            vocab_size: engine.info().vocab_size,
            settings: self.talk.settings_mut(),
        }
    }
}

/// The start of a message, to be recognized by.
fn first_line(content: &Content) -> String {
    const MOST: usize = 60;
    let Content::Text(text) = content else { return "a message with parts".to_owned() };
    let line = text.lines().next().unwrap_or_default();
    let start: String = line.chars().take(MOST).collect();
    if start.len() < text.len() { format!("{start}…") } else { start }
}
