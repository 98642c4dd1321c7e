//! Workers that break HTTP in every way, each beside a sound one: what the metrics say, what the log says of whom, and that the
//! connection is used again only where it may be.

use std::collections::BTreeMap;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{FakeProxy, FakeWorker, Page, TOKEN, until, until_answered};
use admission_core::view::WorkerState;
use host_sidecar::{Config, Sidecar};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tracing::subscriber::DefaultGuard;

/// What a worker does with a request that it has read.
#[derive(Clone)]
enum Answer {
    /// None: each connection is closed before anything is read from it.
    Hangup,
    /// These bytes, and the next request is waited for.
    Bytes(String),
    /// These bytes, and the connection is closed.
    Last(String),
    /// These bytes, and the connection is closed when it has been idle for a moment.
    Idle(String),
    /// These bytes, and nothing more while the connection is open.
    Stuck(String),
    /// These bytes, and the connection is reset.
    Reset(String),
    /// This head, and so many bytes behind it.
    Flood(String, usize),
}

/// A worker on a socket.
struct Raw {
    address: String,
    connections: Arc<AtomicU64>,
    requests: Arc<AtomicU64>,
    /// Most bytes that went out on one connection.
    flooded: Arc<AtomicU64>,
    _task: JoinSet<()>,
}

impl Raw {
    async fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let counts: [Arc<AtomicU64>; 3] = Default::default();
        let [connections, requests, flooded] = counts.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut open = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                counts[0].fetch_add(1, Ordering::Relaxed);
                open.spawn(converse(stream, answer.clone(), counts.clone()));
            }
        });
        Self { address, connections, requests, flooded, _task: task }
    }

    fn counted(&self) -> (u64, u64) {
        (self.connections.load(Ordering::Relaxed), self.requests.load(Ordering::Relaxed))
    }
}

async fn converse(mut stream: TcpStream, answer: Answer, [_, requests, flooded]: [Arc<AtomicU64>; 3]) {
    let (Answer::Bytes(text)
    | Answer::Last(text)
    | Answer::Idle(text)
    | Answer::Stuck(text)
    | Answer::Reset(text)
    | Answer::Flood(text, _)) = &answer
    else {
        return;
    };
    while request(&mut stream).await {
        requests.fetch_add(1, Ordering::Relaxed);
        if stream.write_all(text.as_bytes()).await.is_err() {
            return;
        }
        match &answer {
            Answer::Bytes(_) | Answer::Hangup => {}
            Answer::Last(_) => return,
            Answer::Idle(_) => return tokio::time::sleep(Duration::from_millis(5)).await,
            Answer::Stuck(_) => {
                let _ = stream.read(&mut [0; 64]).await;
                return;
            }
            Answer::Reset(_) => {
                let _ = stream.set_zero_linger();
                return;
            }
            Answer::Flood(_, length) => {
                let mut left = *length;
                while left > 0 {
                    match stream.write(&vec![b'#'; left.min(1 << 16)]).await {
                        Ok(written) => left -= written,
                        Err(_) => break,
                    }
                }
                flooded.fetch_max((length - left) as u64, Ordering::Relaxed);
                return;
            }
        }
    }
}

/// Whether a whole one came.
async fn request(stream: &mut TcpStream) -> bool {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte).await {
            Ok(1..) => head.push(byte[0]),
            _ => return false,
        }
    }
    [&b"GET /metrics HTTP/1.1\r\n"[..], b"GET /metrics/?name"].iter().any(|line| head.starts_with(line))
}

const GOOD: &str = "vllm:num_requests_running{engine=\"0\"} 3.0\n";

fn ok(headers: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\n{headers}\r\n{body}")
}

fn sized(length: usize, body: &str) -> String {
    ok(&format!("content-length: {length}\r\n"), body)
}

/// Lines of the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        std::io::Write::write(&mut *self.0.lock().unwrap(), bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Takes what is logged on this thread for as long as the second part lives.
    fn here() -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let logging = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        (log, tracing::subscriber::set_default(logging))
    }

    fn of_worker(&self, address: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| line.contains(address)).map(str::to_owned).collect()
    }
}

/// Reads two workers, each as a pool of its own: `bad` and `p`.
async fn sidecar(proxy: &FakeProxy, bad: &str, good: &str, timeout: &str) -> Sidecar {
    let config = json!({
        "listen": "127.0.0.1:0",
        "scrape": {"interval": "20ms", "timeout": timeout},
        "proxies": [{"url": format!("http://{}", proxy.server.address), "token": TOKEN}],
        "pools": [{"name": "bad", "workers": [bad]}, {"name": "p", "workers": [good]}],
    });
    Sidecar::start(Config::from_value(config).unwrap()).await.unwrap()
}

async fn metrics(sidecar: &Sidecar) -> String {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    client.get(format!("http://{}/metrics", sidecar.address())).send().await.unwrap().text().await.unwrap()
}

