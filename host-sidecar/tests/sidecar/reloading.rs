//! Another configuration while the sidecar runs.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{FakeProxy, FakeWorker, Page, TOKEN, until, until_answered};
use admission_core::view::ViewDocument;
use host_sidecar::{Config, Sidecar};

const STEADY: Page = Page::Steady { used: 50 };

fn text(proxies: &[&FakeProxy], workers: &[&FakeWorker], more: &str) -> String {
    let proxies: Vec<_> =
        proxies.iter().map(|proxy| format!("{{url: 'http://{}', token: {TOKEN}}}", proxy.server.address)).collect();
    let workers: Vec<_> = workers.iter().map(|worker| format!("'{}'", worker.address())).collect();
    format!(
        "listen: 127.0.0.1:0\nscrape: {{interval: 20ms, timeout: 5s, down_after: 10s}}\n\
         push: {{heartbeat: 100ms, timeout: 2s}}\nproxies: [{}]\npools: [{{name: p, model: m, workers: [{}]}}]\n{more}",
        proxies.join(", "),
        workers.join(", ")
    )
}

/// Every document that a proxy was sent.
fn seen(proxy: &FakeProxy) -> Vec<ViewDocument> {
    proxy.with(|control| control.seen.clone())
}

#[tokio::test]
async fn workers_and_proxies_come_and_go_and_what_stays_is_not_disturbed() {
    let (stays, goes, comes) = (FakeWorker::start(STEADY), FakeWorker::start(STEADY), FakeWorker::start(STEADY));
    let (first, second) = (FakeProxy::start(), FakeProxy::start());
    let sidecar = Sidecar::start(Config::parse(&text(&[&first], &[&stays, &goes], "")).unwrap()).await.unwrap();
    until("both are known", || first.worker(&stays.address()).and(first.worker(&goes.address()))).await;
    let before = seen(&first).last().unwrap().generation;

    sidecar.configure(Config::parse(&text(&[&first, &second], &[&stays, &comes], "")).unwrap()).unwrap();
    until("the new worker is told to the new proxy", || second.worker(&comes.address())).await;
    until("and to the old one", || first.worker(&comes.address())).await;
    assert!(first.worker(&goes.address()).is_none(), "the one that has gone is not");
    let asked = goes.asked();
    let scraped = comes.asked();
    until("others are scraped on", || (comes.asked() > scraped + 3).then_some(())).await;
    assert!(goes.asked() <= asked + 1, "and it is not, but for a scrape that was under way");
    let documents = seen(&first);
    let generations: Vec<_> = documents.iter().map(|document| document.generation).collect();
    assert!(generations.windows(2).all(|pair| pair[0] < pair[1]), "{generations:?}");
    assert!(generations.last().unwrap() > &before);

    sidecar.configure(Config::parse(&text(&[&second], &[&stays], "")).unwrap()).unwrap();
    until("the worker has gone for the second proxy", || second.worker(&comes.address()).is_none().then_some(())).await;
    let quiet = seen(&first).len();
    let busy = seen(&second).len();
    until("the second is told on", || (seen(&second).len() > busy + 3).then_some(())).await;
    assert!(seen(&first).len() <= quiet + 1, "the first is told no more, but for a push that was under way");
}

#[tokio::test]
async fn a_bad_configuration_is_refused_whole() {
    let (worker, other) = (FakeWorker::start(STEADY), FakeWorker::start(STEADY));
    let proxy = FakeProxy::start();
    let sidecar = Sidecar::start(Config::parse(&text(&[&proxy], &[&worker], "")).unwrap()).await.unwrap();
    until("the worker is known", || proxy.worker(&worker.address())).await;
    let with = |more: &str| Config::parse(&text(&[&proxy], &[&other], more)).unwrap();
    let refused = |config| sidecar.configure(config).unwrap_err().iter().map(ToString::to_string).collect::<Vec<_>>();
    let mut moved = with("");
    moved.listen.set_port(9);
    assert_eq!(refused(moved), ["listen: cannot become 127.0.0.1:9 without a restart"]);
    let problems = refused(with("api: {token_file: /nowhere/at/all}"));
    assert!(problems[0].starts_with("api.token_file: cannot read /nowhere/at/all"), "{problems:?}");
    assert_eq!(other.asked(), 0, "nothing of them was taken over");
    let page = reqwest::get(format!("http://{}/metrics", sidecar.address())).await.unwrap().text().await.unwrap();
    assert!(page.contains("sluice_sidecar_configurations_total{result=\"refused\"} 2"), "{page}");
}

