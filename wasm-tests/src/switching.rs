//! A worker that agrees to every upgrade and CONNECT, and sends back what comes through; except on one path, where it answers as if it knew none.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The path on which an upgrade is a plain GET.
pub const DEAF: &str = "/ws/deaf";

/// Agrees on each connection once.
pub struct Switching {
    address: SocketAddr,
    behind: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Switching {
    /// Starts on a free port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let behind = Arc::<AtomicUsize>::default();
        let counting = Arc::clone(&behind);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(switch(stream, Arc::clone(&counting)));
            }
        });
        Self { address, behind, task }
    }

    /// The place where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bytes that came behind what it took for a plain GET, which a server reads as its next request.
    #[must_use]
    pub fn behind(&self) -> usize {
        self.behind.load(Ordering::Relaxed)
    }
}

impl Drop for Switching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn switch(mut stream: TcpStream, behind: Arc<AtomicUsize>) {
    let mut seen = Vec::new();
    while !seen.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => seen.push(byte),
            Err(_) => return,
        }
    }
    if seen.starts_with(format!("GET {DEAF} ").as_bytes()) {
        // Whether it can be sent or not, what comes is counted.
        let _sent = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        while stream.read_u8().await.is_ok() {
            behind.fetch_add(1, Ordering::Relaxed);
        }
        return;
    }
    let answer = match seen.starts_with(b"CONNECT ") {
        true => "HTTP/1.1 200 OK\r\n\r\n",
        false => "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    };
    if stream.write_all(answer.as_bytes()).await.is_ok() {
        let (mut read, mut write) = stream.split();
        // Ends with the connection, however that ends.
        let _ended = tokio::io::copy(&mut read, &mut write).await;
    }
}
