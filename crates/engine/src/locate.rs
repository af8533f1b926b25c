//! From what a user calls a model to its path.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use pleach_checkpoint::DrafterLayout;

use crate::EngineError;

/// Where a model was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// What [`Engine::open`](crate::Engine::open) takes.
    pub path: PathBuf,
    /// What people call it: the hub id, or the name of the file or folder.
    pub name: String,
}

/// What the lookup knows of the process it runs in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// The running program.
    pub executable: Option<PathBuf>,
    /// The user's own folder, `HOME`.
    pub home: Option<PathBuf>,
    /// `XDG_CACHE_HOME`.
    pub cache_home: Option<PathBuf>,
    /// `HF_HOME`.
    pub hf_home: Option<PathBuf>,
    /// `HF_HUB_CACHE`.
    pub hf_hub_cache: Option<PathBuf>,
}

impl Environment {
    /// That of this process. Empty variables count as missing.
    pub fn of_process() -> Self {
        let path = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self {
            executable: env::current_exe().and_then(fs::canonicalize).ok(),
            home: path("HOME").or_else(|| path("USERPROFILE")),
            cache_home: path("XDG_CACHE_HOME"),
            hf_home: path("HF_HOME"),
            hf_hub_cache: path("HF_HUB_CACHE"),
        }
    }

    /// Folders that may hold a default model, in the order of the search: beside the program, in the checkout that it
    /// was built in, in its installation, in the user's cache.
    pub fn model_dirs(&self) -> Vec<PathBuf> {
        let mut dirs = Vec::new();
        if let Some(executable) = &self.executable {
            dirs.extend(executable.parent().map(|dir| dir.join("models")));
            let target = executable.ancestors().find(|dir| dir.file_name() == Some(OsStr::new("target")));
            dirs.extend(target.and_then(Path::parent).map(|checkout| checkout.join("models")));
            let prefix = executable.parent().and_then(Path::parent);
            dirs.extend(prefix.map(|prefix| prefix.join("share/pleach/models")));
        }
        dirs.extend(self.user_cache().map(|cache| cache.join("pleach/models")));
        dirs
    }

    /// The local cache of the Hugging Face hub.
    pub fn hub_cache(&self) -> Option<PathBuf> {
        let home = || self.hf_home.clone().or_else(|| Some(self.user_cache()?.join("huggingface")));
        self.hf_hub_cache.clone().or_else(|| Some(home()?.join("hub")))
    }

    fn user_cache(&self) -> Option<PathBuf> {
        self.cache_home.clone().or_else(|| Some(self.home.as_ref()?.join(".cache")))
    }
}

/// Finds a model by what a user calls it; the network is never asked.
///
/// - A path that exists: a folder or a `.gguf` file.
/// - `organization/name`, optionally with `:file` or `:quantization`: a model in the Hugging Face hub's local cache.
/// - Nothing: the first model in [`Environment::model_dirs`]. Within a folder the bundled `pleach-mini` comes first, then
///   SmolLM2-135M, then the order of names.
///
/// # Errors
/// [`EngineError::NoDefaultModel`], [`EngineError::NoSuchModel`], [`EngineError::NoSuchFile`] and
/// [`EngineError::SeveralFiles`] say where was looked and what is there.
pub fn locate(model: Option<&str>, environment: &Environment) -> Result<Located, EngineError> {
    let Some(model) = model else { return default_model(environment) };
    let path = Path::new(model);
    if path.exists() {
        return Ok(Located { path: path.to_owned(), name: name_of(path) });
    }
    let no_such_model = |places| EngineError::NoSuchModel { model: model.to_owned(), places };
    let id = HubId::parse(model).ok_or_else(|| no_such_model(Vec::new()))?;
    let cache = environment.hub_cache().ok_or_else(|| no_such_model(Vec::new()))?;
    let repository = cache.join(format!("models--{}--{}", id.organization, id.name));
    let snapshot = snapshot(&repository).ok_or_else(|| no_such_model(vec![repository.clone()]))?;
    let path = match id.file {
        Some(wanted) => hub_file(&snapshot, wanted)?,
        None => snapshot,
    };
    Ok(Located { path, name: model.to_owned() })
}

