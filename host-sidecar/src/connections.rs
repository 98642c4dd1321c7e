//! Connections to the sidecar: so many together, and some more for probes.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Longest time for the head of a request to come, and for a connection to rest between two.
const LONGEST_HEAD: Duration = Duration::from_secs(60);

/// Longest time for a connection beyond the most.
const LONGEST_SPARE: Duration = Duration::from_secs(5);

/// Before the next connection is taken after one could not be.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// Place of a connection.
enum Place {
    /// One of the most.
    Regular(OwnedSemaphorePermit),
    /// One beyond them.
    Spare(OwnedSemaphorePermit),
}

/// Serves the first router on so many connections, and while as many are open the second on as many more, one request each, until
/// `stop` ends. Callers beyond all of these wait until a connection is closed.
pub async fn serve(
    listener: TcpListener,
    [regular, spare]: [Router; 2],
    most: [usize; 2],
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let graceful = GracefulShutdown::new();
    let rooms = most.map(|most| Arc::new(Semaphore::new(most)));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(LONGEST_HEAD);
    let mut once = http1::Builder::new();
    once.keep_alive(false);
    let mut stop = pin!(stop);
    loop {
        let next = async {
            let (stream, _) = listener.accept().await?;
            // Why only then: a regular place may have come free while there was no caller.
            std::io::Result::Ok((TokioIo::new(stream), place(&rooms).await))
        };
        let next = tokio::select! {
            next = next => next,
            () = &mut stop => break,
        };
        let Ok((stream, place)) = next else {
            // There are no descriptors left, or the caller has gone already.
            tokio::time::sleep(AFTER_FAILURE).await;
            continue;
        };
        // A caller that breaks HTTP, or is too slow, has ended its connection.
        match place {
            Place::Regular(permit) => {
                let connection = http.serve_connection(stream, TowerToHyperService::new(regular.clone()));
                let connection = graceful.watch(connection);
                tokio::spawn(async move {
                    let _ = connection.await;
                    drop(permit);
                });
            }
            Place::Spare(permit) => {
                let connection = once.serve_connection(stream, TowerToHyperService::new(spare.clone()));
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(LONGEST_SPARE, connection).await;
                    drop(permit);
                });
            }
        }
    }
    drop(listener);
    graceful.shutdown().await;
}

/// The next place that is free, a regular one first.
async fn place([regular, spare]: &[Arc<Semaphore>; 2]) -> Place {
    // Why expect nothing else: a semaphore fails only once it is closed, and these never are.
    tokio::select! {
        biased;
        Ok(permit) = Arc::clone(regular).acquire_owned() => Place::Regular(permit),
        Ok(permit) = Arc::clone(spare).acquire_owned() => Place::Spare(permit),
        else => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    async fn ask(address: SocketAddr) -> (TcpStream, String) {
        let mut caller = TcpStream::connect(address).await.unwrap();
        caller.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        let mut answer = vec![0; 1_024];
        let length = caller.read(&mut answer).await.unwrap();
        answer.truncate(length);
        (caller, String::from_utf8(answer).unwrap())
    }

    #[tokio::test]
    async fn probes_are_answered_while_every_other_connection_is_open() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let routers = ["regular", "spare"].map(|name| Router::new().route("/", get(async move || name)));
        let server = tokio::spawn(serve(listener, routers, [2, 1], async {
            let _ = stopped.await;
        }));
        let (one, first) = ask(address).await;
        let (other, second) = ask(address).await;
        assert!(first.ends_with("regular") && second.ends_with("regular"), "{first} {second}");
        for _ in 0..3 {
            let (_, beyond) = ask(address).await;
            assert!(beyond.ends_with("spare") && beyond.contains("connection: close"), "{beyond}");
        }
        drop(one);
        // The place is free once the server has seen its caller go.
        let mut last = String::new();
        for _ in 0..1_000 {
            last = ask(address).await.1;
            if last.ends_with("regular") {
                break;
            }
        }
        assert!(last.ends_with("regular"), "{last}");
        drop((other, stop));
        server.await.unwrap();
    }
}
