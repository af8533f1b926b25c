//! One line on a terminal that says what is waited for, and goes away.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pleach_engine::{Event, LoadProgress};

use crate::output::one_line;
use crate::render::Thoughts;
use crate::style::{Style, stderr_columns};

/// The line. It shows on terminals only.
#[derive(Debug)]
pub(crate) struct Progress {
    live: bool,
    quiet: bool,
    shown: bool,
    /// When the line that stands there was shown.
    since: Instant,
    bar: Option<ProgressBar>,
}

/// Goes to the start of the line and empties it.
pub(crate) const CLEAR: &str = "\r\x1b[K";

/// Rate and time left come from what the last seconds brought.
const BAR: &str = "{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";

/// Where the whole of it would not fit into one line.
const NARROW_BAR: &str = "{percent}%, {eta} left: {wide_msg}";

const TICK: Duration = Duration::from_millis(250);

/// What is loaded sooner needs no bar.
const SOON: Duration = Duration::from_millis(300);

/// A bar of bytes on standard error, of which some are there already.
pub(crate) fn byte_bar(message: &str, done: u64, total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
    let message = one_line(message);
    // Besides the message: numbers of at most 50 characters, and a bar that is worth the name.
    let needed = message.chars().count() + 60;
    let template = if needed <= stderr_columns() { BAR } else { NARROW_BAR };
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(message);
    bar.set_position(done);
    // What is there already took no time: the tick takes it in, and the rate starts after it.
    bar.tick();
    bar.reset_eta();
    bar.set_draw_target(ProgressDrawTarget::stderr());
    // The rate sinks while nothing comes.
    bar.enable_steady_tick(TICK);
    bar
}

impl Progress {
    pub(crate) fn new(style: Style, quiet: bool) -> Self {
        Self { live: style.terminal && !quiet, quiet, shown: false, since: Instant::now(), bar: None }
    }

    /// Whether anything shows.
    pub(crate) fn is_live(&self) -> bool {
        self.live
    }

    /// Whether nothing is to be said at all.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Leaves the line to somebody else, who takes it away.
    pub(crate) fn forget(&mut self) {
        self.shown = false;
    }

    /// Replaces the line.
    pub(crate) fn show(&mut self, note: &str) {
        if self.live {
            self.bar = None;
            self.shown = true;
            self.since = Instant::now();
            // A line that the terminal breaks could not be taken away.
            let line: String = one_line(note).chars().take(stderr_columns().saturating_sub(1)).collect();
            print(&format!("{CLEAR}{line}"));
        }
    }

    /// Shows how much of a model is loaded, if that takes a while.
    pub(crate) fn loading(&mut self, name: &str, loaded: LoadProgress) {
        if !self.live || (self.bar.is_none() && self.since.elapsed() < SOON) {
            return;
        }
        let LoadProgress { done_bytes, total_bytes } = loaded;
        let begin = || {
            print(CLEAR);
            byte_bar(&format!("loading {name}"), done_bytes, total_bytes)
        };
        self.bar.get_or_insert_with(begin).set_position(done_bytes);
    }

    /// Shows how much of the prompt is read, and that thoughts come which do not show, until something is written.
    pub(crate) fn event(&mut self, event: &Event, thoughts: Thoughts) {
        match event {
            Event::Prefill(prefill) if prefill.done < prefill.total => {
                self.show(&format!("reading the prompt: {} of {} tokens", prefill.done, prefill.total));
            }
            Event::Reasoning(_) if thoughts == Thoughts::Hidden => self.show("thinking"),
            // Tokens of a thought that is left out change nothing that is seen.
            Event::Token(_) => {}
            _ => self.clear(),
        }
    }

    /// Takes the line away.
    pub(crate) fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        if std::mem::take(&mut self.shown) {
            print(CLEAR);
        }
    }
}

/// A note that cannot be shown is no reason to stop.
pub(crate) fn print(text: &str) {
    let mut stderr = io::stderr();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_loads_for_a_while_gets_a_bar() {
        let style = Style { terminal: true, color: false };
        let loaded = |done_bytes| LoadProgress { done_bytes, total_bytes: 10 };
        let mut progress = Progress::new(style, false);
        progress.loading("model", loaded(2));
        assert!(progress.bar.is_none());
        progress.since -= SOON;
        progress.loading("model", loaded(4));
        progress.loading("model", loaded(7));
        let bar = progress.bar.clone().unwrap();
        assert_eq!((bar.position(), bar.length()), (7, Some(10)));
        progress.clear();
        assert!(bar.is_finished() && progress.bar.is_none());
        // Not where nobody looks on.
        let mut progress = Progress::new(Style { terminal: false, color: false }, false);
        progress.since -= SOON;
        progress.loading("model", loaded(4));
        assert!(progress.bar.is_none());
    }
}
