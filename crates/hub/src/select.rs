//! Which files of a repository a model needs.

use std::collections::BTreeSet;

use crate::{HubError, ModelId, RepoPath};

/// A choice of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Selection {
    /// The files that are needed, in the order of the repository.
    pub(crate) files: Vec<RepoPath>,
    /// The `.gguf` file to open; `None` if the folder is.
    pub(crate) open: Option<RepoPath>,
}

/// The weights' index, which lists their parts.
const INDEX: &str = "model.safetensors.index.json";

/// What a folder in Hugging Face's layout is read from beside its weights.
const SMALL_FILES: [&str; 6] =
    ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", INDEX];

/// Folder of a drafter that came with the model.
const DRAFTER: &str = "speculator/";

/// Chooses among the files of a repository, or of a snapshot of it.
///
/// # Errors
/// [`HubError::NoSuchFile`], [`HubError::SeveralFiles`], [`HubError::NoWeights`] name what there is.
pub(crate) fn select(id: &ModelId, files: &[RepoPath]) -> Result<Selection, HubError> {
    if let Some(wanted) = &id.selector {
        return gguf(id, files, wanted);
    }
    if let Some(folder) = folder(files) {
        return Ok(folder);
    }
    match models(files).as_slice() {
        [] => Err(HubError::NoWeights { id: id.repo.clone(), found: sample(files) }),
        [only] => Ok(with_parts(files, only)),
        several => Err(several_files(id, several)),
    }
}

/// Whether a snapshot with these files can be opened, as far as their names tell. `parts` gives the files that the
/// weights' index lists.
pub(crate) fn is_whole(selection: &Selection, files: &[RepoPath], parts: impl FnOnce() -> Option<Vec<String>>) -> bool {
    let has = |name: &str| files.iter().any(|file| file.as_str() == name);
    match &selection.open {
        Some(first) => num_parts(first).is_none_or(|count| selection.files.len() == count),
        None if !has("config.json") || !has("tokenizer.json") => false,
        None if has(INDEX) => parts().is_some_and(|parts| parts.iter().all(|part| has(part))),
        None => true,
    }
}

/// The files of a model in Hugging Face's or MLX's layout: those at the top of the repository.
fn folder(files: &[RepoPath]) -> Option<Selection> {
    let top: Vec<&RepoPath> = files.iter().filter(|file| file.depth() == 0).collect();
    let has = |name: &str| top.iter().any(|file| file.as_str() == name);
    let weights: BTreeSet<&str> =
        top.iter().map(|file| file.as_str()).filter(|file| file.ends_with(".safetensors")).collect();
    if weights.is_empty() || !has("config.json") {
        return None;
    }
    // With an index the parts are numbered; other files beside them are the same weights in another form.
    let numbered: BTreeSet<&str> = weights.iter().copied().filter(|file| file.contains("-of-")).collect();
    let weights = match () {
        () if has(INDEX) && !numbered.is_empty() => numbered,
        () if weights.contains("model.safetensors") => BTreeSet::from(["model.safetensors"]),
        () => weights,
    };
    let is_drafter = |file: &RepoPath| {
        let inside = file.as_str().strip_prefix(DRAFTER);
        inside.is_some_and(|name| SMALL_FILES.contains(&name) || name.ends_with(".safetensors") && !name.contains('/'))
    };
    let needed =
        |file: &&RepoPath| SMALL_FILES.contains(&file.as_str()) || weights.contains(file.as_str()) || is_drafter(file);
    Some(Selection { files: files.iter().filter(needed).cloned().collect(), open: None })
}

/// The `.gguf` file that is called `wanted` or has it in its name.
fn gguf(id: &ModelId, files: &[RepoPath], wanted: &str) -> Result<Selection, HubError> {
    let models = models(files);
    if let Some(file) = models.iter().find(|file| file.as_str() == wanted || file.file_name() == wanted) {
        return Ok(with_parts(files, file));
    }
    let fitting: Vec<&RepoPath> = models.iter().copied().filter(|file| has_word(file.as_str(), wanted)).collect();
    match fitting.as_slice() {
        [only] => Ok(with_parts(files, only)),
        [] => Err(HubError::NoSuchFile {
            id: id.repo.clone(),
            wanted: wanted.to_owned(),
            found: models.iter().map(ToString::to_string).collect(),
        }),
        several => Err(several_files(id, several)),
    }
}

