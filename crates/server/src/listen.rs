//! Accepting connections, with a deadline for whatever a client can hold up.

mod explained;

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use self::explained::Explained;
use crate::{Router, ServeError, Server};

/// Bytes of a request's head.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// Answers until `shutdown` is done.
pub(crate) async fn serve(
    server: Server,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let app = Arc::clone(&server.app);
    let router = server.router();
    let open = GracefulShutdown::new();
    let slots = Arc::new(Semaphore::new(app.options.max_connections.max(1)));
    let mut shutdown = pin!(shutdown);
    let mut failure = pin!(app.failure());
    let outcome = loop {
        tokio::select! {
            accepted = accept(&listener, &slots) => {
                if let Some((stream, slot)) = accepted {
                    answer(&server, &router, &open, stream, slot);
                }
            }
            () = &mut shutdown => break Ok(()),
            error = &mut failure => break Err(error),
        }
    };
    drop(listener);
    tracing::info!(connections = app.metrics.connections.get(), "ending: running requests may finish");
    if timeout(app.options.drain, open.shutdown()).await.is_err() {
        tracing::warn!("some requests did not finish in time");
    }
    outcome
}

async fn accept(listener: &TcpListener, slots: &Arc<Semaphore>) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, slot)),
        Err(error) => {
            // A connection that is gone again is no matter; too many open files pass only with time.
            if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(Duration::from_millis(100)).await;
            }
            None
        }
    }
}

/// Serves a connection on a task of its own.
fn answer(server: &Server, router: &Router, open: &GracefulShutdown, stream: TcpStream, slot: OwnedSemaphorePermit) {
    // Tokens are small, and each should leave at once.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection sends with delay");
    }
    let stream = Explained::new(stream, server.app.options.send_timeout);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(server.app.options.header_timeout)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router.clone()));
    let connection = open.watch(connection);
    let metrics = Arc::clone(&server.app.metrics);
    tokio::spawn(async move {
        metrics.connections.add(1);
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection ended early");
        }
        metrics.connections.sub(1);
        drop(slot);
    });
}