/// What people call the model at a path. In the hub's cache that is its id, since the folder is named by a hash.
pub(crate) fn name_of(path: &Path) -> String {
    let components: Vec<_> = path.iter().map(OsStr::to_string_lossy).collect();
    let in_cache = components.iter().find_map(|component| component.strip_prefix("models--")?.split_once("--"));
    let is_file = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    match in_cache {
        Some((organization, name)) if !is_file => format!("{organization}/{name}"),
        _ => file_name(path).trim_end_matches(".gguf").to_owned(),
    }
}

fn default_model(environment: &Environment) -> Result<Located, EngineError> {
    let places = environment.model_dirs();
    let found = places.iter().find_map(|dir| models_in(dir).into_iter().next());
    let path = found.ok_or(EngineError::NoDefaultModel { places })?;
    Ok(Located { name: name_of(&path), path })
}

/// The models of a folder, best default first.
fn models_in(dir: &Path) -> Vec<PathBuf> {
    let mut models: Vec<PathBuf> = entries(dir).into_iter().filter(|path| is_model(path)).collect();
    models.sort_by_key(|path| {
        let name = file_name(path);
        let rank = match () {
            () if name.starts_with("pleach-mini") => 0,
            () if name == "SmolLM2-135M-Instruct.Q4_1.gguf" => 1,
            () => 2,
        };
        (rank, name)
    });
    models
}

/// Drafters lie beside models, and are none.
fn is_model(path: &Path) -> bool {
    (path.join("config.json").is_file() && DrafterLayout::of(path).is_none())
        || (is_gguf(path) && path.is_file() && is_first_part(&file_name(path)))
}

/// `organization/name`, and what follows a colon.
struct HubId<'a> {
    organization: &'a str,
    name: &'a str,
    file: Option<&'a str>,
}

impl<'a> HubId<'a> {
    /// `None` where the text cannot be an id. Ids become folder names, so nothing that could leave the cache passes.
    fn parse(text: &'a str) -> Option<Self> {
        let (id, file) = match text.split_once(':') {
            Some((id, file)) => (id, Some(file)),
            None => (text, None),
        };
        let (organization, name) = id.split_once('/')?;
        let is_plain = |part: &str| {
            !part.is_empty()
                && !part.starts_with('.')
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        (is_plain(organization) && is_plain(name)).then_some(Self { organization, name, file })
    }
}

/// The folder of a cached repository's `main` revision, or of its only revision.
fn snapshot(repository: &Path) -> Option<PathBuf> {
    let snapshots = repository.join("snapshots");
    let main = fs::read_to_string(repository.join("refs/main")).unwrap_or_default();
    let main = main.trim();
    if !main.is_empty() && main.bytes().all(|byte| byte.is_ascii_alphanumeric()) && snapshots.join(main).is_dir() {
        return Some(snapshots.join(main));
    }
    match entries(&snapshots).as_slice() {
        [only] if only.is_dir() => Some(only.clone()),
        _ => None,
    }
}

/// The `.gguf` file of a snapshot that is called `wanted` or has it in its name, as in `Q4_K_M`.
fn hub_file(snapshot: &Path, wanted: &str) -> Result<PathBuf, EngineError> {
    let mut files = entries(snapshot);
    // Parts of one quantization often have a folder of their own.
    let inner: Vec<PathBuf> = files.iter().filter(|path| path.is_dir()).flat_map(|dir| entries(dir)).collect();
    files.extend(inner);
    files.retain(|path| is_gguf(path) && is_first_part(&file_name(path)));
    files.sort();

    let names = |files: &[&PathBuf]| files.iter().map(|path| file_name(path)).collect();
    if let Some(file) = files.iter().find(|path| file_name(path) == wanted) {
        return Ok(file.clone());
    }
    let fitting: Vec<&PathBuf> = files.iter().filter(|path| has_word(&file_name(path), wanted)).collect();
    match fitting.as_slice() {
        [only] => Ok((*only).clone()),
        [] => Err(EngineError::NoSuchFile {
            repository: snapshot.to_owned(),
            wanted: wanted.to_owned(),
            found: names(&files.iter().collect::<Vec<_>>()),
        }),
        several => Err(EngineError::SeveralFiles { wanted: wanted.to_owned(), found: names(several) }),
    }
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

/// Whether a `.gguf` file is whole or the first of its parts, named `-00001-of-00003`.
fn is_first_part(name: &str) -> bool {
    let stem = name.trim_end_matches(".gguf");
    let part = stem.rsplit_once("-of-").and_then(|(before, count)| Some((before.rsplit_once('-')?.1, count)));
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    part.is_none_or(|(part, count)| !is_number(part) || !is_number(count) || part == "00001")
}

fn is_gguf(path: &Path) -> bool {
    let is_projector = file_name(path).starts_with("mmproj");
    !is_projector && path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// What a folder holds; nothing if it cannot be read.
fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn touch(root: &TempDir, files: &[&str]) {
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "main").unwrap();
        }
    }

