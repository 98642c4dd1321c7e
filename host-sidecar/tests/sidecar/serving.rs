//! The sidecar's own HTTP and its command line.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{API_TOKEN, FakeProxy, FakeWorker, Mood, Page, TOKEN, sidecar, until, until_answered};
use admission_core::view::WorkerState;
use host_sidecar::{Config, Sidecar};
use reqwest::{Client, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const STEADY: Page = Page::Steady { used: 50 };

async fn answer(request: RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

async fn get(url: String) -> reqwest::Result<reqwest::Response> {
    Client::builder().no_proxy().build()?.get(url).send().await
}

fn url(address: SocketAddr, path: &str) -> String {
    format!("http://{address}{path}")
}

#[tokio::test]
async fn thresholds_are_read_and_set() {
    let worker = FakeWorker::start(STEADY);
    let proxy = FakeProxy::start();
    let sidecar = sidecar(&proxy, &[&worker], "push: {heartbeat: 1h, timeout: 1s}").await;
    let client = Client::builder().no_proxy().build().unwrap();
    let url = url(sidecar.address(), "/busy_threshold");
    let post = |body: Value| answer(client.post(&url).bearer_auth(API_TOKEN).json(&body));
    let row = |decode: Value, prefill: Value| {
        json!({"model": "m", "active_decode_blocks_threshold": decode, "active_prefill_tokens_threshold": prefill,
               "active_prefill_tokens_threshold_frac": null})
    };
    until("the worker is known", || proxy.worker(&worker.address()).filter(|worker| !worker.busy)).await;

    assert_eq!(answer(client.get(&url)).await, (200, json!({"thresholds": [row(json!(0.85), Value::Null)]})));
    assert_eq!(post(json!({"model": "m"})).await, (200, row(json!(0.85), Value::Null)));
    let set = json!({"model": "m", "active_decode_blocks_threshold": null, "active_prefill_tokens_threshold": 9});
    assert_eq!(post(set).await, (200, row(json!(0.85), json!(9))));
    let set = json!({"model": "m", "active_decode_blocks_threshold": 0.4});
    assert_eq!(post(set).await, (200, row(json!(0.4), json!(9))));
    until("the worker is busy", || proxy.worker(&worker.address()).filter(|worker| worker.busy)).await;

    let (status, unknown) = post(json!({"model": "x"})).await;
    assert_eq!((status, &unknown["active_decode_blocks_threshold"]), (200, &Value::Null));
}

#[tokio::test]
async fn thresholds_that_were_set_outlast_a_restart_where_a_file_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("thresholds.json");
    let worker = FakeWorker::start(STEADY);
    let start = async |decode: f64, file: &Path| {
        let config = json!({
            "listen": "127.0.0.1:0", "api": {"token": API_TOKEN, "thresholds_file": file}, "proxies": [{"url": "http://127.0.0.1:1", "token": "t"}],
            "pools": [{"name": "p", "busy": {"active_decode_blocks_threshold": decode}, "workers": [worker.address()]}],
        });
        Sidecar::start(Config::from_value(config).unwrap()).await
    };
    let client = Client::builder().no_proxy().build().unwrap();
    let stands = async |sidecar: &Sidecar| {
        let (_, all) = answer(client.get(url(sidecar.address(), "/busy_threshold"))).await;
        all["thresholds"][0]["active_decode_blocks_threshold"].as_f64().unwrap()
    };
    let set = async |sidecar: &Sidecar| {
        let set = json!({"model": "p", "active_decode_blocks_threshold": 0.4});
        answer(client.post(url(sidecar.address(), "/busy_threshold")).bearer_auth(API_TOKEN).json(&set)).await
    };
    let sidecar = start(0.85, &file).await.unwrap();
    assert_eq!(set(&sidecar).await.0, 200);
    sidecar.stop().await;
    let sidecar = start(0.85, &file).await.unwrap();
    assert_eq!(stands(&sidecar).await, 0.4);
    sidecar.stop().await;
    let sidecar = start(0.9, &file).await.unwrap();
    assert_eq!(stands(&sidecar).await, 0.9, "a new word of the configuration counts");
    sidecar.stop().await;

    let nowhere = folder.path().join("gone").join("thresholds.json");
    let sidecar = start(0.85, &nowhere).await.unwrap();
    let (status, refused) = set(&sidecar).await;
    assert!(status == 500 && refused["error"].as_str().unwrap().contains("nothing was changed"), "{refused}");
    assert_eq!(stands(&sidecar).await, 0.85);
    sidecar.stop().await;
    std::fs::write(&file, "no JSON").unwrap();
    let error = start(0.85, &file).await.unwrap_err().to_string();
    assert!(error.starts_with("api.thresholds_file: "), "{error}");
}

#[tokio::test]
async fn changing_thresholds_and_reading_views_take_the_token() {
    let worker = FakeWorker::start(STEADY);
    let proxy = FakeProxy::start();
    let sidecar = sidecar(&proxy, &[&worker], "").await;
    let client = Client::builder().no_proxy().build().unwrap();
    let (thresholds, view) = (url(sidecar.address(), "/busy_threshold"), url(sidecar.address(), "/v1/view"));
    let set = json!({"model": "m", "active_decode_blocks_threshold": 0.1});
    until("the worker is known", || proxy.worker(&worker.address())).await;
    // The second is sent once the sidecar has read the answer to the first.
    until("two views are taken", || (proxy.taken() >= 2).then_some(())).await;
    for request in [
        client.post(&thresholds).json(&set),
        client.post(&thresholds).bearer_auth("let-me-out").json(&set),
        client.get(&view),
        client.get(&view).header("authorization", format!("Basic {API_TOKEN}")),
    ] {
        let (status, body) = answer(request).await;
        assert_eq!((status, &body), (401, &json!({"error": "the bearer token is missing or wrong"})));
    }
    let (_, standing) = answer(client.post(&thresholds).json(&json!({"model": "m"}))).await;
    assert_eq!(standing["active_decode_blocks_threshold"], json!(0.85), "nothing was set, and anybody may read that");

    let (status, seen) = answer(client.get(&view).bearer_auth(API_TOKEN)).await;
    assert_eq!(status, 200);
    let told = &seen["pools"]["p"]["workers"][0];
    assert_eq!((&told["address"], &told["state"]), (&json!(worker.address()), &json!("up")), "{seen}");
    assert!(seen["proxies"][0]["took_view_ms_ago"].is_u64(), "{seen}");
    let page = client.get(url(sidecar.address(), "/metrics")).send().await.unwrap().text().await.unwrap();
    assert!(page.contains("sluice_sidecar_unauthorized_requests_total 4"), "{page}");
}

/// The whole length is claimed and none of it sent.
#[tokio::test]
async fn a_question_without_the_token_is_answered_before_its_body_comes() {
    let worker = FakeWorker::start(STEADY);
    let proxy = FakeProxy::start();
    let sidecar = sidecar(&proxy, &[&worker], "").await;
    let mut caller = TcpStream::connect(sidecar.address()).await.unwrap();
    let head = "POST /v1/view HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n";
    caller.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    caller.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
}

#[tokio::test]
async fn without_a_configured_token_nobody_changes_thresholds() {
    let worker = FakeWorker::start(STEADY);
    let proxy = FakeProxy::start();
    let config = format!(
        "{{listen: '127.0.0.1:0', proxies: [{{url: 'http://{}', token: t}}], pools: [{{name: m, workers: ['{}']}}]}}",
        proxy.server.address,
        worker.address()
    );
    let sidecar = Sidecar::start(Config::parse(&config).unwrap()).await.unwrap();
    let client = Client::builder().no_proxy().build().unwrap();
    let set = json!({"model": "m", "active_decode_blocks_threshold": 0.1});
    let request = client.post(url(sidecar.address(), "/busy_threshold")).bearer_auth("").json(&set);
    let (status, body) = answer(request).await;
    assert_eq!(status, 403);
    assert!(body["error"].as_str().unwrap().contains("set api.token_file"), "{body}");
}

#[tokio::test]
async fn wrong_threshold_requests_say_what_is_wrong() {
    let worker = FakeWorker::start(STEADY);
    let proxy = FakeProxy::start();
    let sidecar = sidecar(&proxy, &[&worker], "").await;
    let client = Client::builder().no_proxy().build().unwrap();
    let url = url(sidecar.address(), "/busy_threshold");
    let json = |body: &str| {
        client.post(&url).bearer_auth(API_TOKEN).header("content-type", "application/json").body(body.to_owned())
    };
    let long = format!("{{\"model\":\"{}\"}}", "m".repeat(70_000));
    for (request, expected) in [
        (json(r#"{"model":"m","active_decode_blocks_threshold":1.5}"#), 400),
        (json(r#"{"model":"m","active_prefill_tokens_threshold_frac":-1}"#), 400),
        (json(r#"{"model":"m""#), 400),
        (json(r#"{"model":"x","active_prefill_tokens_threshold":1}"#), 404),
        (json(&long), 413),
        (client.post(&url).body(r#"{"model":"m"}"#), 415),
        (json(r#"{"model":"m","active_prefill_tokens_threshold":-1}"#), 422),
        (json(r#"{"model":"m","active_prefill_tokens_threshold":"9"}"#), 422),
        (json(r#"{"model":"m","threshold":1}"#), 422),
        (json(r#"{}"#), 422),
    ] {
        let (status, body) = answer(request).await;
        assert_eq!(status, expected, "{body}");
        assert!(body["error"].as_str().is_some_and(|error| !error.is_empty()), "{body}");
    }
}

#[tokio::test]
async fn ready_while_every_worker_was_tried_and_every_proxy_takes_views() {
    let worker = FakeWorker::start(Page::Hang);
    let proxy = FakeProxy::start();
    proxy.set(Mood::Status(500));
    let sidecar = sidecar(&proxy, &[&worker], "scrape: {interval: 20ms, timeout: 1h}").await;
    let client = Client::builder().no_proxy().build().unwrap();
    let address = sidecar.address();
    let ready = async || answer(client.get(url(address, "/readyz"))).await;
    assert_eq!(client.get(url(address, "/healthz")).send().await.unwrap().status(), StatusCode::OK);

    let (status, body) = ready().await;
    assert_eq!(status, 503);
    let worker_missing = format!("pool p: worker {} has not been scraped yet", worker.address());
    let proxy_missing = format!("proxy http://{} has not taken a view yet", proxy.server.address);
    assert_eq!(body, json!({"ready": false, "missing": [worker_missing, proxy_missing]}));

    worker.set(STEADY);
    until_answered("only the proxy is missing", async || {
        (ready().await.1["missing"] == json!([proxy_missing])).then_some(())
    })
    .await;
    proxy.set(Mood::Taking);
    until_answered("all is well", async || {
        (ready().await == (200, json!({"ready": true, "missing": []}))).then_some(())
    })
    .await;
    proxy.set(Mood::Hang);
    let (_, late) =
        until_answered("the proxy is late", async || Some(ready().await).filter(|(status, _)| *status == 503)).await;
    assert!(late["missing"][0].as_str().unwrap().contains("has not taken a view for 300ms"), "{late}");
    proxy.set(Mood::Taking);
    until_answered("all is well again", async || (ready().await.0 == 200).then_some(())).await;
}

#[tokio::test]
async fn ready_only_when_every_proxy_has_a_view_of_every_pool() {
    let (first, second) = (FakeWorker::start(STEADY), FakeWorker::start(Page::Hang));
    let proxy = FakeProxy::start();
    // What was taken once is fresh for hours.
    let text = format!(
        "{{listen: '127.0.0.1:0', scrape: {{interval: 20ms, timeout: 1h, down_after: 2h}}, push: {{heartbeat: 1h}}, \
         proxies: [{{url: 'http://{}', token: {TOKEN}}}], \
         pools: [{{name: p, workers: ['{}']}}, {{name: q, workers: ['{}']}}]}}",
        proxy.server.address,
        first.address(),
        second.address()
    );
    let sidecar = Sidecar::start(Config::parse(&text).unwrap()).await.unwrap();
    let client = Client::builder().no_proxy().build().unwrap();
    let missing = async || answer(client.get(url(sidecar.address(), "/readyz"))).await.1["missing"].clone();
    until("a view of the first pool is taken", || (proxy.taken() > 0).then_some(())).await;
    let first_lacks = json!([format!("pool q: worker {} has not been scraped yet", second.address())]);
    until_answered("only the second is missing", async || (missing().await == first_lacks).then_some(())).await;

    proxy.set(Mood::Status(500));
    second.set(STEADY);
    let lacks = json!([format!("proxy http://{} has not taken a view of pool q yet", proxy.server.address)]);
    until_answered("only the view is missing", async || (missing().await == lacks).then_some(())).await;
    proxy.set(Mood::Taking);
    until_answered("all is well", async || (missing().await == json!([])).then_some(())).await;
}

#[tokio::test]
async fn the_command_says_once_that_there_is_no_nvidia_library_where_there_is_none() {
    let (mut child, _folder) = command(
        "{listen: '127.0.0.1:0', hardware: {nvml: true}, proxies: [{url: 'http://127.0.0.1:9', token: t}], \
         pools: [{name: p, workers: ['127.0.0.1:9']}]}",
    );
    let lines = BufReader::new(child.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    let said = lines.take_while(|line| !line.contains("proxy takes no views")).collect::<Vec<_>>();
    assert!(child.0.try_wait().unwrap().is_none(), "it runs on");
    drop(child);
    let expected = usize::from(!std::path::Path::new("/dev/nvidiactl").exists());
    assert_eq!(said.iter().filter(|line| line.contains("no NVIDIA library")).count(), expected, "{said:?}");
}

#[tokio::test]
async fn the_metrics_page_tells_of_workers_and_proxies() {
    let worker = FakeWorker::start(STEADY);
    let proxy = FakeProxy::start();
    let sidecar = sidecar(&proxy, &[&worker], "").await;
    until("views are taken", || (proxy.taken() >= 2).then_some(())).await;
    let response = get(url(sidecar.address(), "/metrics")).await.unwrap();
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("application/openmetrics-text"));
    let page = response.text().await.unwrap();
    let labels = format!("{{pool=\"p\",worker=\"{}\"}}", worker.address());
    for line in
        [format!("sluice_sidecar_worker_up{labels} 1.0"), format!("sluice_sidecar_worker_kv_used_ratio{labels} 0.5")]
    {
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
    let taken = format!("sluice_sidecar_pushes_total{{proxy=\"http://{}\",result=\"taken\"}} ", proxy.server.address);
    let taken = page.lines().find_map(|line| line.strip_prefix(&taken)).unwrap();
    assert!(taken.parse::<u64>().unwrap() >= 1);
}

struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(config: &str) -> (Reaped, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sidecar.yaml");
    std::fs::write(&file, config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-sidecar"));
    command.args(["run", "--config"]).arg(file).stdout(Stdio::piped()).stderr(Stdio::piped());
    (Reaped(command.spawn().unwrap()), folder)
}

#[tokio::test]
async fn the_command_serves_until_it_is_told_to_stop() {
    let worker = FakeWorker::start(STEADY);
    let proxy = FakeProxy::start();
    let (mut child, _folder) = command(&format!(
        "{{listen: '127.0.0.1:0', api: {{token: {API_TOKEN}}}, proxies: [{{url: 'http://{}', token: {TOKEN}}}], \
         pools: [{{name: p, workers: ['{}']}}]}}",
        proxy.server.address,
        worker.address()
    ));
    let mut line = String::new();
    BufReader::new(child.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim_end().strip_prefix("listening on ").unwrap().parse::<SocketAddr>().unwrap();
    until("views are taken", || (proxy.taken() > 0).then_some(())).await;
    assert_eq!(get(url(address, "/healthz")).await.unwrap().status(), StatusCode::OK);

    for _ in 0..3 {
        assert_eq!(get(url(address, "/v1/view")).await.unwrap().status(), StatusCode::UNAUTHORIZED);
    }

    let killed = Command::new("kill").arg(child.0.id().to_string()).status().unwrap();
    assert!(killed.success());
    let status = until("it has ended", || child.0.try_wait().unwrap()).await;
    assert!(status.success(), "{status}");
    let mut log = String::new();
    child.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains("proxy takes views") && log.contains("stopping"), "{log}");
    assert_eq!(log.matches("without the token of `api`").count(), 1, "said once: {log}");
    assert!(!log.contains(TOKEN) && !log.contains(API_TOKEN), "the token is no business of the log");
}

/// A proxy is told of a worker by a sidecar of its own process, with fast timings.
fn lone_sidecar(proxy: &FakeProxy, worker: &FakeWorker) -> String {
    format!(
        "{{listen: '127.0.0.1:0', scrape: {{interval: 20ms, timeout: 100ms, stale_after: 200ms, down_after: 500ms}}, \
         push: {{heartbeat: 30ms}}, proxies: [{{url: 'http://{}', token: {TOKEN}}}], \
         pools: [{{name: p, workers: ['{}']}}]}}",
        proxy.server.address,
        worker.address()
    )
}

fn kill(child: &Reaped, signal: &str) {
    assert!(Command::new("kill").args([signal, &child.0.id().to_string()]).status().unwrap().success());
}

#[tokio::test]
async fn a_pause_of_the_whole_process_takes_no_worker_down() {
    let (worker, proxy) = (FakeWorker::start(STEADY), FakeProxy::start());
    let (child, _folder) = command(&lone_sidecar(&proxy, &worker));
    until("the worker is up", || proxy.worker(&worker.address()).filter(|worker| worker.state == WorkerState::Up))
        .await;
    for _ in 0..3 {
        kill(&child, "-STOP");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (taken, asked) = (proxy.taken(), worker.asked());
        kill(&child, "-CONT");
        until("it goes on", || (proxy.taken() >= taken + 5 && worker.asked() >= asked + 5).then_some(())).await;
    }
    let told = proxy.with(|control| control.taken.clone());
    assert!(told.iter().all(|document| document.pools["p"].workers[0].state == WorkerState::Up), "{told:?}");
}

#[tokio::test]
async fn scrapes_go_on_and_the_command_ends_while_its_configuration_hangs() {
    let (worker, proxy) = (FakeWorker::start(STEADY), FakeProxy::start());
    let (mut child, folder) = command(&lone_sidecar(&proxy, &worker));
    let file = folder.path().join("sidecar.yaml");
    until("the worker is known", || proxy.worker(&worker.address())).await;
    std::fs::remove_file(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    // Whoever reads a pipe waits for a writer: the thread of the configuration, within a second.
    let stuck = tokio::task::spawn_blocking(move || std::fs::OpenOptions::new().write(true).open(file).unwrap());
    let held = stuck.await.unwrap();
    let asked = worker.asked();
    until("it is read on", || (worker.asked() > asked + 20).then_some(())).await;
    kill(&child, "-TERM");
    let status = until("it has ended", || child.0.try_wait().unwrap()).await;
    assert!(status.success(), "{status}");
    drop(held);
}

#[tokio::test]
async fn ready_without_a_question_where_proxies_ask() {
    let worker = FakeWorker::start(STEADY);
    let text = format!(
        "{{listen: '127.0.0.1:0', api: {{token: t}}, scrape: {{interval: 20ms}}, pools: [{{name: p, workers: ['{}']}}]}}",
        worker.address()
    );
    let sidecar = Sidecar::start(Config::parse(&text).unwrap()).await.unwrap();
    let client = Client::builder().no_proxy().build().unwrap();
    let ready = async || answer(client.get(url(sidecar.address(), "/readyz"))).await;
    until_answered("its pool is known", async || {
        (ready().await == (200, json!({"ready": true, "missing": []}))).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_command_ends_while_a_file_hangs() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("workers.yaml");
    // Whoever opens a pipe to read it waits until somebody writes.
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (mut child, _folder) = command(&format!(
        "{{listen: '127.0.0.1:0', proxies: [{{url: 'http://127.0.0.1:9', token: t}}], \
         pools: [{{name: p, discover: [{{file: {{path: '{}'}}}}]}}]}}",
        pipe.display()
    ));
    let mut line = String::new();
    BufReader::new(child.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let threads = format!("/proc/{}/task", child.0.id());
    // The others are those of the pushes and of the configuration.
    let hangs = || (std::fs::read_dir(&threads).unwrap().count() > 3).then_some(());
    until("a thread looks at the file", hangs).await;
    assert!(Command::new("kill").arg(child.0.id().to_string()).status().unwrap().success());
    let status = until("it has ended", || child.0.try_wait().unwrap()).await;
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn the_command_names_every_mistake_and_fails() {
    let (mut child, _folder) = command("{listen: here, proxies: [], pools: [{name: p, workers: ['127.0.0.1']}]}");
    let status = until("it has ended", || child.0.try_wait().unwrap()).await;
    assert!(!status.success());
    let mut log = String::new();
    child.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    for mistake in
        ["listen: \"here\"", "proxies: must not be empty", "pools[0].workers[0]: \"127.0.0.1\" is not host:port"]
    {
        assert!(log.contains(mistake), "{mistake} is not in\n{log}");
    }
}
