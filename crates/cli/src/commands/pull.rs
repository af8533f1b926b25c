//! `pleach pull`: models from the hub into its local cache.

use pleach_hub::{Check, ModelId, Pulled};
use serde_json::json;

use crate::args::PullArgs;
use crate::download::Download;
use crate::error::{CliError, End};
use crate::footer;
use crate::interrupt::Interrupts;
use crate::models::Finder;
use crate::output::{print_json, print_line, say};
use crate::progress::Progress;
use crate::style::Style;

/// Downloads each model, and prints where it is.
pub(crate) fn pull(args: &PullArgs) -> Result<End, CliError> {
    let ids: Vec<ModelId> = args.models.iter().map(|name| parse(name)).collect::<Result<_, _>>()?;
    let hub = Finder::new(&args.network).hub()?;
    // Nothing partial is ever taken for whole, so a download may end anywhere.
    let _interrupts = Interrupts::listen()?;
    for id in &ids {
        let mut progress = Progress::new(Style::of_stderr(), args.quiet);
        let download = Download::start(id, &mut progress);
        let pulled = download.run(&hub, if args.verify { Check::Bytes } else { Check::Size })?;
        if !args.quiet {
            say(&summary(id, &pulled));
        }
        if args.json {
            print_json(&object(id, &pulled))?;
        } else {
            print_line(&pulled.model.path.display().to_string())?;
        }
    }
    Ok(End::Done)
}

/// A model by its name on the hub; a path is no such name.
pub(super) fn parse(name: &str) -> Result<ModelId, CliError> {
    ModelId::parse(name).map_err(CliError::Hub)
}

fn summary(id: &ModelId, pulled: &Pulled) -> String {
    let files = if pulled.files == 1 { "1 file".to_owned() } else { format!("{} files", pulled.files) };
    let what = match pulled.new_bytes {
        0 => "was there already".to_owned(),
        new if new == pulled.total_bytes => "downloaded and verified".to_owned(),
        new => format!("{} downloaded and verified", footer::size(new)),
    };
    format!("{id}: {files}, {}, {what}", footer::size(pulled.total_bytes))
}

fn object(id: &ModelId, pulled: &Pulled) -> serde_json::Value {
    json!({
        "model": id.to_string(),
        "path": pulled.model.path.display().to_string(),
        "commit": pulled.model.commit,
        "files": pulled.files,
        "total_bytes": pulled.total_bytes,
        "new_bytes": pulled.new_bytes,
    })
}
