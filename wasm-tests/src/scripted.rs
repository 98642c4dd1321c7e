//! A worker that streams what it was told before, and ends its answers by trailers.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// What ends each of its answers.
pub const TRAILER: &str = "x-worker-is: done";

/// What it has sent to all connections.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sent {
    /// Parts of scripts.
    pub parts: usize,
    /// Bytes, with all that HTTP puts around them.
    pub bytes: u64,
}

/// Answers each connection's request with the next script: server-sent events.
pub struct Scripted {
    address: SocketAddr,
    told: Arc<Notify>,
    sent: Arc<Mutex<Sent>>,
    task: JoinHandle<()>,
}

impl Scripted {
    /// Starts on a free port. Of a script it sends the first part at once, each other one when it is told to, and behind the
    /// last, in one write with it, [`TRAILER`].
    pub async fn start(scripts: &[Vec<String>]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let told = Arc::new(Notify::new());
        let sent = Arc::<Mutex<Sent>>::default();
        let (telling, counting) = (Arc::clone(&told), Arc::clone(&sent));
        let scripts: Vec<Vec<Vec<u8>>> = scripts.iter().map(|parts| writes(parts)).collect();
        let task = tokio::spawn(async move {
            for script in scripts {
                let Ok((stream, _)) = listener.accept().await else { return };
                answer(stream, &script, &telling, &counting).await;
            }
        });
        Self { address, told, sent, task }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has sent so far.
    #[must_use]
    pub fn sent(&self) -> Sent {
        *self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets it send the next part.
    pub fn go_on(&self) {
        self.told.notify_one();
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn writes(parts: &[String]) -> Vec<Vec<u8>> {
    let chunk = |part: &String| format!("{:x}\r\n{part}\r\n", part.len());
    let mut writes: Vec<String> = parts.iter().map(chunk).collect();
    if let Some(first) = writes.first_mut() {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
        first.insert_str(0, head);
    }
    if let Some(last) = writes.last_mut() {
        last.push_str(&format!("0\r\n{TRAILER}\r\n\r\n"));
    }
    writes.into_iter().map(String::into_bytes).collect()
}

async fn answer(mut stream: TcpStream, writes: &[Vec<u8>], told: &Notify, sent: &Mutex<Sent>) {
    let mut request = Vec::new();
    while !is_whole(&request) {
        match stream.read_buf(&mut request).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
    for (place, bytes) in writes.iter().enumerate() {
        if place > 0 {
            told.notified().await;
        }
        if stream.write_all(bytes).await.is_err() {
            return;
        }
        let mut sent = sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.parts += 1;
        sent.bytes += bytes.len() as u64;
    }
    // The proxy closes when it has read all.
    let _ = stream.read(&mut [0]).await;
}

/// Whether these bytes are a request with all of the body that it promises.
fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
    body.len() >= length
}
