//! What people see of a download.

use std::io::{self, Write as _};
use std::sync::{Mutex, PoisonError};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pleach_hub::{Hub, HubError, ModelId, PlannedFile, PullEvent, Pulled};

use crate::error::CliError;
use crate::footer;
use crate::progress::Progress;

/// A download with a bar on terminals, and a line before it anywhere else.
#[derive(Debug)]
pub(crate) struct Download<'a> {
    id: &'a ModelId,
    bar: ProgressBar,
    live: bool,
    quiet: bool,
    /// Bytes of each file that are there.
    done: Mutex<Vec<u64>>,
}

/// Rate and time left come from what the last seconds brought.
const BAR: &str = "{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";

impl<'a> Download<'a> {
    /// Shows that something begins.
    pub(crate) fn start(id: &'a ModelId, progress: &mut Progress) -> Self {
        progress.show(&format!("asking the hub for {id}"));
        let download = Self {
            id,
            bar: ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()),
            live: progress.is_live(),
            quiet: progress.is_quiet(),
            done: Mutex::default(),
        };
        progress.forget();
        download
    }

    /// Downloads, and takes the bar away.
    pub(crate) fn run(&self, hub: &Hub) -> Result<Pulled, CliError> {
        self.finish(hub.pull(self.id, &|event| self.event(&event)))
    }

    /// The same, and hashes what is there already.
    pub(crate) fn run_verified(&self, hub: &Hub) -> Result<Pulled, CliError> {
        self.finish(hub.pull_verified(self.id, &|event| self.event(&event)))
    }

    fn finish(&self, result: Result<Pulled, HubError>) -> Result<Pulled, CliError> {
        if self.live {
            self.bar.finish_and_clear();
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
        let style = ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar());
        self.bar.set_style(style);
        self.bar.set_length(total);
        self.bar.set_message(self.id.to_string());
        self.bar.set_position(begun);
        self.bar.reset_eta();
        self.bar.set_draw_target(ProgressDrawTarget::stderr());
    }

    fn progress(&self, index: usize, bytes: u64) {
        let mut done = self.done();
        if let Some(of_file) = done.get_mut(index) {
            *of_file = bytes;
        }
        self.bar.set_position(done.iter().sum());
    }

    /// A line that stays.
    fn note(&self, note: &str) {
        if self.quiet {
            return;
        }
        self.bar.suspend(|| print(&format!("{}{note}\n", if self.live { CLEAR } else { "" })));
    }

    fn done(&self) -> std::sync::MutexGuard<'_, Vec<u64>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const CLEAR: &str = "\r\x1b[K";

/// A note that cannot be shown is no reason to stop.
fn print(text: &str) {
    let mut stderr = io::stderr();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}
