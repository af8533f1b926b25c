//! `pleach rm`: models out of the hub's local cache.

use std::path::Path;

use serde_json::json;

use super::pull::parse;
use crate::args::{NetworkFlags, RmArgs};
use crate::error::{CliError, End};
use crate::footer;
use crate::models::Finder;
use crate::output::{print_json, say};

/// Removes each model.
pub(crate) fn rm(args: &RmArgs) -> Result<End, CliError> {
    let hub = Finder::new(&NetworkFlags { offline: true, ..NetworkFlags::default() }).hub()?;
    for name in &args.models {
        // A path that exists may hold anything; only the cache's own folders are removed here.
        if Path::new(name).exists() && hub.cache().model(&parse(name)?.repo).is_none() {
            return Err(CliError::NotOfTheCache { path: name.clone() });
        }
        let removed = hub.cache().remove(&parse(name)?).map_err(CliError::Hub)?;
        if args.json {
            print_json(&json!({ "model": name, "freed_bytes": removed.bytes }))?;
        } else {
            say(&format!("removed {name}: {} freed", footer::size(removed.bytes)));
        }
    }
    Ok(End::Done)
}
