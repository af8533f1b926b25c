//! A conversation that remembers its turns.

use pleach_text::{ChatRequest, Message, Role};

use crate::{EngineError, Event, FinishReason, Generation, Request, Session, Settings};

/// A conversation with a model: a session and the turns so far.
///
/// ```no_run
/// # use pleach_engine::{ChatSession, Engine, EngineOptions};
/// # let engine = Engine::open("model.gguf".as_ref(), &EngineOptions::default())?;
/// let mut chat = ChatSession::new(engine.session()?);
/// chat.set_system("Answer in one sentence.");
/// let answer = chat.ask("What is a pleached hedge?")?.finish()?;
/// println!("{}", answer.text);
/// # Ok::<(), pleach_engine::EngineError>(())
/// ```
#[derive(Debug)]
pub struct ChatSession {
    session: Session,
    chat: ChatRequest,
    settings: Settings,
}

/// The events of one answer. It becomes part of the conversation once [`Event::Finished`] was given; until then, and
/// after an error, the question is not part of it either.
#[derive(Debug)]
pub struct Reply<'c> {
    generation: Generation<'c>,
    messages: &'c mut Vec<Message>,
    question: Option<Message>,
    answer: Answer,
}

/// A whole answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// The answer.
    pub text: String,
    /// The thought before it; empty if there was none.
    pub reasoning: String,
    /// Why it ended; `None` while it is being written.
    pub reason: Option<FinishReason>,
}

impl ChatSession {
    /// A conversation without turns.
    pub fn new(session: Session) -> Self {
        Self { session, chat: ChatRequest::new(Vec::new()), settings: Settings::default() }
    }

    /// How answers are written; changes concern the next one.
    pub fn settings_mut(&mut self) -> &mut Settings {
        &mut self.settings
    }

    /// The conversation with tools and template variables, such as `enable_thinking`; changes concern the next answer.
    pub fn chat_mut(&mut self) -> &mut ChatRequest {
        &mut self.chat
    }

    /// The turns so far, the system's first.
    pub fn messages(&self) -> &[Message] {
        &self.chat.messages
    }

    /// Instructions before the first turn, in place of earlier ones; none if empty.
    pub fn set_system(&mut self, instructions: &str) {
        self.chat.messages.retain(|message| message.role != Role::System);
        if !instructions.is_empty() {
            self.chat.messages.insert(0, Message::text(Role::System, instructions));
        }
    }

    /// Adds a turn without asking for an answer, as when a saved conversation is loaded.
    pub fn push(&mut self, message: Message) {
        self.chat.messages.push(message);
    }

    /// Takes back the last question and everything after it; returns the question. Asking it again with another seed
    /// gives another answer without reading the conversation again.
    pub fn undo(&mut self) -> Option<Message> {
        let question = self.chat.messages.iter().rposition(|message| message.role == Role::User)?;
        self.chat.messages.drain(question..).next()
    }

    /// Forgets all turns but the system's.
    pub fn clear(&mut self) {
        self.chat.messages.retain(|message| message.role == Role::System);
    }

    /// Asks a question.
    ///
    /// # Errors
    /// As [`Session::generate`]; the conversation is as before.
    pub fn ask(&mut self, question: &str) -> Result<Reply<'_>, EngineError> {
        let question = Message::text(Role::User, question);
        let mut chat = self.chat.clone();
        chat.messages.push(question.clone());
        let generation = self.session.generate(&Request::chat(chat).with(self.settings.clone()))?;
        let messages = &mut self.chat.messages;
        Ok(Reply { generation, messages, question: Some(question), answer: Answer::default() })
    }
}

impl Reply<'_> {
    /// The answer so far.
    pub fn answer(&self) -> &Answer {
        &self.answer
    }

    /// The request behind the answer.
    pub fn generation(&self) -> &Generation<'_> {
        &self.generation
    }

    /// Waits for the whole answer.
    ///
    /// # Errors
    /// What ended the request.
    pub fn finish(mut self) -> Result<Answer, EngineError> {
        self.by_ref().try_for_each(|event| event.map(drop))?;
        Ok(self.answer)
    }

    /// Makes question and answer part of the conversation.
    fn keep(&mut self, reason: FinishReason) {
        self.answer.reason = Some(reason);
        let mut message = Message::text(Role::Assistant, self.answer.text.clone());
        message.reasoning_content = Some(self.answer.reasoning.clone()).filter(|reasoning| !reasoning.is_empty());
        self.messages.extend(self.question.take());
        self.messages.push(message);
    }
}

impl Iterator for Reply<'_> {
    type Item = Result<Event, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        let event = self.generation.next()?;
        match &event {
            Ok(Event::Text(text)) => self.answer.text.push_str(text),
            Ok(Event::Reasoning(text)) => self.answer.reasoning.push_str(text),
            Ok(Event::Finished(finished)) => self.keep(finished.reason.clone()),
            _ => {}
        }
        Some(event)
    }
}
