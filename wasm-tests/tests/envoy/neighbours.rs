//! The filter and the sidecar of the release before, beside those of this one. `cargo xtask neighbours COMMIT` builds the parts of
//! that commit and runs these tests.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::process::{Child, Command};
use wasm_tests::rig::{Rig, Setup, TOKEN, Wait, eventually};
use wasm_tests::{artefacts, sidecar};

/// A sidecar process of the release before; ends with its owner.
struct Before {
    _child: Child,
    _folder: tempfile::TempDir,
}

impl Before {
    fn start(config: &Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sidecar.json");
        std::fs::write(&file, config.to_string()).unwrap();
        let mut command = Command::new(artefacts::neighbour("sluice-sidecar"));
        let child = command.arg("run").arg("--config").arg(&file).kill_on_drop(true).spawn().unwrap();
        Self { _child: child, _folder: folder }
    }
}

fn scraping(worker: SocketAddr) -> Value {
    json!({
        "listen": "127.0.0.1:0", "scrape": {"interval": "20ms", "timeout": "5s", "down_after": "5s"},
        "push": {"heartbeat": "100ms"}, "pools": [{"name": "main", "workers": [worker.to_string()]}],
    })
}

async fn more_views(rig: &Rig, count: u64) {
    let before = rig.count("sluice_views_total", &[("outcome", "taken")]).await;
    eventually("views are taken", async || {
        let taken = rig.count("sluice_views_total", &[("outcome", "taken")]).await;
        (taken >= before + count).then_some(()).ok_or_else(|| format!("{taken}, before {before}"))
    })
    .await;
}

/// Views are taken before and after a tenant has held its cap, none is refused, and nothing is left over.
async fn views_are_taken_while_a_cap_holds(rig: &Rig) {
    more_views(rig, 5).await;
    let held = rig.hold("capped", 4).await;
    assert_eq!(rig.ask("capped", &[]).await, (429, "tenant_requests".to_owned()));
    drop(held);
    rig.worker.set_faults([]);
    rig.nothing_is_held().await;
    more_views(rig, 5).await;
    assert_eq!(rig.count("sluice_views_total", &[("outcome", "malformed")]).await, 0);
}

#[tokio::test]
#[ignore = "cargo xtask neighbours runs it"]
async fn the_sidecar_before_tells_this_filter() {
    let rig = Rig::start(Setup::new(2, Wait::Unread)).await;
    rig.ask("acme", &[]).await;
    let mut config = scraping(rig.worker.address());
    config["proxies"] = json!([{"url": format!("http://{}", rig.control_address()), "token": TOKEN}]);
    let _before = Before::start(&config);
    views_are_taken_while_a_cap_holds(&rig).await;
}

#[tokio::test]
#[ignore = "cargo xtask neighbours runs it"]
async fn this_filter_asks_the_sidecar_before() {
    let worker = worker_sim::Worker::start(worker_sim::Config::default()).await.unwrap();
    let mut config = scraping(worker.address());
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    (config["listen"], config["api"]) = (json!(port.to_string()), json!({"token": "to-be-pulled"}));
    let policy = json!({"pull": {"cluster": "sidecar", "token": "to-be-pulled"}});
    let mut setup = Setup::new(2, Wait::Unread).with("/view", policy);
    setup.clusters.push(("sidecar", port));
    let rig = Rig::start(setup).await;
    rig.ask("acme", &[]).await;
    let _before = Before::start(&config);
    views_are_taken_while_a_cap_holds(&rig).await;
}

#[tokio::test]
#[ignore = "cargo xtask neighbours runs it"]
async fn this_sidecar_tells_the_filter_before() {
    let mut setup = Setup::new(2, Wait::Unread).alone();
    setup.code = Some(artefacts::neighbour("sluice.wasm"));
    let rig = Rig::start(setup).await;
    rig.ask("acme", &[]).await;
    let url = format!("http://{}", rig.control_address());
    let mut config = scraping(rig.worker.address());
    config["proxies"] = json!([{"url": url, "token": TOKEN}]);
    let sidecar = sidecar::start(rig.worker.address(), &config).await;
    views_are_taken_while_a_cap_holds(&rig).await;
    let sample = format!("sluice_sidecar_pushes_total{{proxy=\"{url}\",result=\"unread\"}}");
    assert_eq!(sidecar::metric(&sidecar, &sample).await, 0.0);
}
