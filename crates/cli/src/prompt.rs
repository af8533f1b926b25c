//! What is asked of which model: arguments, standard input and message files brought together.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read};
use std::path::Path;

use pleach_engine::{ChatRequest, Content, Message, Part, Prompt, Role};
use serde::de::Error as _;
use serde_json::Value;

use crate::args::PromptFlags;
use crate::error::CliError;

/// Longest text that is read, in MiB: more than the longest context of any model spells.
const MOST_MIB: u64 = 64;

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The model and the prompt as the arguments name them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) model: Option<String>,
    pub(crate) prompt: Option<String>,
}

impl Named {
    /// Tells the model from the prompt.
    ///
    /// `first` and `second` are the arguments without a flag. A single one is the prompt if the model has its own flag,
    /// the model if the prompt has, and otherwise what it looks like.
    pub(crate) fn new(
        (first, second): (Option<String>, Option<String>),
        model: Option<String>,
        flags: &PromptFlags,
    ) -> Result<Self, CliError> {
        let messages = flags.messages.as_ref().map(|_| "--messages".to_owned());
        let prompt = flags.message.clone();
        let has_prompt = prompt.is_some() || messages.is_some();
        let (named, asked) = match (first, second) {
            (Some(first), None) if model.is_some() && !has_prompt => (None, Some(first)),
            (Some(first), None) if !has_prompt && !looks_like_model(&first) => (None, Some(first)),
            other => other,
        };
        if let (Some(first), Some(second)) = (&named, &model) {
            return Err(CliError::TwoModels { first: first.clone(), second: second.clone() });
        }
        if let (Some(first), Some(second)) = (&asked, prompt.as_ref().or(messages.as_ref())) {
            return Err(CliError::TwoPrompts { first: first.clone(), second: second.clone() });
        }
        Ok(Self { model: named.or(model), prompt: asked.or(prompt) })
    }
}

/// Whether a lone argument is meant as a model: it exists, or it has the form of a path or of a hub id.
fn looks_like_model(argument: &str) -> bool {
    let has_form = argument.contains('/') || argument.to_ascii_lowercase().ends_with(".gguf");
    let is_one_word = !argument.contains(char::is_whitespace) && !argument.is_empty();
    argument != "-" && ((is_one_word && has_form) || Path::new(argument).exists())
}

/// Reads what is to be read and gives the engine's prompt.
pub(crate) fn read(named: &Named, flags: &PromptFlags) -> Result<Prompt, CliError> {
    let prompt = named.prompt.as_deref();
    if let Some(file) = &flags.messages {
        return Ok(Prompt::Chat(chat(messages(file)?, flags)));
    }
    let text = join(prompt.filter(|&prompt| prompt != "-"), piped_text(prompt)?, flags.raw)
        .ok_or_else(|| CliError::NoPrompt { model: named.model.clone() })?;
    if flags.raw {
        return Ok(Prompt::Text(text));
    }
    let system = flags.conversation.system.as_ref().map(|system| Message::text(Role::System, system));
    Ok(Prompt::Chat(chat(system.into_iter().chain([Message::text(Role::User, text)]).collect(), flags)))
}

fn chat(messages: Vec<Message>, flags: &PromptFlags) -> ChatRequest {
    let mut chat = ChatRequest::new(messages);
    flags.conversation.apply(&mut chat);
    chat
}

fn messages(file: &Path) -> Result<Vec<Message>, CliError> {
    let (what, text) = if file == Path::new("-") {
        stdin_text()?
    } else {
        let what = format!("`{}`", file.display());
        let file = File::open(file).map_err(|source| CliError::Read { what: what.clone(), source })?;
        (what.clone(), read_text(file, &what)?)
    };
    let messages = parse_messages(&text, what.clone())?;
    if messages.is_empty() {
        return Err(CliError::NoMessages { what });
    }
    // Answers that only call tools have no text, but who asks nothing has most likely misspelled the field.
    match messages.iter().position(|message| message.role == Role::User && is_silent(&message.content)) {
        Some(place) => {
            let reason = format!("message {} is of the user and has no text in `content`", place + 1);
            Err(CliError::Messages { what, source: serde_json::Error::custom(reason) })
        }
        None => Ok(messages),
    }
}

/// Whether there is neither a text nor a part of another kind.
fn is_silent(content: &Content) -> bool {
    match content {
        Content::Text(text) => text.is_empty(),
        Content::Parts(parts) => parts.iter().all(|part| matches!(part, Part::Text(text) if text.is_empty())),
    }
}

/// Reads a JSON list of messages. JSON of another kind is named in words that are not the parser's.
pub(crate) fn parse_messages(text: &str, what: String) -> Result<Vec<Message>, CliError> {
    serde_json::from_str(text).map_err(|source| {
        let kind = match serde_json::from_str(text) {
            Ok(Value::Object(_)) => "an object",
            Ok(Value::String(_)) => "a string",
            Ok(Value::Number(_)) => "a number",
            Ok(Value::Bool(_)) => "true or false",
            Ok(Value::Null) => "null",
            Ok(Value::Array(_)) | Err(_) => return CliError::Messages { what: what.clone(), source },
        };
        CliError::Messages { what: what.clone(), source: serde_json::Error::custom(format!("it is {kind}")) }
    })
}

/// Standard input, if it was asked for or something is piped into it. A terminal is read only when asked for, and so is
/// the rest of a file of which somebody has read a part, as a loop of a shell does with `while read ... < FILE`.
fn piped_text(prompt: Option<&str>) -> Result<Option<String>, CliError> {
    if prompt != Some("-") && (io::stdin().is_terminal() || is_somebody_elses()) {
        return Ok(None);
    }
    Ok(Some(stdin_text()?.1))
}

