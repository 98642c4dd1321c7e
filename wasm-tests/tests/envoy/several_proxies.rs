//! Two gateways before the same workers, each of which counts by itself.

use serde_json::json;
use wasm_tests::rig::{Rig, Setup, TOKEN, Wait, eventually};
use wasm_tests::sidecar;

const NO_QUEUE: (&str, &str) = ("x-sluice-no-queue", "true");

#[tokio::test]
async fn two_gateways_let_in_twice_as_much_and_everybody_says_so() {
    let setup = || Setup::new(1, Wait::Unread).patient().with("/pools/0/max_in_flight", json!(2));
    let (one, other) = (Rig::start(setup()).await, Rig::start(setup()).await);
    let proxy = |rig: &Rig| json!({"url": format!("http://{}", rig.control_address()), "token": TOKEN});
    // The state page knows a pool by its first request.
    assert_eq!((one.ask("acme", &[]).await.0, other.ask("acme", &[]).await.0), (200, 200));
    let sidecar = sidecar::start(one.worker.address(), &json!({"proxies": [proxy(&one), proxy(&other)]})).await;
    for rig in [&one, &other] {
        eventually("its view says that there is another", async || {
            let view = rig.state().await["pools"]["main"]["view"].clone();
            (view["other_proxies"] == 1).then_some(()).ok_or_else(|| view.to_string())
        })
        .await;
    }
    assert!(sidecar::metric(&sidecar, "sluice_sidecar_pool_proxies{pool=\"main\"}").await > 1.0);
    let mut held = Vec::new();
    for rig in [&one, &other] {
        held.extend([rig.endless("acme", &[]).await, rig.endless("acme", &[]).await]);
        assert_eq!(rig.ask("acme", &[NO_QUEUE]).await, (429, "pool_requests".to_owned()));
    }
    assert_eq!(held.len(), 4, "twice the cap of two");
    drop(held);
    one.nothing_is_held().await;
    other.nothing_is_held().await;
}
