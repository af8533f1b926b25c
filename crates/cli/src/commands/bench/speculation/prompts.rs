//! Prompts by category, from files with a JSON object on each line.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use pleach_engine::{ChatRequest, Message};
use serde::Deserialize;

use crate::error::CliError;
use crate::prompt;

/// A prompt and what kind it is of.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Question {
    pub(super) category: String,
    pub(super) chat: ChatRequest,
}

/// A line of a file; other fields are left alone.
#[derive(Debug, Deserialize)]
struct Line {
    category: Option<String>,
    messages: Vec<Message>,
}

/// The first `most` prompts of each category, in the order of the files. A prompt without a category is of its file's
/// name.
pub(super) fn read(files: &[PathBuf], most: usize) -> Result<Vec<Question>, CliError> {
    let mut counts = HashMap::<String, usize>::new();
    let mut questions = Vec::new();
    for file in files {
        for question in questions_of(file)? {
            let count = counts.entry(question.category.clone()).or_default();
            *count += 1;
            if *count <= most {
                questions.push(question);
            }
        }
    }
    if questions.is_empty() {
        let names: Vec<_> = files.iter().map(|file| format!("`{}`", file.display())).collect();
        return Err(CliError::NoPrompts { what: names.join(", ") });
    }
    Ok(questions)
}

fn questions_of(path: &Path) -> Result<Vec<Question>, CliError> {
    let what = format!("`{}`", path.display());
    let file = File::open(path).map_err(|source| CliError::Read { what: what.clone(), source })?;
    let text = prompt::read_text(file, &what)?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(index, line)| {
            let Line { category, messages } = serde_json::from_str(line).map_err(|source| CliError::PromptLine {
                what: what.clone(),
                line: index + 1,
                source,
            })?;
            let category = category.unwrap_or_else(|| name.clone().into_owned());
            Ok(Question { category, chat: ChatRequest::new(messages) })
        })
        .collect()
}
