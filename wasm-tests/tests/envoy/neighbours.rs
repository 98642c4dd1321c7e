//! The filter and the sidecar of the release before, beside those of this one. `cargo xtask neighbours COMMIT` builds the parts of
//! that commit and runs these tests.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::process::{Child, Command};
use wasm_tests::caller::RawCaller;
use wasm_tests::rig::{Rig, Setup, TOKEN, Wait, eventually};
use wasm_tests::steady::{self, Load};
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

/// Streams of a tenant that no configuration names, as many as the filter lets start up to `most`.
async fn streams(rig: &Rig, most: usize) -> Vec<RawCaller> {
    let mut callers = Vec::new();
    while callers.len() < most {
        match rig.try_endless("cust-076", &[]).await {
            Ok(caller) => callers.push(caller),
            Err(_) => break,
        }
    }
    callers
}

/// The other build may count unnamed tenants in shared records, where this one has a ledger for each.
#[tokio::test]
#[ignore = "cargo xtask neighbours runs it"]
async fn an_unnamed_tenants_cap_outlives_the_change_to_its_own_ledger() {
    let before = artefacts::neighbour("sluice.wasm");
    let mut setup = Setup::new(2, Wait::Unread).patient().with("/tenants/*", json!({"max_in_flight": 4})).alone();
    steady::number(&mut setup.policy, 0);
    setup.code = Some(before.clone());
    let mut rig = Rig::start(setup).await;
    let load = Load::start(&rig, 0).await;
    let mut of_before = streams(&rig, 9).await;
    assert_eq!(of_before.len(), 4);

    load.change_code(&mut rig, artefacts::filter()).await;
    assert_eq!(streams(&rig, 1).await.len(), 0, "what the former filter holds counts");
    of_before.truncate(2);
    let mut of_this = Vec::new();
    eventually("what has ended is given back", async || {
        (held(&rig).await == 2).then_some(()).ok_or_else(|| "more is held".to_owned())
    })
    .await;
    of_this.extend(streams(&rig, 9).await);
    assert_eq!(of_this.len(), 2, "four in all");
    drop(of_before);
    let heartbeats = async || {
        let members = rig.state().await["members"].clone();
        let beats: Vec<u64> =
            members.as_array().expect("members").iter().filter_map(|it| it["heartbeat"].as_u64()).collect();
        (beats.len(), beats.iter().sum::<u64>())
    };
    let gone = eventually("the former filter's VMs are gone", async || {
        let (vms, beats) = heartbeats().await;
        (vms == 2).then_some(beats).ok_or(format!("{vms} VMs"))
    })
    .await;
    eventually("this filter's VMs know it", async || {
        let beats = heartbeats().await.1;
        (beats >= gone + 6).then_some(()).ok_or(format!("{beats}, then {gone}"))
    })
    .await;
    of_this.extend(streams(&rig, 9).await);
    assert_eq!(of_this.len(), 4, "two while those of before were held, and two since");
    // The control listener's filter is that of before: it shows own ledgers if it knows of any, else the two in shared records.
    let knows_own_ledgers = rig.state().await["unnamed_tenants"].is_object();
    let known = if knows_own_ledgers { 4 } else { 2 };
    assert_eq!(held(&rig).await, known);

    load.change_code(&mut rig, before).await;
    let back = streams(&rig, 9).await;
    assert_eq!(back.len() as u64, 4 - known, "on the way back more is let in by what it does not know of, and no more");
    drop((of_this, back));
    load.stop().await;
    rig.nothing_is_held().await;
}

/// Requests that unnamed tenants hold.
async fn held(rig: &Rig) -> u64 {
    let page = rig.state().await;
    let of =
        |kind: &str| page[kind].as_object().into_iter().flatten().filter_map(|(_, held)| held["requests"].as_u64());
    of("unnamed_tenants").chain(of("shared_tenants")).sum()
}
