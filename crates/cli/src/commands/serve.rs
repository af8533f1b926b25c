//! `pleach serve`: answers over HTTP.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::process;

use pleach_engine::{Engine, PrefixCacheOptions};
use pleach_server::{Server, ServerOptions, read_api_keys};
use tokio::runtime::Runtime;
use tracing_subscriber::EnvFilter;

use crate::args::{CacheFlags, LogForm, ServeArgs};
use crate::error::{CliError, End, INTERRUPTED};
use crate::models::Finder;
use crate::output::say_dim;
use crate::progress::Progress;
use crate::style::Style;

/// Serves until Ctrl-C.
pub(crate) fn serve(mut args: ServeArgs) -> Result<End, CliError> {
    let model = args.name.take().or_else(|| args.model.model.take());
    let mut progress = Progress::new(Style::of_stderr(), false);
    let finder = Finder::new(&args.model.network);
    let located = finder.find(model.as_deref(), &mut progress)?;
    let engine_options = finder.engine_options(&args.model, &mut progress)?;
    progress.clear();
    let server = Server::new(options(&args)?);
    start_log(args.log);
    let runtime = Runtime::new().map_err(CliError::Thread)?;
    runtime.block_on(async {
        let address = SocketAddr::new(args.access.host, args.access.port);
        let listener = server.bind(address).await?;
        // The system chose the port where none was asked for.
        announce(listener.local_addr().unwrap_or(address), args.access.api_key_file.is_some());
        // A bar would stand in the way of the log.
        if Style::of_stderr().terminal {
            say_dim(&format!("loading {}", located.name));
        }
        server.open_with(move || Engine::open(&located.path, &engine_options));
        server.serve(listener, interrupted()).await?;
        Ok::<_, CliError>(End::Done)
    })
}

fn options(args: &ServeArgs) -> Result<ServerOptions, CliError> {
    let mut options = ServerOptions::default();
    options.parallel = args.work.parallel;
    options.queue = args.work.queue;
    options.spec_budget = args.model.spec.spec_budget;
    options.prefix_cache = prefix_cache(&args.cache);
    options.model_name = args.work.model_name.clone();
    options.max_body_bytes = args.work.max_body_mib << 20;
    options.drop_billing_line = !args.work.keep_billing_line;
    options.allowed_origins = args.access.cors_origin.clone();
    options.allowed_hosts = args.access.allowed_host.clone();
    if let Some(path) = &args.access.api_key_file {
        options.api_keys = read_api_keys(path)?;
    }
    Ok(options)
}

fn prefix_cache(flags: &CacheFlags) -> PrefixCacheOptions {
    let mut options = PrefixCacheOptions::default();
    options.bytes =
        if flags.no_prefix_cache { 0 } else { usize::try_from(flags.prefix_cache_bytes).unwrap_or(usize::MAX) };
    options.dir = flags.prefix_cache_dir.clone();
    options.dir_bytes = flags.prefix_cache_dir_bytes;
    options.verify = flags.verify_prefix_cache;
    options
}

fn start_log(form: LogForm) {
    let level = EnvFilter::try_from_env("PLEACH_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(level).with_writer(io::stderr).with_target(false);
    let log = log.with_ansi(Style::of_stderr().color);
    // A program that has a log already keeps it.
    let _ = match form {
        LogForm::Text => log.try_init(),
        LogForm::Json => log.json().flatten_event(true).try_init(),
        LogForm::Off => Ok(()),
    };
}

/// One line on standard output, for people and for programs that wait for it.
fn announce(address: SocketAddr, asks_for_key: bool) {
    let rule = if asks_for_key { "a key is needed" } else { "this machine only, no key needed" };
    // Nobody may be there to read it.
    let _ = writeln!(io::stdout(), "listening on http://{address} ({rule}); browsers find a page to chat there");
}

/// Waits for Ctrl-C or SIGTERM. The second one ends the process at once.
async fn interrupted() {
    signal().await;
    tokio::spawn(async {
        signal().await;
        process::exit(i32::from(INTERRUPTED));
    });
}

#[cfg(unix)]
async fn signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminated) = signal(SignalKind::terminate()) else {
        drop(tokio::signal::ctrl_c().await);
        return;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated.recv() => {}
    }
}

#[cfg(not(unix))]
async fn signal() {
    drop(tokio::signal::ctrl_c().await);
}
