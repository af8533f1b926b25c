//! Ctrl-C.

use std::process;

use pleach_engine::CancelToken;

use crate::error::{CliError, INTERRUPTED};

/// From now on Ctrl-C cancels the token, and a second Ctrl-C ends the process at once.
///
/// Until it is called, Ctrl-C has its usual effect, so nobody is kept at a prompt that never comes.
pub(crate) fn listen() -> Result<CancelToken, CliError> {
    let cancel = CancelToken::new();
    let switch = cancel.clone();
    ctrlc::set_handler(move || {
        if switch.is_cancelled() {
            process::exit(i32::from(INTERRUPTED));
        }
        switch.cancel();
    })?;
    Ok(cancel)
}
