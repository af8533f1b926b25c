//! What the user is told when something fails, and the exit code that goes with it.

use std::env;
use std::error::Error;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::CommandFactory as _;
use pleach_engine::{EngineError, ModelInfo, TextError};
use pleach_hub::HubError;
use pleach_server::ServeError;

use crate::args::Cli;
use crate::output::one_line;

/// Errors of the command line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum CliError {
    /// A flag or an environment variable holds something that it may not.
    #[error("`{name}` is {found}, but must be {allowed}")]
    BadValue { name: String, found: String, allowed: String },
    /// The arguments make no sense together.
    #[error("{message}")]
    Arguments { message: String, suggested: Option<String> },
    /// An argument that is not text.
    #[error("the argument `{argument}` is not UTF-8 text")]
    ArgumentNotText { argument: String },
    /// The first argument is no command.
    #[error("there is no command `{word}`")]
    NoCommand { word: String },
    /// A word after model and prompt, most likely of a prompt without quotes.
    #[error("unexpected argument `{word}`")]
    ExtraWord { word: String },
    /// Two ways of naming the model.
    #[error("the model is named twice: `{first}` and `{second}`")]
    TwoModels { first: String, second: String },
    /// Two prompts among the arguments.
    #[error("the prompt is given twice: `{first}` and `{second}`")]
    TwoPrompts { first: String, second: String },
    /// Nothing to answer.
    #[error("there is no prompt")]
    NoPrompt { model: Option<String> },
    /// A text cannot be read.
    #[error("cannot read {what}")]
    Read { what: String, source: io::Error },
    /// A text is longer than any context.
    #[error("{what} has more than {most_mib} MiB")]
    TooLong { what: String, most_mib: u64 },
    /// A text is not text.
    #[error("{what} is not UTF-8 text: byte {position} is {byte:#04x}")]
    NotText { what: String, position: usize, byte: u8 },
    /// The messages are not what they should be.
    #[error("{what} is not a JSON list of chat messages")]
    Messages { what: String, source: serde_json::Error },
    /// A line of a file of prompts is not what it should be.
    #[error("line {line} of {what} is not a JSON object with a list of chat `messages`")]
    PromptLine { what: String, line: usize, source: serde_json::Error },
    /// Files of prompts without any.
    #[error("there is no prompt in {what}")]
    NoPrompts { what: String },
    /// The answer cannot be written.
    #[error("cannot write the output")]
    Write(#[source] io::Error),
    /// The system refuses a handler of Ctrl-C.
    #[error("cannot listen for Ctrl-C")]
    Interrupt(#[source] ctrlc::Error),
    /// The system refuses handlers of other signals.
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
    /// A test of `bench` is longer than the model allows.
    #[error("the longest test does not fit the model")]
    TestTooLong(#[source] EngineError),
    /// A line of a conversation that is no question and no command.
    #[error("{0}")]
    Typed(String),
    /// `/set` of what there is not.
    #[error("there is no setting `{name}`: there are {known}")]
    NoSetting { name: String, known: String },
    /// `/save` would replace a file.
    #[error("`{path}` exists already")]
    FileExists { path: String },
    /// A file cannot be written.
    #[error("cannot write `{path}`")]
    WriteFile { path: String, source: io::Error },
    /// `rm` is asked to remove what is not in the cache.
    #[error("`{name}` is not in the Hugging Face cache: it is `{path}`")]
    NotOfTheCache { name: String, path: String },
    /// The settings file cannot be read.
    #[error("cannot read the settings in `{file}`")]
    ReadSettings { file: String, source: io::Error },
    /// A line of the settings file is wrong.
    #[error("line {line} of `{file}` is wrong")]
    Setting { file: String, line: usize, source: Box<CliError> },
    /// The settings file is no TOML.
    #[error("it is no TOML: {0}")]
    NoToml(String),
    /// A key of the settings file that is no flag.
    #[error("there is no setting `{key}`")]
    UnknownKey { key: String, close: Option<String> },
    /// A name that was not found, and what may have been meant.
    #[error("{error}")]
    CloseName { error: Box<CliError>, close: String },
    /// A model that cannot be had, and what names it other than an argument.
    #[error("{by}: {error}")]
    NamedBy { by: &'static str, error: Box<CliError> },
    /// A list of messages without any.
    #[error("there is no message in {what}")]
    NoMessages { what: String },
    /// `/set` of what may not be.
    #[error("`{name}` is {found}, but must be {allowed}")]
    BadSetting { name: String, found: String, allowed: String },
    /// The prompt is longer than the longest context of the model.
    #[error(transparent)]
    PromptBeyondModel(EngineError),
    /// The hub or its cache failed.
    #[error(transparent)]
    Hub(HubError),
    /// The server cannot start.
    #[error("the server cannot start")]
    Serve(#[source] ServeError),
    /// The system gives no thread.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// The engine failed.
    #[error(transparent)]
    Engine(EngineError),
}

impl From<ServeError> for CliError {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::Engine(error) => Self::from_engine(error),
            ServeError::InvalidOrigin { found } => Self::BadValue {
                name: "--cors-origin".to_owned(),
                found: format!("`{found}`"),
                allowed: "a scheme and a name such as `https://example.org`, or `*` for all".to_owned(),
            },
            ServeError::InvalidHost { found } => Self::BadValue {
                name: "--allowed-host".to_owned(),
                found: format!("`{found}`"),
                allowed: "a name or an address such as `box.lan`, without scheme and port".to_owned(),
            },
            error => Self::Serve(error),
        }
    }
}

/// How a command ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The work is done.
    Done,
    /// The user stopped it.
    Interrupted,
}

impl End {
    pub(crate) fn exit_code(self) -> ExitCode {
        match self {
            Self::Done => ExitCode::SUCCESS,
            Self::Interrupted => ExitCode::from(INTERRUPTED),
        }
    }
}

/// Exit code after Ctrl-C: 128 and the number of the signal, as shells count.
pub(crate) const INTERRUPTED: u8 = 130;

impl CliError {
    /// Names fields of the engine by their flags.
    pub(crate) fn from_engine(error: EngineError) -> Self {
        match error {
            EngineError::InvalidField { field, found, allowed } => {
                Self::BadValue { name: flag_of(field), found, allowed }
            }
            EngineError::Text(error) => Self::from_text(error),
            other => Self::Engine(other),
        }
    }

    /// What flags give to `text` is named by the flag.
    fn from_text(error: TextError) -> Self {
        let bad = |name: &str, found, allowed: &str| Self::BadValue {
            name: name.to_owned(),
            found,
            allowed: allowed.to_owned(),
        };
        match error {
            TextError::TooManyStops { found } => {
                bad("--stop", format!("given {found} times"), "given at most 64 times")
            }
            TextError::StopTooLong { found, .. } => {
                bad("--stop", format!("a text of {found} bytes"), "at most 1024 long")
            }
            TextError::ReservedKwarg { name } => {
                bad("--template-arg", format!("`{name}=...`"), "a variable that the prompt does not set itself")
            }
            other => Self::Engine(other.into()),
        }
    }

    /// The same where the model is open: no `--ctx` raises its own maximum.
    pub(crate) fn from_model(error: EngineError, model: &ModelInfo) -> Self {
        match error {
            EngineError::PromptTooLong { context, .. } | EngineError::PromptFarTooLong { context, .. }
                if context >= model.max_context =>
            {
                Self::PromptBeyondModel(error)
            }
            other => Self::from_engine(other),
        }
    }

    /// The context that `bench` opens a model with is that of its longest test.
    pub(crate) fn from_bench(error: EngineError) -> Self {
        match error {
            EngineError::ContextBeyondModel { .. } | EngineError::ContextBeyondMemory { .. } => {
                Self::TestTooLong(error)
            }
            other => Self::from_engine(other),
        }
    }

    /// The error, with what may have been meant if that is known.
    pub(crate) fn or_close(self, close: Option<String>) -> Self {
        match close {
            Some(close) => Self::CloseName { error: Box::new(self), close },
            None => self,
        }
    }

    /// Prints the error; gives the exit code. A reader of the answer who went away wants no
    /// more of it, which is no error.
    pub(crate) fn report(&self) -> ExitCode {
        if self.is_closed_pipe() {
            return ExitCode::SUCCESS;
        }
        self.print();
        ExitCode::from(if self.is_misuse() { 2 } else { 1 })
    }

    /// Whether a conversation cannot go on after it: nobody reads or writes any more.
    pub(crate) fn ends_chat(&self) -> bool {
        matches!(self, Self::Write(_))
    }

    /// What lies behind it, the nearest first.
    pub(crate) fn causes(&self) -> Vec<String> {
        let mut causes = Vec::new();
        let mut cause = self.source();
        while let Some(error) = cause {
            causes.push(error.to_string());
            cause = error.source();
        }
        causes
    }

    /// The error with its causes, in one line.
    pub(crate) fn chain(&self) -> String {
        [vec![self.to_string()], self.causes()].concat().join(": ")
    }

    /// Prints the error with its causes and a hint.
    pub(crate) fn print(&self) {
        // Names of files and words of a model's template are in it: whatever they hold, each of these stays one line.
        let mut text = format!("error: {}\n", one_line(&self.to_string()));
        for cause in self.causes() {
            text += &format!("  caused by: {}\n", one_line(&cause));
        }
        if let Some(hint) = self.hint() {
            text += &format!("hint: {}\n", one_line(&hint));
        }
        // Where standard error is closed too, the exit code is all that can be said.
        let _ = io::stderr().write_all(text.as_bytes());
    }

    fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Write(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Whether the arguments are at fault.
    fn is_misuse(&self) -> bool {
        if let Self::CloseName { error, .. } | Self::NamedBy { error, .. } = self {
            return error.is_misuse();
        }
        matches!(
            self,
            Self::BadValue { .. }
                | Self::Setting { .. }
                | Self::ReadSettings { .. }
                | Self::Arguments { .. }
                | Self::ArgumentNotText { .. }
                | Self::NoCommand { .. }
                | Self::ExtraWord { .. }
                | Self::TwoModels { .. }
                | Self::TwoPrompts { .. }
                | Self::NoPrompt { .. }
                | Self::Hub(HubError::BadId { .. } | HubError::BadVariable { .. } | HubError::NoFolder { .. })
                | Self::Engine(EngineError::ContextBeyondModel { .. })
                | Self::Serve(ServeError::KeyRequired { .. })
        )
    }

    /// What to do about it, in one sentence.
    pub(crate) fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Arguments { suggested: Some(close), .. }
            | Self::CloseName { close, .. }
            | Self::UnknownKey { close: Some(close), .. } => return Some(format!("did you mean `{close}`?")),
            Self::Setting { source, .. } => match &**source {
                Self::BadValue { .. } => {
                    "docs/cli.md lists the settings; a flag or an environment variable goes before them"
                }
                error => return error.hint(),
            },
            Self::ReadSettings { .. } => "PLEACH_CONFIG names another file; an empty PLEACH_CONFIG does without",
            Self::NoToml(_) => "a setting is a line such as `temperature = 0.7` or `device = \"cpu\"`",
            Self::UnknownKey { .. } => {
                "settings are the long names of flags that have an environment variable: docs/cli.md lists them"
            }
            Self::BadValue { .. } | Self::Arguments { .. } => {
                return Some(format!("`pleach {} --help` explains every flag", command()));
            }
            Self::ArgumentNotText { .. } => "if it is a file, name its folder, or a link to it that has another name",
            Self::NoPrompts { .. } => "each line is a JSON object with a list of chat `messages`",
            Self::TestTooLong(_) => "lower `--depth`, `--prompt` or `--generate`",
            Self::NoCommand { .. } if is_help() => "`pleach help` lists commands and flags",
            Self::NoCommand { word } => {
                return Some(format!("to ask it, `pleach -m \"{word}\"`; a prompt of several words needs quotes"));
            }
            Self::ExtraWord { word } if Cli::command().find_subcommand(word).is_some() => {
                return Some(format!("`pleach help {word}` explains the command `{word}`"));
            }
            Self::ExtraWord { .. } if command() != "run" => {
                return Some(format!("`pleach {} --help` says what it takes", command()));
            }
            Self::ExtraWord { .. } => {
                "a prompt of several words needs quotes, as in `pleach -m \"Why is the sky blue?\"`"
            }
            Self::TwoModels { .. } => "name it either as the first argument or with `--model`",
            Self::TwoPrompts { .. } => "give it either as an argument or with `-m`; quote a prompt of several words",
            Self::NoPrompt { model: Some(model) } => {
                let model = word(model);
                return Some(format!(
                    "`pleach run {model} -m \"Why is the sky blue?\"`, or pipe text into it; `pleach chat {model}` talks \
                     with the model"
                ));
            }
            Self::NoPrompt { model: None } => {
                "`pleach -m \"Why is the sky blue?\"`, or pipe text into it; `pleach --help` shows more"
            }
            Self::PromptLine { .. } => {
                "expected `{\"category\": \"chat\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}`"
            }
            Self::Messages { .. } | Self::NoMessages { .. } => {
                "expected `[{\"role\": \"user\", \"content\": \"Hello\"}]`"
            }
            Self::NotText { .. } => "convert it to UTF-8 first",
            Self::TooLong { .. } => "no model reads that much at once: give a part of it",
            Self::Typed(_) => "/help lists commands",
            Self::NamedBy { error, .. } => return error.hint(),
            Self::PromptBeyondModel(_) => "shorten the prompt: the model has no longer context",
            Self::Read { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => "check the name; it is looked for from the folder that you are in",
                io::ErrorKind::IsADirectory => "name a file",
                io::ErrorKind::PermissionDenied => "its permissions do not let you read it",
                _ => return None,
            },
            Self::Write(error) if error.kind() == io::ErrorKind::StorageFull => {
                "no space is left where the output goes: free some, or send it elsewhere"
            }
            Self::Write(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                "a limit such as that of `ulimit -f` lets the file grow no further"
            }
            Self::NoSetting { .. } | Self::BadSetting { .. } => "/set alone shows what they are",
            Self::FileExists { .. } => "take another name, or `/save -f FILE` to replace it",
            Self::WriteFile { .. } => "take a name in another folder",
            Self::NotOfTheCache { .. } => {
                "files of your own are yours to remove: delete it there, with whatever else its folder holds"
            }
            // Nothing is kept of an answer about a model.
            Self::Hub(HubError::Unreachable { .. } | HubError::Cut { .. }) if command() == "info" => {
                "check the network"
            }
            Self::Hub(error) => return error.hint(),
            Self::Engine(error) => return engine_hint(error),
            Self::Serve(ServeError::KeyRequired { .. }) => "`pleach serve` without `--host` is for this machine alone",
            Self::Serve(ServeError::KeyFile { .. } | ServeError::NoKeys { .. }) => {
                "`--api-key-file` takes a text file with a key a line"
            }
            Self::Serve(ServeError::Bind { .. }) => "another program may listen there: `--port` takes another port",
            Self::Thread(_) => {
                "end other programs, or raise the limits of processes and addresses that `ulimit -u` and `ulimit -v` show"
            }
            Self::Write(_) | Self::Interrupt(_) | Self::Signals(_) | Self::Serve(_) => return None,
        };
        Some(hint.to_owned())
    }
}