/// Whether standard input is a file that is read already up to somewhere.
#[cfg(unix)]
fn is_somebody_elses() -> bool {
    use std::io::Seek as _;
    use std::os::fd::AsFd as _;
    let file = io::stdin().as_fd().try_clone_to_owned().map(File::from);
    file.and_then(|mut file| file.stream_position()).is_ok_and(|position| position > 0)
}

#[cfg(not(unix))]
fn is_somebody_elses() -> bool {
    false
}

fn stdin_text() -> Result<(String, String), CliError> {
    let what = "standard input".to_owned();
    let text = read_text(io::stdin().lock(), &what)?;
    Ok((what, text))
}

/// The argument, a blank line, and what was piped in. The line break that ends a piped text is not part of a chat
/// message; a raw prompt keeps it. `None` if that is nothing.
fn join(argument: Option<&str>, piped: Option<String>, raw: bool) -> Option<String> {
    let mut piped = piped.unwrap_or_default();
    if !raw {
        piped.truncate(piped.trim_end_matches(['\r', '\n']).len());
    }
    let parts: Vec<&str> = argument.into_iter().chain([piped.as_str()]).filter(|part| !part.is_empty()).collect();
    (!parts.is_empty()).then(|| parts.join("\n\n"))
}

/// Reads a UTF-8 text of bounded length.
pub(crate) fn read_text(source: impl Read, what: &str) -> Result<String, CliError> {
    let most = MOST_MIB << 20;
    let mut bytes = Vec::new();
    let read = source.take(most + 1).read_to_end(&mut bytes);
    read.map_err(|source| CliError::Read { what: what.to_owned(), source })?;
    if bytes.len() as u64 > most {
        return Err(CliError::TooLong { what: what.to_owned(), most_mib: MOST_MIB });
    }
    // Windows' editors put a mark before UTF-8, which is no part of the text.
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    String::from_utf8(bytes).map_err(|error| {
        let position = error.utf8_error().valid_up_to();
        CliError::NotText { what: what.to_owned(), position, byte: error.as_bytes()[position] }
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command};

    /// What `pleach run ARGUMENTS` asks of which model.
    fn named(arguments: &[&str]) -> Result<Named, CliError> {
        let cli = Cli::try_parse_from([&["pleach", "run"], arguments].concat()).unwrap();
        let Some(Command::Run(run)) = cli.command else { panic!("not a run") };
        Named::new((run.first, run.second), run.flags.model.model, &run.flags.prompt)
    }

    fn model_and_prompt(model: Option<&str>, prompt: Option<&str>) -> Named {
        Named { model: model.map(str::to_owned), prompt: prompt.map(str::to_owned) }
    }

    #[test]
    fn a_lone_argument_is_what_it_looks_like() {
        for model in ["model.gguf", "Qwen/Qwen3-0.6B", "a/b:Q4_K_M", "./m", "/no/such/model", "src"] {
            assert_eq!(named(&[model]).unwrap(), model_and_prompt(Some(model), None));
        }
        for prompt in ["hello", "is it and/or or?", "Why is a.gguf large?", "-"] {
            assert_eq!(named(&[prompt]).unwrap(), model_and_prompt(None, Some(prompt)));
        }
    }

    #[test]
    fn flags_settle_what_a_lone_argument_is() {
        assert_eq!(named(&["--model", "m", "a/b"]).unwrap(), model_and_prompt(Some("m"), Some("a/b")));
        assert_eq!(named(&["m", "-m", "hi"]).unwrap(), model_and_prompt(Some("m"), Some("hi")));
        assert_eq!(named(&["m", "--messages", "f"]).unwrap(), model_and_prompt(Some("m"), None));
        assert_eq!(named(&["m", "hi"]).unwrap(), model_and_prompt(Some("m"), Some("hi")));
    }

    #[test]
    fn nothing_is_given_twice() {
        assert_eq!(
            named(&["a", "hi", "--model", "b"]).unwrap_err().to_string(),
            "the model is named twice: `a` and `b`"
        );
        assert_eq!(
            named(&["a", "hi", "-m", "ho"]).unwrap_err().to_string(),
            "the prompt is given twice: `hi` and `ho`"
        );
        assert_eq!(
            named(&["a", "hi", "--messages", "f"]).unwrap_err().to_string(),
            "the prompt is given twice: `hi` and `--messages`"
        );
    }

    #[test]
    fn piped_text_follows_the_argument() {
        let text = |argument, piped: &str, raw| join(argument, Some(piped.to_owned()), raw).unwrap();
        assert_eq!(text(Some("Explain:"), "a\nb\n", false), "Explain:\n\na\nb");
        assert_eq!(text(None, "a\r\n", false), "a");
        assert_eq!(text(None, "a\n", true), "a\n");
        assert_eq!(text(Some("hi"), "", false), "hi");
        assert_eq!(join(Some(""), Some("\n".to_owned()), false), None);
        assert_eq!(join(None, None, true), None);
    }

    #[test]
    fn bytes_that_are_no_text_are_pointed_at() {
        let error = read_text(&b"ab\xffc"[..], "standard input").unwrap_err();
        assert_eq!(error.to_string(), "standard input is not UTF-8 text: byte 2 is 0xff");
        let endless = read_text(io::repeat(b'a'), "standard input").unwrap_err();
        assert_eq!(endless.to_string(), "standard input has more than 64 MiB");
    }
}
