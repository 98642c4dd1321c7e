//! Many workers of which there is nothing but the metrics page.
//!
//! Made to be read by the thousand, ten times a second, on the machine that also runs the reader: the pages share their text,
//! and only the numbers in them are written anew. Each worker counts who connects and when it was asked.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::pending;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

mod pieces;
mod template;

use pieces::Pieces;
use template::{Numbers, Templates};

/// Rest after a failed accept, so that a lack of descriptors does not keep a core busy.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Pieces of a page that comes slowly.
const TRICKLES: u32 = 8;

/// How a worker serves its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// At once.
    Prompt,
    /// All of it so long after it was asked for.
    Late(Duration),
    /// Piece by piece, the last one so long after it was asked for.
    Trickling(Duration),
    /// Never.
    Hanging,
}

/// Workers on a thread of their own. They end when this is dropped.
pub struct Fleet {
    workers: Vec<Arc<FleetWorker>>,
    templates: Arc<Templates>,
    runtime: Option<Runtime>,
}

/// One of them.
pub struct FleetWorker {
    address: SocketAddr,
    templates: Arc<Templates>,
    state: Mutex<State>,
}

struct State {
    pace: Pace,
    kv_usage: f64,
    /// When the page was first asked for since its KV use was set.
    shown_at: Option<Instant>,
    asked_at: Option<Instant>,
    seen: Seen,
}

/// What a worker has seen.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Connections taken.
    pub connections: u64,
    /// Times the page was asked for.
    pub asked: u64,
    /// From each time to the next.
    pub gaps: Vec<Duration>,
}

impl Fleet {
    /// Starts so many workers on free ports of the loopback interface, each with the page of a busy vLLM.
    ///
    /// # Errors
    /// When there are not that many ports, or descriptors: each worker takes one, and one for each connection.
    pub fn start(workers: usize) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("fleet").enable_all().build()?;
        let templates = Arc::<Templates>::default();
        let mut fleet = Self { workers: Vec::with_capacity(workers), templates, runtime: None };
        for _ in 0..workers {
            let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            listener.set_nonblocking(true)?;
            let worker = Arc::new(FleetWorker::new(listener.local_addr()?, Arc::clone(&fleet.templates)));
            let listener = {
                let _context = runtime.enter();
                TcpListener::from_std(listener)?
            };
            runtime.spawn(run(listener, Arc::clone(&worker)));
            fleet.workers.push(worker);
        }
        fleet.runtime = Some(runtime);
        Ok(fleet)
    }

    /// From now on all send the whole page, whatever series are asked for.
    pub fn ignore_names(&self) {
        self.templates.ignores_names.store(true, Ordering::Relaxed);
    }

    /// All of them.
    #[must_use]
    pub fn workers(&self) -> &[Arc<FleetWorker>] {
        &self.workers
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waiting is not allowed where this may be dropped; the sockets are closed by the tasks that end.
            runtime.shutdown_background();
        }
    }
}

impl FleetWorker {
    fn new(address: SocketAddr, templates: Arc<Templates>) -> Self {
        let (pace, kv_usage) = (Pace::Prompt, 0.0);
        let state = State { pace, kv_usage, shown_at: None, asked_at: None, seen: Seen::default() };
        Self { address, templates, state: Mutex::new(state) }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the share of its KV blocks that are in use.
    pub fn set_kv_usage(&self, share: f64) {
        let mut state = self.lock();
        state.kv_usage = share;
        state.shown_at = None;
    }

    /// When the page was first asked for since then; it is on its way a few microseconds later.
    #[must_use]
    pub fn shown_at(&self) -> Option<Instant> {
        self.lock().shown_at
    }

    /// Changes how it serves, from the next time on.
    pub fn set_pace(&self, pace: Pace) {
        self.lock().pace = pace;
    }

    /// What it has seen since it was last asked for this.
    #[must_use]
    pub fn take_seen(&self) -> Seen {
        std::mem::take(&mut self.lock().seen)
    }

    async fn answer(&self, request: &Uri) -> Response<Pieces> {
        let (numbers, pace) = self.asked(Instant::now());
        let page = self.templates.of(request).filled(numbers);
        let body = match pace {
            Pace::Prompt => Pieces::at_once(page),
            Pace::Late(delay) => {
                tokio::time::sleep(delay).await;
                Pieces::at_once(page)
            }
            Pace::Trickling(whole) => Pieces::slowly(page, TRICKLES, whole),
            Pace::Hanging => pending().await,
        };
        let mut response = Response::new(body);
        let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }

    fn asked(&self, now: Instant) -> (Numbers, Pace) {
        let mut state = self.lock();
        if let Some(before) = state.asked_at.replace(now) {
            state.seen.gaps.push(now - before);
        }
        state.seen.asked += 1;
        state.shown_at.get_or_insert(now);
        // Another number every time, as of a worker that works.
        let running = 1 + state.seen.asked % 8;
        (Numbers { running, waiting: 0, kv_usage: state.kv_usage }, state.pace)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn run(listener: TcpListener, worker: Arc<FleetWorker>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    worker.lock().seen.connections += 1;
                    connections.spawn(converse(stream, Arc::clone(&worker)));
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn converse(stream: TcpStream, worker: Arc<FleetWorker>) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request: Request<Incoming>| {
        let worker = Arc::clone(&worker);
        async move { Ok::<_, Infallible>(worker.answer(request.uri()).await) }
    });
    // An error here is a client that left; the connection is over.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}
