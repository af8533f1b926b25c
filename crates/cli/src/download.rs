//! What people see of a download.

use std::sync::{Mutex, OnceLock, PoisonError};

use indicatif::ProgressBar;
use pleach_hub::{Check, Hub, ModelId, PlannedFile, PullEvent, Pulled};

use crate::error::CliError;
use crate::footer;
use crate::output::one_line;
use crate::progress::{CLEAR, Progress, byte_bar, print};

/// A download with a bar on terminals, and a line before it anywhere else.
#[derive(Debug)]
pub(crate) struct Download<'a> {
    id: &'a ModelId,
    /// On a terminal, once it is known how much is to come.
    bar: OnceLock<ProgressBar>,
    live: bool,
    quiet: bool,
    /// Bytes of each file that are there.
    done: Mutex<Vec<u64>>,
}

impl<'a> Download<'a> {
    /// Shows that something begins.
    pub(crate) fn start(id: &'a ModelId, progress: &mut Progress) -> Self {
        progress.show(&format!("asking the hub for {id}"));
        let download = Self {
            id,
            bar: OnceLock::new(),
            live: progress.is_live(),
            quiet: progress.is_quiet(),
            done: Mutex::default(),
        };
        progress.forget();
        download
    }

    /// Downloads, and takes the bar away.
    pub(crate) fn run(&self, hub: &Hub, check: Check) -> Result<Pulled, CliError> {
        let result = hub.pull(self.id, check, &|event| self.event(&event));
        if let Some(bar) = self.bar.get() {
            bar.finish_and_clear();
        }
        if self.live {
            print(CLEAR);
        }
        result.map_err(CliError::Hub)
    }

    fn event(&self, event: &PullEvent<'_>) {
        match event {
            PullEvent::Planned { files } => self.plan(files),
            PullEvent::Progress { index, done } => self.progress(*index, *done),
            PullEvent::Waiting { file } => self.note(&format!("another process is fetching {file}: waiting for it")),
            PullEvent::Retrying { what, error, pause } => {
                self.note(&format!("{what}: {error}; trying again in {}", footer::duration(*pause)));
            }
            _ => {}
        }
    }

    fn plan(&self, files: &[PlannedFile]) {
        let total = files.iter().map(|file| file.size_bytes).sum();
        let present: Vec<u64> = files.iter().map(|file| file.present_bytes).collect();
        let missing = total - present.iter().sum::<u64>();
        let begun = present.iter().sum();
        *self.done() = present;
        if missing == 0 {
            return;
        }
        if !self.live {
            let from = if begun > 0 { format!(" of {}", footer::size(total)) } else { String::new() };
            self.note(&format!("downloading {}: {}{from}", self.id, footer::size(missing)));
            return;
        }
        print(CLEAR);
        self.bar.get_or_init(|| byte_bar(&self.id.to_string(), begun, total));
    }

    fn progress(&self, index: usize, bytes: u64) {
        let mut done = self.done();
        if let Some(of_file) = done.get_mut(index) {
            *of_file = bytes;
        }
        if let Some(bar) = self.bar.get() {
            bar.set_position(done.iter().sum());
        }
    }

    /// A line that stays.
    fn note(&self, note: &str) {
        if self.quiet {
            return;
        }
        let line = format!("{}{}\n", if self.live { CLEAR } else { "" }, one_line(note));
        match self.bar.get() {
            Some(bar) => bar.suspend(|| print(&line)),
            None => print(&line),
        }
    }

    fn done(&self) -> std::sync::MutexGuard<'_, Vec<u64>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
