//! The settings file: what flags and their environment variables leave open.
//!
//! It is TOML, one line per setting, each named as its flag: `temperature = 0.7`. Every flag that has an environment variable can
//! be set, and `model`, which stands for `PLEACH_MODEL`. A setting becomes the default of its flag in every command that
//! has the flag.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, Args as _, Command, FromArgMatches as _};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::refusal;
use super::sampling::{SamplingFlags, check};
use crate::error::CliError;
use crate::prompt::read_text;

/// Settings that were read and checked.
#[derive(Debug, Default)]
pub(super) struct SettingsFile {
    settings: Vec<Setting>,
}

#[derive(Debug)]
struct Setting {
    key: String,
    value: String,
    line: usize,
}

/// The setting that is no flag's default: a model may be named in two ways, and twice is an error.
pub(super) const MODEL: &str = "model";

/// Where the settings are: `PLEACH_CONFIG`, of which an empty one means nowhere, or `pleach/config.toml` in the user's folder
/// for settings.
pub(crate) fn settings_path() -> Option<PathBuf> {
    if let Some(named) = env::var_os("PLEACH_CONFIG") {
        return Some(PathBuf::from(named)).filter(|path| !path.as_os_str().is_empty());
    }
    let folder = |name| env::var_os(name).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from);
    let system = if cfg!(windows) { folder("APPDATA") } else { None };
    let config = folder("XDG_CONFIG_HOME").or(system).or_else(|| Some(folder("HOME")?.join(".config")))?;
    Some(config.join("pleach/config.toml"))
}

