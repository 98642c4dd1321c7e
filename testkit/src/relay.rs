//! A TCP relay that can lead elsewhere, and can be cut.
//!
//! Who speaks through it knows one address, whatever is behind it now; while it is cut, connections stand and no byte passes,
//! as in a network that is partitioned.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// Bytes passed on at once.
const PIECE: usize = 16 << 10;

/// A relay that passes until it is dropped.
pub struct Relay {
    address: SocketAddr,
    wires: Arc<watch::Sender<Wires>>,
    task: JoinHandle<()>,
}

#[derive(Clone, Copy)]
struct Wires {
    target: SocketAddr,
    cut: bool,
}

impl Relay {
    /// Listens on a free port of loopback and leads to `target`.
    ///
    /// # Errors
    /// When no port is to be had.
    pub async fn start(target: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("no port for a relay")?;
        let address = listener.local_addr()?;
        let wires = Arc::new(watch::Sender::new(Wires { target, cut: false }));
        let seen = wires.subscribe();
        let task = tokio::spawn(async move {
            // Dropped with the task, which ends all connections.
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        if let Ok((caller, _)) = accepted {
                            connections.spawn(pass(caller, seen.clone()));
                        }
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Self { address, wires, task })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Leads connections that come from now on to another place; those that stand end.
    pub fn lead_to(&self, target: SocketAddr) {
        self.wires.send_modify(|wires| wires.target = target);
    }

    /// Passes no bytes any more, or passes them again.
    pub fn set_cut(&self, cut: bool) {
        self.wires.send_modify(|wires| wires.cut = cut);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Passes both ways, until either end has gone or the relay leads elsewhere.
async fn pass(caller: TcpStream, mut wires: watch::Receiver<Wires>) {
    let target = wires.borrow().target;
    whole(&mut wires).await;
    let Ok(server) = TcpStream::connect(target).await else { return };
    let _ = (caller.set_nodelay(true), server.set_nodelay(true));
    let ((from_caller, to_caller), (from_server, to_server)) = (caller.into_split(), server.into_split());
    let moved = wires.clone();
    tokio::select! {
        () = copy(from_caller, to_server, wires.clone()) => {}
        () = copy(from_server, to_caller, wires) => {}
        () = elsewhere(target, moved) => {}
    }
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut wires: watch::Receiver<Wires>) {
    let mut piece = vec![0; PIECE];
    while let Ok(size @ 1..) = from.read(&mut piece).await {
        whole(&mut wires).await;
        if to.write_all(piece.get(..size).unwrap_or_default()).await.is_err() {
            return;
        }
    }
    // The end passes no sooner than bytes do.
    whole(&mut wires).await;
}

/// Waits while the relay is cut. It ends too when the relay has gone.
async fn whole(wires: &mut watch::Receiver<Wires>) {
    let _ = wires.wait_for(|wires| !wires.cut).await;
}

async fn elsewhere(target: SocketAddr, mut wires: watch::Receiver<Wires>) {
    let _ = wires.wait_for(|wires| wires.target != target).await;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Says its own sign to everyone who says anything.
    async fn sayer(sign: u8) -> (SocketAddr, JoinSet<()>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (address, mut task) = (listener.local_addr().unwrap(), JoinSet::new());
        task.spawn(async move {
            let mut served = JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                served.spawn(
                    async move { while stream.read_u8().await.is_ok() && stream.write_u8(sign).await.is_ok() {} },
                );
            }
        });
        (address, task)
    }

    async fn ask(stream: &mut TcpStream) -> std::io::Result<u8> {
        stream.write_u8(0).await?;
        stream.read_u8().await
    }

    #[tokio::test]
    async fn it_leads_elsewhere_and_passes_nothing_while_it_is_cut() {
        let ((one, _one), (two, _two)) = (sayer(1).await, sayer(2).await);
        let relay = Relay::start(one).await.unwrap();
        let mut stream = TcpStream::connect(relay.address()).await.unwrap();
        assert_eq!(ask(&mut stream).await.unwrap(), 1);

        relay.set_cut(true);
        stream.write_u8(0).await.unwrap();
        // That nothing comes can only be waited for.
        assert!(tokio::time::timeout(Duration::from_millis(100), stream.read_u8()).await.is_err());
        relay.set_cut(false);
        assert_eq!(stream.read_u8().await.unwrap(), 1, "what was said meanwhile is not lost");

        relay.lead_to(two);
        assert!(stream.read_u8().await.is_err(), "the connection that stood has ended");
        let mut stream = TcpStream::connect(relay.address()).await.unwrap();
        assert_eq!(ask(&mut stream).await.unwrap(), 2);
    }
}
