//! A model that is open, and what is known of how it came to be.

use std::time::{Duration, Instant};

use pleach_engine::{Engine, Located};

use crate::args::ModelFlags;
use crate::error::CliError;
use crate::models::Finder;
use crate::progress::Progress;

/// A model that is open.
pub(crate) struct Loaded {
    pub(crate) located: Located,
    pub(crate) engine: Engine,
    /// What opening it took, without finding or downloading it.
    pub(crate) load: Duration,
}

impl Loaded {
    /// Finds and opens the model, and the one that drafts for it.
    pub(crate) fn open(model: Option<&str>, flags: &ModelFlags, progress: &mut Progress) -> Result<Self, CliError> {
        let finder = Finder::new(&flags.network);
        let located = finder.find(model, progress)?;
        let options = finder.engine_options(flags, progress)?;
        progress.show(&format!("loading {}", located.name));
        let started = Instant::now();
        let engine =
            Engine::open_watched(&located.path, &options, &mut |loaded| progress.loading(&located.name, loaded));
        progress.clear();
        Ok(Self { located, engine: engine.map_err(CliError::from_engine)?, load: started.elapsed() })
    }
}
