//! How sidecars reach proxies: sockets, TLS, restarts, and each other.

use std::path::Path;

use host_sidecar::Sidecar;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use wasm_tests::authority::{Authority, Identity, dns};
use wasm_tests::bootstrap::{self, Plugin};
use wasm_tests::envoy::Envoy;
use wasm_tests::rig::{Rig, Setup, TOKEN, Wait, eventually};
use wasm_tests::{artefacts, sidecar};
use worker_sim::{Config, Worker};

const NAME: &str = "proxy.test";

/// The plugin of the control role, as it comes by ECDS.
fn write_control(file: &Path, version: u32, hold: &str) {
    let token_sha256 = hex::encode(Sha256::digest(TOKEN));
    let configuration = json!({"role": "control", "token_sha256": token_sha256, "hold": hold}).to_string();
    let code = artefacts::filter();
    let plugin = Plugin { name: "control", code: &code, configuration: &configuration, header_pause: true };
    let next = file.with_extension("next");
    std::fs::write(&next, plugin.ecds(version).to_string()).unwrap();
    std::fs::rename(&next, file).unwrap();
}

/// A proxy with a control listener, which `change` makes other than on a free port.
async fn proxy(plugin: &Path, change: impl FnOnce(&mut Value)) -> Envoy {
    let filters = [bootstrap::discovered("control", plugin)];
    let mut listener = bootstrap::listener("control", &filters, &bootstrap::no_routes());
    change(&mut listener);
    let mut envoy = Envoy::alone(2).await;
    envoy.serve(&[], &[listener]).await;
    envoy
}

async fn worker() -> Worker {
    Worker::start(Config::default()).await.unwrap()
}

fn pushes(url: &str, result: &str) -> String {
    format!("sluice_sidecar_pushes_total{{proxy=\"{url}\",result=\"{result}\"}}")
}

/// Waits for so many more pushes with this result.
async fn more(sidecar: &Sidecar, url: &str, result: &str, count: f64) {
    let sample = pushes(url, result);
    let before = sidecar::metric(sidecar, &sample).await;
    eventually(&format!("{count} more are {result}"), async || {
        let now = sidecar::metric(sidecar, &sample).await;
        (now >= before + count).then_some(()).ok_or(format!("{now}, before {before}"))
    })
    .await;
}

#[tokio::test]
async fn a_proxy_behind_a_socket_may_restart_or_be_reconfigured() {
    let folder = tempfile::tempdir().unwrap();
    let (plugin, socket) = (folder.path().join("control.json"), folder.path().join("control.sock"));
    write_control(&plugin, 1, "5s");
    let at_socket = |listener: &mut Value| listener["address"] = json!({"pipe": {"path": socket}});
    let envoy = proxy(&plugin, at_socket).await;
    let worker = worker().await;
    let url = format!("unix:{}", socket.display());
    let sidecar = sidecar::start(worker.address(), &json!({"proxies": [{"url": url, "token": TOKEN}]})).await;
    more(&sidecar, &url, "taken", 5.0).await;

    write_control(&plugin, 2, "6s");
    more(&sidecar, &url, "baseless", 1.0).await;
    more(&sidecar, &url, "taken", 2.0).await;

    let baseless = sidecar::metric(&sidecar, &pushes(&url, "baseless")).await;
    envoy.stop();
    more(&sidecar, &url, "failed", 1.0).await;
    let envoy = proxy(&plugin, at_socket).await;
    eventually("the new one has the view", async || {
        let page = envoy.prometheus().await.unwrap();
        let taken = wasm_tests::metrics::sum(&page, "sluice_views_total", &[("outcome", "taken")]);
        (taken >= 2).then_some(()).ok_or(taken.to_string())
    })
    .await;
    assert_eq!(sidecar::metric(&sidecar, &pushes(&url, "baseless")).await, baseless, "what failed is told whole");
}

/// A sidecar's configuration of a proxy behind TLS, with certificates in files.
fn secured(folder: &Path, url: &str, authority: &Authority, own: &Identity) -> Value {
    for (file, text) in
        [("ca.pem", authority.pem()), ("own.pem", own.pem.clone()), ("own.key", own.key.serialize_pem())]
    {
        std::fs::write(folder.join(file), text).unwrap();
    }
    let client = json!({"certificate_file": folder.join("own.pem"), "key_file": folder.join("own.key")});
    let tls = json!({"ca_file": folder.join("ca.pem"), "client_certificate": client, "server_name": NAME});
    json!({"proxies": [{"url": url, "token": TOKEN, "tls": tls}]})
}

