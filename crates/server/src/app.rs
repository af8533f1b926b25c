//! One server: its options, its model once that is open, and what it counts.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use axum::http::StatusCode;
use pleach_engine::{Engine, EngineError};
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};

use crate::error::{ApiError, chain};
use crate::gate::Thoughts;
use crate::grammar::Grammars;
use crate::metrics::Metrics;
use crate::schedule::Scheduler;
use crate::tools::CallStyle;
use crate::{Router, ServeError, ServerOptions, ids, listen, routes};

/// A server of one model. Cloning it is cheap, and clones are the same server.
#[derive(Clone)]
pub struct Server {
    pub(crate) app: Arc<App>,
}

/// What requests are answered with.
pub(crate) struct App {
    pub(crate) options: ServerOptions,
    pub(crate) metrics: Arc<Metrics>,
    ready: OnceLock<Ready>,
    failure: Mutex<Option<ServeError>>,
    /// Told when the model could not be opened.
    failed: Notify,
    /// Requests that may be prepared at the same time.
    preparing: Arc<Semaphore>,
    /// Requests whose grammars may be compiled at the same time, apart from the others, who must not wait for that.
    compiling: Arc<Semaphore>,
    /// Requests for vectors that may be answered at the same time: one.
    pub(crate) embedding: Arc<Semaphore>,
}

/// An open model and what belongs to it.
pub(crate) struct Ready {
    pub(crate) engine: Engine,
    pub(crate) scheduler: Scheduler,
    pub(crate) thoughts: Arc<Thoughts>,
    pub(crate) call_style: CallStyle,
    pub(crate) model: String,
    /// Changes with the build, the model and its settings.
    pub(crate) fingerprint: String,
    /// When the model was opened, in seconds since 1970.
    pub(crate) created: u64,
    /// Made by the first request that needs one.
    grammars: OnceLock<Result<Grammars, String>>,
}

impl Server {
    /// A server without a model: it answers 503 until one is there.
    pub fn new(options: ServerOptions) -> Self {
        let at_once = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(4);
        let app = App {
            options,
            metrics: Arc::new(Metrics::default()),
            ready: OnceLock::new(),
            failure: Mutex::new(None),
            failed: Notify::new(),
            embedding: Arc::new(Semaphore::new(1)),
            preparing: Arc::new(Semaphore::new(at_once)),
            compiling: Arc::new(Semaphore::new(at_once)),
        };
        Self { app: Arc::new(app) }
    }

    /// Gives it its model. Only the first is taken.
    ///
    /// # Errors
    /// A folder of the prefix cache that cannot be used; no thread.
    pub fn set_engine(&self, engine: Engine) -> Result<(), ServeError> {
        let ready = Ready::new(engine, &self.app)?;
        // Two opened at once are a fault of the caller; the second is of no use.
        let _ = self.app.ready.set(ready);
        Ok(())
    }

    /// Opens its model on a thread of its own, so that it can answer meanwhile. If that fails, [`serve`](Self::serve) ends.
    pub fn open_with(&self, open: impl FnOnce() -> Result<Engine, EngineError> + Send + 'static) {
        let server = self.clone();
        let work = move || {
            if let Err(error) = open().map_err(ServeError::from).and_then(|engine| server.set_engine(engine)) {
                server.app.fail(error);
            }
        };
        if let Err(source) = thread::Builder::new().name("open model".to_owned()).spawn(work) {
            self.app.fail(ServeError::Thread { source });
        }
    }

    /// Listens on an address.
    ///
    /// # Errors
    /// [`ServeError::KeyRequired`] for an address that others can reach, if no key is asked for; [`ServeError::InvalidOrigin`]
    /// and [`ServeError::InvalidHost`] for options that no request could match; [`ServeError::Bind`].
    pub async fn bind(&self, address: SocketAddr) -> Result<TcpListener, ServeError> {
        if !address.ip().is_loopback() && self.app.options.api_keys.is_empty() {
            return Err(ServeError::KeyRequired { address });
        }
        self.app.options.check()?;
        TcpListener::bind(address).await.map_err(|source| ServeError::Bind { address, source })
    }