    /// A program in `target/debug` of a checkout, with a cache beside it.
    fn environment(root: &TempDir) -> Environment {
        Environment {
            executable: Some(root.path().join("checkout/target/debug/pleach")),
            home: Some(root.path().join("home")),
            ..Environment::default()
        }
    }

    fn default_of(root: &TempDir) -> String {
        let found = locate(None, &environment(root)).unwrap();
        found.path.strip_prefix(root.path()).unwrap().display().to_string()
    }

    #[test]
    fn the_default_is_the_best_of_the_first_folder_with_a_model() {
        let root = TempDir::new().unwrap();
        touch(&root, &["home/.cache/pleach/models/zebra.gguf"]);
        assert_eq!(default_of(&root), "home/.cache/pleach/models/zebra.gguf");
        touch(&root, &["home/.cache/pleach/models/ape/config.json", "home/.cache/pleach/models/notes.txt"]);
        assert_eq!(default_of(&root), "home/.cache/pleach/models/ape");
        touch(&root, &["home/.cache/pleach/models/SmolLM2-135M-Instruct.Q4_1.gguf"]);
        assert_eq!(default_of(&root), "home/.cache/pleach/models/SmolLM2-135M-Instruct.Q4_1.gguf");
        touch(&root, &["home/.cache/pleach/models/pleach-mini-Q4_K_M.gguf"]);
        assert_eq!(default_of(&root), "home/.cache/pleach/models/pleach-mini-Q4_K_M.gguf");
        touch(&root, &["checkout/models/other.gguf"]);
        assert_eq!(default_of(&root), "checkout/models/other.gguf");
        touch(&root, &["checkout/target/debug/models/nearest.gguf"]);
        assert_eq!(default_of(&root), "checkout/target/debug/models/nearest.gguf");
    }

    #[test]
    fn a_drafter_beside_the_models_is_not_the_default() {
        let root = TempDir::new().unwrap();
        touch(&root, &["checkout/models/drafter/config.json", "home/.cache/pleach/models/zebra.gguf"]);
        let config = r#"{"architectures": ["DFlashDraftModel"], "dflash_config": {"target_layer_ids": [0]}}"#;
        fs::write(root.path().join("checkout/models/drafter/config.json"), config).unwrap();
        assert_eq!(default_of(&root), "home/.cache/pleach/models/zebra.gguf");
    }

    #[test]
    fn without_any_model_the_places_are_named() {
        let root = TempDir::new().unwrap();
        let places = [
            "checkout/target/debug/models",
            "checkout/models",
            "checkout/target/share/pleach/models",
            "home/.cache/pleach/models",
        ]
        .map(|place| format!("`{}`", root.path().join(place).display()));
        assert_eq!(
            locate(None, &environment(&root)).unwrap_err().to_string(),
            format!("no model was named, and there is none in {} and {}", places[..3].join(", "), places[3])
        );
    }

