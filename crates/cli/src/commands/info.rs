//! `pleach info`: where a model is, what is in it, and what the hub has of it.

use std::path::Path;

use pleach_engine::{EngineOptions, Inspection, inspect};
use pleach_hub::{CachedModel, Hub, HubError, ModelId, RemoteModel, Resolved};
use serde_json::{Value, json};

use super::list::bytes_of;
use crate::args::InfoArgs;
use crate::description::{drafter_object, drafting, memory, parameters, quantization};
use crate::error::{CliError, End};
use crate::footer::{self, aligned};
use crate::models::{Finder, hub_id};
use crate::output::{print_json, print_text};
use crate::progress::Progress;
use crate::style::Style;

/// Everything that is known of a model of the hub.
struct Known {
    id: ModelId,
    cached: Option<CachedModel>,
    resolved: Result<Resolved, HubError>,
    /// What is in it, if it is there, or why it does not open.
    contents: Option<Result<Inspection, CliError>>,
    remote: Result<RemoteModel, HubError>,
}

/// Prints what is known of the model.
pub(crate) fn info(args: &InfoArgs) -> Result<End, CliError> {
    let finder = Finder::new(&args.network);
    let Some(id) = hub_id(&args.model) else {
        local(&finder, args)?;
        return Ok(End::Done);
    };
    let known = Known::new(id, &finder.hub()?)?;
    if args.json { print_json(&known.object()) } else { print_text(&known.text()) }?;
    Ok(End::Done)
}

fn local(finder: &Finder, args: &InfoArgs) -> Result<(), CliError> {
    let located = finder.find(Some(&args.model), &mut Progress::new(Style::of_stderr(), true))?;
    let (path, bytes) = (located.path.display().to_string(), bytes_of(&located.path));
    let contents = look_into(&located.path)?;
    if args.json {
        return print_json(&json!({
            "model": located.name, "path": path, "size_bytes": bytes, "contents": contents_object(&contents),
            "cached": null, "hub": null,
        }));
    }
    let mut lines =
        vec![aligned("model", &located.name), aligned("path", &path), aligned("size", &footer::size(bytes))];
    lines.extend(contents_lines(&contents));
    lines.push(inspect_note(&path));
    print_text(&(lines.join("\n") + "\n"))
}

fn look_into(path: &Path) -> Result<Inspection, CliError> {
    inspect(path, &EngineOptions::default()).map_err(CliError::from_engine)
}

/// Why a model does not open: that it does not is said, the causes say why.
fn reason(error: &CliError) -> String {
    let causes = error.causes();
    if causes.is_empty() { error.to_string() } else { causes.join(": ") }
}

fn contents_lines(found: &Inspection) -> Vec<String> {
    let info = &found.info;
    let mut lines = vec![
        aligned("architecture", &format!("{}, {}", info.architecture, parameters(info.num_parameters))),
        aligned("quantization", &quantization(found)),
    ];
    lines.extend(memory(found));
    lines.extend(drafting(found));
    lines
}

fn contents_object(found: &Inspection) -> Value {
    let info = &found.info;
    json!({
        "architecture": info.architecture,
        "num_parameters": info.num_parameters,
        "quantization": info.quantization,
        "bits_per_weight": found.bits_per_weight(),
        "context": info.context,
        "memory_bytes": found.total_bytes(info.context),
        "largest_context": info.largest_context,
        "max_context": info.max_context,
        "drafter": found.drafter.as_ref().map(drafter_object),
    })
}

fn inspect_note(name: &str) -> String {
    format!("\n`pleach inspect {name}` says more about what is in it and what it takes.")
}

impl Known {
    /// # Errors
    /// What the hub says, if the cache has nothing either.
    fn new(id: ModelId, hub: &Hub) -> Result<Self, CliError> {
        let cached = hub.cache().model(&id.repo);
        let resolved = hub.cached(&id);
        let contents = resolved.as_ref().ok().map(|resolved| look_into(&resolved.path));
        let remote = hub.look(&id, &|_| {});
        match remote {
            Err(error) if cached.is_none() => Err(CliError::Hub(error)),
            remote => Ok(Self { id, cached, resolved, contents, remote }),
        }
    }

