//! The workers, and what each request did in them: they, and nobody who is under test, count what ran at once.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::Instant;
use worker_sim::{Arrival, Arrivals, Config, Worker};

use super::script::Trouble;
use testkit::parts::MODEL;

/// Connections that may wait to be taken.
const BACKLOG: u32 = 1_024;

/// Times that clocks are compared.
const READINGS: usize = 20;

/// A request that a worker had.
#[derive(Clone, Debug)]
pub struct Visit {
    /// The number its caller gave it.
    pub id: usize,
    /// Number of the worker.
    pub worker: usize,
    /// Since the start, as is the other.
    pub came: Duration,
    /// Nothing while it is inside.
    pub left: Option<Duration>,
    /// What the proxy said it is charged, where it has read it by then.
    pub tokens: u64,
}

/// A worker that can be killed and comes back under its address.
pub struct Seat {
    /// Number of the worker.
    number: usize,
    clock: Instant,
    address: SocketAddr,
    process: Process,
    /// When its own clock began.
    began: Duration,
    /// Of this and all former processes; this one's begin at `first`.
    visits: Vec<Visit>,
    first: usize,
}

enum Process {
    Up(Worker),
    /// Its port refuses connections and is kept from others.
    Down(TcpSocket),
    /// It could not be started again.
    Gone,
}

impl Seat {
    /// Starts it.
    ///
    /// # Errors
    /// When no port is to be had.
    pub async fn start(number: usize, clock: Instant) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("no port for a worker")?;
        let address = listener.local_addr()?;
        let mut seat = Self {
            number,
            clock,
            address,
            process: Process::Gone,
            began: Duration::ZERO,
            visits: Vec::new(),
            first: 0,
        };
        seat.serve(listener).await?;
        Ok(seat)
    }

    async fn serve(&mut self, listener: TcpListener) -> Result<()> {
        let worker = Worker::serve(listener, config()).await?;
        // Workers are to agree on who came first. Both clocks are read at once but where the machine is busy just then.
        let readings = (0..READINGS).map(|_| {
            let (before, age) = (self.clock.elapsed(), worker.arrivals().now_ms);
            let after = self.clock.elapsed();
            (after - before, after.saturating_sub(Duration::from_secs_f64(age / 1_000.0)))
        });
        self.began = readings.min().map(|(_, began)| began).unwrap_or_default();
        self.process = Process::Up(worker);
        Ok(())
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Begins a trouble.
    ///
    /// # Errors
    /// When too many requests have come since they were last noted.
    pub async fn trouble(&mut self, trouble: Trouble) -> Result<()> {
        match (trouble, std::mem::replace(&mut self.process, Process::Gone)) {
            (Trouble::Fault(fault), Process::Up(worker)) => {
                worker.set_faults([fault]);
                self.process = Process::Up(worker);
            }
            (Trouble::Killed, Process::Up(worker)) => {
                let last = worker.stop().await;
                let socket = TcpSocket::new_v4()?;
                socket.set_reuseaddr(true)?;
                socket.bind(self.address).context("a worker's port is taken")?;
                self.process = Process::Down(socket);
                self.note(&last)?;
                self.first = self.visits.len();
            }
            (_, other) => self.process = other,
        }
        Ok(())
    }

    /// Ends any trouble.
    ///
    /// # Errors
    /// When it does not start again.
    pub async fn well(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.process, Process::Gone) {
            Process::Up(worker) => {
                worker.set_faults([]);
                self.process = Process::Up(worker);
            }
            Process::Down(socket) => self.serve(socket.listen(BACKLOG)?).await?,
            Process::Gone => bail!("a worker is gone"),
        }
        Ok(())
    }

    /// Notes what has come and left; to be asked more often than a worker forgets.
    ///
    /// # Errors
    /// When it has forgotten some.
    pub fn look(&mut self) -> Result<()> {
        match &self.process {
            Process::Up(worker) => {
                let arrivals = worker.arrivals();
                self.note(&arrivals)
            }
            Process::Down(_) | Process::Gone => Ok(()),
        }
    }

    pub fn is_up(&self) -> bool {
        matches!(self.process, Process::Up(_))
    }

    pub fn visits(&self) -> &[Visit] {
        &self.visits
    }

    fn note(&mut self, arrivals: &Arrivals) -> Result<()> {
        let known = self.visits.len() - self.first;
        let forgotten = usize::try_from(arrivals.forgotten)?;
        ensure!(forgotten <= known, "a worker has forgotten requests that nobody has noted");
        let time = |ms: f64| self.began + Duration::from_secs_f64(ms / 1_000.0);
        let worker = self.number;
        let visit = |arrival: &Arrival| {
            let id = arrival.id.as_deref().and_then(|id| id.parse().ok()).context("a request without a number")?;
            let (came, left) = (time(arrival.came_ms), arrival.left_ms.map(time));
            Ok(Visit { id, worker, came, left, tokens: arrival.tokens.unwrap_or_default() })
        };
        let visits = arrivals.requests.iter().map(visit).collect::<Result<Vec<_>>>()?;
        self.visits.truncate(self.first + forgotten);
        self.visits.extend(visits);
        Ok(())
    }
}

fn config() -> Config {
    Config {
        model: MODEL.to_owned(),
        max_num_seqs: 12,
        num_gpu_blocks: 400,
        max_model_len: 8_192,
        base_ms: 25.0,
        per_prefill_token_us: 20.0,
        per_sequence_us: 200.0,
        per_kv_block_us: 0.0,
        ..Config::default()
    }
}