fn several_files(id: &ModelId, files: &[&RepoPath]) -> HubError {
    // The quantization that most people mean, if it is there.
    let usual = files.iter().find(|file| has_word(file.as_str(), "Q4_K_M"));
    let selector = usual.map_or_else(|| files[0].to_string(), |_| "Q4_K_M".to_owned());
    HubError::SeveralFiles {
        id: id.repo.clone(),
        wanted: id.selector.clone(),
        found: files.iter().map(ToString::to_string).collect(),
        example: format!("{}:{selector}", id.repo),
    }
}

/// The `.gguf` files that are models, by their first parts.
pub(crate) fn models(files: &[RepoPath]) -> Vec<&RepoPath> {
    files.iter().filter(|file| is_model(file.file_name())).collect()
}

/// Projectors and importance matrices lie beside models and are none.
fn is_model(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    lower.ends_with(".gguf")
        && !lower.starts_with("mmproj")
        && !lower.contains("imatrix")
        && part(name).is_none_or(|part| part.number == 1)
}

/// A file with the other parts that it is split into.
fn with_parts(files: &[RepoPath], first: &RepoPath) -> Selection {
    let Some(Part { start, of, .. }) = part(first.as_str()) else {
        return Selection { files: vec![first.clone()], open: Some(first.clone()) };
    };
    let belongs = |file: &&RepoPath| part(file.as_str()).is_some_and(|part| part.start == start && part.of == of);
    Selection { files: files.iter().filter(belongs).cloned().collect(), open: Some(first.clone()) }
}

/// `START-00001-of-00003.gguf`
struct Part<'a> {
    start: &'a str,
    number: usize,
    of: usize,
}

fn part(path: &str) -> Option<Part<'_>> {
    let stem = path.strip_suffix(".gguf")?;
    let (before, of) = stem.rsplit_once("-of-")?;
    let (start, number) = before.rsplit_once('-')?;
    let value = |text: &str| (text.len() == 5).then(|| text.parse().ok())?;
    Some(Part { start, number: value(number)?, of: value(of)? })
}

fn num_parts(file: &RepoPath) -> Option<usize> {
    part(file.as_str()).map(|part| part.of)
}

/// Whether `word` stands in a file name with no letter, digit or underscore beside it, so that `Q4_K` is not `Q4_K_M`.
fn has_word(name: &str, word: &str) -> bool {
    let (name, word) = (name.to_ascii_lowercase(), word.to_ascii_lowercase());
    let is_part = |character: Option<char>| character.is_some_and(|c| c.is_alphanumeric() || c == '_');
    !word.is_empty()
        && name.match_indices(&word).any(|(start, found)| {
            !is_part(name[..start].chars().next_back()) && !is_part(name[start + found.len()..].chars().next())
        })
}

/// The first few names, for a message.
fn sample(files: &[RepoPath]) -> Vec<String> {
    const MOST: usize = 8;
    let mut names: Vec<String> = files.iter().take(MOST).map(ToString::to_string).collect();
    if files.len() > MOST {
        names.push(format!("{} more", files.len() - MOST));
    }
    names
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]
mod tests {
    use super::*;

    fn paths(names: &[&str]) -> Vec<RepoPath> {
        names.iter().map(|name| RepoPath::parse(name).unwrap()).collect()
    }

    fn selected(id: &str, names: &[&str]) -> Result<(Vec<String>, Option<String>), String> {
        let found = select(&ModelId::parse(id).unwrap(), &paths(names)).map_err(|error| error.to_string())?;
        Ok((found.files.iter().map(ToString::to_string).collect(), found.open.map(|file| file.to_string())))
    }

    #[test]
    fn a_folder_is_what_the_engine_reads_and_no_more() {
        let names = [
            ".gitattributes",
            "README.md",
            "config.json",
            "generation_config.json",
            "merges.txt",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "consolidated.safetensors",
            "onnx/model.onnx",
            "original/model.safetensors",
            "pytorch_model.bin",
            "tokenizer.json",
            "tokenizer_config.json",
            "chat_template.jinja",
        ];
        let (files, open) = selected("a/b", &names).unwrap();
        assert_eq!(
            files,
            [
                "config.json",
                "generation_config.json",
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
                "model.safetensors.index.json",
                "tokenizer.json",
                "tokenizer_config.json",
                "chat_template.jinja",
            ]
        );
        assert_eq!(open, None);
        let names = [
            "config.json",
            "model.safetensors",
            "speculator/config.json",
            "speculator/model.safetensors",
            "x/config.json",
        ];
        let (files, _) = selected("a/b", &names).unwrap();
        assert_eq!(files, names[..4]);
        let (files, _) = selected("a/b", &["config.json", "model.safetensors", "model.fp8.safetensors"]).unwrap();
        assert_eq!(files, ["config.json", "model.safetensors"]);
    }

