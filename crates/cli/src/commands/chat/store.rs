//! Conversations in files: the JSON list of messages that `--messages` reads.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use pleach_engine::Message;

use crate::error::CliError;
use crate::prompt::{parse_messages, read_text};

/// Saves and loads, and knows which files are this conversation's own.
#[derive(Debug, Default)]
pub(super) struct Store {
    own: HashSet<PathBuf>,
}

impl Store {
    /// Writes the messages. A file that something else wrote stays as it is, unless it is to be replaced.
    pub(super) fn save(&mut self, path: &Path, messages: &[Message], replace: bool) -> Result<String, CliError> {
        if path.exists() && !replace && !self.own.contains(path) {
            return Err(CliError::FileExists { path: path.display().to_string() });
        }
        let text = serde_json::to_string_pretty(messages).map_err(|error| CliError::Write(error.into()))? + "\n";
        let cannot = |source| CliError::WriteFile { path: path.display().to_string(), source };
        // First all of it under another name: an old file is not lost when the disk is full.
        let fresh = path.with_extension(format!("{}.new", std::process::id()));
        let written = File::create(&fresh).and_then(|mut file| file.write_all(text.as_bytes()));
        if let Err(error) = written.and_then(|()| fs::rename(&fresh, path)) {
            let _ = fs::remove_file(&fresh);
            return Err(cannot(error));
        }
        self.own.insert(path.to_owned());
        Ok(format!("saved {} messages to {}", messages.len(), path.display()))
    }

    /// Reads messages.
    pub(super) fn load(&mut self, path: &Path) -> Result<Vec<Message>, CliError> {
        let what = format!("`{}`", path.display());
        let file = File::open(path).map_err(|source| CliError::Read { what: what.clone(), source })?;
        let text = read_text(file, &what)?;
        let messages = parse_messages(&text, what)?;
        self.own.insert(path.to_owned());
        Ok(messages)
    }
}

#[cfg(test)]
mod tests {
    use pleach_engine::Role;
    use tempfile::TempDir;

    use super::*;

    /// Stopped before it said a word, asked with nothing, or with parts: all of it was saved.
    #[test]
    fn every_conversation_that_is_saved_can_be_loaded() {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("talk.json");
        let parts = r#"[{"role": "user", "content": []}, {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]"#;
        let mut messages: Vec<Message> = serde_json::from_str(parts).unwrap();
        messages.extend([Message::text(Role::User, ""), Message::text(Role::Assistant, "")]);
        let mut store = Store::default();
        store.save(&file, &messages, false).unwrap();
        let loaded = store.load(&file).unwrap();
        assert_eq!(serde_json::to_value(&loaded).unwrap(), serde_json::to_value(&messages).unwrap());
    }

    #[test]
    fn a_conversation_comes_back_as_it_was() {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("talk.json");
        let mut answer = Message::text(Role::Assistant, "42\n\u{1b}");
        answer.reasoning_content = Some("let me see".to_owned());
        let messages = vec![Message::text(Role::System, "Be short."), Message::text(Role::User, "hi"), answer];
        let mut store = Store::default();
        store.save(&file, &messages, false).unwrap();
        assert_eq!(Store::default().load(&file).unwrap(), messages);
        // Its own file may be written again, that of another conversation may not.
        store.save(&file, &messages[..1], false).unwrap();
        let error = Store::default().save(&file, &messages, false).unwrap_err();
        assert_eq!(error.to_string(), format!("`{}` exists already", file.display()));
        assert_eq!(Store::default().load(&file).unwrap().len(), 1);
        Store::default().save(&file, &messages, true).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
