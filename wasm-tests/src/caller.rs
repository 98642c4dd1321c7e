//! Callers: some well behaved, some that hang up in the middle.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Path of the API most tests use.
pub const CHAT: &str = "/v1/chat/completions";

/// Longest wait for an answer; far beyond what any takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Reads that bring more than what had come before the first of them.
const MORE: usize = 8;

/// A chat request of a few words.
#[must_use]
pub fn chat(model: &str, max_tokens: u32, stream: bool) -> Value {
    json!({
        "messages": [{"role": "user", "content": "Say something, please."}],
        "max_tokens": max_tokens, "stream": stream, "model": model,
    })
}

/// The bytes of an HTTP/1.1 request. Without a size its body is one chunk; the last chunk is left off.
#[must_use]
pub fn request_bytes(path: &str, headers: &[(&str, &[u8])], body: &[u8], sized: bool) -> Vec<u8> {
    let mut bytes = format!("POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n").into_bytes();
    for (name, value) in headers {
        bytes.extend_from_slice(&[name.as_bytes(), b": ", value, b"\r\n"].concat());
    }
    if sized {
        bytes.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
        bytes.extend_from_slice(body);
    } else {
        bytes.extend_from_slice(format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n", body.len()).as_bytes());
        bytes.extend_from_slice(body);
        bytes.extend_from_slice(b"\r\n0\r\n\r\n");
    }
    bytes
}

/// A caller on a connection of its own, byte by byte. Dropping it hangs up.
pub struct RawCaller {
    stream: TcpStream,
}

impl RawCaller {
    /// Connects and sends these bytes, which may be any part of a request.
    pub async fn send(address: SocketAddr, bytes: &[u8]) -> Self {
        let mut stream = TcpStream::connect(address).await.expect("connect to Envoy");
        stream.set_nodelay(true).expect("set nodelay");
        // Envoy may answer and close before it has read all; what it answered is what counts then.
        let _ = stream.write_all(bytes).await;
        Self { stream }
    }

    /// Sends more of the request; false when the connection is closed, since an answer may already be there.
    pub async fn send_more(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok()
    }

    /// Reads until these bytes have come, or the connection ends; all that was read.
    pub async fn read_until(&mut self, wanted: &str) -> String {
        let mut read = Vec::new();
        let mut chunk = [0; 16_384];
        while !String::from_utf8_lossy(&read).contains(wanted) {
            match self.stream.read(&mut chunk).await {
                Ok(0) | Err(_) => break,
                Ok(count) => read.extend_from_slice(&chunk[..count]),
            }
        }
        String::from_utf8_lossy(&read).into_owned()
    }

    /// The head of the answer and its body, which ends where its length says or else with the connection: the proxy takes its
    /// time to close one. Both are empty when the connection ends without an answer.
    ///
    /// # Panics
    /// When neither end comes.
    pub async fn last_answer(&mut self) -> (String, Vec<u8>) {
        let mut read = Vec::new();
        let whole = tokio::time::timeout(PATIENCE, async {
            // A reset is an end too.
            while !is_whole(&read) && matches!(self.stream.read_buf(&mut read).await, Ok(1..)) {}
        });
        assert!(whole.await.is_ok(), "no end of the answer: {}", String::from_utf8_lossy(&read));
        let body = read.split_off(end_of_head(&read).unwrap_or(read.len()));
        (String::from_utf8_lossy(&read).into_owned(), body)
    }

    /// Whether an answer that has begun goes on, rather than end here.
    ///
    /// # Panics
    /// When it does neither.
    pub async fn goes_on(&mut self) -> bool {
        let mut chunk = vec![0; 1 << 20];
        let more = tokio::time::timeout(PATIENCE, async {
            // What has come before stands in between.
            for _ in 0..MORE {
                match self.stream.read(&mut chunk).await {
                    Ok(0) | Err(_) => return false,
                    Ok(_) => {}
                }
            }
            true
        });
        more.await.expect("a stream that goes on or ends")
    }

    /// The status of the answer; `None` when the connection ends without one.
    pub async fn status(&mut self) -> Option<u16> {
        self.read_until("\r\n\r\n").await.split_whitespace().nth(1)?.parse().ok()
    }
}

fn end_of_head(answer: &[u8]) -> Option<usize> {
    answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").map(|place| place + 4)
}

/// Whether an answer has all of the body that its head promises.
fn is_whole(answer: &[u8]) -> bool {
    let Some(end) = end_of_head(answer) else { return false };
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    length.is_some_and(|length| answer.len() - end >= length)
}

/// A connection that is kept alive, over which one caller asks again and again: a client that opened another behind our back
/// would hide that the proxy had closed it.
pub struct KeptAlive {
    sender: SendRequest<Full<Bytes>>,
    _driver: JoinSet<()>,
}

impl KeptAlive {
    /// Connects.
    ///
    /// # Panics
    /// When it cannot.
    pub async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("connect to Envoy");
        stream.set_nodelay(true).expect("set nodelay");
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("an HTTP/1.1 connection");
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // What breaks a connection is told to the request on it.
            let _ = connection.await;
        });
        Self { sender, _driver: driver }
    }

    /// Posts JSON to [`CHAT`].
    ///
    /// # Errors
    /// A sentence when the connection gives no answer.
    ///
    /// # Panics
    /// When a header cannot be one.
    pub async fn post(&mut self, headers: &[(&str, &str)], body: String) -> Result<Response<Incoming>, String> {
        let request = Request::post(CHAT).header("host", "test").header("content-type", "application/json");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let request = request.body(Full::from(body)).expect("a request");
        self.sender.ready().await.map_err(|error| format!("the connection is gone: {error}"))?;
        self.sender.send_request(request).await.map_err(|error| format!("no answer: {error}"))
    }
}

/// Whether the proxy closes the connection behind this answer. It does, and says so, where it answered before it had noticed
/// the end of the request.
#[must_use]
pub fn is_last(answer: &Response<Incoming>) -> bool {
    answer.headers().contains_key("connection")
}
