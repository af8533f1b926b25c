//! From what the user calls a model to its files: a path, a model of the hub, or the default.

use std::env;
use std::path::{Path, PathBuf};

use pleach_engine::{EngineError, EngineOptions, Environment, Located, local_models, locate};
use pleach_hub::{Check, Hub, HubError, HubOptions, ModelId};

use crate::args::{ModelFlags, NetworkFlags};
use crate::download::Download;
use crate::error::CliError;
use crate::names::closest;
use crate::progress::Progress;

/// Finds models, and downloads those that are not there unless it may not.
#[derive(Debug)]
pub(crate) struct Finder {
    offline: bool,
    default_model: Option<String>,
}

impl Finder {
    pub(crate) fn new(flags: &NetworkFlags) -> Self {
        Self { offline: flags.offline, default_model: flags.default_model.clone() }
    }

    /// The model of that name; without one, that of `PLEACH_MODEL`, then that of the settings, then the default.
    pub(crate) fn find(&self, model: Option<&str>, progress: &mut Progress) -> Result<Located, CliError> {
        if model.is_some() {
            return self.named(model, progress);
        }
        let by = |by, error| CliError::NamedBy { by, error: Box::new(error) };
        if let Some(model) = model_variable()? {
            return self.named(Some(&model), progress).map_err(|error| by("the variable `PLEACH_MODEL`", error));
        }
        match self.default_model.as_deref() {
            Some(model) => self.named(Some(model), progress).map_err(|error| by("the setting `model`", error)),
            None => self.named(None, progress),
        }
    }

    /// The model of that name, or the first where the default is looked for.
    fn named(&self, model: Option<&str>, progress: &mut Progress) -> Result<Located, CliError> {
        let Some(id) = model.and_then(hub_id) else {
            return self.local(model);
        };
        let hub = self.hub()?;
        let resolved = match hub.cached(&id) {
            Err(_) if !hub.options().offline => {
                Download::start(&id, progress).run(&hub, Check::Size).map(|pulled| pulled.model)
            }
            cached => cached.map_err(CliError::Hub),
        };
        let resolved = resolved.map_err(|error| self.with_close_name(error, model))?;
        Ok(Located { path: resolved.path, name: id.to_string() })
    }

    /// A model by its path, or by its name if it lies where the default is looked for; the default without either.
    fn local(&self, model: Option<&str>) -> Result<Located, CliError> {
        let error = match locate(model, &Environment::of_process()) {
            Err(error @ EngineError::NoSuchModel { .. }) => error,
            found => return found.map_err(CliError::from_engine),
        };
        model.and_then(by_name).ok_or_else(|| self.with_close_name(CliError::from_engine(error), model))
    }

    /// Where no model has that name, the error with the most similar one on this machine.
    fn with_close_name(&self, error: CliError, model: Option<&str>) -> CliError {
        let is_unknown = matches!(
            error,
            CliError::Engine(EngineError::NoSuchModel { .. })
                | CliError::Hub(HubError::NoSuchModel { .. } | HubError::Offline { .. } | HubError::NotCached { .. })
        );
        error.or_close(model.filter(|_| is_unknown).and_then(|model| self.close_name(model)))
    }

    fn close_name(&self, model: &str) -> Option<String> {
        let local = local_models(&Environment::of_process());
        let cached = self.hub().map(|hub| hub.cache().list()).unwrap_or_default();
        let cached: Vec<String> = cached.iter().map(|model| model.id.to_string()).collect();
        let names = local.iter().map(|model| model.name.as_str()).chain(cached.iter().map(String::as_str));
        // What is there under this very name needs no other one.
        if cached.iter().any(|name| name == model) { None } else { closest(model, names) }
    }

    /// The same for a draft model, which has no default.
    pub(crate) fn find_path(&self, path: &Path, progress: &mut Progress) -> Result<PathBuf, CliError> {
        match path.to_str().filter(|name| hub_id(name).is_some()) {
            Some(name) => Ok(self.find(Some(name), progress)?.path),
            None => Ok(path.to_owned()),
        }
    }

    /// How the flags ask the engine to be opened, with their draft model found.
    pub(crate) fn engine_options(
        &self,
        flags: &ModelFlags,
        progress: &mut Progress,
    ) -> Result<EngineOptions, CliError> {
        let mut options = flags.engine_options();
        options.draft_model = options.draft_model.map(|path| self.find_path(&path, progress)).transpose()?;
        Ok(options)
    }

    /// The hub that this process is told to use.
    pub(crate) fn hub(&self) -> Result<Hub, CliError> {
        let mut options = HubOptions::of_process().map_err(CliError::Hub)?;
        options.offline |= self.offline;
        Ok(Hub::new(options))
    }
}

/// The model of that name where the default is looked for.
pub(crate) fn by_name(name: &str) -> Option<Located> {
    let locals = local_models(&Environment::of_process());
    locals.into_iter().find(|local| local.name == name.trim_end_matches('/'))
}

/// The id, if the name is meant as one: it is no path that exists, has an owner, and does not look like a file.
pub(crate) fn hub_id(name: &str) -> Option<ModelId> {
    let looks_like_file = name.to_ascii_lowercase().ends_with(".gguf") && !name.contains(':');
    if !name.contains('/') || looks_like_file || Path::new(name).exists() {
        return None;
    }
    ModelId::parse(name).ok()
}

/// `PLEACH_MODEL`. What is no text names no model, and asking another one in its place would be wrong.
fn model_variable() -> Result<Option<String>, CliError> {
    match env::var("PLEACH_MODEL") {
        Ok(model) => Ok(Some(model).filter(|model| !model.is_empty())),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(found)) => Err(CliError::BadValue {
            name: "PLEACH_MODEL".to_owned(),
            found: format!("`{}`", found.to_string_lossy()),
            allowed: "UTF-8 text".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_told_from_ids() {
        for id in ["Qwen/Qwen3-0.6B", "a/b:Q4_K_M", "a/b:c.gguf", "a/b@v1", "https://huggingface.co/a/b", "hf.co/a/b"] {
            assert!(hub_id(id).is_some(), "{id}");
        }
        for path in ["./a", "/no/such/model", "models/x.gguf", "smollm", "a/b/c", "../src", "a\\b"] {
            assert!(hub_id(path).is_none(), "{path}");
        }
    }
}
