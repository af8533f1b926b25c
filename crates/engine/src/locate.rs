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
    /// The checkout that the program was built in.
    pub checkout: Option<PathBuf>,
    /// The user's own folder, `HOME`.
    pub home: Option<PathBuf>,
    /// `XDG_CACHE_HOME`.
    pub cache_home: Option<PathBuf>,
}

impl Environment {
    /// That of this process. Empty variables count as missing.
    pub fn of_process() -> Self {
        let path = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self {
            executable: env::current_exe().and_then(fs::canonicalize).ok(),
            checkout: Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map(Path::to_owned),
            home: path("HOME").or_else(|| path("USERPROFILE")),
            cache_home: path("XDG_CACHE_HOME"),
        }
    }

    /// Folders that may hold a default model, in the order of the search: beside the program, in the checkout that it
    /// was built in, in its installation, in the user's cache.
    pub fn model_dirs(&self) -> Vec<PathBuf> {
        let bin = self.executable.as_deref().and_then(Path::parent);
        let dirs = [
            bin.map(|bin| bin.join("models")),
            self.checkout.as_ref().map(|checkout| checkout.join("models")),
            bin.and_then(Path::parent).map(|prefix| prefix.join("share/pleach/models")),
            self.user_cache().map(|cache| cache.join("pleach/models")),
        ];
        dirs.into_iter().flatten().collect()
    }

    fn user_cache(&self) -> Option<PathBuf> {
        self.cache_home.clone().or_else(|| Some(self.home.as_ref()?.join(".cache")))
    }
}

/// Finds a model by its path; the network is never asked.
///
/// - A path that exists: a folder or a `.gguf` file.
/// - Nothing: the first model in [`Environment::model_dirs`]. Within a folder the bundled `pleach-mini` comes first, then
///   SmolLM2-135M, then the order of names.
///
/// # Errors
/// [`EngineError::NoDefaultModel`] says where was looked, [`EngineError::NoSuchModel`] what does not exist.
pub fn locate(model: Option<&str>, environment: &Environment) -> Result<Located, EngineError> {
    let Some(model) = model else { return default_model(environment) };
    let path = Path::new(model);
    match path.exists() {
        true => Ok(Located { path: path.to_owned(), name: name_of(path) }),
        false => Err(EngineError::NoSuchModel { model: model.to_owned() }),
    }
}

/// All models where a default is looked for, the default first.
pub fn local_models(environment: &Environment) -> Vec<Located> {
    let dirs = environment.model_dirs();
    let found = dirs.iter().flat_map(|dir| models_in(dir));
    let mut models: Vec<Located> = Vec::new();
    for path in found {
        // A program in its checkout meets the same folder by two ways.
        if models.iter().all(|model| model.path != path) {
            models.push(Located { name: name_of(&path), path });
        }
    }
    models
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
            checkout: Some(root.path().join("checkout")),
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
    fn models_are_listed_with_the_default_first() {
        let root = TempDir::new().unwrap();
        touch(&root, &["home/.cache/pleach/models/zebra.gguf", "home/.cache/pleach/models/ape.gguf"]);
        touch(&root, &["checkout/models/other.gguf"]);
        let names: Vec<_> = local_models(&environment(&root)).into_iter().map(|model| model.name).collect();
        assert_eq!(names, ["other", "ape", "zebra"]);
    }

    #[test]
    fn a_model_in_the_hubs_cache_has_its_id_as_name() {
        assert_eq!(name_of(Path::new("/c/models--Qwen--Qwen3-0.6B/snapshots/0123")), "Qwen/Qwen3-0.6B");
        assert_eq!(name_of(Path::new("/c/models--a--b/snapshots/0123/b-Q4_0.gguf")), "b-Q4_0");
    }

    #[test]
    fn a_name_that_is_no_path_is_refused() {
        let error = locate(Some("smollm"), &Environment::default()).unwrap_err();
        assert_eq!(error.to_string(), "there is no model `smollm`: no file or folder has this name");
    }
}