/// Scrapes of a pool by how they ended.
async fn scrapes(sidecar: &Sidecar, pool: &str) -> BTreeMap<String, u64> {
    let page = metrics(sidecar).await;
    let prefix = format!("sluice_sidecar_scrapes_total{{pool=\"{pool}\",result=\"");
    let lines = page.lines().filter_map(|line| line.strip_prefix(&prefix)?.split_once("\"} "));
    lines.map(|(result, count)| (result.to_owned(), count.parse().unwrap())).collect()
}

/// Reads a bad worker until it has been read five times, and checks that all scrapes but the first few ended as said, that the
/// log names it once with these words, and that the sound worker beside it stays up.
async fn expect(answer: Answer, result: &str, words: &str) -> Raw {
    let (log, _logging) = Log::here();
    let raw = Raw::start(answer).await;
    let good = FakeWorker::start(Page::Steady { used: 10 });
    let proxy = FakeProxy::start();
    // What does not hang is to have all the time that a busy machine takes.
    let timeout = if result == "timeout" { "200ms" } else { "20s" };
    let sidecar = sidecar(&proxy, &raw.address, &good.address(), timeout).await;
    let counted = until_answered("it has been read five times", || async {
        let counted = scrapes(&sidecar, "bad").await;
        (counted.values().sum::<u64>() >= 5).then_some(counted)
    })
    .await;
    let others: Vec<_> = counted.iter().filter(|(name, count)| *name != result && **count > 0).collect();
    assert!(others.is_empty(), "expected {result}: {counted:?}");
    let lines = log.of_worker(&raw.address);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains(words), "{words:?} is not in {lines:?}");
    let report = until("the sound worker is told of", || proxy.worker(&good.address())).await;
    assert_eq!(report.state, WorkerState::Up);
    raw
}

#[tokio::test]
async fn one_connection_carries_every_page() {
    let raw = expect(Answer::Bytes(sized(GOOD.len(), GOOD)), "ok", "worker answers").await;
    assert!(matches!(raw.counted(), (1, 5..)), "{:?}", raw.counted());
}

#[tokio::test]
async fn chunked_pages_are_read_on_one_connection() {
    let (first, second) = GOOD.split_at(10);
    let body = format!("a\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n", second.len());
    let raw = expect(Answer::Bytes(ok("transfer-encoding: chunked\r\n", &body)), "ok", "worker answers").await;
    assert_eq!(raw.counted().0, 1);
}

#[tokio::test]
async fn workers_that_close_after_each_page_are_read_without_a_failure() {
    for answer in [
        Answer::Last(sized(GOOD.len(), GOOD)),
        Answer::Idle(sized(GOOD.len(), GOOD)),
        Answer::Last(ok(&format!("connection: close\r\ncontent-length: {}\r\n", GOOD.len()), GOOD)),
        Answer::Last(ok("", GOOD)),
        Answer::Last(format!("HTTP/1.0 200 OK\r\n\r\n{GOOD}")),
    ] {
        let raw = expect(answer, "ok", "worker answers").await;
        let (connections, requests) = raw.counted();
        assert!(requests >= 5 && connections >= requests, "{connections} connections, {requests} requests");
    }
}

#[tokio::test]
async fn workers_that_hang_up_before_they_are_asked_cannot_be_read() {
    let raw = expect(Answer::Hangup, "connection", "worker cannot be read").await;
    let (connections, requests) = raw.counted();
    assert!(connections >= 2 && requests == 0, "{connections} connections, {requests} requests");
}

#[tokio::test]
async fn hanging_before_or_in_the_middle_of_a_page_is_a_timeout() {
    for begun in [String::new(), "HTTP/1.1 200 OK\r\nconte".to_owned(), sized(GOOD.len() + 1, GOOD)] {
        expect(Answer::Stuck(begun), "timeout", "no answer in time").await;
    }
}

#[tokio::test]
async fn pages_that_break_off_are_no_pages() {
    let cut = sized(GOOD.len() + 1, GOOD);
    expect(Answer::Last(cut.clone()), "connection", "worker cannot be read").await;
    expect(Answer::Reset(cut), "connection", "worker cannot be read").await;
    expect(Answer::Reset(String::new()), "connection", "worker cannot be read").await;
    let chunked = ok("transfer-encoding: chunked\r\n", "ff\r\nvllm:num_requests_running 3\n");
    expect(Answer::Last(chunked), "connection", "worker cannot be read").await;
    expect(Answer::Bytes(ok("transfer-encoding: chunked\r\n", "zz\r\n")), "connection", "worker cannot be read").await;
}

#[tokio::test]
async fn a_length_that_is_too_short_spoils_only_its_connection() {
    let raw = expect(Answer::Bytes(sized(GOOD.len(), &format!("{GOOD}more"))), "ok", "worker answers").await;
    let (connections, requests) = raw.counted();
    assert!(
        connections >= requests,
        "what came behind the page must not be taken for the next: {connections}, {requests}"
    );
}