#[tokio::test]
async fn a_proxy_behind_tls_is_told_once_both_ends_know_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = folder.path().join("control.json");
    write_control(&plugin, 1, "5s");
    let (authority, stranger) = (Authority::new(), Authority::new());
    let socket = authority.transport_socket(NAME, true);
    let envoy = proxy(&plugin, |listener| listener["filter_chains"][0]["transport_socket"] = socket).await;
    let worker = worker().await;
    let url = format!("https://{}", envoy.listener("control").await);

    let own = authority.issue(&[dns("sidecar.test")]);
    let config = secured(folder.path(), &url, &stranger, &own);
    let sidecar = sidecar::start(worker.address(), &config).await;
    more(&sidecar, &url, "failed", 2.0).await;
    assert_eq!(sidecar::metric(&sidecar, &pushes(&url, "taken")).await, 0.0, "it does not know the authority");

    // The same files, rotated while the sidecar runs.
    let unknown = stranger.issue(&[dns("sidecar.test")]);
    secured(folder.path(), &url, &authority, &unknown);
    eventually("the proxy sees a certificate that it does not trust", async || {
        let refused = envoy.stat("listener..*ssl.fail_verify_error").await.unwrap();
        (refused >= 1).then_some(()).ok_or(refused.to_string())
    })
    .await;
    assert_eq!(sidecar::metric(&sidecar, &pushes(&url, "taken")).await, 0.0, "the proxy does not know the sidecar");

    secured(folder.path(), &url, &authority, &own);
    more(&sidecar, &url, "taken", 3.0).await;
}

#[tokio::test]
async fn a_wrong_token_is_counted_and_a_right_one_found() {
    let rig = Rig::start(Setup::new(1, Wait::Unread)).await;
    let worker = worker().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "wrong").unwrap();
    let url = format!("http://{}", rig.control_address());
    let sidecar = sidecar::start(worker.address(), &json!({"proxies": [{"url": url, "token_file": file}]})).await;
    more(&sidecar, &url, "unauthorized", 2.0).await;
    assert!(rig.count("sluice_views_total", &[("outcome", "unauthorized")]).await >= 2);
    std::fs::write(&file, TOKEN).unwrap();
    more(&sidecar, &url, "taken", 2.0).await;
}

/// Epoch and generation of what stands.
async fn stands(rig: &Rig) -> (u64, u64) {
    let view = rig.state().await["view"].clone();
    (view["epoch"].as_u64().unwrap_or(0), view["generation"].as_u64().unwrap_or(0))
}

#[tokio::test]
async fn of_two_sidecars_the_later_is_obeyed_until_it_is_gone() {
    let mut setup = Setup::new(2, Wait::Unread);
    setup.control = json!({"hold": "1s"});
    let rig = Rig::start(setup).await;
    let worker = worker().await;
    let url = format!("http://{}", rig.control_address());
    let config = json!({"proxies": [{"url": url, "token": TOKEN}]});
    let first = sidecar::start(worker.address(), &config).await;
    more(&first, &url, "taken", 3.0).await;
    let (old, _) = stands(&rig).await;

    let second = sidecar::start(worker.address(), &config).await;
    more(&second, &url, "taken", 1.0).await;
    let (new, before) = stands(&rig).await;
    assert!(new > old, "{new} after {old}");
    more(&first, &url, "refused", 3.0).await;
    let (epoch, generation) = stands(&rig).await;
    assert!(epoch == new && generation > before, "the earlier gives way and the later goes on");
    assert!(rig.count("sluice_views_total", &[("outcome", "older")]).await >= 3);
    let failed = sidecar::metric(&second, &pushes(&url, "refused")).await;
    assert_eq!(failed, 0.0, "nobody takes turns");

    second.stop().await;
    eventually("the first is obeyed again", async || {
        let (epoch, _) = stands(&rig).await;
        (epoch == old).then_some(()).ok_or(epoch.to_string())
    })
    .await;
    more(&first, &url, "taken", 3.0).await;
}

#[tokio::test]
async fn a_clock_that_was_set_back_locks_no_sidecar_out() {
    let mut setup = Setup::new(1, Wait::Unread);
    setup.control = json!({"hold": "1s"});
    let rig = Rig::start(setup).await;
    // What a sidecar said that started by a clock that ran years ahead.
    let ahead = u64::MAX - 1;
    assert_eq!(rig.push_view(ahead, 7, json!({"workers": []})).await.0, 200);
    let worker = worker().await;
    let url = format!("http://{}", rig.control_address());
    let sidecar = sidecar::start(worker.address(), &json!({"proxies": [{"url": url, "token": TOKEN}]})).await;
    more(&sidecar, &url, "taken", 3.0).await;
    assert!(stands(&rig).await.0 < ahead);
}
