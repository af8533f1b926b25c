//! `pleach rm`: models out of the hub's local cache.

use std::path::{self, Path};

use serde_json::json;

use super::pull::parse;
use crate::args::{NetworkFlags, RmArgs};
use crate::error::{CliError, End};
use crate::footer;
use crate::models::{Finder, by_name};
use crate::output::{print_json, say};

/// Removes each model.
pub(crate) fn rm(args: &RmArgs) -> Result<End, CliError> {
    let hub = Finder::new(&NetworkFlags { offline: true, ..NetworkFlags::default() }).hub()?;
    for name in &args.models {
        let id = parse(name);
        // A path that exists may hold anything; only the cache's own folders are removed here.
        if id.as_ref().map_or(true, |id| hub.cache().model(&id.repo).is_none())
            && let Some(path) = elsewhere(name)
        {
            return Err(CliError::NotOfTheCache { name: name.clone(), path });
        }
        let removed = hub.cache().remove(&id?).map_err(CliError::Hub)?;
        if args.json {
            print_json(&json!({ "model": name, "freed_bytes": removed.bytes }))?;
        } else {
            say(&format!("removed {name}: {} freed", footer::size(removed.bytes)));
        }
    }
    Ok(End::Done)
}

/// Where the model is that lies outside the cache.
fn elsewhere(name: &str) -> Option<String> {
    let path = Path::new(name);
    let path = if path.exists() { path::absolute(path).ok()? } else { by_name(name)?.path };
    Some(path.display().to_string())
}