    fn text(&self) -> String {
        let mut lines = vec![aligned("model", &self.id.to_string())];
        match (&self.resolved, &self.cached) {
            (Ok(resolved), _) => {
                lines.push(aligned("path", &resolved.path.display().to_string()));
                lines.push(aligned("commit", &resolved.commit));
                lines.extend(match &self.contents {
                    Some(Ok(found)) => contents_lines(found),
                    Some(Err(error)) => vec![aligned("does not open", &reason(error))],
                    None => Vec::new(),
                });
            }
            (Err(HubError::SeveralFiles { .. }), Some(_)) => lines.push(aligned("cache", "has several files of it")),
            (Err(_), Some(_)) => lines.push(aligned("cache", "has a part of it, which does not open")),
            (Err(_), None) => lines.push(aligned("cache", "does not have it")),
        }
        if let Some(cached) = &self.cached {
            lines.push(aligned("on this machine", &footer::size(cached.size_bytes)));
            let current = self.resolved.as_ref().map(|resolved| resolved.commit.as_str()).unwrap_or_default();
            let snapshots = &cached.snapshots;
            for file in
                snapshots.iter().filter(|it| it.commit == current || snapshots.len() == 1).flat_map(|it| &it.files)
            {
                let size = file.size_bytes.map_or_else(|| "gone".to_owned(), footer::size);
                lines.push(format!("  {:<48} {size}", file.path));
            }
        }
        lines.extend(self.remote_lines());
        if matches!(self.contents, Some(Ok(_))) {
            lines.push(inspect_note(&self.id.to_string()));
        }
        lines.join("\n") + "\n"
    }

    fn remote_lines(&self) -> Vec<String> {
        let remote = match &self.remote {
            Ok(remote) => remote,
            Err(HubError::Offline { .. }) => return vec![aligned("hub", "not asked")],
            Err(error) => return vec![aligned("hub", &format!("not available: {error}"))],
        };
        let is_current = self.resolved.as_ref().is_ok_and(|resolved| resolved.commit == remote.commit);
        let news = match (&self.resolved, is_current) {
            (Ok(_), true) => "has the same commit".to_owned(),
            (Ok(_), false) => format!("has a newer one: `pleach pull {}` fetches it", self.id),
            (Err(_), _) if remote.needed.is_empty() => "has several files: name one after a `:`".to_owned(),
            (Err(_), _) => format!("`pleach pull {}` fetches {}", self.id, footer::size(needed_bytes(remote))),
        };
        let mut lines = vec![aligned("hub", &news)];
        if self.resolved.is_err() {
            let shown = |file: &&(pleach_hub::RepoPath, u64)| match remote.needed.as_slice() {
                [] => file.0.as_str().ends_with(".gguf"),
                needed => needed.contains(&file.0),
            };
            let files = remote.files.iter().filter(shown);
            lines.extend(files.map(|(path, size)| format!("  {path:<48} {}", footer::size(*size))));
        }
        lines
    }

    fn object(&self) -> Value {
        let cached = self.cached.as_ref().map(|cached| {
            json!({
                "folder": cached.path.display().to_string(),
                "size_bytes": cached.size_bytes,
                "unfinished_bytes": cached.incomplete_bytes,
                "broken_files": cached.broken(),
                "snapshots": cached.snapshots.iter().map(|snapshot| json!({
                    "commit": snapshot.commit,
                    "refs": snapshot.refs,
                    "files": snapshot.files.iter().map(|file| json!({
                        "name": file.path.as_str(), "size_bytes": file.size_bytes,
                    })).collect::<Value>(),
                })).collect::<Value>(),
            })
        });
        let hub = self.remote.as_ref().ok().map(|remote| {
            let files = remote.files.iter();
            json!({
                "commit": remote.commit,
                "files": files.map(|(path, size)| json!({ "name": path.as_str(), "size_bytes": size })).collect::<Value>(),
                "needed": remote.needed.iter().map(|path| path.as_str()).collect::<Vec<_>>(),
            })
        });
        json!({
            "model": self.id.to_string(),
            "path": self.resolved.as_ref().ok().map(|resolved| resolved.path.display().to_string()),
            "size_bytes": self.cached.as_ref().map(|cached| cached.size_bytes),
            "contents": self.contents.as_ref().and_then(|contents| contents.as_ref().ok()).map(contents_object),
            "cached": cached,
            "hub": hub,
        })
    }
}

fn needed_bytes(remote: &RemoteModel) -> u64 {
    remote.files.iter().filter(|(path, _)| remote.needed.contains(path)).map(|(_, size)| size).sum()
}
