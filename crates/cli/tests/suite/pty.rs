//! A terminal of its own for a running program, with a screen that can be looked at.

use std::ffi::OsStr;
use std::io::{Read as _, Write};
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};

use crate::support::bare;

/// A program on a terminal.
pub(crate) struct Terminal {
    master: Box<dyn MasterPty + Send>,
    keyboard: Box<dyn Write + Send>,
    child: Box<dyn Child + Send + Sync>,
    screen: Arc<Mutex<vt100::Parser>>,
}

/// Longest time until something must show; the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const CTRL_C: &str = "\x03";
pub(crate) const CTRL_D: &str = "\x04";

impl Terminal {
    /// Starts the binary on a screen of 24 lines.
    pub(crate) fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start_program(bare().get_program(), arguments, variables)
    }

    /// Starts a program with the environment that the binary has in tests.
    pub(crate) fn start_program(program: &OsStr, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start_sized((24, 90), program, arguments, variables)
    }

    /// The same on a screen of so many rows and columns.
    pub(crate) fn start_sized(
        (rows, columns): (u16, u16),
        program: &OsStr,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let pty = native_pty_system().openpty(size(rows, columns)).unwrap();
        let plain = bare();
        let mut command = CommandBuilder::new(program);
        command.args(arguments);
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            }
        }
        command.env("TERM", "xterm-256color");
        variables.iter().for_each(|(name, value)| command.env(name, value));
        let child = pty.slave.spawn_command(command).unwrap();
        drop(pty.slave);
        let (rows, columns) = (NonZeroU16::new(rows).unwrap(), NonZeroU16::new(columns).unwrap());
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 1000)));
        let mut reader = pty.master.try_clone_reader().unwrap();
        let seen = Arc::clone(&screen);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                seen.lock().unwrap().process(&bytes[..count]);
            }
        });
        let keyboard = pty.master.take_writer().unwrap();
        Self { master: pty.master, keyboard, child, screen }
    }

    /// Presses keys.
    pub(crate) fn keys(&mut self, keys: &str) {
        self.bytes(keys.as_bytes());
    }

    /// Sends what no key of a UTF-8 terminal would.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.keyboard.write_all(bytes).unwrap();
        self.keyboard.flush().unwrap();
    }

    /// Types a line, and waits until it stands at the prompt before it is sent.
    pub(crate) fn line(&mut self, line: &str) {
        self.keys(line);
        let last: String = line.chars().rev().take(20).collect::<Vec<_>>().into_iter().rev().collect();
        self.wait(&format!("`{last}` to stand at the prompt"), |screen| screen.contains(&last));
        self.keys("\r");
    }

    /// Pastes text as terminals do.
    pub(crate) fn paste(&mut self, text: &str) {
        self.keys(&format!("\x1b[200~{}\x1b[201~", text.replace('\n', "\r")));
    }

    /// Waits until the text shows.
    pub(crate) fn see(&self, text: &str) {
        self.wait(&format!("`{text}`"), |screen| screen.contains(text));
    }

    /// Waits until the last line is an empty prompt.
    pub(crate) fn see_prompt(&self) {
        self.wait("an empty prompt", |screen| screen.trim_end().ends_with(">>>"));
    }

    pub(crate) fn wait(&self, what: &str, is_there: impl Fn(&str) -> bool) {
        assert!(self.shows_within(PATIENCE, is_there), "{what} does not show in\n{}", self.text());
    }

    /// Presses keys again and again until a text shows, with a pause in which it may.
    pub(crate) fn press_until(&mut self, keys: &str, text: &str) {
        let started = Instant::now();
        loop {
            self.keys(keys);
            if self.shows_within(Duration::from_secs(2), |screen| screen.contains(text)) {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "`{text}` does not show in\n{}", self.text());
        }
    }

    fn shows_within(&self, patience: Duration, is_there: impl Fn(&str) -> bool) -> bool {
        let started = Instant::now();
        while !is_there(&self.text()) {
            if started.elapsed() > patience {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// The text of the screen.
    pub(crate) fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// The screen with the terminal's own marks for what is bold, faint or colored.
    pub(crate) fn formatted(&self) -> String {
        self.screen.lock().unwrap().screen().contents_formatted()
    }

    pub(crate) fn resize(&mut self, rows: u16, columns: u16) {
        let (height, width) = (NonZeroU16::new(rows).unwrap(), NonZeroU16::new(columns).unwrap());
        self.screen.lock().unwrap().screen_mut().set_size(height, width);
        // The program draws its line again as soon as it hears of it.
        self.master.resize(size(rows, columns)).unwrap();
    }

    /// Waits for the end; gives the exit code.
    pub(crate) fn end(&mut self) -> u32 {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.exit_code();
            }
            assert!(started.elapsed() < PATIENCE, "it does not end:\n{}", self.text());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

fn size(rows: u16, cols: u16) -> PtySize {
    PtySize { rows, cols, pixel_width: 0, pixel_height: 0 }
}