    const QUANTIZATIONS: [&str; 6] = [
        "README.md",
        "b-Q4_K_M.gguf",
        "b-Q4_K_S.gguf",
        "mmproj-Q4_K_M.gguf",
        "Q8_0/b-Q8_0-00001-of-00002.gguf",
        "Q8_0/b-Q8_0-00002-of-00002.gguf",
    ];

    #[test]
    fn a_file_is_chosen_by_name_or_quantization() {
        let one = |name: &str| Ok((vec![name.to_owned()], Some(name.to_owned())));
        assert_eq!(selected("a/b:q4_k_m", &QUANTIZATIONS), one("b-Q4_K_M.gguf"));
        assert_eq!(selected("a/b:b-Q4_K_S.gguf", &QUANTIZATIONS), one("b-Q4_K_S.gguf"));
        let (files, open) = selected("a/b:Q8_0", &QUANTIZATIONS).unwrap();
        assert_eq!(files, ["Q8_0/b-Q8_0-00001-of-00002.gguf", "Q8_0/b-Q8_0-00002-of-00002.gguf"]);
        assert_eq!(open.unwrap(), "Q8_0/b-Q8_0-00001-of-00002.gguf");
        assert_eq!(selected("a/b", &["README.md", "only.gguf"]), one("only.gguf"));
    }

    #[test]
    fn what_is_not_clear_is_listed() {
        assert_eq!(
            selected("a/b", &QUANTIZATIONS).unwrap_err(),
            "`a/b` has several files: `b-Q4_K_M.gguf`, `b-Q4_K_S.gguf` and `Q8_0/b-Q8_0-00001-of-00002.gguf`"
        );
        assert_eq!(
            selected("a/b:Q5_0", &QUANTIZATIONS).unwrap_err(),
            "`a/b` has no file for `Q5_0`: it has `b-Q4_K_M.gguf`, `b-Q4_K_S.gguf` and \
             `Q8_0/b-Q8_0-00001-of-00002.gguf`"
        );
        assert_eq!(
            selected("a/b:b", &QUANTIZATIONS[..3]).unwrap_err(),
            "`b` fits, of `a/b`, several files: `b-Q4_K_M.gguf` and `b-Q4_K_S.gguf`"
        );
        let error = select(&ModelId::parse("a/b").unwrap(), &paths(&QUANTIZATIONS)).unwrap_err();
        assert_eq!(error.hint().unwrap(), "name one of them, as in `a/b:Q4_K_M`");
        assert_eq!(
            selected("a/b", &["README.md", "model.onnx"]).unwrap_err(),
            "`a/b` has no weights as `.safetensors` beside a `config.json`, nor as `.gguf`: it has `README.md` and \
             `model.onnx`"
        );
    }

    #[test]
    fn a_snapshot_without_all_its_weights_is_not_whole() {
        let whole = |id: &str, names: &[&str], parts: &[&str]| {
            let files = paths(names);
            let selection = select(&ModelId::parse(id).unwrap(), &files).unwrap();
            is_whole(&selection, &files, || Some(parts.iter().map(|part| (*part).to_owned()).collect()))
        };
        assert!(whole("a/b", &["config.json", "tokenizer.json", "model.safetensors"], &[]));
        assert!(!whole("a/b", &["config.json", "model.safetensors"], &[]));
        let names = ["config.json", "tokenizer.json", INDEX, "model-00001-of-00002.safetensors"];
        assert!(!whole("a/b", &names, &["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]));
        assert!(whole("a/b", &names, &["model-00001-of-00002.safetensors"]));
        assert!(!whole("a/b:x", &["x-00001-of-00002.gguf"], &[]));
        assert!(whole("a/b:x", &["x-00001-of-00002.gguf", "x-00002-of-00002.gguf"], &[]));
    }
}
