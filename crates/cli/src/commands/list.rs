//! `pleach list`: the models that are on this machine.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use pleach_engine::{Environment, Located, ModelSummary, local_models, summarize};
use pleach_hub::{CachedModel, Hub, ModelId};
use serde_json::{Value, json};

use crate::args::{ListArgs, NetworkFlags};
use crate::description::{bits, short_parameters};
use crate::error::{CliError, End};
use crate::footer;
use crate::models::Finder;
use crate::output::{one_line, print_json, print_text, say};
use crate::table::Table;

/// A model that `--model` takes, or what is left of one.
struct Row {
    name: String,
    path: String,
    bytes: u64,
    /// What its files say; `None` if they do not open.
    summary: Option<ModelSummary>,
    state: String,
    modified: Option<SystemTime>,
    is_default: bool,
}

/// Prints all models.
pub(crate) fn list(args: &ListArgs) -> Result<End, CliError> {
    let hub = Finder::new(&NetworkFlags { offline: true, ..NetworkFlags::default() }).hub();
    let local = local_models(&Environment::of_process());
    let mut rows: Vec<Row> = local.iter().enumerate().map(|(place, model)| local_row(model, place == 0)).collect();
    match hub {
        Ok(hub) => rows.extend(hub.cache().list().iter().flat_map(|model| cached_rows(model, &hub))),
        // What is found elsewhere is listed all the same.
        Err(error) if rows.is_empty() => return Err(error),
        Err(error) => say(&format!("warning: {}", error.chain())),
    }
    if args.json {
        print_json(&rows.iter().map(object).collect::<Value>())?;
    } else if rows.is_empty() {
        say("there is no model on this machine: `pleach pull org/name` downloads one");
    } else {
        print_text(&table(&rows))?;
    }
    Ok(End::Done)
}

fn local_row(model: &Located, is_default: bool) -> Row {
    let summary = summarize(&model.path).ok();
    Row {
        state: state(&summary),
        summary,
        name: model.path.display().to_string(),
        path: model.path.display().to_string(),
        bytes: bytes_of(&model.path),
        modified: fs::metadata(&model.path).and_then(|found| found.modified()).ok(),
        is_default,
    }
}

/// A row for everything of the model that opens; for a model of which nothing does, one that says why.
fn cached_rows(model: &CachedModel, hub: &Hub) -> Vec<Row> {
    let row = |name, bytes, summary, state: &str| Row {
        name,
        path: model.path.display().to_string(),
        bytes,
        summary,
        state: state.to_owned(),
        modified: model.modified,
        is_default: false,
    };
    let ready = model.ready(hub);
    if ready.is_empty() {
        let state = match (model.broken(), model.incomplete_bytes) {
            (1.., _) => "broken: files are gone",
            (0, 1..) => "unfinished download",
            (0, 0) => "incomplete",
        };
        return vec![row(model.id.to_string(), model.size_bytes, None, state)];
    }
    let ready_row = |(id, bytes): (ModelId, u64)| {
        let summary = hub.cached(&id).ok().and_then(|resolved| summarize(&resolved.path).ok());
        let state = state(&summary);
        row(id.to_string(), bytes, summary, &state)
    };
    ready.into_iter().map(ready_row).collect()
}

/// All files of a model may be there and still be of a kind that this version does not open.
fn state(summary: &Option<ModelSummary>) -> String {
    if summary.is_some() { "ready".to_owned() } else { "does not open: `pleach info` says why".to_owned() }
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::ending_with_words(&["MODEL", "SIZE", "PARAMETERS", "BITS", "CONTEXT", "CHANGED", "STATE"]);
    for row in rows {
        let state = if row.is_default { format!("{}, the default", row.state) } else { row.state.clone() };
        let changed = row.modified.and_then(|time| time.elapsed().ok()).map_or_else(String::new, ago);
        let [parameters, bits, context] = row.summary.as_ref().map_or_else(Default::default, |summary| {
            let context = summary.max_context.to_string();
            [short_parameters(summary.num_parameters), bits(summary.bits_per_weight), context]
        });
        table.push(vec![one_line(&row.name), footer::size(row.bytes), parameters, bits, context, changed, state]);
    }
    table.text()
}

fn object(row: &Row) -> Value {
    let modified = row.modified.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    json!({
        "model": row.name,
        "path": row.path,
        "size_bytes": row.bytes,
        "architecture": row.summary.as_ref().map(|summary| summary.architecture),
        "num_parameters": row.summary.as_ref().map(|summary| summary.num_parameters),
        "quantization": row.summary.as_ref().map(|summary| &summary.quantization),
        "bits_per_weight": row.summary.as_ref().map(|summary| summary.bits_per_weight),
        "max_context": row.summary.as_ref().map(|summary| summary.max_context),
        "state": row.state,
        "default": row.is_default,
        "modified_unix_s": modified.map(|time| time.as_secs()),
    })
}

/// Bytes of a file, or of the files of a folder.
pub(super) fn bytes_of(path: &Path) -> u64 {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            let files = fs::read_dir(path).into_iter().flatten().flatten();
            files.filter_map(|file| fs::metadata(file.path()).ok()).filter(|it| it.is_file()).map(|it| it.len()).sum()
        }
        Ok(found) => found.len(),
        Err(_) => 0,
    }
}

/// The largest unit that fits.
fn ago(time: Duration) -> String {
    const UNITS: [(u64, &str); 3] = [(86_400, "day"), (3_600, "hour"), (60, "minute")];
    let seconds = time.as_secs();
    match UNITS.iter().find(|(unit, _)| seconds >= *unit) {
        Some((unit, name)) if seconds / unit == 1 => format!("1 {name} ago"),
        Some((unit, name)) => format!("{} {name}s ago", seconds / unit),
        None => "just now".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_one_unit() {
        let ago = |seconds| super::ago(Duration::from_secs(seconds));
        assert_eq!(
            [ago(5), ago(60), ago(3 * 3600 + 5), ago(86_400)],
            ["just now", "1 minute ago", "3 hours ago", "1 day ago"]
        );
    }
}