    /// All routes, for a program that listens itself. Deadlines of connections are then its own concern.
    pub fn router(&self) -> Router {
        routes::router(Arc::clone(&self.app))
    }

    /// Answers until `shutdown` is done, then lets running requests finish.
    ///
    /// # Errors
    /// What kept the model from being opened.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
        listen::serve(self, listener, shutdown).await
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("options", &self.app.options).finish_non_exhaustive()
    }
}

impl App {
    /// The model, if it is open.
    pub(crate) fn ready(&self) -> Result<&Ready, ApiError> {
        self.ready.get().ok_or_else(|| {
            let message = "the model is being loaded: try again in a moment";
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "model_loading", message).retry_after(2)
        })
    }

    /// The model, if it is open and can be run.
    pub(crate) fn running(&self) -> Result<&Ready, ApiError> {
        let ready = self.ready()?;
        ready.scheduler.check_alive()?;
        Ok(ready)
    }

    /// Does work that comes before the passes of a request: parsing, rendering and encoding. For long prompts it takes
    /// milliseconds, so it is not for the threads of connections, and many times the memory of its text, of which each thread
    /// keeps what it once took: few at a time.
    pub(crate) async fn prepare<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        on_thread_of(&self.preparing, work).await
    }

    /// Makes a request's grammar, which may take seconds.
    pub(crate) async fn compile<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        on_thread_of(&self.compiling, work).await
    }

    fn fail(&self, error: ServeError) {
        tracing::error!(error = chain(&error), "the model cannot be opened");
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        self.failed.notify_one();
    }

    /// Waits for what kept the model from being opened; forever if nothing did.
    pub(crate) async fn failure(&self) -> ServeError {
        loop {
            self.failed.notified().await;
            if let Some(error) = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return error;
            }
        }
    }
}

impl Ready {
    fn new(engine: Engine, app: &App) -> Result<Self, ServeError> {
        let thoughts = Arc::new(Thoughts::new(&engine));
        let metrics = Arc::clone(&app.metrics);
        let scheduler = Scheduler::start(engine.clone(), Arc::clone(&thoughts), metrics, &app.options)?;
        let info = engine.info();
        info.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        tracing::info!(model = info.name, context = info.context, device = info.device, "the model is open");
        Ok(Self {
            model: app.options.model_name.clone().unwrap_or_else(|| info.name.clone()),
            fingerprint: fingerprint(&engine),
            call_style: CallStyle::of(&engine),
            created: ids::unix_time(),
            grammars: OnceLock::new(),
            scheduler,
            thoughts,
            engine,
        })
    }

    /// What makes grammars. The first call takes a while.
    pub(crate) fn grammars(&self) -> Result<&Grammars, ApiError> {
        let made = self.grammars.get_or_init(|| Grammars::new(&self.engine).map_err(|error| error.to_string()));
        made.as_ref().map_err(|error| {
            tracing::error!(error, "no grammars");
            ApiError::internal("this model's vocabulary cannot be used for structured output")
        })
    }
}

fn fingerprint(engine: &Engine) -> String {
    let info = engine.info();
    let mut hasher = DefaultHasher::new();
    (env!("CARGO_PKG_VERSION"), &info.name, info.architecture, info.num_parameters, &info.quantization)
        .hash(&mut hasher);
    (info.context, info.vocab_size, &info.device, info.memory.token_bytes).hash(&mut hasher);
    format!("fp_{:016x}", hasher.finish())
}

/// Does work off the threads of connections, once one of its places is free.
async fn on_thread_of<T: Send + 'static>(
    places: &Arc<Semaphore>,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let permit = Arc::clone(places).acquire_owned().await;
    on_thread(move || {
        let _permit = permit;
        work()
    })
    .await
}

/// Does work that may take long off the threads of connections. A fault in it is an error like any other.
pub(crate) async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        tracing::error!(panicked = error.is_panic(), "a request met a fault of the server");
        Err(ApiError::internal("the server met a fault of its own; this request is lost"))
    })
}
