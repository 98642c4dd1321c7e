//! A worker that breaks its connections.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Reads a request and resets the connection: before it answers, or amid a stream when the path says `amid`.
pub struct Resetter {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Resetter {
    /// Starts on a free port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(reset(stream));
            }
        });
        Self { address, task }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Resetter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn reset(mut stream: TcpStream) {
    let mut request = vec![0; 65_536];
    let Ok(count) = stream.read(&mut request).await else { return };
    if String::from_utf8_lossy(&request[..count]).contains("/amid/") {
        let head =
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n6\r\ndata: \r\n";
        let _ = stream.write_all(head).await;
        // The caller's next read proves that the head went through before the reset.
        let _ = tokio::time::timeout(Duration::from_millis(50), stream.read(&mut request)).await;
    }
    let _ = stream.set_zero_linger();
}