#[tokio::test]
async fn other_intervals_hold_without_waiting_for_the_old_ones() {
    let (worker, exporter) =
        (FakeWorker::start(STEADY), FakeWorker::start(Page::Text("DCGM_FI_DEV_FB_USED{gpu=\"0\"} 1\n")));
    let proxy = FakeProxy::start();
    let config = |interval: &str| {
        let text = format!(
            "{{listen: '127.0.0.1:0', scrape: {{interval: {interval}}}, hardware: {{interval: {interval}}}, \
             proxies: [{{url: 'http://{}', token: {TOKEN}}}], \
             pools: [{{name: p, workers: [{{address: '{}', hardware_url: 'http://{}/metrics'}}]}}]}}",
            proxy.server.address,
            worker.address(),
            exporter.address()
        );
        Config::parse(&text).unwrap()
    };
    let sidecar = Sidecar::start(config("20ms")).await.unwrap();
    let are_asked = |more: u64| {
        let before = (worker.asked(), exporter.asked());
        move |worker: &FakeWorker, exporter: &FakeWorker| {
            (worker.asked() >= before.0 + more && exporter.asked() >= before.1 + more).then_some(())
        }
    };
    let often = are_asked(3);
    until("both are read often", || often(&worker, &exporter)).await;
    sidecar.configure(config("12h")).unwrap();
    // Looks that were under way end; then nothing is to happen for hours.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let (scrapes, looks) = (worker.asked(), exporter.asked());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!((worker.asked(), exporter.asked()), (scrapes, looks));
    sidecar.configure(config("20ms")).unwrap();
    let often = are_asked(3);
    until("both are read often again", || often(&worker, &exporter)).await;
}

/// The program itself, killed at the end of the test.
struct Running(Child);

impl Running {
    fn start(config: &Path) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_sluice-sidecar"))
            .args(["run", "--log-format", "json", "--config"])
            .arg(config)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn log(&mut self) -> impl Iterator<Item = serde_json::Value> + use<> {
        let lines = BufReader::new(self.0.stderr.take().unwrap()).lines();
        lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap())
    }

    fn address(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        line.trim().strip_prefix("listening on ").unwrap().to_owned()
    }

    fn hang_up(&self) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args(["-HUP", &id]).status().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn the_file_is_read_again_when_it_changes_and_on_hangup() {
    let (worker, other) = (FakeWorker::start(STEADY), FakeWorker::start(STEADY));
    let proxy = FakeProxy::start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sidecar.yaml");
    std::fs::write(&path, text(&[&proxy], &[&worker], "")).unwrap();
    let mut running = Running::start(&path);
    let mut log = running.log();
    let page = format!("http://{}/metrics", running.address());
    let counted = async |result: &str, count: u64| {
        let line = format!("sluice_sidecar_configurations_total{{result=\"{result}\"}} {count}");
        until_answered(&line, async || {
            let page = reqwest::get(&page).await.ok()?.text().await.ok()?;
            page.lines().any(|found| found == line).then_some(())
        })
        .await;
    };
    until("the worker is known", || proxy.worker(&worker.address())).await;

    std::fs::write(&path, text(&[&proxy], &[&other], "")).unwrap();
    until("the other is told", || proxy.worker(&other.address())).await;
    counted("taken", 1).await;
    std::fs::write(&path, text(&[], &[&worker], "pool: 1\n")).unwrap();
    counted("refused", 1).await;
    let problem = log.find(|line| line["level"] == "ERROR").unwrap();
    let problem = problem["problem"].as_str().unwrap();
    assert!(problem.contains("proxies: must not be empty") && problem.contains("pool: no such field"), "{problem}");
    assert!(proxy.worker(&other.address()).is_some(), "the one before stays");

    running.hang_up();
    counted("refused", 2).await;
    std::fs::write(&path, text(&[&proxy], &[&worker], "")).unwrap();
    running.hang_up();
    until("the first is back", || proxy.worker(&worker.address())).await;
}

#[tokio::test]
async fn a_secret_that_comes_after_its_configuration_is_found() {
    let (worker, other) = (FakeWorker::start(STEADY), FakeWorker::start(STEADY));
    let proxy = FakeProxy::start();
    let folder = tempfile::tempdir().unwrap();
    let (path, secret) = (folder.path().join("sidecar.yaml"), folder.path().join("token"));
    std::fs::write(&path, text(&[&proxy], &[&worker], "")).unwrap();
    let mut running = Running::start(&path);
    let mut log = running.log();
    until("the worker is known", || proxy.worker(&worker.address())).await;

    let api = format!("api: {{token_file: '{}'}}\n", secret.display());
    std::fs::write(&path, text(&[&proxy], &[&other], &api)).unwrap();
    let problem = log.find(|line| line["level"] == "ERROR").unwrap();
    assert!(problem["problem"].as_str().unwrap().starts_with("api.token_file: cannot read"), "{problem}");
    std::fs::write(&secret, "let-me-in").unwrap();
    until("the other is told, though the configuration has not changed again", || proxy.worker(&other.address())).await;
}