    #[test]
    fn a_path_is_taken_as_it_is() {
        let root = TempDir::new().unwrap();
        touch(&root, &["some/model.gguf"]);
        let path = root.path().join("some/model.gguf");
        let found = locate(path.to_str(), &Environment::default()).unwrap();
        assert_eq!(found, Located { path, name: "model".to_owned() });
    }

    #[test]
    fn a_hub_id_is_found_in_the_cache() {
        let root = TempDir::new().unwrap();
        let repository = "home/.cache/huggingface/hub/models--Qwen--Qwen3-0.6B";
        touch(&root, &[&format!("{repository}/snapshots/main/config.json"), &format!("{repository}/snapshots/old/x")]);
        touch(&root, &[&format!("{repository}/refs/main")]);
        let found = locate(Some("Qwen/Qwen3-0.6B"), &environment(&root)).unwrap();
        assert_eq!(found.path, root.path().join(repository).join("snapshots/main"));
        assert_eq!(found.name, "Qwen/Qwen3-0.6B");
        assert_eq!(name_of(&found.path), "Qwen/Qwen3-0.6B");
    }

    #[test]
    fn the_cache_may_be_elsewhere() {
        let hub = |environment: Environment| environment.hub_cache().unwrap();
        let home = Some(PathBuf::from("home"));
        let all = Environment {
            home: home.clone(),
            cache_home: Some("cache".into()),
            hf_home: Some("hf".into()),
            hf_hub_cache: Some("hub".into()),
            executable: None,
        };
        assert_eq!(hub(all.clone()), Path::new("hub"));
        assert_eq!(hub(Environment { hf_hub_cache: None, ..all.clone() }), Path::new("hf/hub"));
        let cached = Environment { hf_hub_cache: None, hf_home: None, ..all };
        assert_eq!(hub(cached.clone()), Path::new("cache/huggingface/hub"));
        assert_eq!(hub(Environment { cache_home: None, ..cached }), Path::new("home/.cache/huggingface/hub"));
    }

    #[test]
    fn a_file_of_a_repository_is_found_by_name_or_quantization() {
        let root = TempDir::new().unwrap();
        let snapshot = "home/.cache/huggingface/hub/models--a--b-GGUF/snapshots/0123";
        for file in ["b-Q4_K_M.gguf", "b-Q4_K_S.gguf", "Q8_0/b-Q8_0-00001-of-00002.gguf", "mmproj-Q4_K_M.gguf"] {
            touch(&root, &[&format!("{snapshot}/{file}")]);
        }
        touch(&root, &[&format!("{snapshot}/Q8_0/b-Q8_0-00002-of-00002.gguf")]);
        let find = |model: &str| locate(Some(model), &environment(&root)).map(|found| file_name(&found.path));
        assert_eq!(find("a/b-GGUF:q4_k_m").unwrap(), "b-Q4_K_M.gguf");
        assert_eq!(find("a/b-GGUF:b-Q4_K_S.gguf").unwrap(), "b-Q4_K_S.gguf");
        assert_eq!(find("a/b-GGUF:Q8_0").unwrap(), "b-Q8_0-00001-of-00002.gguf");
        assert_eq!(
            find("a/b-GGUF:b").unwrap_err().to_string(),
            "`b` fits several files: `b-Q8_0-00001-of-00002.gguf`, `b-Q4_K_M.gguf` and `b-Q4_K_S.gguf`; \
             give one of these names"
        );
        let error = find("a/b-GGUF:Q5_0").unwrap_err().to_string();
        assert!(
            error.ends_with(
                "has no file for `Q5_0`: it has `b-Q8_0-00001-of-00002.gguf`, `b-Q4_K_M.gguf` and `b-Q4_K_S.gguf`"
            ),
            "{error}"
        );
    }

    #[test]
    fn names_cannot_leave_the_cache() {
        for name in ["../secret", "a/..", "a/b/c", "/", "a/", "a\\b/c", "smollm"] {
            assert!(HubId::parse(name).is_none(), "{name}");
        }
        let root = TempDir::new().unwrap();
        let error = locate(Some("smollm"), &environment(&root)).unwrap_err();
        assert_eq!(error.to_string(), "there is no model `smollm`: it is no path and no hub id");
    }
}