impl SettingsFile {
    /// Reads the file, if there is one, and checks it against the flags of a command and its subcommands.
    ///
    /// # Errors
    /// [`CliError::Setting`] with the first line that is wrong; a file that cannot be read, or that was named and is not there.
    pub(super) fn read(command: &Command) -> Result<Self, CliError> {
        let Some(path) = settings_path() else { return Ok(Self::default()) };
        let what = format!("`{}`", path.display());
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if is_absent(&error) && env::var_os("PLEACH_CONFIG").is_none() => return Ok(Self::default()),
            Err(source) => return Err(CliError::ReadSettings { file: path.display().to_string(), source }),
        };
        let text = read_text(file, &what).map_err(|error| {
            let source = match error {
                CliError::Read { source, .. } => source,
                other => io::Error::other(other.to_string()),
            };
            CliError::ReadSettings { file: path.display().to_string(), source }
        })?;
        Self::parse(&text, &path, command)
    }

    fn parse(text: &str, path: &Path, command: &Command) -> Result<Self, CliError> {
        let line_of = |position: usize| 1 + text.bytes().take(position).filter(|byte| *byte == b'\n').count();
        let at = |line, source| {
            let file = path.display().to_string();
            CliError::Setting { file, line, source: Box::new(source) }
        };
        let table = DeTable::parse(text).map_err(|error| {
            let position = error.span().map_or(0, |span| span.start);
            at(line_of(position), CliError::NoToml(error.message().to_owned()))
        })?;
        let mut settings = Vec::new();
        for (key, value) in table.into_inner() {
            let (line, key) = (line_of(key.span().start), key.into_inner().into_owned());
            let value = checked(&key, &value, &text[value.span()], command).map_err(|error| at(line, error))?;
            settings.push(Setting { key, value, line });
        }
        settings.sort_by_key(|setting| setting.line);
        Ok(Self { settings })
    }

    /// Makes the settings the defaults of their flags.
    pub(super) fn apply(&self, command: Command) -> Command {
        let command = command.mut_args(|arg| self.apply_to(arg));
        command.mut_subcommands(|subcommand| subcommand.mut_args(|arg| self.apply_to(arg)))
    }

    /// The value of a setting.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        Some(&self.settings.iter().find(|setting| setting.key == key)?.value)
    }

    fn apply_to(&self, arg: Arg) -> Arg {
        let is_meant = |setting: &&Setting| is_flag(&arg, &setting.key);
        match self.settings.iter().find(is_meant) {
            Some(setting) => arg.default_value(setting.value.clone()),
            None => arg,
        }
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn is_flag(arg: &Arg, key: &str) -> bool {
    arg.get_long() == Some(key) && arg.get_env().is_some()
}

/// The value as its flag takes it, if the flag does take it.
fn checked(key: &str, value: &Spanned<DeValue<'_>>, source: &str, command: &Command) -> Result<String, CliError> {
    let all = || command.get_subcommands().chain([command]).flat_map(Command::get_arguments);
    let arg = all().find(|arg| is_flag(arg, key));
    let is_switch = arg.is_some_and(|arg| matches!(arg.get_action(), ArgAction::SetTrue));
    let (text, allowed) = match (value.get_ref(), is_switch) {
        (DeValue::Boolean(value), true) => (Some(value.to_string()), ""),
        (_, true) => (None, "true or false"),
        (DeValue::String(text), _) => (Some(text.to_string()), ""),
        (DeValue::Integer(_) | DeValue::Float(_), _) => (Some(source.replace('_', "")), ""),
        _ => (None, "a number or a text in quotes"),
    };
    let bad = |allowed: &str| {
        let (name, found) = (key.to_owned(), format!("`{source}`"));
        CliError::BadValue { name, found, allowed: allowed.to_owned() }
    };
    match (arg, text) {
        (None, _) if key != MODEL => {
            let known = all().filter(|arg| arg.get_env().is_some()).filter_map(Arg::get_long).chain([MODEL]);
            Err(CliError::UnknownKey { key: key.to_owned(), close: crate::names::closest(key, known) })
        }
        (_, None) => Err(bad(allowed)),
        (None, _) if !matches!(value.get_ref(), DeValue::String(_)) => Err(bad("a text in quotes")),
        (Some(arg), Some(text)) if !is_switch => try_flag(arg, text),
        (_, Some(text)) => Ok(text),
    }
}

/// Gives the value to a command that has this flag alone.
fn try_flag(arg: &Arg, text: String) -> Result<String, CliError> {
    let name = arg.get_long().unwrap_or_default();
    let name_it = |error| match error {
        CliError::BadValue { found, allowed, .. } => CliError::BadValue { name: name.to_owned(), found, allowed },
        other => other,
    };
    let command = || Command::new("pleach").no_binary_name(true);
    let given = [format!("--{name}={text}")];
    let alone = Arg::new("value").long(name.to_owned()).value_parser(arg.get_value_parser().clone());
    let alone = alone.allow_hyphen_values(true);
    let alone = if let Some(delimiter) = arg.get_value_delimiter() { alone.value_delimiter(delimiter) } else { alone };
    command().arg(alone).try_get_matches_from(&given).map_err(refusal::translate).map_err(name_it)?;
    // The ranges of sampling are the engine's.
    if let Ok(matches) = SamplingFlags::augment_args(command()).try_get_matches_from(&given)
        && let Ok(flags) = SamplingFlags::from_arg_matches(&matches)
    {
        check(&flags.sampling()).map_err(name_it)?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::super::Cli;
    use super::*;

    fn parse(text: &str) -> Result<SettingsFile, CliError> {
        SettingsFile::parse(text, Path::new("config.toml"), &Cli::command())
    }

    fn refused(text: &str) -> String {
        parse(text).unwrap_err().chain()
    }

    fn flags(text: &str, arguments: &[&str]) -> Cli {
        let command = parse(text).unwrap().apply(Cli::command());
        let matches = command.try_get_matches_from([&["pleach"], arguments].concat()).unwrap();
        Cli::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn settings_are_defaults_of_flags() {
        let text = "# mine\nmodel = \"a/b\"\ntemperature = 0.7\ntop-k = 4_0\noffline = true\nspec = 'off'\n";
        assert_eq!(parse(text).unwrap().get(MODEL), Some("a/b"));
        let cli = flags(text, &["-m", "hi", "--top-k", "3"]);
        let sampling = cli.flags.sampling.sampling();
        assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p), (Some(0.7), Some(3), None));
        assert!(cli.flags.model.network.offline);
        assert_eq!(cli.flags.model.model, None);
        // Also those of commands, and a flag that only some commands have.
        let cli = flags("history = \"\"\nthreads = 2", &["chat", "m"]);
        let Some(super::super::Command::Chat(chat)) = cli.command else { panic!("not a chat") };
        assert_eq!((chat.look.history, chat.model.threads.map(usize::from)), (Some(PathBuf::new()), Some(2)));
    }

    #[test]
    fn what_is_wrong_is_named_by_line_and_key() {
        let at = |line: usize, what: &str| format!("line {line} of `config.toml` is wrong: {what}");
        assert_eq!(
            refused("ctx = 'x'"),
            at(1, "`ctx` is `x`, but must be a whole number from 0 (automatic) to 1073741824")
        );
        assert_eq!(refused("\n\ntop-p = 3"), at(3, "`top-p` is 3, but must be above 0 and at most 1"));
        assert_eq!(refused("offline = 'yes'"), at(1, "`offline` is `'yes'`, but must be true or false"));
        assert_eq!(refused("model = 1"), at(1, "`model` is `1`, but must be a text in quotes"));
        assert_eq!(refused("seed = true"), at(1, "`seed` is `true`, but must be a number or a text in quotes"));
        assert_eq!(refused("device = 'gpu'"), at(1, "`device` is `gpu`, but must be `cpu` or `reference`"));
        assert_eq!(refused("seed = 1\nheat = 2"), at(2, "there is no setting `heat`"));
        assert_eq!(refused("[sampling]\nseed = 1"), at(1, "there is no setting `sampling`"));
        assert!(refused("seed = 1\nseed = 2").starts_with("line 2 of `config.toml` is wrong: it is no TOML: "));
        assert!(refused("seed: 1").starts_with("line 1 of `config.toml` is wrong: it is no TOML: "));
        let close = parse("temprature = 1").unwrap_err().hint();
        assert_eq!(close.as_deref(), Some("did you mean `temperature`?"));
        assert_eq!(parse("max-tokens = 0").unwrap_err().to_string(), "line 1 of `config.toml` is wrong");
    }
}
