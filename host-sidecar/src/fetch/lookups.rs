//! Names of servers, looked up as the machine is set up to (`getaddrinfo`), which may hang for as long as a name server does.
//!
//! A lookup cannot be broken off, and whoever reads a worker ten times a second has long given up and asks again. So whoever
//! asks for a name that is being looked up waits for that very lookup, and only so many go on at a time: an outage of name
//! servers does not pile up lookups without end, and a pool's names do not take up the threads that all others wait on.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::vec;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use hyper_util::client::legacy::connect::dns::Name;
use tokio::sync::Semaphore;
use tower_service::Service;

/// Most lookups at a time, of the 512 threads on which all that blocks goes on. Those beyond wait in turn.
const MOST: usize = 32;

/// What looks a name up, and waits for it.
type Look = fn(&str) -> io::Result<Vec<SocketAddr>>;

/// What came of a lookup; an error as a sentence, since many are told.
type Outcome = Result<Vec<SocketAddr>, String>;

/// A lookup that any number of askers wait for.
type Lookup = Shared<BoxFuture<'static, Outcome>>;

/// Looks names up; a clone shares what is under way.
#[derive(Clone)]
pub struct Lookups {
    look: Look,
    under_way: Arc<Mutex<HashMap<Name, Lookup>>>,
    slots: Arc<Semaphore>,
}

impl Lookups {
    /// By the means of the machine.
    pub fn new() -> Self {
        Self::by(|name| (name, 0).to_socket_addrs().map(Iterator::collect))
    }

    fn by(look: Look) -> Self {
        Self { look, under_way: Arc::default(), slots: Arc::new(Semaphore::new(MOST)) }
    }

    /// The lookup of a name that is under way, or one that begins.
    fn of(&self, name: Name) -> Lookup {
        let begin = || {
            let (this, name) = (self.clone(), name.clone());
            // Goes on when nobody waits for it any more.
            let lookup = tokio::spawn(async move {
                let ends = Ends { lookups: &this, name: &name };
                ends.lookups.look(name.clone()).await
            });
            lookup.map(|outcome| outcome.unwrap_or_else(|error| Err(error.to_string()))).boxed().shared()
        };
        self.under_way().entry(name.clone()).or_insert_with(begin).clone()
    }

    async fn look(&self, name: Name) -> Outcome {
        let _slot = self.slots.acquire().await.map_err(|error| error.to_string())?;
        let look = self.look;
        let found = tokio::task::spawn_blocking(move || look(name.as_str())).await;
        found.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }

    /// Every change is an insertion or a removal, so one that panicked under the lock leaves it whole.
    fn under_way(&self) -> MutexGuard<'_, HashMap<Name, Lookup>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a lookup from those under way, also when it panics: its name is looked up anew then.
struct Ends<'a> {
    lookups: &'a Lookups,
    name: &'a Name,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.lookups.under_way().remove(self.name);
    }
}

impl Service<Name> for Lookups {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let lookup = self.of(name);
        Box::pin(async move { lookup.await.map(Vec::into_iter).map_err(io::Error::other) })
    }
}

impl fmt::Debug for Lookups {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Lookups").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
    use std::time::{Duration, Instant};

    use super::*;

    /// Far beyond what any test takes.
    const PATIENCE: Duration = Duration::from_secs(20);

    async fn ask(lookups: &Lookups, name: &str) -> io::Result<Vec<SocketAddr>> {
        lookups.clone().call(name.parse().unwrap()).await.map(Iterator::collect)
    }

    fn wait(is_over: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_over() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[tokio::test]
    async fn names_are_looked_up_and_an_error_says_why() {
        let lookups = Lookups::new();
        let found = ask(&lookups, "localhost").await.unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback()) && !found.is_empty());
        let error = ask(&lookups, "no\0name").await.unwrap_err().to_string();
        assert!(error.contains("NUL"), "{error}");
        assert!(lookups.under_way().is_empty());
    }

    #[tokio::test]
    async fn a_name_that_hangs_is_looked_up_once_however_often_it_is_asked_for() {
        static LOOKED: AtomicUsize = AtomicUsize::new(0);
        static IS_BACK: AtomicBool = AtomicBool::new(false);
        let lookups = Lookups::by(|name| {
            if name == "hangs" {
                LOOKED.fetch_add(1, SeqCst);
                wait(|| IS_BACK.load(SeqCst));
            }
            Ok(vec![([127, 0, 0, 1], 0).into()])
        });
        let give_up = Duration::from_micros(100);
        for _ in 0..2 * MOST {
            assert!(tokio::time::timeout(give_up, ask(&lookups, "hangs")).await.is_err());
        }
        let meanwhile = tokio::time::timeout(PATIENCE / 2, ask(&lookups, "answers")).await;
        let under_way = lookups.under_way().len();
        IS_BACK.store(true, SeqCst);
        assert_eq!(meanwhile.unwrap().unwrap().len(), 1, "others are found meanwhile");
        assert_eq!(under_way, 1);
        assert_eq!(ask(&lookups, "hangs").await.unwrap().len(), 1);
        assert!(lookups.under_way().is_empty());
        assert_eq!(ask(&lookups, "hangs").await.unwrap().len(), 1);
        assert_eq!(LOOKED.load(SeqCst), 2, "nothing is remembered");
    }

    #[tokio::test]
    async fn only_so_many_are_looked_up_at_a_time() {
        static BEGUN: AtomicUsize = AtomicUsize::new(0);
        static IS_BACK: AtomicBool = AtomicBool::new(false);
        let lookups = Lookups::by(|_| {
            BEGUN.fetch_add(1, SeqCst);
            wait(|| IS_BACK.load(SeqCst));
            Ok(Vec::new())
        });
        let all: Vec<_> = (0..2 * MOST).map(|number| lookups.of(format!("w{number}").parse().unwrap())).collect();
        let deadline = Instant::now() + PATIENCE / 2;
        while BEGUN.load(SeqCst) < MOST && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Any more would begin now.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let begun = BEGUN.load(SeqCst);
        IS_BACK.store(true, SeqCst);
        assert_eq!(begun, MOST);
        for lookup in all {
            assert_eq!(lookup.await, Ok(Vec::new()));
        }
        assert_eq!(BEGUN.load(SeqCst), 2 * MOST);
    }

    #[test]
    fn a_lookup_that_is_broken_off_is_forgotten() {
        static IS_BACK: AtomicBool = AtomicBool::new(false);
        let lookups = Lookups::by(|_| {
            wait(|| IS_BACK.load(SeqCst));
            Ok(Vec::new())
        });
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            drop(lookups.of("a".parse().unwrap()));
            tokio::task::yield_now().await;
        });
        let before = lookups.under_way().len();
        runtime.shutdown_background();
        let after = lookups.under_way().len();
        IS_BACK.store(true, SeqCst);
        assert_eq!((before, after), (1, 0));
    }
}
