//! A worker that breaks its connections.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Reads a request and resets the connection: before it answers, or, when the path says `amid`, amid a stream once it is
/// told to.
pub struct Resetter {
    address: SocketAddr,
    told: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Resetter {
    /// Starts on a free port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let told = Arc::new(Notify::new());
        let telling = Arc::clone(&told);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(reset(stream, Arc::clone(&telling)));
            }
        });
        Self { address, told, task }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Resets the stream that has begun, or the next that begins.
    pub fn reset_stream(&self) {
        self.told.notify_one();
    }
}

impl Drop for Resetter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn reset(mut stream: TcpStream, told: Arc<Notify>) {
    let mut request = Vec::new();
    while !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        match stream.read_buf(&mut request).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
    if String::from_utf8_lossy(&request).contains("/amid/") {
        let head =
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n6\r\ndata: \r\n";
        if stream.write_all(head).await.is_ok() {
            told.notified().await;
        }
    }
    let _ = stream.set_zero_linger();
}