/// Whether this process was asked for a help page.
fn is_help() -> bool {
    env::args_os().nth(1).is_some_and(|word| word == "help")
}

/// The command whose help page explains the flags of this process.
fn command() -> String {
    let first = env::args_os().nth(1).and_then(|word| word.into_string().ok());
    let first = first.filter(|word| Cli::command().find_subcommand(word).is_some());
    first.unwrap_or_else(|| "run".to_owned())
}

/// The text as one word of a shell, as far as quotes make it one.
fn word(text: &str) -> String {
    if text.contains(char::is_whitespace) { format!("\"{text}\"") } else { text.to_owned() }
}

/// The engine's hints in the words of the command line.
fn engine_hint(error: &EngineError) -> Option<String> {
    let hint = match error {
        EngineError::NoDefaultModel { .. } => {
            "`scripts/fetch-model.sh` fetches a small one; or name one with `--model`, such as a model of the Hugging Face hub"
        }
        // Some files are good, and of another kind.
        EngineError::Checkpoint { .. } if error.hint().is_some() => return error.hint(),
        EngineError::NoSuchModel { model } if model.starts_with('~') => {
            "shells expand `~`, files do not: give the whole path"
        }
        EngineError::NoSuchModel { model } if model.contains(' ') && !model.contains(['/', '\\']) => {
            return Some(format!("to ask it, `pleach -m {}`", word(model)));
        }
        EngineError::NoSuchModel { .. } => "a model is a folder, a `.gguf` file, or `org/name` of the Hugging Face hub",
        EngineError::Checkpoint { .. } | EngineError::Tokenizer { .. } | EngineError::Vocabulary { .. } => {
            "docs/formats.md lists what opens; if this should, check that the download is complete"
        }
        EngineError::ChatTemplate { source: TextError::TemplateThread { .. }, .. }
        | EngineError::Text(TextError::TemplateThread { .. }) => {
            "its stack takes addresses, of which there are too few: raise the limit that `ulimit -v` shows"
        }
        EngineError::UnfitDrafter { .. } => {
            "leave out `--spec`, and `--draft-model` if it is given, to have one chosen"
        }
        EngineError::ChatTemplate { .. }
        | EngineError::NoChatTemplate
        | EngineError::Text(TextError::TemplateRefused { .. } | TextError::TemplateFailed { .. }) => {
            "`--raw` continues the prompt as plain text, without a chat template"
        }
        EngineError::Text(TextError::TemplateTooLong { .. }) => "shorten the conversation",
        EngineError::PromptTooLong { .. } | EngineError::PromptFarTooLong { .. } => {
            "shorten the prompt, or raise `--ctx`"
        }
        EngineError::ContextBeyondModel { .. } => "leave `--ctx` out to have it chosen",
        EngineError::ContextBeyondMemory { .. } => "leave `--ctx` out to have it chosen by the free memory",
        EngineError::NonFiniteLogits { .. } => {
            "the weights may be damaged, or overflow 16 bits: try `--kv-cache f32 --activations exact`"
        }
        EngineError::Device(_) => "`--device reference` runs everywhere",
        other => return other.hint(),
    };
    Some(hint.to_owned())
}

/// The flag behind a field of the engine's API.
fn flag_of(field: &str) -> String {
    match field {
        "context" => "--ctx".to_owned(),
        "logit_bias token" => "--logit-bias ID".to_owned(),
        other => format!("--{}", other.replace('_', "-")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_engine_are_named_by_their_flags() {
        let field = |field| EngineError::InvalidField { field, found: "2".to_owned(), allowed: "less".to_owned() };
        let error = CliError::from_engine(field("repetition_penalty"));
        assert_eq!(error.to_string(), "`--repetition-penalty` is 2, but must be less");
        assert!(error.is_misuse());
        assert_eq!(CliError::from_engine(field("context")).to_string(), "`--ctx` is 2, but must be less");
    }
}