#[tokio::test]
async fn endless_pages_are_given_up_at_the_limit() {
    const MIB: usize = 1 << 20;
    let huge = 100 * MIB;
    let told = format!("HTTP/1.1 200 OK\r\ncontent-length: {huge}\r\n\r\n");
    let untold = "HTTP/1.1 200 OK\r\n\r\n".to_owned();
    for head in [told, untold] {
        let raw = expect(Answer::Flood(head, huge), "too_large", "more than 4194304 bytes").await;
        let flooded = raw.flooded.load(Ordering::Relaxed);
        assert!(flooded < 50 * MIB as u64, "{flooded} bytes were taken");
    }
    let head = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "x".repeat(MIB));
    expect(Answer::Bytes(head), "connection", "worker cannot be read").await;
}

#[tokio::test]
async fn other_statuses_are_no_pages_and_redirects_are_not_followed() {
    let elsewhere = Raw::start(Answer::Bytes(sized(GOOD.len(), GOOD))).await;
    let moved =
        format!("HTTP/1.1 301 Moved\r\nlocation: http://{}/metrics\r\ncontent-length: 0\r\n\r\n", elsewhere.address);
    let raw = expect(Answer::Bytes(moved), "status", "status 301").await;
    assert_eq!((raw.counted().0, elsewhere.counted()), (1, (0, 0)));
    let body = "x".repeat(100);
    let unavailable = format!("HTTP/1.1 503 Unavailable\r\ncontent-length: 100\r\n\r\n{body}");
    expect(Answer::Bytes(unavailable), "server_error", "status 503").await;
    expect(Answer::Bytes("HTTP/1.1 204 None\r\n\r\n".to_owned()), "status", "status 204").await;
}

#[tokio::test]
async fn numbers_that_cannot_be_believed_are_named_and_not_told() {
    let (log, _logging) = Log::here();
    let bad = FakeWorker::start(Page::Text(
        "vllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_waiting{engine=\"0\"} -4\n\
         vllm:kv_cache_usage_perc{engine=\"0\"} NaN\nvllm:num_requests_waiting{engine=\"0\"} 2\nvllm:request_prompt",
    ));
    let good = FakeWorker::start(Page::Steady { used: 10 });
    let proxy = FakeProxy::start();
    let sidecar = sidecar(&proxy, &good.address(), &bad.address(), "20s").await;
    let report = until("the worker is told of", || proxy.worker(&bad.address())).await;
    let rank = &report.ranks[0];
    assert_eq!((rank.running, rank.waiting, rank.kv_used_share), (Some(3), None, None));

    let doubts = async || {
        let page = metrics(&sidecar).await;
        let prefix = format!("sluice_sidecar_worker_doubtful{{pool=\"p\",worker=\"{}\",number=\"", bad.address());
        let names = page.lines().filter_map(|line| Some(line.strip_prefix(&prefix)?.split_once('"')?.0.to_owned()));
        names.collect::<Vec<_>>()
    };
    let mut found = doubts().await;
    found.sort();
    assert_eq!(found, ["kv_used_share", "last_line", "waiting"]);
    let lines = log.of_worker(&bad.address());
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("WARN") && lines[0].contains("kv_used_share, waiting, last_line"), "{lines:?}");

    bad.set(Page::Steady { used: 10 });
    until_answered("it is believed again", async || doubts().await.is_empty().then_some(())).await;
    let answers = |line: &String| line.contains("worker answers");
    until("the log says so", || log.of_worker(&bad.address()).iter().any(answers).then_some(())).await;
}

#[tokio::test]
async fn another_cause_is_another_line_of_the_log() {
    let (log, _logging) = Log::here();
    let (bad, good) = (FakeWorker::start(Page::Status(503)), FakeWorker::start(Page::Steady { used: 10 }));
    let proxy = FakeProxy::start();
    let _sidecar = sidecar(&proxy, &bad.address(), &good.address(), "20s").await;
    let is_said = |words: &str| log.of_worker(&bad.address()).iter().any(|line| line.contains(words)).then_some(());
    until("the first cause is said", || is_said("status 503")).await;
    bad.set(Page::Status(404));
    until("and the other", || is_said("status 404")).await;
    let asked = bad.asked();
    until("it is read on", || (bad.asked() > asked + 5).then_some(())).await;
    assert_eq!(log.of_worker(&bad.address()).len(), 2, "each once");
}

#[tokio::test]
async fn what_is_no_page_or_no_http_is_said() {
    let html = "<!doctype html><html><body>Welcome</body></html>\n";
    expect(Answer::Bytes(sized(html.len(), html)), "page", "worker cannot be read").await;
    expect(Answer::Last("220 mail.example.org ESMTP\r\n".to_owned()), "connection", "worker cannot be read").await;
    expect(Answer::Last("\u{0}\u{1}\u{2}".repeat(1_000)), "connection", "worker cannot be read").await;
}
